"""Check that an environment keeps the contract of `flywheel.envs.base`, for tests of back-ends and checks of pages."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import io
import json
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Drag, Finished, Hotkey, Point, Type, Wait, actions_from_json
from flywheel.envs.base import Checkpointable, Env, PartialCheckpointable, StepResult, Task
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

SCREEN_CENTRE = Point(0.5, 0.5)

# Points are fractions of the screen, at least 0 and below 1.
ACTIONS_AT_EDGE = (Click(Point(0.0, 0.0)), Click(Point(math.nextafter(1, 0), math.nextafter(1, 0))))
_POINTS_OFF_SCREEN = ((1.5, 0.5), (1.0, 0.5), (0.5, 1.0), (-0.01, 0.5), (0.5, -1e300), (math.nan, 0.5), (0.5, math.inf))
ACTIONS_OFF_SCREEN = (
    *(Click(Point(*place)) for place in _POINTS_OFF_SCREEN),
    act.LeftDouble(Point(0.5, 2)),
    act.LeftTriple(Point(0.5, 2)),
    act.TypeAt(Point(2, 0.5), "a", clear=True),
    act.RightSingle(Point(2, 0.5)),
    Drag(SCREEN_CENTRE, Point(0.5, 1.0)),
    act.Hover(Point(1.0, 0.5)),
    Drag(Point(-1, 0), SCREEN_CENTRE),
    act.Scroll(Point(7, 7), "down"),
)
_TRIED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ORDINARY_ACTIONS, FOREIGN_ACTIONS, IMPOSSIBLE_ACTIONS = (
    tuple(actions_from_json(json.dumps(_TRIED[kind]))) for kind in ("ordinary", "foreign", "impossible")
)
HOSTILE_TEXTS = (*_TRIED["texts"], "e" * 100_000)

MakeEnv = Callable[[], AbstractAsyncContextManager[Any]]
Hang = Callable[[Env], Awaitable[None]]
N_OTHER_SEEDS = 4  # other seeds that are tried: at least one of them must differ
N_SEED_STEPS = 24  # played with each seed, where the first screens are alike
_RANDOM_KEYS = ("left", "right", "up", "down", "space", "enter", "a")
_SHARE_AT_LAST_CHANGE = 0.5  # share of the actions that click where the screen changed last
_SHARE_OF_CLICKS = 0.7  # among all other actions


@dataclass(frozen=True)
class SeedComparison:
    """Hold whether, and when, another seed gives another task: at the first screen or after the same actions.

    Actions are played too, since a game against a random player begins with the same board for every seed. differ_at:
    the step after which another seed's result differed (0: the reset); None: none did, in `steps` steps. drawn: the
    most random numbers that a page took from its seeded generator, where the environment tells.
    """

    differ_at: int | None
    steps: int = 0
    drawn: int = 0

    def __str__(self) -> str:
        if self.differ_at is None:
            return f"{N_OTHER_SEEDS} other seeds all gave the same task, over {self.steps} steps of the same actions"
        return "at the first screen" if not self.differ_at else f"after {self.differ_at} steps of the same actions"


async def compare_seeds(make_env: MakeEnv, task: Task, look: Hang | None = None) -> SeedComparison:
    """Play a task with its own seed, then the same actions with other seeds, and tell where the results first differ.

    make_env: leases an env. look: called with the env after the last step with the task's own seed; None: not called.
    Raises EnvError, BadInput and DataError as `Env` where the task cannot be played, and what `look` raises.
    """
    seeds = [task.seed + step for step in range(N_OTHER_SEEDS + 1)]
    task = dataclasses.replace(task, max_steps=10_000)
    async with make_env() as env:
        first = await env.reset(task, task.seed)
        for seed in seeds[1:]:
            if results_differ(first, await env.reset(task, seed)):
                return SeedComparison(0)
        played = await _explore_at_random(env, task)
        drawn = _count_random_draws(env)
        if look is not None:
            await look(env)
        for seed in seeds[1:]:
            await env.reset(task, seed)
            for number, (action, result) in enumerate(played, 1):
                other = await env.step(action)
                if results_differ(result, other):
                    return SeedComparison(number, len(played))
                if other.terminated:
                    break
            drawn = max(drawn, _count_random_draws(env))
        return SeedComparison(None, len(played), drawn)


def results_differ(one: StepResult, other: StepResult) -> bool:
    """Tell whether two results differ in screen, text or state, leaving out the address, which may hold the seed."""
    here, there = ({**result.info["state"], "page": ""} for result in (one, other))
    seen = [(result.observation.screenshot, result.observation.text) for result in (one, other)]
    return seen[0] != seen[1] or here != there


async def _explore_at_random(env: Env, task: Task) -> list[tuple[Action, StepResult]]:
    """Play some random steps; half of them click where the screen changed last, on what a click opened or selected."""
    rng = random.Random(task.task_id)
    before = await env.reset(task, task.seed)
    changed: list[Point] = []
    played = []
    for _ in range(N_SEED_STEPS):
        there = changed and rng.random() < _SHARE_AT_LAST_CHANGE
        action = Click(rng.choice(changed)) if there else draw_random_action(rng)
        result = await env.step(action)
        played.append((action, result))
        if result.terminated:
            break
        before, changed = result, _sample_changed_points(before, result, rng) or changed
    return played


def draw_random_action(rng: random.Random) -> Action:
    """Draw an action for a random play of an environment, mostly a click; its points lie anywhere on the screen."""
    points = [Point(rng.random(), rng.random()) for _ in range(2)]
    others = (Drag(*points), Hotkey((rng.choice(_RANDOM_KEYS),)), Type("12"), Wait())
    return Click(points[0]) if rng.random() < _SHARE_OF_CLICKS else rng.choice(others)


def _sample_changed_points(before: StepResult, after: StepResult, rng: random.Random) -> list[Point]:
    """Choose up to eight points whose pixels changed."""
    if None in (shots := (before.observation.screenshot, after.observation.screenshot)) or shots[0] == shots[1]:
        return []
    one, other = (np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")) for shot in shots)
    if one.shape != other.shape:
        return []
    rows, columns = np.nonzero((one != other).any(axis=2))
    height, width = one.shape[:2]
    chosen = rng.sample(range(len(rows)), min(8, len(rows)))
    return [Point((float(columns[at]) + 0.5) / width, (float(rows[at]) + 0.5) / height) for at in chosen]


def _count_random_draws(env: Any) -> int:
    return getattr(getattr(env, "tab", None), "drawn", 0)


async def _raises_env_error(asked: Awaitable[Any]) -> bool:
    try:
        await asked
    except EnvError:
        return True
    return False


# Each clause of the contract is one function, which raises EnvError naming what does not hold.

_DEFAULT_MOVES = (Click(SCREEN_CENTRE), Hotkey(("left",)), Type("red"), Wait(), Click(Point(0.1, 0.3)))


class NotReproducible(EnvError):
    """Report that two results which must be alike differ, in pixels or otherwise."""


@dataclass(frozen=True)
class ConformanceCase:
    """Hold what the clauses of `check_env` check; its fields are that function's arguments."""

    make_env: MakeEnv
    task: Task
    seeded: bool = False
    able: frozenset[type] = frozenset()
    hang: Hang | None = None
    moves: Sequence[Action] = _DEFAULT_MOVES

    @property
    def where(self) -> str:
        """Return the world and the task that are checked, as error messages name them."""
        return f"check of world {self.task.world}, task {self.task.task_id}"

    def require(self, holds: bool, otherwise: str) -> None:
        """Raise EnvError with the message `otherwise` unless `holds`."""
        if not holds:
            raise EnvError(otherwise, where=self.where)


