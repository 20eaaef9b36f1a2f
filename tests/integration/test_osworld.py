"""Tasks of OSWorld's: its own files and others in its form are read, or left out with the reason, and drawn."""

from __future__ import annotations

import json
import re
import shutil

import desktops
import pytest
from click.testing import CliRunner
from osworlds import PHOTOS, RIGHT, THEIRS, example, execute, gold, mine, opened, printed

from flywheel.cli import main
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.computer.osworld import official
from flywheel.envs.tasks import drawing as synthesis
from flywheel.envs.tasks.drawing import make_task, make_tasks
from flywheel.utils.errors import BadInput


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(official, "find_environment", lambda: None)  # what is played must not depend on it
    with opened(tmp_path) as made:
        yield made


# -- which are played -------------------------------------------------------------------------------------------------
@desktops.needed
def test_their_own_files_are_read_and_those_that_cannot_be_played_are_told(workspace):
    shutil.copytree(THEIRS / "os", workspace.root / "tasks", dirs_exist_ok=True)
    world = workspace.load("computer")
    left = {name.removeprefix("tasks_")[:8]: why for name, why in world.left_out.items()}
    assert {name.removeprefix("tasks_")[:8] for name in world.tasks} == {"b3d4a89c", "4783cc41"}
    assert left["e0df059f"] == "the rights of root: sudo"
    assert left["f9be0997"] == "GNOME or a service of the system: gsettings"
    assert left["13584542"] == "a getter that is not here: vm_terminal_output"
    assert left["23393935"].startswith("a file of the internet, of which no copy is given: monk25")
    (finding,) = [one for one in registry.find_backend("computer").diagnose(workspace.settings) if one.name == "theirs"]
    assert finding.detail.startswith("2 of 6 tasks are played; 1 need ")
    for name in PHOTOS:
        workspace.file(name, name)
    assert len(workspace.load("computer").tasks) == 3
    assert {why.partition(":")[0] for why in workspace.load("terminal").left_out.values()} >= {
        "a screen, which the kind terminal has not"
    }


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (example(RIGHT, [{"type": "update_browse_history", "parameters": {}}]), "not carried out here: update"),
        (example(RIGHT, [{"type": "launch", "parameters": {"command": ["no-such"]}}]), "not installed: no-such"),
        (example(RIGHT, [{"type": "launch", "parameters": {"command": "xterm"}}]), "a screen, .*: launches xterm"),
        (example(RIGHT, [execute(["/usr/bin/no-such"])]), "not installed: /usr/bin/no-such"),
        (example(RIGHT, [execute("cd /tmp; FOO=1 no-such -x | cat")]), "not installed: no-such"),
        (example(RIGHT, [execute(["bash", "-c", "true && no-such"])]), "not installed: no-such"),
        (example(RIGHT, [execute("echo 'a; sudo b' | sh -c 'true' && sudo ls")]), "the rights of root: sudo"),
        (example(RIGHT, [execute("python3 -c 'import urllib' https://x.org/a")]), "the internet: https://x.org/a"),
        (example(RIGHT, proxy=True), "the internet: it asks for a proxy"),
        (example(RIGHT, related_apps=["os", "no gimp"]), ""),
        (example(RIGHT, related_apps=["picard"]), "not installed: picard"),
        (example({**RIGHT, "result": {"type": "accessibility_tree"}}), "getter that is not here: accessibility_tree"),
        (example({**RIGHT, "func": "compare_videos"}), "metric that is not here: compare_videos"),
        (example({**RIGHT, "func": "compare_config", "result": mine("../b")}), "outside of the home: /home/user/../b"),
        (example({**RIGHT, "result": {"type": "list_directory", "path": "/etc"}}), "outside of the home: /etc"),
        (example({**RIGHT, "expected": gold("none.txt"), "func": "compare_csv"}), "no copy is given: none.txt"),
        (example(RIGHT, [{"type": "download", "parameters": {"files": [{"url": "x", "path": "/a"}]}}]), "home: /a"),
        (example({"func": "check_json", "result": mine("a"), "expected": {"type": "rule", "rules": {
            "expect": [{"key": ["a"], "method": "spreadsheet_range", "ref": []}]}}}), "with the method spread"),
    ],
)  # fmt: skip
def test_what_cannot_be_played_is_left_out_by_name(workspace, task, why):
    workspace.add("it", task)
    workspace.add("good", example(RIGHT))
    world = workspace.load()
    assert ("tasks_it" in world.tasks) is (why == "")
    if why:
        assert [*world.left_out] == ["tasks_it"]
        assert re.search(why, world.left_out["tasks_it"]), world.left_out["tasks_it"]


ASKS = "gsettings get org.gnome.desktop.interface text-scaling-factor"


