"""Episodes for `benchmarks/worlds.py`: experts and random play in several pages at once."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flywheel.agent.actions import Action, Finished
from flywheel.envs.base import Env, StepResult, Task, Verdict
from flywheel.envs.suites import oracle
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.suites.players import random_action
from flywheel.utils.errors import FlywheelError

T = TypeVar("T")
_TRIES = 3  # of an episode whose page crashed


@dataclass(frozen=True)
class Episode:
    """actions and screens (digests) from the reset on. score: of the last state, whether or not it was won.

    state: the last one. before: the one before the last action, where one who stops a step early ends.
    """

    task: Task
    score: float
    won: bool
    actions: tuple[Action, ...]
    screens: tuple[str, ...]
    state: dict
    before: dict
    fault: str = ""


def slots(world: BrowserWorld) -> list[tuple[str, int]]:
    """(template, level), levels rising."""
    found = ((template, level) for template, spec in world.templates.items() for level in spec.max_steps)
    return sorted(found, key=lambda slot: (slot[1], slot[0]))


def expert_seeds(world: BrowserWorld, count: int) -> list[tuple[str, int, int]]:
    """(template, level, seed) of what its expert plays: of a game so many seeds, its levels in turn; of all others each
    template with so many seeds, its levels in turn."""
    if world.kind == "game":
        return random_seeds(world, count)
    found = []
    for template, spec in world.templates.items():
        rising = sorted(spec.max_steps)
        found += [(template, rising[seed % len(rising)], seed) for seed in range(count)]
    return found


def random_seeds(world: BrowserWorld, count: int) -> list[tuple[str, int, int]]:
    """So many (template, level, seed), templates and levels in turn."""
    turns = slots(world)
    return [(*turns[seed % len(turns)], seed) for seed in range(count)]


async def each(pool, things: Iterable[T], play: Callable[[Env, T], Awaitable[Episode]]) -> list[Episode]:
    """`play` of each thing (a task, with actions, or an episode) in a page of its own, as many at once as the pool has.

    Where the page fails each time, the episode has that fault, no screens and no score: told, and not to be counted as
    play.
    """

    async def one(thing: T) -> Episode:
        fault = ""
        for _ in range(_TRIES):
            try:
                async with pool.env() as env:
                    return await play(env, thing)
            except FlywheelError as error:
                print(f"an episode failed: {error}", file=sys.stderr, flush=True)
                fault = str(error)
        task = thing if isinstance(thing, Task) else thing[0] if isinstance(thing, tuple) else thing.task
        return Episode(task, 0.0, False, (), (), {}, {}, fault)

    return await asyncio.gather(*(one(thing) for thing in things))


async def by_expert(env: Env, task: Task) -> Episode:
    """The expert's play; a fault of its own (no way, no such element) is told, not raised."""
    return await _play(env, task, lambda result: _advice(task, result))


async def at_random(env: Env, task: Task) -> Episode:
    rng = random.Random(f"random play {task.task_id}")
    return await _play(env, task, lambda result: random_action(rng, texts=task.domain != "games"))


async def again(env: Env, actions_of: tuple[Task, Sequence[Action]]) -> Episode:
    """The given actions; after the last one, nothing."""
    task, actions = actions_of
    left = iter(actions)
    return await _play(env, task, lambda result: next(left, None))


async def through_checkpoint(env: Env, played: Episode) -> Episode:
    """The episode's actions, with a checkpoint in the middle that is gone back to after one more step."""
    half = len(played.actions) // 2
    await env.reset(played.task, played.task.seed)
    for action in played.actions[:half]:
        await env.step(action)
    mark = await env.checkpoint()
    await env.step(played.actions[half])
    result = await env.restore(mark)
    screens = [_digest(result)]
    for action in played.actions[half:]:
        result = await env.step(action)
        screens.append(_digest(result))
    return dataclasses.replace(played, screens=(*played.screens[:half], *screens))


async def _play(env: Env, task: Task, choose: Callable[[StepResult], Action | None]) -> Episode:
    result = await env.reset(task, task.seed)
    actions, screens, fault, before = [], [_digest(result)], "", dict(result.info["state"])
    while not (result.terminated or result.truncated):
        try:
            action = choose(result)
        except (FlywheelError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            action, fault = None, f"{type(error).__name__}: {error}"[:300]
        if action is None:
            break
        before = dict(result.info["state"])
        result = await env.step(action)
        actions.append(action)
        screens.append(_digest(result))
    score = result.info["score"]
    won = result.terminated and bool(Verdict(result.reward, task.threshold).v)
    state = dict(result.info["state"])
    return Episode(task, score, won, tuple(actions), tuple(screens), state, before, fault)


def _advice(task: Task, result: StepResult) -> Action:
    advice = oracle.next_expert_step(task, result.info["state"], task.seed)
    return Finished() if advice is None else advice[1]


def _digest(result: StepResult) -> str:
    return hashlib.sha256(result.observation.screenshot).hexdigest()
