"""The conformance suite of the environment contract: every back-end passes it, the fake included.

Each clause is one function, which raises EnvError naming what does not hold. `check_env` runs them all; `CLAUSES`
lets a caller run and report them one by one.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Finished, Hotkey, Point, Type, Wait
from flywheel.environments.env import Checkpointable, Env, StepResult, Task
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import check_keeping, check_seeds
from flywheel.sandbox.check_actions import ELSEWHERE, IMPOSSIBLE, INSIDE, MIDDLE, ORDINARY, OUTSIDE, TEXTS

MakeEnv = Callable[[], AbstractAsyncContextManager[Any]]
Hang = Callable[[Env], Awaitable[None]]
_ACTIONS: Sequence[Action] = (Click(MIDDLE), Hotkey(("left",)), Type("red"), Wait(), Click(Point(0.1, 0.3)))


class Differs(EnvError):
    """What should be alike was not: pixels, or a result."""


@dataclass(frozen=True)
class Checked:
    """What is checked. seeded: another seed gives another task. able: actions of other environments that it can do.
    moves: what is played, for environments in which clicks and keys are no-ops."""

    make_env: MakeEnv
    task: Task
    seeded: bool = False
    able: frozenset[type] = frozenset()
    hang: Hang | None = None
    moves: Sequence[Action] = _ACTIONS

    def hold(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise EnvError(otherwise, where=f"check of world {self.task.world}, task {self.task.task_id}")


async def check_env(
    make_env: MakeEnv,
    task: Task,
    hang: Hang | None = None,
    *,
    seeded: bool = False,
    able: frozenset[type] = frozenset(),
    moves: Sequence[Action] = _ACTIONS,
) -> None:
    """Check one back-end on one task. Raises EnvError naming the first clause that does not hold.

    make_env: leases an env. hang: makes a reset env hang at its next step, to check the deadline. seeded: another
    seed gives another task. able: types of actions beyond mouse, keyboard and address that this back-end can do. moves:
    what is played to see that it repeats itself; three at least, none of which ends the task.
    """
    checked = Checked(make_env, dataclasses.replace(task, max_steps=max(task.max_steps, 4)), seeded, able, hang, moves)
    for clause in CLAUSES.values():
        await clause(checked)


async def resume(make_env: MakeEnv, task: Task, checkpoint: bytes, actions: Sequence[Action]) -> list[StepResult]:
    """Restore a checkpoint in a fresh env, in whatever process, and play on: the restored result and what followed."""
    async with make_env() as env:
        await env.reset(task, task.seed)
        results = [await env.restore(checkpoint)]
        for action in actions:
            results.append(await env.step(action))
        return results


# -- the clauses ----------------------------------------------------------------------------------------------------
async def _determinism(c: Checked) -> None:
    """The same task, seed and actions give the same results, in one env and in another; none changes later."""
    async with c.make_env() as env:
        first = await _play(c, env, c.moves)
        _same(first, await _play(c, env, c.moves), "the same task, seed and actions in one env")
    async with c.make_env() as env:
        _same(first, await _play(c, env, c.moves), "the same task, seed and actions in another env")


async def _seeding(c: Checked) -> None:
    """A seed says what there is: itself again, and where the task is seeded not what another seed gives."""
    async with c.make_env() as env:
        other = await env.reset(c.task, c.task.seed + 1)
        await env.reset(c.task, c.task.seed)
        _same([other], [await env.reset(c.task, c.task.seed + 1)], "another seed, given twice,")
    if c.seeded:
        found = await check_seeds.compare(c.make_env, c.task)
        c.hold(found.differ_at is not None, str(found))


async def _reset(c: Checked) -> None:
    """A reset in the middle of an episode forgets it: its actions, its keys held down, its budget."""
    async with c.make_env() as env:
        first = await env.reset(c.task, c.task.seed)
        for action in (Click(MIDDLE), act.Press("shift"), act.Press("right")):
            if (await env.step(action)).terminated:
                break
        _same([first], [await env.reset(c.task, c.task.seed)], "a reset in the middle of an episode")
        after = await env.step(Type("a"))
        await env.reset(c.task, c.task.seed)
        _same([after], [await env.step(Type("a"))], "a step after a reset in the middle of an episode")


async def _ends(c: Checked) -> None:
    """Finished terminates; the budget truncates without a reward; either way a further step is an error."""
    async with c.make_env() as env:
        done = (await _play(c, env, [Finished()]))[-1]
        c.hold(done.terminated and not done.truncated, "finished() did not terminate")
        c.hold(done.reward == done.info["score"], "the reward of an end is not its score")
        await _refuses(c, env, "after a termination")
        for budget in (c.task.max_steps, 1):
            idle = await _play(c, env, [Wait()] * (budget + 1), max_steps=budget)
            if idle[-1].terminated:  # a game that time alone ends: try a smaller budget
                continue
            c.hold(len(idle) == budget + 1, f"it ended after {len(idle) - 1} of {budget} steps")
            c.hold(idle[-1].truncated, "the step budget did not truncate")
            c.hold(not any(result.truncated for result in idle[:-1]), "it truncated before the budget was used up")
            c.hold(all(result.reward == 0 for result in idle), "waiting or a truncation was rewarded")
            await _refuses(c, env, "after a truncation")
            last = await _play(c, env, [Finished()], max_steps=1)
            c.hold(last[-1].terminated, "an end by the last step of the budget is a truncation")


async def _checkpoints(c: Checked) -> None:
    """What follows a restored checkpoint is what followed it: twice, from another state, after the end, elsewhere. Of
    environments that offer checkpoints."""
    follow = c.moves[1:3]
    async with c.make_env() as env:
        if not isinstance(env, Checkpointable):
            return
        await _refuses(c, env, "before a reset", env.checkpoint())
        await env.reset(c.task, c.task.seed)
        begun = await env.checkpoint()
        move = c.moves[0]
        reached = await env.step(move)
        if reached.terminated:  # a click that solves the task: wait instead
            move = Wait()
            await env.reset(c.task, c.task.seed)
            reached = await env.step(move)
        if reached.terminated:
            return
        kept = await env.checkpoint()
        c.hold(isinstance(kept, bytes), "a checkpoint is not bytes")
        first = [reached, *[await env.step(action) for action in follow]]
        for when in ("a checkpoint", "the same checkpoint again"):
            again = [await env.restore(kept), *[await env.step(action) for action in follow]]
            _same(first, again, f"what followed {when}, restored,")
        if not (first[-1].terminated or first[-1].truncated):
            await env.step(Finished())
        _same([reached], [await env.restore(kept)], "a checkpoint restored after the end")
        await env.restore(begun)
        _same([reached], [await env.step(move)], "a step after the checkpoint of the start")
        over = await env.step(Finished())
        ended = await env.checkpoint()
        await env.reset(c.task, c.task.seed)
        _same([over], [await env.restore(ended)], "the checkpoint of an end")
        await _refuses(c, env, "after the checkpoint of an end was restored")
    _same(first, await resume(c.make_env, c.task, kept, follow), "what followed a checkpoint, restored in another env,")
    for what, strange in (
        ("no bytes", b""),
        ("bytes that are none", b"\xff\0 not a checkpoint"),
        ("a part", kept[:-3]),
    ):
        async with c.make_env() as env:
            await env.reset(c.task, c.task.seed)
            await _refuses(c, env, f"from a checkpoint of {what}", env.restore(strange))


async def _keeps(c: Checked) -> None:
    """Of environments that keep a part."""
    fault = await check_keeping.fault(c.make_env, c.task, c.moves)
    c.hold(not fault, fault)


async def _actions(c: Checked) -> None:
    """Every action of the grammar is done or is a noted no-op; none of them, and no text, harms the env."""
    foreign = tuple(action for action in ELSEWHERE if type(action) not in c.able)
    nothing = (*OUTSIDE, *IMPOSSIBLE, *foreign)
    typed = tuple(Type(text) for text in TEXTS) + tuple(act.Navigate(text) for text in TEXTS[3:8])
    async with c.make_env() as env:
        await _each(c, env, (*ORDINARY, *INSIDE, *typed))
        for action, result in await _each(c, env, INSIDE):
            c.hold("outside" not in result.info.get("note", ""), f"{action} was held to be outside")
        still = await _each(c, env, [Wait()] * len(nothing))
        done = await _each(c, env, nothing)
        for action, result in done:
            c.hold(bool(result.info.get("note")), f"{action} did nothing and was not noted")
        for (action, result), (_, waited) in zip(done, still, strict=True):
            if result.observation != waited.observation:
                raise Differs(f"{action} had an effect", where=f"check of world {c.task.world}, task {c.task.task_id}")


async def _closed(c: Checked) -> None:
    """After close nothing but close, twice at will."""
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)
        await env.close()
        await _refuses(c, env, "after it was closed")
        if isinstance(env, Checkpointable):
            await _refuses(c, env, "after it was closed", env.checkpoint())
        await env.close()


async def _deadline(c: Checked) -> None:
    """A hung env raises EnvTimeout, then refuses; the next lease is sound."""
    if c.hang is None:
        return
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)
        await c.hang(env)
        try:
            await env.step(Wait())
        except EnvTimeout:
            pass
        else:
            c.hold(False, "a hung env did not raise EnvTimeout")
        await _refuses(c, env, "after an error")
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)


CLAUSES: dict[str, Callable[[Checked], Awaitable[None]]] = {
    "determinism": _determinism,
    "seeding": _seeding,
    "reset in the middle": _reset,
    "truncation and termination": _ends,
    "checkpoint and restore": _checkpoints,
    "keep and bring back": _keeps,
    "actions": _actions,
    "close": _closed,
    "deadline": _deadline,
}


# -- what they share ------------------------------------------------------------------------------------------------
async def _play(c: Checked, env: Env, actions: Sequence[Action], max_steps: int | None = None) -> list[StepResult]:
    """Results of a reset and of the actions that the episode had room for; none may change afterwards."""
    task = c.task if max_steps is None else dataclasses.replace(c.task, max_steps=max_steps)
    results = [await env.reset(task, task.seed)]
    kept = [copy.deepcopy(results[0])]
    for action in actions:
        if results[-1].terminated or results[-1].truncated:
            break
        results.append(await env.step(action))
        kept.append(copy.deepcopy(results[-1]))
    await asyncio.sleep(0)
    c.hold(results == kept, "a returned result changed later")
    for result in results:
        _sound(c, result)
    return results


async def _each(c: Checked, env: Env, actions: Sequence[Action]) -> list[tuple[Action, StepResult]]:
    """A reset, then each action with its result; after an end, from a reset again."""
    task = dataclasses.replace(c.task, max_steps=10_000)
    results, over = [], True
    for action in actions:
        if over:
            await env.reset(task, task.seed)
        try:
            result = await env.step(action)
        except Exception as error:
            raise EnvError(
                f"{act.NAMES[type(action)]} broke the env: {type(error).__name__}: {error}",
                where=f"check of world {task.world}, {str(action)[:80]!r}",
            ) from error
        _sound(c, result)
        over = result.terminated
        results.append((action, result))
    return results


def _sound(c: Checked, result: StepResult) -> None:
    """What every result holds."""
    shot, info = result.observation, result.info
    c.hold(isinstance(shot.text, str), "the observation's text is no text")
    if shot.screenshot is None:
        c.hold((shot.width, shot.height) == (0, 0), "there is no screenshot, and it has a size")
    else:
        c.hold(shot.screenshot.startswith(b"\x89PNG\r\n\x1a\n"), "the screenshot is not a PNG")
        size = tuple(int.from_bytes(shot.screenshot[at : at + 4]) for at in (16, 20))
        c.hold(size == (shot.width, shot.height), f"the screenshot is {size}, not {shot.width} x {shot.height}")
    c.hold("state" in info, "info has no state")
    c.hold(isinstance(info["state"].get("terminated"), bool), "the state does not say whether it is terminated")
    c.hold(0 <= info.get("score", -1) <= 1, "info has no score between 0 and 1")
    c.hold(not (result.terminated and result.truncated), "a result is terminated and truncated at once")
    c.hold(result.terminated or result.reward == 0, "there was a reward before the end")
    c.hold(isinstance(info.get("note", "-"), str) and info.get("note", "-") != "", "a note is no text")
    try:
        json.dumps(info["state"], allow_nan=False)
    except (TypeError, ValueError) as error:
        c.hold(False, f"the state is not JSON: {error}")


async def _refuses(c: Checked, env: Env, when: str, asked: Awaitable[Any] | None = None) -> None:
    try:
        await (asked or env.step(Wait()))
    except EnvError:
        return
    except Exception as error:
        c.hold(False, f"{type(error).__name__} instead of EnvError {when}")
    c.hold(False, f"it took a call {when}")


def _same(one: list[StepResult], other: list[StepResult], what: str) -> None:
    if len(one) != len(other):
        raise EnvError(f"{what} ended after another number of steps", where=f"{len(one)} and {len(other)}")
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.observation.screenshot != b.observation.screenshot:
            raise Differs(f"{what} gave other pixels", where=f"step {number}")
        if a != b:
            raise Differs(f"{what} gave another result", where=f"step {number}: {_where(a, b)}")


def _where(a: StepResult, b: StepResult) -> str:
    """The first part in which two results differ."""
    if a.info != b.info:
        keys = [key for key in {**a.info, **b.info} if a.info.get(key) != b.info.get(key)]
        return f"info {keys[0]}: {str(a.info.get(keys[0]))[:100]} and {str(b.info.get(keys[0]))[:100]}"
    names = [field.name for field in dataclasses.fields(a) if getattr(a, field.name) != getattr(b, field.name)]
    return f"{names[0]}: {str(getattr(a, names[0]))[:100]} and {str(getattr(b, names[0]))[:100]}"
