"""`flywheel bench rl` without its long runs: tasks, variants, what is kept of a run, and the table of what is there."""

from __future__ import annotations

import importlib
import itertools
import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from lamp_env import small_model

from flywheel.cli import bench
from flywheel.envs.tasks.drawing import task_content
from flywheel.utils.errors import BadInput

WORLDS = ["tiles", "shapes", "merge", "settings", "shop"]


@pytest.fixture(scope="module", autouse=True)
def beside():
    sys.path.insert(0, str(bench.BENCHMARKS_FOLDER))
    yield
    sys.path.remove(str(bench.BENCHMARKS_FOLDER))


def module(name: str):
    return importlib.import_module(name)


def result(variant: str, seed: int, gain: float) -> dict:
    def side(value: float) -> dict:
        measured = {"success": value, "worlds": dict.fromkeys(WORLDS, value)}
        return {"greedy": measured, "sampled": measured}

    return {
        "variant": variant,
        "seed": seed,
        "rl": {"temperature": 0.7},
        "minutes": 20,
        "steps": 50 + seed,
        "n": 200,
        "threads": 2,
        "at_once": 1,
        "before": side(0.4),
        "after": side(0.4 + gain),
        "gain": gain,
        "gain_greedy": gain / 2,
    }


def keep(out, found: dict, curve: int = 0, runs: str = "runs") -> None:
    folder = out / runs / f"{found['variant']}-{found['seed']}"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(found))
    lines = [{"step": n, "minute": n / 3, "success": 0.4 + n / 100, "entropy": 0.5} for n in range(1, curve + 1)]
    (folder / "curve.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, *lines[-1:]]))


@pytest.mark.parametrize("episodes", ["short", "long"])
def test_held_out_tasks_are_none_of_those_trained_or_shown(episodes):
    start = module("rl_start")
    kinds = start.RECIPES[episodes].kinds
    wanted = (("eval", 20), ("train", 40), ("demonstration", 6))
    held_out, train, shown = (start.tasks(split, each, kinds) for split, each in wanted)
    assert len(held_out) == 20 * len(kinds)
    assert {(task.world, task.template, task.level) for task in train} == set(kinds)
    assert {task.split for task in held_out} == {"eval"}
    seeds = {task.seed for task in held_out}
    assert not seeds & {task.seed for task in (*train, *shown)}
    met = [task_content(task) for task in held_out]
    assert len(set(met)) == len(met)
    assert not set(met) & {task_content(task) for task in (*train, *shown)}
    with pytest.raises(BadInput, match=r"--held-out 101 .*1 to 100 held-out tasks of a kind"):
        start.tasks("eval", 101, kinds)
    assert [task.task_id for task in held_out] == [task.task_id for task in start.tasks("eval", 20, kinds)]


def test_each_variant_leaves_out_one_part():
    run = module("rl_run")
    whole = run.settings("full", 1).rl.model_dump()
    left_out = {
        name: {key for key, value in run.settings(name, 1).rl.model_dump().items() if value != whole[key]}
        for name in run.VARIANTS
    }
    assert left_out == {
        "full": set(),
        "no-value-pretraining": {"value_pretraining_steps"},
        "fixed-lambda": {"lambda_policy"},
        "no-clip-higher": {"eps_high"},
        "no-bootstrap": {"bootstrap"},
        "grpo": {"algorithm"},
    }
    assert run.settings("full", 3).seed == 3


def test_a_recipe_is_looked_for_by_settings_of_rl_alone():
    run = module("rl_run")
    other = run.read_other(["actor_lr=5e-5", "temperature=1.0", "lambda_policy=null"])
    found = run.settings("fixed-lambda", 1, other=other)
    assert (found.rl.actor_lr, found.rl.lambda_policy) == (5e-5, 0.95)  # a variant stays what it is
    assert found.evaluation.temperature == 1.0
    for wrong in ("actor_lr", "actor=1"):
        with pytest.raises(BadInput, match="NAME=VALUE of the block rl"):
            run.read_other([wrong])


@pytest.mark.parametrize(
    "wrong", [("--parallel", "0"), ("--held-out", "0"), ("--held-out", "101"), ("--set", "actor=1")]
)
def test_what_cannot_be_run_is_refused_before_anything_begins(tmp_path, wrong):
    with pytest.raises(BadInput, match=" ".join(wrong) if wrong[0] != "--set" else "'actor=1'"):
        module("rl").main(["--out", str(tmp_path / "runs"), *wrong])
    assert not (tmp_path / "runs").exists()


def test_minutes_are_counted_over_all_starts_of_a_run(tmp_path):
    run = module("rl_run")
    spent = run._Spent(tmp_path / "spent.json", tmp_path / "curve.jsonl")
    spent.add({"step": 1, "success": 0.5})
    spent.add({"step": 2, "success": 0.6})
    again = run._Spent(tmp_path / "spent.json", tmp_path / "curve.jsonl")
    assert (again.seconds, again.steps) == (spent.seconds, 2)
    again.add({"step": 3, "success": 0.7})
    assert again.seconds > spent.seconds
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curve] == [1, 2, 3]
    assert curve[0]["minute"] < curve[1]["minute"] < curve[2]["minute"]


