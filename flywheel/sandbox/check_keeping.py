"""Whether what an environment keeps of an episode is brought back: at its step, here and elsewhere, the lost told."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from flywheel.agent.actions import Action
from flywheel.environments.env import Keepable, StepResult, Task
from flywheel.errors import EnvError


async def fault(make_env: Callable[[], AbstractAsyncContextManager[Any]], task: Task, moves: Sequence[Action]) -> str:
    """What does not hold; "" where all does, or where the environment keeps nothing. moves: two that end no task."""
    async with make_env() as env:
        if not isinstance(env, Keepable):
            return ""
        if not await _refuses(env.keep()):
            return "it kept something before a reset"
    async with make_env() as env:
        await env.reset(task, task.seed)
        await env.step(moves[0])
        kept = await env.keep()
        await env.step(moves[1])  # what is at work goes on
        here = await env.bring_back(kept)
        here_then = await env.step(moves[1])
    short = dataclasses.replace(task, max_steps=2)
    async with make_env() as env:
        await env.reset(short, task.seed)
        there = await env.bring_back(kept)
        there_then = await env.step(moves[1])
        if not there_then.truncated:
            return "what was brought back has lost count of its steps"
        if not await _refuses(env.keep()):
            return "it kept something after the end"
    for begun in (here, there):
        if not _told(begun):
            return "what was brought back does not say what is lost"
    for one, other in ((here, there), (here_then, there_then)):
        if one.observation != other.observation:
            return "what was brought back is seen otherwise elsewhere"
    for strange in (b"\xff\0 nothing kept", kept[:-3]):
        async with make_env() as env:
            await env.reset(task, task.seed)
            if not await _refuses(env.bring_back(strange)):
                return "it brought back what nobody kept"
    return ""


def _told(result: StepResult) -> bool:
    lost = result.info.get("lost")
    return isinstance(lost, list) and all(isinstance(line, str) for line in lost)


async def _refuses(asked: Awaitable[Any]) -> bool:
    try:
        await asked
    except EnvError:
        return True
    return False
