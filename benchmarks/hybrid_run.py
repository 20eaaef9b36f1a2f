"""One run of `benchmarks/hybrid.py`: an arm and a seed, in a process of its own. Killed, it goes on where it was.

python benchmarks/hybrid_run.py --out FOLDER --arm both --seed 1 --steps 24
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hybrid_start

from flywheel.config import Settings
from flywheel.envs.base import Task
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.training.rl.run import train_rl
from flywheel.utils.files import write_json

BASE = Path(__file__).resolve().parent.parent / "models" / "base"
# What is trained on: the ways in which each question is asked. Of two, each has half of every batch.
ARMS: dict[str, tuple[str, ...]] = {"gui": ("gui",), "sdk": ("sdk",), "both": ("gui", "sdk")}
QUESTIONS = 48  # to train on, the same ones in all arms
TEMPERATURE = 0.7
RL: dict[str, Any] = {
    "steps": 100_000,  # a run stops before, and may go on later
    "tasks_per_step": 4,
    "group_size": 8,
    "temperature": TEMPERATURE,
    "actor_lr": 1e-4,
    "warmup": 8,
    "minibatch": 32,
    "value_pretraining_tasks": 8,
    "max_staleness": 1,
    "curriculum_uniform_fraction": 1.0,  # no curriculum: both ways, and all arms, meet the questions alike
}
POLICY: dict[str, Any] = {
    "functions": True,
    "max_new_tokens": 64,
    "result_characters": 400,
    "observation_characters": 400,
}
QUICK = {"tasks_per_step": 2, "group_size": 2, "value_pretraining_tasks": 2}


def settings(seed: int, quick: bool = False) -> Settings:
    return Settings.model_validate(
        {
            "seed": seed,
            "policy": POLICY,
            "rl": RL | (QUICK if quick else {}),
            "sandbox": {"kinds": hybrid_start.KINDS},
            "evaluation": {"temperature": TEMPERATURE},
        }
    )


def start(out: Path, recipe: hybrid_start.Recipe | None = None) -> Path:
    """The checkpoint that all runs begin with, made now or before."""
    return hybrid_start.make(out / "starts", settings(0), BASE, recipe or hybrid_start.Recipe(), note=_note)


def run(out: Path, arm: str, seed: int, steps: int, each: int, *, quick: bool = False) -> dict[str, Any]:
    """Measure the start, train for so many steps in all, measure again; results as JSON beside the run's state.

    each: held-out questions. A run that was shorter before goes on.
    """
    here = out / "runs" / f"{arm}-{seed}"
    here.mkdir(parents=True, exist_ok=True)
    found = _read(here / "result.json")
    if found and found["steps"] >= steps and found["questions"] >= each:
        return found
    s, model = settings(seed, quick), start(out, hybrid_start.Recipe(2, 2, 1, 1, tried=2) if quick else None)
    held_out = hybrid_start.tasks("eval", each, hybrid_start.WAYS)
    before = _success(out / "starts" / f"before-{seed}.json", model, held_out, s)  # the same for all arms
    done = _read(here / "curve.json") or []

    def keep(metric: Mapping[str, Any]) -> None:
        done.append(dict(metric))
        write_json(here / "curve.json", done)
        _note(f"  {arm}-{seed}, step {metric['step']}: success {metric.get('success', 0):.2f}")

    def enough() -> bool:
        return bool(done) and done[-1]["step"] >= steps

    if not enough():
        train_rl(
            model,
            here / "model",
            "",
            hybrid_start.tasks("train", QUESTIONS, ARMS[arm]),
            settings=s,
            iteration=0,
            state_folder=here / "state",
            on_metric=keep,
            stop=enough,
        )
    result = {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "batch": s.rl.tasks_per_step * s.rl.group_size,
        "questions": each,
        "before": before,
        "after": _success(here / "after.json", here / "model", held_out, s),
        "curve": done,
    }
    write_json(here / "result.json", result)
    return result


def _success(path: Path, model: Path, tasks: Sequence[Task], s: Settings) -> dict[str, Any]:
    """What `hybrid_start.play` says, once."""
    key = {"model": checkpoint_digest(model), "n": len(tasks), "seed": s.seed}
    found = _read(path)
    if found and found["key"] == key:
        return found
    measured = {"key": key, **hybrid_start.play(model, tasks, s)}
    write_json(path, measured)
    return measured


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def command(out: Path, arm: str, seed: int, steps: int, each: int, quick: bool) -> list[str]:
    given = ["--out", out, "--arm", arm, "--seed", seed, "--steps", steps, "--held-out", each]
    return [sys.executable, __file__, *map(str, given), *(["--quick"] if quick else [])]


def environment(threads: int) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(threads)}


def main_of_run(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arm", choices=ARMS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--held-out", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    run(options.out, options.arm, options.seed, options.steps, options.held_out, quick=options.quick)
    return 0


if __name__ == "__main__":
    raise SystemExit(main_of_run())