@pytest.mark.parametrize(
    "command",
    [
        f"X=$(timeout 10 {ASKS}); echo $X",
        f'echo "it is $(timeout -k 5 --signal=TERM 10 {ASKS})"',
        f'echo "a (b" "`env -u A B=1 {ASKS}`"',
        f"for x in 1; do nice -n 5 nohup {ASKS} >/tmp/x 2>&1 & done",
        f'bash -lc "setsid {ASKS}"',
        f"eval '{ASKS}'",
        "find . -name '*.ini' -exec gsettings get x {} ';'",
        f"echo a | xargs -n 1 -I X {ASKS}",
        f"""python3 -c "import os; os.system('{ASKS}')" """,
        ["timeout", "10", "sh", "-c", f"echo $({ASKS})"],
        ["python", "-c", "import subprocess as s; s.run(['gsettings', 'list-schemas'])"],
    ],
    ids=str,
)
def test_what_a_task_needs_is_looked_for_in_each_of_its_commands(workspace, command):
    """In what is substituted, and behind what starts it: the machine's settings of GNOME are those of one process."""
    asked = {**printed(command), "shell": isinstance(command, str)}
    workspace.add("it", example({**RIGHT, "result": asked}))
    workspace.add("good", example(RIGHT))
    assert workspace.load().left_out == {"tasks_it": "GNOME or a service of the system: gsettings"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("which no-such", "a program that is not installed: no-such"),
        ("command -v no-such || echo none", "a program that is not installed: no-such"),
        ("cat /etc/timezone", "a place outside of the home: /etc/timezone"),
        ("[ -d /opt/mine ] && echo yes", "a place outside of the home: /opt/mine"),
        ("echo $(cat /home/user/a /tmp/b) 2>/dev/null; ls ~/x $HOME; which ls; head -c 4 /dev/zero", ""),
        ("echo '$(gsettings)' \"'\" $((1 + 2)) \\`", ""),
    ],
)
def test_what_nobody_can_change_here_is_not_played(workspace, command, why):
    workspace.add("it", example({**RIGHT, "result": printed(command)}))
    workspace.add("good", example(RIGHT))
    assert workspace.load().left_out == ({"tasks_it": why} if why else {})


@pytest.mark.parametrize("command", ["mkdir -p /opt/x", "echo a > /etc/x", "cp /etc/hosts /srv/x", "cd / && touch /a"])
def test_what_cannot_be_set_up_here_is_not_played(workspace, command):
    workspace.add("it", example(RIGHT, [execute(command)]))
    workspace.add("good", example(RIGHT, [execute("mkdir -p ~/a /tmp/b; cp /etc/hosts b >/dev/null 2>&1")]))
    assert workspace.load().left_out["tasks_it"].startswith("a place outside of the home: /")
    assert [*workspace.load().tasks] == ["tasks_good"]


def test_a_list_of_ids_chooses_tasks(workspace):
    """In the form of OSWorld's test_all.json, beside its folder of tasks."""
    examples = workspace.root / "examples"
    for domain, name in (("os", "1"), ("os", "2"), ("gimp", "3")):
        (examples / domain).mkdir(parents=True, exist_ok=True)
        (examples / domain / f"{name}.json").write_text(json.dumps({**example(RIGHT), "id": name}))
    (workspace.root / "some.json").write_text(json.dumps({"os": ["2"], "gimp": ["3"]}))
    workspace.said["tasks"] = ["some.json"]
    assert [*workspace.load().tasks] == ["os_2", "gimp_3"]
    asked = ["env", "osworld", str(workspace.root / "some.json"), "--kind", "terminal", "--json"]
    assert json.loads(CliRunner().invoke(main, asked).output)["played"] == ["gimp_3", "os_2"]
    shutil.move(workspace.root / "some.json", examples / "some.json")
    workspace.said["tasks"] = ["examples"]  # no task itself
    assert len(workspace.load().tasks) == 3
    (workspace.root / "lost.json").write_text(json.dumps({"os": ["2", "9"]}))
    workspace.said["tasks"] = ["lost.json"]
    lost = workspace.load()
    assert ([*lost.tasks], [*lost.left_out]) == (["os_2"], ["os_9"])
    assert "No such file" in lost.left_out["os_9"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{", "no task of OSWorld: Expecting property name"),
        ("[]", "the whole: Input should be"),
        ({"instruction": "x"}, "evaluator: Field required"),
        (example({}), "evaluator.func: Field required"),
        (example({"func": []}), "evaluator: .*func names no metric"),
        (example({**RIGHT, "func": ["exact_match", "exact_match"]}), "result has not one entry for each of func"),
        (example({**RIGHT, "result": [printed("a")]}), "result is a list, and func is none"),
        (example({**RIGHT, "conj": "xor"}), "evaluator.conj: Input should be 'and' or 'or'"),
        (example({**RIGHT, "expected": {}}), "evaluator.expected: exact_match wants rules"),
        (example({**RIGHT, "expected": {"type": "rule", "rules": {}}}), "rules: exact_match wants expected"),
        (example({**RIGHT, "expected": {"type": "rule"}}), "evaluator.expected: KeyError 'rules'"),
        (example({**RIGHT, "func": "compare_csv"}), "evaluator.expected: compare_csv wants a file"),
        (example({**RIGHT, "result": {"type": "vm_command_line"}}), "evaluator.result: KeyError 'command'"),
        (example(RIGHT, [execute("")]), "config.0.parameters: ValueError command is not"),
        (example(RIGHT, [{"type": "sleep", "parameters": {}}]), "config.0.parameters: KeyError 'seconds'"),
        (example(RIGHT, [{"kind": "sleep"}]), "config.0.type: Field required"),
    ],
)
def test_what_is_wrong_in_a_task_file_is_told_with_its_field(workspace, task, said):
    workspace.add("it", task)
    workspace.add("good", example(RIGHT))
    world = workspace.load()
    assert [*world.tasks] == ["tasks_good"]
    assert re.search(f"a whole task file: .*{said}", world.left_out["tasks_it"]), world.left_out["tasks_it"]
    workspace.said["leave_out"] = {"it": "broken"}
    assert workspace.load().left_out == {"tasks_it": "left out by the manifest: broken"}


