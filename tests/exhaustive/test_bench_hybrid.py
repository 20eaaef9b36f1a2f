"""`flywheel bench hybrid` without its long runs: its questions, its batches, and the table of what is there."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from flywheel.cli import bench
from flywheel.envs.tasks.drawing import task_content
from flywheel.training.rl.curriculum import Curriculum
from flywheel.utils.errors import BadInput


@pytest.fixture(scope="module", autouse=True)
def beside():
    sys.path.insert(0, str(bench.BENCHMARKS_FOLDER))
    yield
    sys.path.remove(str(bench.BENCHMARKS_FOLDER))


def module(name: str):
    return importlib.import_module(name)


def result(arm: str, seed: int, gain: float) -> dict:
    def side(value: float) -> dict:
        every = dict.fromkeys(("gui", "sdk", "both"), value)
        return {"success": every, "functions": every}

    point = {"success_gui": 0.5, "reward_gui": 0.4, "explained_variance_gui": 0.25}
    curve = [{"step": step, **point, "explained_variance_sdk": 0.75} for step in range(1, 5)]
    made = {"arm": arm, "seed": seed, "steps": 4, "batch": 32, "questions": 60, "curve": curve}
    return made | {"before": side(0.25), "after": side(0.25 + gain)}


def test_a_question_is_the_same_by_all_ways_and_none_that_is_held_out_is_shown():
    start = module("hybrid_start")
    wanted = (("eval", 20), ("train", 40), ("demonstration", 30))
    held_out, train, shown = (start.tasks(split, count, start.WAYS) for split, count in wanted)
    assert len(train) == 120
    for asked in zip(train[::3], train[1::3], train[2::3], strict=True):
        assert [task.interface for task in asked] == ["gui", "sdk", "both"]
        assert [task.environment for task in asked] == ["computer", "terminal", "computer"]
        assert len({(task.instruction, str(task.params["wanted"])) for task in asked}) == 1
    met = [{task_content(task) for task in some} for some in (held_out, train, shown)]
    assert [len(some) for some in met] == [60, 120, 90]
    assert not met[0] & (met[1] | met[2])
    with pytest.raises(BadInput, match=r"--held-out 101 .*1 to 100 held-out questions"):
        start.tasks("eval", 101, start.WAYS)


def test_too_many_held_out_questions_are_refused_before_anything_begins(tmp_path):
    with pytest.raises(BadInput, match="--held-out 101"):
        module("hybrid").main(["--out", str(tmp_path / "runs"), "--held-out", "101"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("seed", [1, 2])
def test_of_two_ways_each_has_half_of_a_batch(seed):
    run, start = module("hybrid_run"), module("hybrid_start")
    rl = run.settings(seed).rl
    curriculum = Curriculum(start.tasks("train", run.QUESTIONS, run.ARMS["both"]), rl, seed)
    for _ in range(12):
        ways = [curriculum.next().interface for _ in range(rl.tasks_per_step)]
        assert sorted(ways) == ["gui"] * 2 + ["sdk"] * 2


def test_the_table_is_of_what_is_there(tmp_path, capsys):
    hybrid = module("hybrid")
    for one in (result("gui", 1, 0.1), result("gui", 2, 0.3), result("both", 1, 0.5)):
        folder = tmp_path / "runs" / f"{one['arm']}-{one['seed']}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(one))
    assert hybrid.main(["--table", "--out", str(tmp_path)]) == 0
    cases = {line["case"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert cases["gain_gui_sdk"]["ours"] == pytest.approx(0.2)
    assert cases["explained_variance_both_sdk"]["ours"] == pytest.approx(0.75)
    assert "explained_variance_gui_sdk" not in cases
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| gui", "| both"]
    assert "0.25 → 0.45" in lines[2]
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert hybrid.main(["--table", "--out", str(tmp_path / "none")]) == 1
