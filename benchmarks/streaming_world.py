"""Lamps behind a slow line: a small task that is really learnt, with the lengths and the latency of remote machines.

The agent clicks the half of the screen that is lit and that the instruction names, again and again; after as many
clicks as the task has the episode ends, and its score is the share of clicks that hit. So the length of an episode is
the task's, whoever acts. Every call of the environment waits as long as a machine elsewhere would take.
"""

from __future__ import annotations

import asyncio
import io
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import torch
from PIL import Image, ImageDraw
from transformers import Qwen3VLForConditionalGeneration

from flywheel.agent.actions import Action, Click
from flywheel.agent.prompt import build_context
from flywheel.config import PolicySettings, SupervisedSettings
from flywheel.envs.base import Observation, StepResult, Task
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import save_checkpoint, tiny_config
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.sft import train_supervised
from flywheel.utils.errors import EnvError

SIZE = 64
SIDES = ("left", "right")
CLICKS = {
    "left": "Thought: left.\nAction: click(point='<point>25 50</point>')",
    "right": "Thought: right.\nAction: click(point='<point>75 50</point>')",
}


def tasks(count: int, median: int, tail: float, seed: int) -> list[Task]:
    """Lengths are the quantiles of a log-normal distribution whose 99th percentile is `tail` times its median."""
    spread, normal = math.log(tail) / NormalDist().inv_cdf(0.99), NormalDist()
    lengths = [max(1, round(median * math.exp(spread * normal.inv_cdf((n + 0.5) / count)))) for n in range(count)]
    random.Random(seed).shuffle(lengths)
    return [
        Task(
            f"line{number:04d}",
            "games",
            "lamps",
            "line",
            1,
            seed * 10_000 + number,
            asked(SIDES[number % 2]),
            {"clicks": length, "side": SIDES[number % 2]},
            length,
            "train",
            "page:reward",
            1.0,
            "",
        )
        for number, length in enumerate(lengths)
    ]


def asked(side: str) -> str:
    return f"Click the {side} lamp."


def screen(side: str, done: int = 0) -> bytes:
    image = Image.new("RGB", (SIZE, SIZE), "black")
    draw = ImageDraw.Draw(image)
    left = 0 if side == "left" else SIZE // 2
    draw.rectangle((left, 0, left + SIZE // 2 - 1, SIZE - 1), "yellow")
    draw.rectangle((2, 2, 3 + done, 3), "red")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@dataclass
class Line:
    """Environments. latency: mean seconds of a step, of which a reset takes twice; 0: none is waited for. Each call's
    own is drawn from a gamma distribution by task and step, the same in every run. acting: environment-seconds in
    calls."""

    latency: float
    acting: float = 0.0
    began: float = 0.0

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[Lamp]:
        yield Lamp(self)

    @asynccontextmanager
    async def open(self, settings: object, tasks: object) -> AsyncIterator[Line]:
        self.began = time.monotonic()
        yield self

    async def wait(self, seed: int, call: int) -> None:
        began = time.monotonic()
        mean = self.latency * (1 if call else 2)
        await asyncio.sleep(mean * random.Random(f"wait {seed} {call}").gammavariate(4, 0.25))
        self.acting += time.monotonic() - began


class Lamp:
    def __init__(self, line: Line) -> None:
        self._line, self._task = line, None

    async def reset(self, task: Task, seed: int) -> StepResult:
        self._task, self._seed, self._done, self._hits = task, seed, 0, 0
        await self._line.wait(seed, 0)
        return self._result()

    async def step(self, action: Action) -> StepResult:
        hit = isinstance(action, Click) and SIDES[action.point.x >= 0.5] == self._task.params["side"]
        self._hits, self._done = self._hits + hit, self._done + 1
        await self._line.wait(self._seed, self._done)
        return self._result(float(hit))

    def _result(self, reward: float = 0.0) -> StepResult:
        clicks = self._task.params["clicks"]
        state = {"reward": self._hits, "floor": 0, "success": clicks}
        shown = Observation(screen(self._task.params["side"], self._done), SIZE, SIZE)
        return StepResult(shown, reward, terminated=self._done >= clicks, info={"state": state})

    async def checkpoint(self) -> bytes:
        raise EnvError("these lamps keep no checkpoints")

    async def restore(self, checkpoint: bytes) -> StepResult:
        raise EnvError("these lamps keep no checkpoints")

    async def close(self) -> None:
        self._task = None


def start(folder: Path, base: Path, policy: PolicySettings, right: float, seed: int) -> Path:
    """A checkpoint of the real architecture, made small, that writes actions and clicks the lit half with chance about
    `right`: what an SFT stage might leave to RL."""
    config = tiny_config()
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 64, 128, 2
    text.num_attention_heads = text.num_key_value_heads = 2
    vision.depth, vision.hidden_size, vision.intermediate_size, vision.num_heads = 1, 64, 128, 2
    vision.out_hidden_size, vision.num_position_embeddings = 64, 16
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    encoder = Encoder.from_folder(base)
    encoder.images.size = {"shortest_edge": SIZE * SIZE, "longest_edge": SIZE * SIZE}
    save_checkpoint(model, encoder, folder / "base")
    chance, samples = random.Random(seed), []
    shown = {
        (side, done): encoder.encode(build_context(asked(side), (), screen(side, done), policy))
        for side in SIDES
        for done in range(8)
    }
    said = {side: tuple(encoder.encode_text(text)) for side, text in CLICKS.items()}
    for number in range(2400):
        side = SIDES[number % 2]
        response = said[side if chance.random() < right else SIDES[1 - number % 2]]
        samples.append(Example(shown[side, chance.randrange(8)], response, None, f"s{number}", 0, "games"))
    block = SupervisedSettings(lr=3e-3, batch=16, num_examples=len(samples), freeze_vision=False)
    dataset = ShuffledDataset(samples, block.batch, seed)
    train_supervised(folder / "base", folder / "start", dataset, settings=block, state_folder=folder / "s")
    return folder / "start"
