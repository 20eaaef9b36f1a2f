"""The conformance suite of the environment contract: every back-end passes it, the fake included."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from flywheel.agent.actions import Action, Click, Finished, Hotkey, Point, Type, Wait
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox.env import Env, StepResult, Task

MakeEnv = Callable[[], AbstractAsyncContextManager[Any]]
_OUTSIDE = Click(Point(1.5, 0.5))
_ACTIONS: Sequence[Action] = (Click(Point(0.5, 0.5)), Hotkey(("left",)), Type("red"), Wait(), Click(Point(0.1, 0.3)))


async def check_env(make_env: MakeEnv, task: Task, hang: Callable[[Env], Awaitable[None]] | None = None) -> None:
    """Check one back-end on one task. Raises EnvError naming the first clause that does not hold.

    make_env: leases an env. hang: makes a reset env hang at its next step, to check the deadline.
    """
    task = dataclasses.replace(task, max_steps=max(task.max_steps, 4))
    async with make_env() as env:
        first = await _play(env, task, _ACTIONS)
        again = await _play(env, task, _ACTIONS)
        _same(first, again, "the same task, seed and actions in one env")
        await _ends(env, task)
        await _outside(env, task)
        await _restores(env, task)
    async with make_env() as env:
        _same(first, await _play(env, task, _ACTIONS), "the same task, seed and actions in another env")
        await env.close()
        await env.close()
    if hang is not None:
        await _deadline(make_env, task, hang)


async def _play(env: Env, task: Task, actions: Sequence[Action]) -> list[StepResult]:
    """Results of a reset and of the actions that the episode had room for; none may change afterwards."""
    results = [await env.reset(task, task.seed)]
    kept = [copy.deepcopy(results[0])]
    for action in actions:
        if results[-1].terminated or results[-1].truncated:
            break
        results.append(await env.step(action))
        kept.append(copy.deepcopy(results[-1]))
    _hold(results == kept, "a returned observation changed later", task)
    for result in results:
        shot = result.observation
        _hold(shot.screenshot.startswith(b"\x89PNG"), "the screenshot is not a PNG", task)
        _hold("state" in result.info, "info has no state", task)
        _hold(not (result.terminated and result.truncated), "a result is terminated and truncated at once", task)
    return results


async def _ends(env: Env, task: Task) -> None:
    """Finished terminates; the budget truncates without a reward; either way a further step is an error."""
    done = (await _play(env, task, [Finished()]))[-1]
    _hold(done.terminated and not done.truncated, "finished() did not terminate", task)
    await _refuses(env, task, "after a termination")
    idle = await _play(env, task, [Wait()] * (task.max_steps + 1))
    _hold(len(idle) == task.max_steps + 1, f"it ended after {len(idle) - 1} of {task.max_steps} steps", task)
    _hold(idle[-1].truncated and not idle[-1].terminated, "the step budget did not truncate", task)
    _hold(not any(result.truncated for result in idle[:-1]), "it truncated before the budget was used up", task)
    _hold(idle[-1].reward == 0, "a truncation was rewarded", task)
    await _refuses(env, task, "after a truncation")


async def _refuses(env: Env, task: Task, when: str) -> None:
    try:
        await env.step(Wait())
    except EnvError:
        return
    _hold(False, f"it took a step {when}", task)


async def _outside(env: Env, task: Task) -> None:
    """An action outside the viewport does nothing and says so."""
    still, acted = (await _play(env, task, [Wait()]))[-1], (await _play(env, task, [_OUTSIDE]))[-1]
    _hold(bool(acted.info.get("note")), "an action outside the viewport was not noted", task)
    _hold(acted.observation == still.observation, "an action outside the viewport had an effect", task)


async def _restores(env: Env, task: Task) -> None:
    """What follows a restored checkpoint is what followed it the first time."""
    await env.reset(task, task.seed)
    reached = await env.step(_ACTIONS[0])
    kept = await env.checkpoint()
    if reached.terminated or reached.truncated:
        return
    after = await env.step(_ACTIONS[1])
    back = await env.restore(kept)
    _same([reached], [back], "a restored checkpoint")
    _same([after], [await env.step(_ACTIONS[1])], "a step after a restored checkpoint")


async def _deadline(make_env: MakeEnv, task: Task, hang: Callable[[Env], Awaitable[None]]) -> None:
    async with make_env() as env:
        await env.reset(task, task.seed)
        await hang(env)
        try:
            await env.step(Wait())
        except EnvTimeout:
            pass
        else:
            _hold(False, "a hung env did not raise EnvTimeout", task)
        await _refuses(env, task, "after an error")
    async with make_env() as env:
        await env.reset(task, task.seed)


def _same(one: list[StepResult], other: list[StepResult], what: str) -> None:
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.observation.screenshot != b.observation.screenshot:
            raise EnvError(f"{what} gave other pixels", where=f"step {number}")
        if a != b:
            raise EnvError(f"{what} gave another result", where=f"step {number}")


def _hold(holds: bool, otherwise: str, task: Task) -> None:
    if not holds:
        raise EnvError(otherwise, where=f"check of world {task.world}, task {task.task_id}")