@pytest.fixture
def short(tmp_path, project, monkeypatch):
    """The run without its browser and its training: what those give is set here. Calls of training are counted."""
    run, trained = module("rl_run"), []
    start = small_model(tmp_path / "start", project)
    other = small_model(tmp_path / "other", project, seed=1)

    def train(begin, out, domain, tasks, *, on_metric, stop, **more):
        trained.append(len(tasks))
        shutil.copytree(other, out, dirs_exist_ok=True)
        for step in itertools.count(1):
            on_metric({"step": step, "success": 0.5})
            if stop():
                break
        return []

    async def play(model, tasks, s):
        share = 0.75 if "model" in model.parts else 0.25
        won = {task.task_id: n < share * len(tasks) for n, task in enumerate(tasks)}
        return {task_id: run.Played(success, 0.5 + share / 4, not success) for task_id, success in won.items()}

    monkeypatch.setattr(run, "train_rl", train)
    monkeypatch.setattr(run, "_play", play)
    monkeypatch.setattr(run.rl_start, "make", lambda *given, **more: start)
    return run, trained


def test_a_run_is_measured_kept_and_gone_on_with(short, tmp_path):
    run, trained = short
    found = run.run(tmp_path, "full", 1, 0.0001, 4)
    assert (found["n"], found["gain"], found["gain_greedy"]) == (20, 0.5, 0.5)
    assert (found["before"]["sampled"]["success"], found["after"]["sampled"]["success"]) == (0.25, 0.75)
    assert (found["before"]["greedy"]["cut_off"], found["after"]["greedy"]["cut_off"]) == (0.75, 0.25)
    assert (found["before"]["greedy"]["score"], found["after"]["greedy"]["score"]) == (0.5625, 0.6875)
    assert trained == [200]  # tasks of all kinds
    assert run.run(tmp_path, "full", 1, 0.0001, 4) == found
    assert trained == [200]
    spent = json.loads((tmp_path / "runs/full-1/spent.json").read_text())["seconds"]
    longer = run.run(tmp_path, "full", 1, spent / 60 + 0.0001, 4)
    assert (longer["minutes"], len(trained)) == (spent / 60 + 0.0001, 2)
    assert json.loads((tmp_path / "runs/full-1/spent.json").read_text())["seconds"] > spent
    assert module("rl").table([longer]).count("\n") == 3