async def check_env(
    make_env: MakeEnv,
    task: Task,
    hang: Hang | None = None,
    *,
    seeded: bool = False,
    able: frozenset[type] = frozenset(),
    moves: Sequence[Action] = _DEFAULT_MOVES,
) -> None:
    """Check that one back-end keeps each clause of the contract (`CLAUSES`) on one task.

    make_env: leases an env. hang: makes a reset env hang at its next step, to check the deadline; None: that is not
    checked. seeded: another seed gives another task. able: types of actions beyond mouse, keyboard and address that
    this back-end can do. moves: actions that are played to check that results repeat; at least three; those
    after one that ends the task are not played.

    Raises EnvError that says what does not hold, at the first clause that does not; BadInput for fewer than three
    `moves`, and BadInput and DataError as `Env.reset` and `Env.step` do.
    """
    if len(moves) < 3:
        raise BadInput(f"{len(moves)} moves are given", where="check_env", fix="give three moves at least")
    task = dataclasses.replace(task, max_steps=max(task.max_steps, 4))
    checked = ConformanceCase(make_env, task, seeded, able, hang, moves)
    for clause in CLAUSES.values():
        await clause(checked)


async def resume_checkpoint(
    make_env: MakeEnv, task: Task, checkpoint: bytes, actions: Sequence[Action]
) -> list[StepResult]:
    """Restore `checkpoint` of `task` in a fresh env and play `actions`; returns the restored result and each step's.

    make_env: leases an env, in any process. Raises EnvError where the checkpoint cannot be restored, and as `Env`.
    """
    async with make_env() as env:
        await env.reset(task, task.seed)
        return [await env.restore(checkpoint), *[await env.step(action) for action in actions]]


