"""One run of `benchmarks/rl.py`: a variant and a seed, in a process of its own. Killed, it goes on where it was.

python benchmarks/rl_run.py --out FOLDER --variant full --seed 1 --minutes 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rl_start
import torch

from flywheel.config import RlSettings, Settings
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.evaluation.evaluator import JudgedEpisode, evaluate_policy
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.training.rl.run import train_rl
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json

BASE = Path(__file__).resolve().parent.parent / "models" / "base"
TEMPERATURE = 0.7
# What all variants have beside the defaults of params.yaml.
COMMON: dict[str, Any] = {
    "steps": 100_000,
    "tasks_per_step": 8,
    "group_size": 8,
    "temperature": TEMPERATURE,
    "actor_lr": 1e-4,
    "warmup": 12,
    "minibatch": 64,
    "value_pretraining_tasks": 8,
    "max_staleness": 1,
}
# What long episodes have instead: an episode is a dozen turns and more, so a batch has fewer of them, of as many tasks,
# and few gradient steps; the score is rewarded as it grows, and steps cost. docs/measurements/rl.md has what others
# came to.
LONG: dict[str, Any] = {
    "group_size": 4,
    "minibatch": 192,
    "warmup": 6,
    "value_pretraining_tasks": 12,
    "reward_progress": True,
    "step_penalty": 0.6,
    "gae_lambda_alpha": 0.3,
    "actor_lr": 5e-5,
    "freeze_vision": True,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("PPO with all its parts", {}),
    "no-value-pretraining": ("without value pretraining", {"value_pretraining_steps": 0}),
    "fixed-lambda": ("without length-adaptive GAE: lambda 0.95", {"lambda_policy": 0.95}),
    "no-clip-higher": ("without clip-higher: both 0.2", {"eps_high": 0.2}),
    "no-bootstrap": ("where steps run out the outcome counts, not V", {"bootstrap": False}),
    "grpo": ("GRPO: advantages relative to the group", {"algorithm": "grpo"}),
}
QUICK = {"tasks_per_step": 5, "group_size": 2, "value_pretraining_tasks": 2}


def settings(
    variant: str, seed: int, quick: bool = False, other: Mapping[str, Any] | None = None, episodes: str = "short"
) -> Settings:
    """other: settings of the block rl that all variants shall have instead, where a recipe is looked for."""
    mine = COMMON | (LONG if episodes == "long" else {}) | (QUICK if quick else {})
    rl = mine | (other or {}) | VARIANTS[variant][1]
    return Settings.model_validate({"seed": seed, "rl": rl, "evaluation": {"temperature": rl["temperature"]}})


def runs(out: Path, episodes: str) -> Path:
    """The folder of the runs of one of `rl_start.RECIPES`."""
    return out / ("runs" if episodes == "short" else f"runs-{episodes}")


def start(out: Path, episodes: str = "short") -> Path:
    """The checkpoint that all runs begin with, made now or before."""
    return rl_start.make(out / "starts", Settings(), BASE, rl_start.RECIPES[episodes], note=_note)


def run(
    out: Path,
    variant: str,
    seed: int,
    minutes: float,
    each: int,
    *,
    quick: bool = False,
    other: Mapping[str, Any] | None = None,
    at_once: int = 1,
    episodes: str = "short",
) -> dict[str, Any]:
    """Measure the start, train for so many minutes in all, measure again; results as JSON beside the run's state.

    each: held-out tasks of a kind. at_once: runs that share the machine, to be told. episodes: of `rl_start.RECIPES`.
    A run that was shorter before goes on.
    """
    kinds = rl_start.RECIPES[episodes].kinds
    here = runs(out, episodes) / f"{variant}-{seed}"
    here.mkdir(parents=True, exist_ok=True)
    found = _read(here / "result.json")
    if found and found["minutes"] >= minutes and found["n"] >= each * len(kinds):
        return found
    s = settings(variant, seed, quick, other, episodes)
    model = start(out, episodes)
    held_out = rl_start.tasks("eval", each, kinds)
    before = _success(out / "starts" / f"before-{episodes}-{seed}", model, held_out, s)  # the same for all variants
    spent = _Spent(here / "spent.json", here / "curve.jsonl")
    if spent.seconds < 60 * minutes:
        _note(f"{variant}, seed {seed}: from minute {spent.seconds / 60:.1f}")
        train_rl(
            model,
            here / "model",
            "",
            rl_start.tasks("train", 40, kinds),
            settings=s,
            iteration=0,
            state_folder=here / "state",
            on_metric=spent.add,
            stop=lambda: spent.seconds >= 60 * minutes,
        )
    after = _success(here / "after", here / "model", held_out, s)
    result = {
        "variant": variant,
        "seed": seed,
        "episodes": episodes,
        "rl": s.rl.model_dump(),
        "minutes": minutes,
        "steps": spent.steps,
        "n": len(held_out),
        "threads": torch.get_num_threads(),
        "at_once": at_once,
        "before": before,
        "after": after,
        "gain": after["sampled"]["success"] - before["sampled"]["success"],
        "gain_greedy": after["greedy"]["success"] - before["greedy"]["success"],
    }
    write_json(here / "result.json", result)
    return result


class _Spent:
    """Seconds of training, over all starts of the process, and the curve. A step that a kill cut short is not counted:
    it is done again."""

    def __init__(self, path: Path, curve: Path) -> None:
        self._path, self._curve, self._since = path, curve, time.monotonic()
        found = _read(path) or {"seconds": 0.0, "steps": 0}
        self.seconds, self.steps = found["seconds"], found["steps"]

    def add(self, metric: Mapping[str, Any]) -> None:
        now = time.monotonic()
        self.seconds, self.steps, self._since = self.seconds + now - self._since, int(metric["step"]), now
        with self._curve.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**metric, "minute": self.seconds / 60}) + "\n")
        write_json(self._path, {"seconds": self.seconds, "steps": self.steps})
        _note(f"  step {self.steps}, minute {self.seconds / 60:.1f}: success {metric.get('success', 0):.2f}")


def _success(path: Path, model: Path, tasks: Sequence[Task], s: Settings) -> dict[str, Any]:
    """Held-out success, greedy and at the temperature of rollouts: over all, by world, and of each task; the mean
    score; and the share of episodes that ran out of steps."""
    key = {"model": checkpoint_digest(model), "n": len(tasks), "seed": s.seed, "temperature": s.evaluation.temperature}
    found = _read(path.with_suffix(".json"))
    if found and found["key"] == key:
        return found
    measured: dict[str, Any] = {"key": key}
    for name, temperature in (("greedy", 0.0), ("sampled", s.evaluation.temperature)):
        block = s.evaluation.model_copy(update={"temperature": temperature})
        played = asyncio.run(_play(model, tasks, s.model_copy(update={"evaluation": block})))
        won = {task_id: one.success for task_id, one in played.items()}
        worlds: dict[str, list[bool]] = defaultdict(list)
        for task in tasks:
            worlds[task.world].append(won[task.task_id])
        measured[name] = {
            "success": sum(won.values()) / len(won),
            "worlds": {w: sum(v) / len(v) for w, v in worlds.items()},
            "tasks": won,
            "score": sum(one.score for one in played.values()) / len(played),
            "cut_off": sum(one.cut_off for one in played.values()) / len(played),
        }
    write_json(path.with_suffix(".json"), measured)
    return measured


class Played(NamedTuple):
    """How a task ended. cut_off: it ran out of steps."""

    success: bool
    score: float
    cut_off: bool


async def play(model: Path, tasks: Sequence[Task], s: Settings) -> list[JudgedEpisode]:
    """As evaluation does, `evaluation.n_trials` times each."""
    policy = open_policy(model, s.policy)
    try:
        async with open_environments(s, tasks) as environments:
            # Iteration: a number that no training has, so that no seed of sampling is one of training.
            return await evaluate_policy(policy, tasks, environments, iteration=1000 + s.seed, settings=s)
    finally:
        await policy.close()


async def _play(model: Path, tasks: Sequence[Task], s: Settings) -> dict[str, Played]:
    """By task_id."""
    return {
        one.task.task_id: Played(one.result.v, one.result.score, one.episode.trajectory.status == "truncated")
        for one in await play(model, tasks, s)
    }


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def command(
    out: Path,
    variant: str,
    seed: int,
    minutes: float,
    each: int,
    *,
    at_once: int,
    episodes: str,
    quick: bool,
    other: Sequence[str],
) -> list[str]:
    given = ["--out", out, "--variant", variant, "--seed", seed, "--minutes", minutes, "--held-out", each]
    given += ["--parallel", at_once, "--episodes", episodes]
    return [sys.executable, __file__, *map(str, given), *(["--quick"] if quick else []), "--set", *other]


def read_other(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE of the block rl, values as in params.yaml. Raises BadInput for anything else."""
    wrong = [pair for pair in pairs if "=" not in pair or pair.partition("=")[0] not in RlSettings.model_fields]
    if wrong:
        raise BadInput(f"{wrong[0]!r} is not NAME=VALUE of the block rl", where="--set", fix="such as actor_lr=5e-5")
    return {name: yaml_text.parse_yaml(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def environment(threads: int) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(threads)}


def main_of_run(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--held-out", dest="each", type=int, required=True)
    parser.add_argument("--parallel", dest="at_once", type=int, default=1)
    parser.add_argument("--episodes", choices=rl_start.RECIPES, default="short")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--set", nargs="*", default=[])
    options = vars(parser.parse_args(argv))
    run(other=read_other(options.pop("set")), **options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main_of_run())