def test_the_table_of_what_is_there(tmp_path, capsys):
    for seed, gain in ((1, 0.1), (2, 0.2), (3, 0.3)):
        keep(tmp_path, result("full", seed, gain), curve=12)
    keep(tmp_path, result("grpo", 1, 0.05), curve=3)
    for seed, gain in ((2, 0.1), (3, 0.3), (4, 0.9)):  # of seed 4 there is none to compare with
        keep(tmp_path, result("fixed-lambda", seed, gain))
    assert bench.run_benchmark("rl", ["--table", "--out", str(tmp_path)]) == 0
    rows = {row["case"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    gain = rows["success_gain"]
    assert (gain["ours"], gain["goal"], gain["met"], gain["by_seed"]) == (0.2, 0.1, True, [0.1, 0.2, 0.3])
    assert gain["interval"] == [pytest.approx(-0.0484, abs=1e-4), pytest.approx(0.448, abs=1e-3)]
    assert (rows["gain_grpo"]["ours"], rows["gain_grpo"]["peer"]) == (0.05, 0.2)
    assert (rows["start"]["ours"], rows["start"]["met"]) == (0.4, True)
    table = (tmp_path / "table.md").read_text()
    assert "| PPO with all its parts | 3 | 0.40 | 0.60 | +0.200 (-0.05 to +0.45) |  | +0.100 | 52 |" in table
    assert "| GRPO: advantages relative to the group | 1 | 0.40 | 0.45 | +0.050 | -0.050 | +0.025 | 51 |" in table
    assert "| -0.050 (-0.69 to +0.59) |" in table  # seed by seed -0.1 and 0
    assert "score" not in table  # older results do not tell it
    assert gain["score_by_seed"] is None
    runs = json.loads((tmp_path / "curves.json").read_text())
    assert [len(curve) for curve in runs["full"]] == [12, 12, 12]  # a step told twice counts once
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_long_episodes_have_a_table_and_a_start_of_their_own(tmp_path, capsys):
    keep(tmp_path, result("full", 1, 0.1), curve=3)
    for variant, score in (("full", 0.5), ("grpo", 0.4)):
        long = result(variant, 1, 0.2) | {"episodes": "long"}
        long["before"]["sampled"]["score"], long["after"]["sampled"]["score"] = 0.3, score
        keep(tmp_path, long, curve=3, runs="runs-long")
    assert bench.run_benchmark("rl", ["--table", "--out", str(tmp_path), "--episodes", "long"]) == 1
    rows = {row["case"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (rows["success_gain"]["by_seed"], rows["success_gain"]["met"]) == ([0.2], True)
    assert rows["success_gain"]["score_by_seed"] == [pytest.approx(0.2)]
    assert (rows["start"]["ours"], rows["start"]["goal_is"], rows["start"]["met"]) == (
        0.4,
        "between 0.1 and 0.3",
        False,
    )
    assert "tiles clear, level 4" in rows["start"]["kinds"]
    table = (tmp_path / "table-long.md").read_text()
    assert "+0.200" in table
    assert "| 0.30 → 0.50 | +0.200 |  |" in table
    assert "| 0.30 → 0.40 | +0.100 | -0.100 |" in table
    assert (tmp_path / "curves-long.png").is_file()
    assert not (tmp_path / "table.md").exists()
    chosen, short = (module("rl_run").settings("full", 1, episodes=episodes).rl for episodes in ("long", "short"))
    assert (chosen.group_size, short.group_size) == (4, 8)
    assert chosen.lambda_policy is None


def test_a_gain_below_the_goal_is_not_met(tmp_path, capsys):
    keep(tmp_path, result("full", 1, 0.04))
    assert bench.run_benchmark("rl", ["--table", "--out", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["met"] is False


def test_nothing_there(tmp_path, capsys):
    assert bench.run_benchmark("rl", ["--table", "--out", str(tmp_path / "new")]) == 1
    assert "there are no results" in capsys.readouterr().err


def test_agreement_of_gradients():
    agreement = module("rl_agreement").mean_cosine
    same = np.array([3.0, 4.0])
    assert agreement([same, 2 * same, 5 * same]) == pytest.approx((1.0, 0.0))
    # Pairs at right angles, and one of opposites: (0 + 0 - 1) / 3; without each in turn -1, 0 and 0.
    x, y = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert agreement([y, x, -x]) == pytest.approx((-1 / 3, np.sqrt(2 / 3 * (4 / 9 + 2 / 9))))


def test_agreement_says_that_batches_have_no_direction(monkeypatch, tmp_path, capsys):
    agreement = module("rl_agreement")
    played = [
        SimpleNamespace(
            task=SimpleNamespace(task_id=name, world="tiles", level=1),
            episode=SimpleNamespace(id=name, steps=(1,)),
            result=SimpleNamespace(score=0.0),
        )
        for name in ("first", "second", "third")
    ]

    async def play(*_):
        return played

    monkeypatch.setattr(agreement.rl_run, "start", lambda *_: tmp_path)
    monkeypatch.setattr(agreement.rl_run, "play", play)
    with pytest.raises(SystemExit, match="2"):
        agreement.main(["--out", str(tmp_path), "--batches", "3"])
    assert "in 3 of 3 batches all episodes score alike" in capsys.readouterr().err
