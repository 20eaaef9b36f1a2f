"""Adapters of public benchmarks: small files of their forms load, actions come back, scores are by their own rules."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from adapters_actions import SCREEN, SCREENS, THEIRS, draw_ours
from adapters_official import write_broken
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent import actions as act
from flywheel.agent.actions import Point, split_action
from flywheel.evaluation.benchmarks import container_recipe
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    RefusedTask,
    TaskResult,
    compute_advantages,
    mask_faults,
)
from flywheel.evaluation.benchmarks.browsecomp_plus import calibration_error, parse_judgement
from flywheel.evaluation.benchmarks.catalogue import BENCHMARKS, choose_benchmark
from flywheel.evaluation.benchmarks.container_recipe import InstalledPackages
from flywheel.evaluation.benchmarks.lmgame_bench import normalise_rewards, transform_reward
from flywheel.evaluation.benchmarks.swe_bench import grade_instance
from flywheel.evaluation.benchmarks.terminal_bench import parse_test_output, read_reward
from flywheel.utils.errors import BadInput

NAMES = list(BENCHMARKS)
# Benchmark -> a task file of its form, by its path, and what must come out: id, instruction, category.
TASK_FILES = {
    "terminal-bench": (
        {"hello/task.toml": '[metadata]\ncategory = "files"\n', "hello/instruction.md": "Say hello."},
        ("hello", "Say hello.", "files"),
    ),
    "osworld": (
        {
            "examples/os/a-1.json": json.dumps(
                {"id": "a-1", "instruction": "Do it.", "config": [], "evaluator": {"func": "infeasible"}}
            )
        },
        ("os/a-1", "Do it.", "os"),
    ),
    "windows-agent-arena": (
        {"examples/clock/a-WOS.json": json.dumps({"id": "a-WOS", "instruction": "Set it.", "evaluator": {}})},
        ("clock/a-WOS", "Set it.", "clock"),
    ),
    "swe-bench": (
        {
            "test.jsonl": json.dumps(
                {"instance_id": "a__b-1", "repo": "a/b", "base_commit": "c", "problem_statement": "It fails.",
                 "FAIL_TO_PASS": '["t1"]', "PASS_TO_PASS": ["t2"]}
            )
        },
        ("a__b-1", "It fails.", "a/b"),
    ),
    "android-world": (
        {"task_metadata.json": json.dumps([{"task_name": "A", "task_template": "Open {x}.", "difficulty": "easy"}])},
        ("A", "Open {x}.", "easy"),
    ),
    "browsecomp-plus": ({"queries.tsv": "769\tWho was it?\n"}, ("769", "Who was it?", "")),
    "lmgame-bench": (
        {"configs/custom_01_2048/config.yaml": "game_env: {name: twenty_forty_eight, description: Merge tiles.}\n"},
        ("twenty_forty_eight", "Merge tiles.", "custom"),
    ),
    "online-mind2web": (
        {
            "Online_Mind2Web.json": json.dumps(
                [{"task_id": "t", "confirmed_task": "Find it.", "website": "https://a.b/", "level": "hard"}]
            )
        },
        ("t", "Find it.", "hard"),
    ),
}  # fmt: skip
# A file of which nothing can be told, and where it lies.
DAMAGED = {
    "terminal-bench": ("hello/task.toml", "[metadata\n"), "osworld": ("examples/os/a.json", "{}"),
    "windows-agent-arena": ("examples/os/a.json", '{"id": "a"}'), "swe-bench": ("a.jsonl", '{"instance_id": "x"}\n'),
    "android-world": ("task_metadata.json", '[{"task_name": "A"}]'), "browsecomp-plus": ("queries.tsv", "no tab\n"),
    "lmgame-bench": ("configs/custom_01/config.yaml", "game_env: {}\n"),
    "online-mind2web": ("Online_Mind2Web.json", '[{"task_id": ""}]'),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """List no packages of this machine: that starts programs."""
    monkeypatch.setattr(container_recipe, "list_installed_packages", lambda: InstalledPackages({}))


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_task_file_loads_with_what_it_says(tmp_path, name):
    files, (task_id, instruction, category) = TASK_FILES[name]
    (task,) = BENCHMARKS[name].load_tasks(write_files(tmp_path, files))
    assert (task.id, task.instruction, task.category) == (task_id, instruction, category)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_file_that_cannot_be_read_is_told_and_stops_no_other(tmp_path, name):
    place, text = DAMAGED[name]
    (refused,) = BENCHMARKS[name].load_tasks(write_files(tmp_path, {place: text}))
    assert isinstance(refused, RefusedTask)
    assert refused.why
    assert "\n" not in refused.why


@pytest.mark.parametrize("compose", ["version: '3'\n", "services: [client]\n", "[]\n"])
def test_containers_of_another_form_are_told_and_stop_no_other_task(tmp_path, compose):
    files = {"task.yaml": "instruction: Say hello.\n", "docker-compose.yaml": compose}
    (refused,) = BENCHMARKS["terminal-bench"].load_tasks(write_files(tmp_path, files))
    assert "docker-compose.yaml" in refused.why


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_tasks_or_results_is_bad_input(tmp_path, name):
    with pytest.raises(BadInput):
        list(BENCHMARKS[name].load_tasks(tmp_path))
    with pytest.raises(BadInput):
        BENCHMARKS[name].read_results(tmp_path)
    with pytest.raises(BadInput):
        BENCHMARKS[name].score_results([])


def test_an_unknown_benchmark_is_told_with_the_nearest():
    with pytest.raises(BadInput, match="did you mean osworld"):
        choose_benchmark("osword")


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32))
def test_their_actions_come_back_unchanged(name, seed):
    adapter, screen, rng = BENCHMARKS[name], SCREENS.get(name), random.Random(seed)
    for draw in THEIRS[name]:
        written = draw(rng)
        assert adapter.format_action(adapter.parse_action(written, screen), screen) == written


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**32))
def test_our_actions_come_back_unchanged_or_are_refused(name, seed):
    adapter, screen = BENCHMARKS[name], SCREENS.get(name)
    action = draw_ours(random.Random(seed), screen or SCREEN)
    try:
        written = adapter.format_action(AdaptedActions((action,)), screen)
    except ValueError:
        return
    assert adapter.parse_action(written, screen).actions in ((action,), split_action(action))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("osworld", {"action_type": "CLICK", "x": 5, "y": 6}), ("osworld", "pyautogui.click(5, 6)"),
        ("android-world", {"action_type": "click", "x": 5, "y": 6}), ("online-mind2web", "Click at (5, 6)"),
    ],
)  # fmt: skip
def test_pixels_without_the_screens_size_are_refused_not_guessed(name, written):
    adapter = BENCHMARKS[name]
    with pytest.raises(ValueError, match="size of the screen is not given"):
        adapter.parse_action(written)
    assert adapter.parse_action(written, (10, 12)).actions == (act.Click(Point(0.5, 0.5)),)
    with pytest.raises(ValueError, match="size of the screen is not given"):
        adapter.format_action(AdaptedActions((act.Click(Point(0.5, 0.5)),)))


def test_a_point_outside_of_the_screen_is_no_action():
    with pytest.raises(ValueError, match="no pixel of a screen of 10 x 10"):
        BENCHMARKS["android-world"].parse_action({"action_type": "click", "x": 10, "y": 0}, (10, 10))


def test_windows_agent_arenas_points_are_fractions_of_whatever_screen():
    written = "computer.mouse.move_abs(x=0.25, y=0.5)\ncomputer.mouse.right_click()"
    assert BENCHMARKS["windows-agent-arena"].parse_action(written).actions == (act.RightSingle(Point(0.25, 0.5)),)


def test_what_our_actions_cannot_say_is_held_and_not_made_up():
    osworld, android = BENCHMARKS["osworld"], BENCHMARKS["android-world"]
    assert osworld.parse_action({"action_type": "SCROLL", "dx": 0, "dy": -3}, SCREEN).actions == ()
    assert android.parse_action({"action_type": "click", "index": 3}).actions == ()
    assert BENCHMARKS["online-mind2web"].parse_action("<a> Home -> CLICK").actions == ()


# Scores, on recorded results of their forms.


@pytest.mark.parametrize("name", NAMES)
def test_what_broke_in_the_environment_has_no_score(tmp_path, name):
    count = write_broken(name, tmp_path)
    results = BENCHMARKS[name].read_results(tmp_path)
    assert len(results) == count
    assert all(one.score is None and one.fault for one in results)
    assert mask_faults(results).mean is None
    assert compute_advantages(results) == [None] * count


def test_neither_mean_nor_baseline_counts_a_fault():
    results = [TaskResult("a", 0, score=1.0), TaskResult("a", 1, score=0.0), TaskResult("a", 2, fault="gone")]
    masked = mask_faults(results)
    assert (masked.mean, masked.tasks, masked.episodes, masked.faults) == (0.5, 1, 2, 1)
    assert compute_advantages(results) == [0.5, -0.5, None]


def test_a_task_with_many_episodes_counts_once_in_the_mean():
    results = [TaskResult("a", seed, score=1.0) for seed in range(9)] + [TaskResult("b", score=0.0)]
    assert mask_faults(results).mean == 0.5


@pytest.mark.parametrize(("score", "fault"), [(None, ""), (0.0, "gone"), (float("nan"), "")])
def test_a_result_has_either_a_score_or_a_fault(score, fault):
    with pytest.raises(ValueError, match=r"a result has|is no number"):
        TaskResult("a", score=score, fault=fault)


def test_terminal_bench_resolves_a_task_whose_tests_all_pass(tmp_path):
    trials = [
        {"task_id": "a", "is_resolved": True, "parser_results": {"t": "passed"}},
        {"task_id": "a", "is_resolved": False, "parser_results": {"t": "failed"}},
        {"task_id": "b", "is_resolved": None, "failure_mode": "test_timeout"},
        {"task_id": "b", "is_resolved": None, "failure_mode": "agent_installation_failed"},
    ]
    write_files(tmp_path, {"results.json": json.dumps({"results": trials})})
    adapter = BENCHMARKS["terminal-bench"]
    results = adapter.read_results(tmp_path)
    assert [one.score for one in results] == [1.0, 0.0, 0.0, None]
    score = adapter.score_results(results)
    assert score.score == 0.25  # theirs counts the broken trial too
    assert score.figures["pass@2"] == 0.5
    assert mask_faults(results).mean == 0.25  # a: 0.5, b: 0


@pytest.mark.parametrize(
    ("exception", "rewards", "score"),
    [
        (None, {"reward": 1.0}, 1.0), ("AgentTimeoutError", {"reward": 0.0}, 0.0), (None, None, None),
        ("ApiOverloadedError", {"reward": 0.0}, None), ("VerifierTimeoutError", None, None),
    ],
)  # fmt: skip
def test_harbors_exceptions_tell_a_fault_from_a_failure(tmp_path, exception, rewards, score):
    trial = {
        "trial_name": "t__1", "task_name": "t", "exception_info": exception and {"exception_type": exception},
        "verifier_result": rewards and {"rewards": rewards},
    }  # fmt: skip
    write_files(tmp_path, {"t__1/result.json": json.dumps(trial)})
    (result,) = BENCHMARKS["terminal-bench"].read_results(tmp_path)
    assert result.score == score


def test_terminal_benchs_parser_reads_pytests_summary():
    text = "x\n=== short test summary info ===\nPASSED t.py::test_a\nFAILED t.py::test_b - assert 1 == 2 - x\n"
    text += "SKIPPED [1] t\n"
    assert parse_test_output(text) == {"test_a": True, "test_b - assert 1 == 2": False, "[1] t": True}
    with pytest.raises(ValueError, match="no summary"):
        parse_test_output("command not found")
    assert parse_test_output("SWEBench results starts here\nPASSED\nSWEBench results ends here", "swebench") == {
        "tests": True
    }
    with pytest.raises(ValueError, match="the parser x is not here"):
        parse_test_output("", "x")


@pytest.mark.parametrize(
    ("name", "text"), [("reward.txt", "nan"), ("reward.txt", "yes"), ("reward.json", '{"a": true}'), ("x", "1")]
)
def test_a_reward_that_is_no_number_does_not_count(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="reward"):
        read_reward(tmp_path)


def test_osworld_takes_the_mean_of_those_with_a_result_with_partial_credit(tmp_path):
    files = {"chrome/a/result.txt": "0.4\n", "chrome/b/result.txt": "True\n", "os/c/result.txt": "False\n"}
    files["os/d/traj.jsonl"] = json.dumps({"Error": "Time limit exceeded"}) + "\n"
    adapter = BENCHMARKS["osworld"]
    results = adapter.read_results(write_files(tmp_path, files))
    assert {one.task: one.score for one in results} == {"chrome/a": 0.4, "chrome/b": 1.0, "os/c": 0.0, "os/d": None}
    assert next(one.fault for one in results if one.task == "os/d") == "Time limit exceeded"
    score = adapter.score_results(results)
    assert score.score == score.figures["partial"] == pytest.approx(1.4 / 3)
    assert score.figures["binary"] == pytest.approx(1 / 3)
    assert score.figures["chrome"] == score.figures["daily"] == pytest.approx(0.7)
    assert score.figures["printed"] == pytest.approx(2.4 / 3)  # show_result.py takes "False" for 1.0


def test_osworlds_score_that_is_none_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no score"):
        BENCHMARKS["osworld"].read_results(write_files(tmp_path, {"os/a/result.txt": "yes"}))


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({"f": "PASSED", "p": "PASSED"}, 1.0), ({"f": "PASSED", "p": "SKIPPED"}, 1.0), ({"f": "PASSED"}, 0.0),
        ({"f": "SKIPPED", "p": "PASSED"}, 0.0), ({"f": "XFAIL", "p": "XFAIL"}, 1.0), ({}, 0.0),
        ({"f": "PASSED", "p": "ERROR"}, 0.0),
    ],
)  # fmt: skip
def test_an_instance_is_resolved_where_both_kinds_of_tests_pass(statuses, expected):
    assert grade_instance(statuses, ["f"], ["p"])["resolved"] == expected


def test_a_test_whose_name_is_cut_off_stands_for_those_that_agree():
    statuses = {"t[a b]": "PASSED", "t[a c]": "PASSED", "u[a b]": "PASSED", "u[a c]": "FAILED"}
    assert grade_instance(statuses, ["t[a"], [])["resolved"] == 1.0
    assert grade_instance(statuses, ["u[a"], [])["resolved"] == 0.0
    assert grade_instance({}, ["t"], [], fail_only=True)["resolved"] == 1.0


def test_swe_bench_counts_instances_in_error_and_ours_leaves_them_out(tmp_path):
    said = {"resolved_ids": ["a"], "unresolved_ids": ["b", "c"], "error_ids": ["d"], "infra_failure_ids": ["c"],
            "failure_reasons": {"c": "out_of_memory"}, "empty_patch_ids": ["e"]}  # fmt: skip
    results = BENCHMARKS["swe-bench"].read_results(write_files(tmp_path, {"m.run.json": json.dumps(said)}))
    assert {one.task: one.score for one in results} == {"a": 1.0, "b": 0.0, "c": None, "d": None, "e": 0.0}
    assert BENCHMARKS["swe-bench"].score_results(results).score == 0.2
    assert mask_faults(results).mean == pytest.approx(1 / 3)


def test_a_report_whose_verdict_and_tests_disagree_is_refused(tmp_path):
    tests = {kind: {"success": [], "failure": ["t"]} for kind in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    report = {"a": {"resolved": True, "tests_status": tests}}
    with pytest.raises(BadInput, match="disagree"):
        BENCHMARKS["swe-bench"].read_results(write_files(tmp_path, {"a/report.json": json.dumps(report)}))


def test_android_world_takes_the_mean_over_tasks_of_episodes_without_exception(tmp_path):
    episodes = [
        ("a", 0, 1.0, None),
        ("a", 1, 0.0, None),
        ("b", 0, True, None),
        ("b", 1, np.nan, "Traceback\nAdbError: x"),
    ]
    for task, instance, success, broke in episodes:
        episode = {"task_template": task, "instance_id": instance, "is_successful": success, "exception_info": broke,
                   "episode_data": {"x": np.arange(3)}, "run_time": 1.5}  # fmt: skip
        (tmp_path / f"{task}_{instance}.pkl.gz").write_bytes(gzip.compress(pickle.dumps([episode])))
    results = BENCHMARKS["android-world"].read_results(tmp_path)
    assert [one.score for one in results] == [1.0, 0.0, 1.0, None]
    assert results[3].fault == "AdbError: x"
    assert BENCHMARKS["android-world"].score_results(results).score == 0.75


class _Evil:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_checkpoint_runs_no_code_of_its_own(tmp_path):
    made = tmp_path / "made"
    episode = {"task_template": "a", "is_successful": 1.0, "exception_info": None, "episode_data": _Evil(str(made))}
    (tmp_path / "a_0.pkl.gz").write_bytes(gzip.compress(pickle.dumps([episode])))
    (result,) = BENCHMARKS["android-world"].read_results(tmp_path)
    assert result.score == 1.0
    assert not made.exists()


@pytest.mark.parametrize("packed", [b"no gzip", gzip.compress(b"no pickle"), gzip.compress(pickle.dumps({"a": 1}))])
def test_a_damaged_checkpoint_is_bad_input(tmp_path, packed):
    (tmp_path / "a_0.pkl.gz").write_bytes(packed)
    with pytest.raises(BadInput):
        BENCHMARKS["android-world"].read_results(tmp_path)


@pytest.mark.parametrize(
    ("text", "correct", "confidence"),
    [
        ("correct: yes\nconfidence: 80%", True, 80.0), ("**correct:** No\n**confidence:** 120", False, 100.0),
        ("**correct**: yes", True, None), ("I cannot tell", None, None),
    ],
)  # fmt: skip
def test_a_judgement_is_parsed(text, correct, confidence):
    assert parse_judgement(text) == {"correct": correct, "confidence": confidence}


def test_browsecomp_plus_counts_an_answer_that_nobody_judged_as_wrong_and_ours_leaves_it_out(tmp_path):
    runs = [
        ({"correct": True, "confidence": 90}, True), ({"correct": False, "confidence": 50}, True),
        ({"parse_error": True}, True), ({"parse_error": True}, False),
    ]  # fmt: skip
    for number, (judged, completed) in enumerate(runs):
        said = {"query_id": number, "response": "x", "is_completed": completed, "judge_result": judged}
        write_files(tmp_path, {f"{number}_eval.json": json.dumps({**said, "retrieval": {"recall": 0.5}})})
    results = BENCHMARKS["browsecomp-plus"].read_results(tmp_path)
    assert [one.score for one in results] == [1.0, 0.0, None, 0.0]
    score = BENCHMARKS["browsecomp-plus"].score_results(results)
    assert (score.score, score.figures["recall"], mask_faults(results).mean) == (0.25, 0.5, pytest.approx(1 / 3))


def test_the_last_bin_of_the_calibration_error_does_not_count():
    assert calibration_error([100.0] * 199, [0.0] * 199) == 0.0
    assert calibration_error([100.0] * 200, [0.0] * 200) == pytest.approx(0.5**0.5)


def test_lmgame_bench_normalises_each_game_to_1_to_100(tmp_path):
    assert normalise_rewards({"a": {"x": 0.0, "y": 5.0}, "b": {"x": 10.0, "y": 5.0}, "c": {"x": 5.0}}) == {
        "a": {"x": 1.0, "y": 1.0}, "b": {"x": 100.0, "y": 1.0}, "c": {"x": 50.5},
    }  # fmt: skip
    assert transform_reward("twenty_forty_eight", 1024) == 100.0
    said = {
        "settings": {"game_name": "sokoban", "model_name": "m", "harness": True, "num_runs": 2},
        "individual_run_results": [
            {"run_id": 1, "score": 2, "steps": 9, "total_reward_for_episode": 1.5, "total_perf_score_for_episode": 4}
        ],
    }
    results = BENCHMARKS["lmgame-bench"].read_results(write_files(tmp_path, {"gym_run_summary.json": json.dumps(said)}))
    assert [(one.seed, one.score, one.fault) for one in results] == [(1, 4.0, ""), (2, None, "the run broke off")]
    assert BENCHMARKS["lmgame-bench"].score_results(results).figures["raw/m with harness/sokoban"] == 4.0
    empty = said | {"settings": said["settings"] | {"num_runs": 0}, "individual_run_results": []}
    with pytest.raises(BadInput, match="no runs in any"):
        BENCHMARKS["lmgame-bench"].read_results(write_files(tmp_path, {"gym_run_summary.json": json.dumps(empty)}))


def test_online_mind2web_takes_the_share_of_judged_runs(tmp_path):
    lines = [{"task_id": str(n), "predicted_label": label, "level": "easy"} for n, label in enumerate((1, 0, 1, None))]
    write_files(tmp_path, {"x_auto_eval_results.json": "".join(json.dumps(line) + "\n" for line in lines)})
    results = BENCHMARKS["online-mind2web"].read_results(tmp_path)
    assert BENCHMARKS["online-mind2web"].score_results(results).score == pytest.approx(2 / 3)
    assert [one.fault for one in results][3] == "the judge gave no judgement"