# -- the clauses ----------------------------------------------------------------------------------------------------
async def _check_determinism(c: ConformanceCase) -> None:
    """Check that the same task, seed and actions repeat their results, in one env and in another."""
    async with c.make_env() as env:
        first = await _play_episode(c, env, c.moves)
        _check_same_results(first, await _play_episode(c, env, c.moves), "the same task, seed and actions in one env")
    async with c.make_env() as env:
        again = await _play_episode(c, env, c.moves)
        _check_same_results(first, again, "the same task, seed and actions in another env")


async def _check_seeding(c: ConformanceCase) -> None:
    """Check that a seed gives the same task again, and another seed another one where the task is seeded."""
    async with c.make_env() as env:
        other = await env.reset(c.task, c.task.seed + 1)
        await env.reset(c.task, c.task.seed)
        _check_same_results([other], [await env.reset(c.task, c.task.seed + 1)], "another seed, given twice,")
    if c.seeded:
        found = await compare_seeds(c.make_env, c.task)
        c.require(found.differ_at is not None, str(found))


async def _check_reset(c: ConformanceCase) -> None:
    """Check that a reset in the middle of an episode forgets its actions, the keys held down and the used budget."""
    async with c.make_env() as env:
        first = await env.reset(c.task, c.task.seed)
        for action in (Click(SCREEN_CENTRE), act.Press("shift"), act.Press("right")):
            if (await env.step(action)).terminated:
                break
        _check_same_results([first], [await env.reset(c.task, c.task.seed)], "a reset in the middle of an episode")
        after = await env.step(Type("a"))
        await env.reset(c.task, c.task.seed)
        _check_same_results([after], [await env.step(Type("a"))], "a step after a reset in the middle of an episode")


async def _check_ends(c: ConformanceCase) -> None:
    """Check that Finished terminates, the budget truncates without a reward, and a step after either is an error."""
    async with c.make_env() as env:
        done = (await _play_episode(c, env, [Finished()]))[-1]
        c.require(done.terminated and not done.truncated, "finished() did not terminate")
        c.require(done.reward == done.info["score"], "the reward of an end is not its score")
        await _check_refuses(c, env, "after a termination")
        for budget in (c.task.max_steps, 1):
            idle = await _play_episode(c, env, [Wait()] * (budget + 1), max_steps=budget)
            if idle[-1].terminated:  # a game that time alone ends: try a smaller budget
                continue
            c.require(len(idle) == budget + 1, f"it ended after {len(idle) - 1} of {budget} steps")
            c.require(idle[-1].truncated, "the step budget did not truncate")
            c.require(not any(result.truncated for result in idle[:-1]), "it truncated before the budget was used up")
            c.require(all(result.reward == 0 for result in idle), "waiting or a truncation was rewarded")
            await _check_refuses(c, env, "after a truncation")
            last = await _play_episode(c, env, [Finished()], max_steps=1)
            c.require(last[-1].terminated, "an end by the last step of the budget is a truncation")


async def _check_checkpoints(c: ConformanceCase) -> None:
    """Check that results repeat after a checkpoint is restored: twice, from another state, after the end, elsewhere.

    An environment that offers no checkpoints passes.
    """
    follow = c.moves[1:3]
    async with c.make_env() as env:
        if not isinstance(env, Checkpointable):
            return
        await _check_refuses(c, env, "before a reset", env.checkpoint())
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
        c.require(isinstance(kept, bytes), "a checkpoint is not bytes")
        first = [reached, *[await env.step(action) for action in follow]]
        for when in ("a checkpoint", "the same checkpoint again"):
            again = [await env.restore(kept), *[await env.step(action) for action in follow]]
            _check_same_results(first, again, f"what followed {when}, restored,")
        if not (first[-1].terminated or first[-1].truncated):
            await env.step(Finished())
        _check_same_results([reached], [await env.restore(kept)], "a checkpoint restored after the end")
        await env.restore(begun)
        _check_same_results([reached], [await env.step(move)], "a step after the checkpoint of the start")
        over = await env.step(Finished())
        ended = await env.checkpoint()
        await env.reset(c.task, c.task.seed)
        _check_same_results([over], [await env.restore(ended)], "the checkpoint of an end")
        await _check_refuses(c, env, "after the checkpoint of an end was restored")
    elsewhere = await resume_checkpoint(c.make_env, c.task, kept, follow)
    _check_same_results(first, elsewhere, "what followed a checkpoint, restored in another env,")
    unreadable = {"no bytes": b"", "bytes that are none": b"\xff\0 not a checkpoint", "a part": kept[:-3]}
    for what, strange in unreadable.items():
        async with c.make_env() as env:
            await env.reset(c.task, c.task.seed)
            await _check_refuses(c, env, f"from a checkpoint of {what}", env.restore(strange))


