"""Whether another seed gives another task: at its first screen, or only in what follows from the same actions.

A game against a player of chance begins with the same board for every seed. So where first screens are alike, the
same actions are played with each seed, and screens and states are compared step by step.
"""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point, Type, Wait
from flywheel.environments.env import Env, StepResult, Task

SEEDS = 4  # other seeds that are tried: at least one of them must differ
STEPS = 24  # of one seed, where first screens are alike
_KEYS = ("left", "right", "up", "down", "space", "enter", "a")
_FOLLOW = 0.5  # share of the actions that go where the last change was
_CLICKS = 0.7  # of all others


@dataclass(frozen=True)
class Seeds:
    """differ_at: the step after which another seed showed (0: at once); None: it did not, in `steps` steps.

    drawn: the most numbers that a page took from its seeded chance, where the environment tells.
    """

    differ_at: int | None
    steps: int = 0
    drawn: int = 0

    def __str__(self) -> str:
        if self.differ_at is None:
            return f"{SEEDS} other seeds all gave the same task, over {self.steps} steps of the same actions"
        return "at the first screen" if not self.differ_at else f"after {self.differ_at} steps of the same actions"


async def compare(
    make_env: Callable[[], AbstractAsyncContextManager[Any]],
    task: Task,
    look: Callable[[Env], Awaitable[None]] | None = None,
) -> Seeds:
    """Play a task with its own seed and with others. look: called with the env after the last step of the first."""
    seeds = [task.seed + step for step in range(SEEDS + 1)]
    task = dataclasses.replace(task, max_steps=10_000)
    async with make_env() as env:
        first = await env.reset(task, task.seed)
        for seed in seeds[1:]:
            if differ(first, await env.reset(task, seed)):
                return Seeds(0)
        played = await _explore(env, task)
        drawn = _drawn(env)
        if look is not None:
            await look(env)
        for seed in seeds[1:]:
            await env.reset(task, seed)
            for number, (action, result) in enumerate(played, 1):
                other = await env.step(action)
                if differ(result, other):
                    return Seeds(number, len(played))
                if other.terminated:
                    break
            drawn = max(drawn, _drawn(env))
        return Seeds(None, len(played), drawn)


def differ(one: StepResult, other: StepResult) -> bool:
    """By what is seen or recorded; not by the address, in which the seed itself may stand."""
    here, there = ({**result.info["state"], "page": ""} for result in (one, other))
    seen = [(result.observation.screenshot, result.observation.text) for result in (one, other)]
    return seen[0] != seen[1] or here != there


async def _explore(env: Env, task: Task) -> list[tuple[Action, StepResult]]:
    """Some steps by chance, half of them where the last change was: what a click opened or selected."""
    rng = random.Random(task.task_id)
    before = await env.reset(task, task.seed)
    changed: list[Point] = []
    played = []
    for _ in range(STEPS):
        action = Click(rng.choice(changed)) if changed and rng.random() < _FOLLOW else draw(rng)
        result = await env.step(action)
        played.append((action, result))
        if result.terminated:
            break
        before, changed = result, _changes(before, result, rng) or changed
    return played


def draw(rng: random.Random) -> Action:
    """An action by chance: clicks mostly."""
    points = [Point(rng.random(), rng.random()) for _ in range(2)]
    others = (Drag(*points), Hotkey((rng.choice(_KEYS),)), Type("12"), Wait())
    return Click(points[0]) if rng.random() < _CLICKS else rng.choice(others)


def _changes(before: StepResult, after: StepResult, rng: random.Random) -> list[Point]:
    """Some points whose pixels changed."""
    if None in (shots := (before.observation.screenshot, after.observation.screenshot)) or shots[0] == shots[1]:
        return []
    one, other = (np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")) for shot in shots)
    if one.shape != other.shape:
        return []
    rows, columns = np.nonzero((one != other).any(axis=2))
    height, width = one.shape[:2]
    chosen = rng.sample(range(len(rows)), min(8, len(rows)))
    return [Point((float(columns[at]) + 0.5) / width, (float(rows[at]) + 0.5) / height) for at in chosen]


def _drawn(env: Any) -> int:
    return getattr(getattr(env, "tab", None), "drawn", 0)
