"""RL alone, from a run's last model: tasks of all domains together, and no CT, no SFT, no new demonstrations."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel import config
from flywheel.cli import options
from flywheel.config.workspace import Workspace
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.policy import checkpoint
from flywheel.store import manifest
from flywheel.training.rl.run import train_rl

# Beside the profile: 64 episodes a step, 2,304 in all, of so many tasks that none comes often.
CHANGES: Mapping[str, Any] = {
    "synthesis.train_tasks": 240,
    "rl.steps": 36,
    "rl.tasks_per_step": 16,
    "rl.group_size": 4,
    "rl.minibatch": 64,
    "rl.temperature": 0.7,
    "rl.warmup": 12,
    "rl.value_pretraining_tasks": 8,
}


def go_on(ws: Workspace, out: Path, seed: int, other: Sequence[str] = ()) -> Path:
    """The model that RL comes to: made in `out`, or there before. Where it was killed it goes on at its step.

    ws: of a run that is whole. other: NAME=VALUE that take the place of `CHANGES`.
    """
    model = out / "model"
    if not model.is_dir():
        last = max(int(path.parent.name) for path in ws.root.glob("iterations/*/promotion.json"))
        chosen = config.load_settings(ws.params, {**CHANGES, "seed": seed, **options.parse_overrides(tuple(other))})
        tasks = [task for task in make_tasks(chosen, last + 1, "train") if task.instruction]
        begin = checkpoint.resolve_checkpoint(manifest.read_promotion(ws, last)["model"], ws.root)
        train_rl(
            begin, model, "", tasks, settings=chosen, iteration=last + 1, state_folder=out / "state", on_metric=_tell
        )
    return model


def _tell(metric: Mapping[str, Any]) -> None:
    if "success" in metric:
        print(f"  RL alone: step {metric['step']}, success {metric['success']:.2f}", file=sys.stderr, flush=True)
