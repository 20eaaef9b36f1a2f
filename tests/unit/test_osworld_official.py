"""Metrics that flywheel lacks are desktop-env's: which of its functions judge, and which never do."""

from __future__ import annotations

import pytest
from osworlds import example, gold, mine

from flywheel.envs.computer.osworld import conversion, official
from flywheel.envs.computer.osworld.commands import MalformedTask, UnsupportedTask
from flywheel.envs.computer.osworld.conversion import AssumedCopies, OsworldExample, convert_example
from flywheel.envs.computer.osworld.runner import place_in_checker
from flywheel.utils.errors import BadInput


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment in which a package of desktop-env's form lies."""
    folder = tmp_path / official.ENVIRONMENT_NAME
    metrics = folder / "lib/python3.11/site-packages/desktop_env/evaluators/metrics"
    metrics.mkdir(parents=True)
    names = "compare_videos, check_python_file_by_test_suite, compare_image_text, exact_match, compare_table"
    (metrics / "__init__.py").write_text(f"from .vlc import ({names})\nfrom .utils import *\ndef infeasible(): pass\n")
    monkeypatch.setattr(official, "_OWN_ROOT", tmp_path)
    official.list_functions.cache_clear()
    yield folder
    official.list_functions.cache_clear()


def convert(evaluator, config=(), metrics="own", **more):
    task = example({"result": mine("a"), "expected": gold("b"), **evaluator}, [*config], **more)
    return convert_example(OsworldExample.model_validate(task), AssumedCopies(), True, 15.0, metrics)


def test_what_ours_cannot_judge_theirs_does(environment):
    (judged,) = convert({"func": "compare_videos"}).metrics
    assert (judged.module, judged.result) == ("vlc", {"file": "a", "name": "a"})
    rule = {"type": "rule", "rules": {"expected": "x"}}
    assert convert({"func": "exact_match", "expected": rule}).metrics[0].module == ""
    assert convert({"func": "exact_match", "expected": rule}, metrics="official").metrics[0].module == "vlc"
    zooms = {"rules": [{"type": "zoom", "sheet_idx": 0}]}
    assert convert({"func": "compare_table", "options": zooms}).metrics[0].module == "vlc"


@pytest.mark.parametrize(
    ("func", "why"),
    [
        ("check_python_file_by_test_suite", "runs what the agent wrote where its verdict is made: check_python"),
        ("check_gnome_favorite_apps", "runs what the agent wrote"),
        ("compare_image_text", "the weights of a model"),
        ("no_such_metric", "a metric that is not here: no_such_metric$"),
    ],
)
def test_some_of_theirs_never_judge(environment, func, why):
    for metrics in ("own", "official"):
        with pytest.raises(UnsupportedTask, match=why):
            convert({"func": func}, metrics=metrics)


def test_without_their_package_the_way_to_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(official, "_OWN_ROOT", tmp_path)
    official.list_functions.cache_clear()
    with pytest.raises(UnsupportedTask, match=r"a metric that is not here: compare_videos .*make osworld"):
        convert({"func": "compare_videos"})
    with pytest.raises(BadInput, match=r"desktop-env is not installed.*make osworld"):
        convert({"func": "compare_videos"}, metrics="official")
    assert official.list_functions() == {}


def test_what_a_later_step_prints_is_judged_as_a_file(environment):
    listed = {"type": "execute", "parameters": {"command": ["ls"], "stdout": "found.ls"}}
    evaluator = {"func": "check_list", "result": {"type": "cache_file", "path": "found.ls"}, "postconfig": [listed]}
    task = convert({**evaluator, "expected": {"type": "rule", "rules": {"expect": ["a"]}}})
    assert task.after[0]["parameters"]["stdout"] == "found.ls"
    (judged,) = task.metrics
    placed = place_in_checker(judged.result, {"printed-found.ls": b"a"})
    assert placed == {"file": "/opt/checker/printed-found.ls", "name": "found.ls"}
    assert place_in_checker(judged.result, {}) == {"value": None}
    for name in ("../x", "a/b", "..", ""):
        evaluator["result"] = {"type": "cache_file", "path": name}
        with pytest.raises(MalformedTask, match="is no file name"):
            convert(evaluator)


def test_of_several_files_those_of_gives_are_given(environment):
    several = {"type": "vm_file", "multi": True, "path": ["/home/user/a.xlsx", "~/a.csv"], "dest": ["a.xlsx", "a.csv"]}
    found = convert({"func": "compare_videos", "result": several}).metrics[0].result
    assert found == {"files": ["a.xlsx", "a.csv"], "names": ["a.xlsx", "a.csv"], "given": [0]}
    with pytest.raises(MalformedTask, match="IndexError"):
        convert({"func": "compare_videos", "result": {**several, "gives": [2]}})


def test_programs_of_their_machine_have_stand_ins(environment, monkeypatch):
    monkeypatch.setattr(conversion, "check_command", lambda *_: None)
    launch = {"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}}
    (step,) = convert({"func": "compare_videos"}, [launch]).steps
    assert step["parameters"]["command"] == ["/home/user/.local/bin/google-chrome", "--remote-debugging-port=1337"]
    assert step["parameters"]["shows_window"] is True


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (
            {"config": [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.org"]}}]},
            "the internet: tabs",
        ),
        ({"config": [{"type": "login", "parameters": {}}]}, "an account of Google"),
        ({"related_apps": ["chrome", "os"]}, "the internet: the browser beside other applications"),
        ({"instruction": "Take it from https://a.org/b."}, "the internet: https://a.org/b."),
        ({"related_apps": ["vs_code"]}, ""),
    ],
)
def test_live_sites_and_accounts_are_told(environment, monkeypatch, task, why):
    monkeypatch.setattr(conversion, "check_program", lambda _: None)
    if not why:
        assert convert({"func": "compare_videos"}, **task).metrics
        return
    with pytest.raises(UnsupportedTask, match=why):
        convert({"func": "compare_videos"}, **task)
