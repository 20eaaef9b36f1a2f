"""A stage for tests of training on several nodes: it trains a tiny model that lies in the workspace. The nodes find
this module by its name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lamp_env import LEFT, RIGHT, Lamps, screen, settings, task

from flywheel.agent.prompt import build_context
from flywheel.config import SupervisedSettings
from flywheel.pipeline.stage import TRAINING, Stage, StageContext, StageResult
from flywheel.policy.encoding import EncodedSequence, Encoder
from flywheel.rewards.scorers import verifier
from flywheel.training.data import Example, ShuffledDataset, plan_batches
from flywheel.training.rl.run import train_rl
from flywheel.training.sft import train_supervised

SUPERVISED = {"lr": 3e-3, "batch": 4, "save_every": 2, "processes": 2, "pack_tokens": 300}
# Which turns lie in which minibatch hangs on the names of episodes: so that a run repeats bit for bit.
RL = {
    "steps": 2,
    "tasks_per_step": 2,
    "group_size": 2,
    "minibatch": 64,
    "value_pretraining_steps": 2,
    "value_pretraining_tasks": 2,
    "deterministic": True,
    "max_staleness": 0,
    "length_buffer": 2,
    "pack_tokens": 300,
    "processes": 2,
}


@dataclass(frozen=True)
class Watched:
    """A prompt that tells who reads it, and dies or waits then, where a file says so to the process of that rank."""

    prompt: EncodedSequence
    folder: Path

    def __call__(self) -> EncodedSequence:
        rank = os.environ["RANK"]
        (self.folder / f"pid {rank} {os.getpid()} {os.environ.get('RAY_RAYLET_PID', '')}").touch()
        try:
            (self.folder / f"kill {rank}").unlink()
        except FileNotFoundError:
            while (self.folder / f"hold {rank}").exists():
                time.sleep(0.02)
            return self.prompt
        os.write(2, b"the last words\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")


def samples(model: Path, folder: Path, watched: int) -> list[Example]:
    """watched: the number of the one that tells of itself."""
    encoder, made = Encoder.from_folder(model), []
    for number in range(16):
        side, text = (("left", LEFT), ("right", RIGHT))[number % 2]
        shown = build_context("Click the lamp.", (), screen(side, number // 8), settings().policy)
        prompt: Any = encoder.encode(shown)
        prompt = Watched(prompt, folder) if number == watched else prompt
        made.append(Example(prompt, tuple(encoder.encode_text(text)), None, f"t{number:02d}", 0, "games"))
    return made


def supervised(root: Path, out: Path, state: Path, block: SupervisedSettings, on_metric: Callable) -> list[float]:
    """Four steps; the third has the sample that is watched."""
    watched = plan_batches(16, block.batch, 5)[2][0]
    made = samples(root / "model", root / "told", watched)
    dataset = ShuffledDataset(made, block.batch, seed=5)
    return train_supervised(root / "model", out, dataset, settings=block, state_folder=state, on_metric=on_metric)


def reinforced(root: Path, out: Path, state: Path, block: dict[str, Any]) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:  # the process may be that of the tests
        patch.setattr(verifier, "score_final_state", lambda task, state: float(task.params["side"] == "left"))
        return train_rl(
            root / "model",
            out,
            "games",
            [task(number, max_steps=2) for number in range(4)],
            settings=settings(rl=block, policy={"max_new_tokens": 9, "timeout_s": 60}),
            iteration=1,
            state_folder=state,
            open_environments=Lamps.open,
        ).curve


def _train(ctx: StageContext, shard: str, folder: Path) -> Any:
    if ctx.stage != "sft":
        return reinforced(ctx.ws.root, ctx.ws.root / "out", folder, RL)

    def on_metric(metric) -> None:
        ctx.report(f"step {metric['step']} of {metric['steps']}, loss {metric['loss']:.3f}")

    return supervised(ctx.ws.root, ctx.ws.root / "out", folder, ctx.settings.sft, on_metric)


def _finish(ctx: StageContext, results: dict) -> StageResult:
    return StageResult()


SFT, REINFORCED = (
    Stage(name, (), (), ("sft",), lambda ctx: (ctx.stage,), _train, _finish, needs=(TRAINING,))
    for name in ("sft", "rl-games")
)