async def _check_partial_checkpoints(c: ConformanceCase) -> None:
    """Check that a saved part is restored at its step, in another env too; an env that can save none passes."""
    move, follow = c.moves[:2]
    async with c.make_env() as env:
        if not isinstance(env, PartialCheckpointable):
            return
        c.require(await _raises_env_error(env.save_partial()), "it kept something before a reset")
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)
        await env.step(move)
        kept = await env.save_partial()
        await env.step(follow)  # running programs go on
        here = [await env.restore_partial(kept), await env.step(follow)]
    async with c.make_env() as env:
        await env.reset(dataclasses.replace(c.task, max_steps=2), c.task.seed)
        there = [await env.restore_partial(kept), await env.step(follow)]
        c.require(there[1].truncated, "what was brought back has lost count of its steps")
        c.require(await _raises_env_error(env.save_partial()), "it kept something after the end")
    for lost in (here[0].info.get("lost"), there[0].info.get("lost")):
        told = isinstance(lost, list) and all(isinstance(line, str) for line in lost)
        c.require(told, "what was brought back does not say what is lost")
    alike = [one.observation for one in here] == [other.observation for other in there]
    c.require(alike, "what was brought back is seen otherwise elsewhere")
    for strange in (b"\xff\0 nothing kept", kept[:-3]):
        async with c.make_env() as env:
            await env.reset(c.task, c.task.seed)
            c.require(await _raises_env_error(env.restore_partial(strange)), "it brought back what nobody kept")


async def _check_actions(c: ConformanceCase) -> None:
    """Check that every action of the grammar is done or is a noted no-op, and that no action or text harms the env."""
    foreign = tuple(action for action in FOREIGN_ACTIONS if type(action) not in c.able)
    nothing = (*ACTIONS_OFF_SCREEN, *IMPOSSIBLE_ACTIONS, *foreign)
    typed = tuple(Type(text) for text in HOSTILE_TEXTS) + tuple(act.Navigate(text) for text in HOSTILE_TEXTS[3:8])
    async with c.make_env() as env:
        await _play_each(c, env, (*ORDINARY_ACTIONS, *ACTIONS_AT_EDGE, *typed))
        for action, result in await _play_each(c, env, ACTIONS_AT_EDGE):
            c.require("outside" not in result.info.get("note", ""), f"{action} was held to be outside")
        still = await _play_each(c, env, [Wait()] * len(nothing))
        done = await _play_each(c, env, nothing)
        for action, result in done:
            c.require(bool(result.info.get("note")), f"{action} did nothing and was not noted")
        for (action, result), (_, waited) in zip(done, still, strict=True):
            if result.observation != waited.observation:
                raise NotReproducible(f"{action} had an effect", where=c.where)


async def _check_close(c: ConformanceCase) -> None:
    """Check that a closed env refuses every call but a second `close`."""
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)
        await env.close()
        await _check_refuses(c, env, "after it was closed")
        if isinstance(env, Checkpointable):
            await _check_refuses(c, env, "after it was closed", env.checkpoint())
        await env.close()


async def _check_deadline(c: ConformanceCase) -> None:
    """Check that a hung env raises EnvTimeout, then refuses calls, and that the next lease works."""
    if c.hang is None:
        return
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)
        await c.hang(env)
        with contextlib.suppress(EnvTimeout):
            await env.step(Wait())
            c.require(False, "a hung env did not raise EnvTimeout")
        await _check_refuses(c, env, "after an error")
    async with c.make_env() as env:
        await env.reset(c.task, c.task.seed)


CLAUSES: dict[str, Callable[[ConformanceCase], Awaitable[None]]] = {
    "determinism": _check_determinism,
    "seeding": _check_seeding,
    "reset in the middle": _check_reset,
    "truncation and termination": _check_ends,
    "checkpoint and restore": _check_checkpoints,
    "keep and bring back": _check_partial_checkpoints,
    "actions": _check_actions,
    "close": _check_close,
    "deadline": _check_deadline,
}