def test_what_is_wrong_in_the_manifest_is_told(workspace):
    with pytest.raises(BadInput, match=r"no task can be played here .*no file ends in \.json"):
        workspace.load()
    workspace.said["tasks"] = ["nowhere"]
    with pytest.raises(BadInput, match="there is no nowhere beside the manifest"):
        workspace.load()
    (workspace.root / "world.json").write_text("{kind: terminal, world: theirs}")
    with pytest.raises(BadInput, match="it has tasks, or osworld"):
        registry.load_external_suites(workspace.settings, workspace.root)


def test_the_command_tells_of_each(workspace):
    workspace.add("good", example(RIGHT))
    workspace.add("bad", example(RIGHT, [execute("sudo ls")]))
    asked = ["env", "osworld", str(workspace.root / "tasks"), "--kind", "terminal"]
    told = json.loads(CliRunner().invoke(main, [*asked, "--json"]).output)
    assert told == {
        "played": ["tasks_good"],
        "left_out": {"tasks_bad": "the rights of root: sudo"},
        "reasons": {"the rights of root": 1},
    }
    shown = CliRunner().invoke(main, asked).output
    assert "1 of 2 tasks are played" in shown
    assert "more where" not in shown
    workspace.add("fetched", example({"func": "compare_csv", "result": mine("a"), "expected": gold("b")}))
    assert "1 more where a folder of --files has what they" in CliRunner().invoke(main, asked).output
    (workspace.root / "tasks" / "fetched.json").unlink()
    workspace.add("worse", example({**RIGHT, "func": ""}))
    again = CliRunner().invoke(main, asked)
    assert (again.exit_code, "1 of 3 tasks are played" in again.output) == (0, True)
    assert "evaluator: Value error, func names no metric" in " ".join(again.output.split())


def test_a_list_of_ids_chooses_the_tasks_beside_it(workspace):
    for name in ("good", "better", "other"):
        workspace.add(name, example(RIGHT))
    listed = workspace.root / "test_small.json"
    listed.write_text(json.dumps({"tasks": ["good", "gone"]}))
    asked = ["env", "osworld", str(listed), "--kind", "terminal", "--json"]
    told = json.loads(CliRunner().invoke(main, asked).output)
    assert (told["played"], [*told["left_out"]]) == (["tasks_good"], ["tasks_gone"])
    assert "No such file" in told["left_out"]["tasks_gone"]


def test_judging_has_time_enough(workspace):
    workspace.add("it", example(RIGHT))
    workspace.said["seconds"] = 90
    workspace.load()
    with pytest.raises(BadInput, match=r"judging a task of theirs may take 90 s, .*raise timeout_s to 90"):
        registry.find_backend("terminal").check(Settings())


# -- drawn ----------------------------------------------------------------------------------------------------------
def test_each_is_one_task_and_evaluation_has_its_own(workspace):
    for number in range(8):
        workspace.add(f"n{number}", example({**RIGHT, "result": printed(f"echo {number}")}))
    world = workspace.load()
    settings = workspace.settings
    assert synthesis.check_task_settings(settings, 1, workspace.root) == {"terminal"}
    drawn = {split: make_tasks(settings, 1, split, workspace.root) for split in ("train", "eval")}
    names = {split: {task.template for task in tasks} for split, tasks in drawn.items()}
    assert len(names["eval"]) == 2
    assert names["train"]
    assert not names["train"] & names["eval"]
    assert all(len(tasks) == len(names[split]) for split, tasks in drawn.items())
    assert drawn["train"][0].instruction == "Do {it}."
    assert make_task(world, "tasks_n0", 1, 1, "train").params == make_task(world, "tasks_n0", 1, 2, "train").params