# -- helpers of the clauses -----------------------------------------------------------------------------------------
async def _play_episode(
    c: ConformanceCase, env: Env, actions: Sequence[Action], max_steps: int | None = None
) -> list[StepResult]:
    """Return the results of a reset and of `actions` until the episode ends; none may change afterwards."""
    task = c.task if max_steps is None else dataclasses.replace(c.task, max_steps=max_steps)
    results = [await env.reset(task, task.seed)]
    kept = [copy.deepcopy(results[0])]
    for action in actions:
        if results[-1].terminated or results[-1].truncated:
            break
        results.append(await env.step(action))
        kept.append(copy.deepcopy(results[-1]))
    await asyncio.sleep(0)
    c.require(results == kept, "a returned result changed later")
    for result in results:
        _check_result(c, result)
    return results


async def _play_each(c: ConformanceCase, env: Env, actions: Sequence[Action]) -> list[tuple[Action, StepResult]]:
    """Play the actions after a reset, and after another one wherever the task ends; returns each with its result."""
    task = dataclasses.replace(c.task, max_steps=10_000)
    results, over = [], True
    for action in actions:
        if over:
            await env.reset(task, task.seed)
        try:
            result = await env.step(action)
        except Exception as error:
            what = f"{act.ACTION_NAMES[type(action)]} broke the env: {type(error).__name__}: {error}"
            raise EnvError(what, where=f"check of world {task.world}, {str(action)[:80]!r}") from error
        _check_result(c, result)
        over = result.terminated
        results.append((action, result))
    return results


def _check_result(c: ConformanceCase, result: StepResult) -> None:
    """Check what must hold of every result."""
    shot, info = result.observation, result.info
    c.require(isinstance(shot.text, str), "the observation's text is no text")
    if shot.screenshot is None:
        c.require((shot.width, shot.height) == (0, 0), "there is no screenshot, and it has a size")
    else:
        c.require(shot.screenshot.startswith(b"\x89PNG\r\n\x1a\n"), "the screenshot is not a PNG")
        size = tuple(int.from_bytes(shot.screenshot[at : at + 4]) for at in (16, 20))
        c.require(size == (shot.width, shot.height), f"the screenshot is {size}, not {shot.width} x {shot.height}")
    c.require("state" in info, "info has no state")
    c.require(isinstance(info["state"].get("terminated"), bool), "the state does not say whether it is terminated")
    c.require(0 <= info.get("score", -1) <= 1, "info has no score between 0 and 1")
    c.require(not (result.terminated and result.truncated), "a result is terminated and truncated at once")
    c.require(result.terminated or result.reward == 0, "there was a reward before the end")
    c.require(isinstance(info.get("note", "-"), str) and info.get("note", "-") != "", "a note is no text")
    try:
        json.dumps(info["state"], allow_nan=False)
    except (TypeError, ValueError) as error:
        c.require(False, f"the state is not JSON: {error}")


async def _check_refuses(c: ConformanceCase, env: Env, when: str, asked: Awaitable[Any] | None = None) -> None:
    try:
        await (asked or env.step(Wait()))
    except EnvError:
        return
    except Exception as error:
        c.require(False, f"{type(error).__name__} instead of EnvError {when}")
    c.require(False, f"it took a call {when}")


def _check_same_results(one: list[StepResult], other: list[StepResult], what: str) -> None:
    if len(one) != len(other):
        raise EnvError(f"{what} ended after another number of steps", where=f"{len(one)} and {len(other)}")
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if a.observation.screenshot != b.observation.screenshot:
            raise NotReproducible(f"{what} gave other pixels", where=f"step {number}")
        if a != b:
            raise NotReproducible(f"{what} gave another result", where=f"step {number}: {_describe_difference(a, b)}")


def _describe_difference(a: StepResult, b: StepResult) -> str:
    """Describe the first part in which two results differ."""
    if a.info != b.info:
        keys = [key for key in {**a.info, **b.info} if a.info.get(key) != b.info.get(key)]
        return f"info {keys[0]}: {str(a.info.get(keys[0]))[:100]} and {str(b.info.get(keys[0]))[:100]}"
    names = [field.name for field in dataclasses.fields(a) if getattr(a, field.name) != getattr(b, field.name)]
    return f"{names[0]}: {str(getattr(a, names[0]))[:100]} and {str(getattr(b, names[0]))[:100]}"
