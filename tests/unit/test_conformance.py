"""The conformance suite itself: each way of breaking the environment contract is caught, by the clause it breaks."""

from __future__ import annotations

import dataclasses
import io
import itertools
from contextlib import asynccontextmanager

import pytest
from fake_env import FakeEnv, FakePool, Faults, fake_task
from PIL import Image

from flywheel.agent.actions import Click, Finished, Point, Press, Type, Wait
from flywheel.envs.conformance import CLAUSES, ConformanceCase, check_env, resume_checkpoint
from flywheel.utils.errors import BadInput, EnvError

TASK = fake_task(2)
_count = itertools.count()


def _replaced(result, **fields):
    return dataclasses.replace(result, **fields)


def _other_pixels(result):
    """The same screen with one pixel changed, another one each time."""
    image = Image.open(io.BytesIO(result.observation.screenshot)).convert("RGB")
    image.putpixel((next(_count) % 200, 0), (1, 2, 3))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _replaced(result, observation=_replaced(result.observation, screenshot=buffer.getvalue()))


class Unsteady(FakeEnv):
    async def step(self, action):
        return _other_pixels(await super().step(action))


class Forgetful(FakeEnv):
    """Every seed is the same to it."""

    async def reset(self, task, seed):
        return await super().reset(task, 0)


class Lingering(FakeEnv):
    """A key that was held down outlives the reset."""

    held = False

    async def step(self, action):
        self.held |= isinstance(action, Press)
        result = await super().step(action)
        return _other_pixels(result) if self.held and isinstance(action, Type) else result


class Endless(FakeEnv):
    async def reset(self, task, seed):
        return await super().reset(_replaced(task, max_steps=10_000), seed)


class Generous(FakeEnv):
    """A truncation is rewarded."""

    async def step(self, action):
        result = await super().step(action)
        return _replaced(result, reward=1.0) if result.truncated else result


class Obliging(FakeEnv):
    """Goes on after the end."""

    async def step(self, action):
        self._over = False
        return await super().step(action)


class Absent(FakeEnv):
    """A restored checkpoint has lost its last action."""

    async def checkpoint(self):
        last, self._actions = self._actions, self._actions[:-1]
        kept = await super().checkpoint()
        self._actions = last
        return kept


class Private(FakeEnv):
    """Its checkpoints mean something to itself alone."""

    async def checkpoint(self):
        self.kept = await super().checkpoint()
        return b"the last one"

    async def restore(self, checkpoint):
        if not hasattr(self, "kept"):
            raise EnvError("what checkpoint?")
        return await super().restore(self.kept)


class Trusting(FakeEnv):
    """Bytes that are no checkpoint are an error that nobody named."""

    async def restore(self, checkpoint):
        if not checkpoint.startswith(b"{"):
            raise ValueError("not JSON")
        return await super().restore(checkpoint)


class Silent(FakeEnv):
    """Does nothing and says nothing."""

    async def step(self, action):
        result = await super().step(action)
        return _replaced(result, info={key: value for key, value in result.info.items() if key != "note"})


class Wide(FakeEnv):
    """What lies outside is drawn to the edge."""

    async def step(self, action):
        outside = isinstance(action, Click) and not 0 <= action.point.x < 1
        result = await super().step(Click(Point(0.99, 0.5)) if outside else action)
        return _replaced(_other_pixels(result), info=result.info | {"note": "outside"}) if outside else result


class Delicate(FakeEnv):
    async def step(self, action):
        if isinstance(action, Type):
            action.content.encode()  # lone surrogates have no UTF-8
        return await super().step(action)


class Undead(FakeEnv):
    async def close(self):
        pass


class Changing(FakeEnv):
    """The state that was returned is the one it goes on with."""

    async def step(self, action):
        result = await super().step(action)
        shared = self.__dict__.setdefault("shared", {})
        shared.update(result.info["state"], clicks=len(self._actions))
        return _replaced(result, info=result.info | {"state": shared})


class Vague(FakeEnv):
    async def step(self, action):
        result = await super().step(action)
        return _replaced(result, info={key: value for key, value in result.info.items() if key != "score"})


class Infinite(FakeEnv):
    async def step(self, action):
        result = await super().step(action)
        return _replaced(result, info=result.info | {"state": result.info["state"] | {"x": float("inf")}})


BROKEN = {
    Unsteady: ("determinism", "other pixels"),
    Forgetful: ("seeding", "4 other seeds all gave the same"),
    Lingering: ("reset in the middle", "a step after a reset in the middle"),
    Endless: ("truncation and termination", "it ended after 5 of 4 steps"),
    Generous: ("truncation and termination", "reward before the end"),
    Obliging: ("truncation and termination", "it took a call after a termination"),
    Absent: ("checkpoint and restore", "the checkpoint of an end"),
    Private: ("checkpoint and restore", "checkpoint"),
    Trusting: ("checkpoint and restore", "ValueError instead of EnvError"),
    Silent: ("actions", "was not noted"),
    Wide: ("actions", "had an effect"),
    Delicate: ("actions", "type broke the env: UnicodeEncodeError"),
    Undead: ("close", "it took a call after it was closed"),
    Changing: ("determinism", "changed later"),
    Vague: ("determinism", "info has no score"),
    Infinite: ("determinism", "the state is not JSON"),
}


def _lease(kind):
    @asynccontextmanager
    async def env():
        yield kind()

    return env


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_broken_environment_is_caught_by_the_clause_it_breaks(kind):
    clause, part = BROKEN[kind]
    with pytest.raises(EnvError, match=part):
        await CLAUSES[clause](ConformanceCase(_lease(kind), TASK, seeded=True))
    with pytest.raises(EnvError):
        await check_env(_lease(kind), TASK, seeded=True)


async def test_the_fake_passes_every_clause():
    async def hang(env):
        env._faults = Faults(hang_at=1)

    await check_env(FakePool(timeout_s=0.01).env, TASK, hang, seeded=True)


async def test_moves_that_check_nothing_are_refused():
    with pytest.raises(BadInput, match="2 moves are given"):
        await check_env(FakePool().env, TASK, moves=(Wait(), Wait()))


async def test_a_hang_that_is_never_told_is_caught():
    async def no_hang(env):
        pass

    with pytest.raises(EnvError, match="did not raise EnvTimeout"):
        await CLAUSES["deadline"](ConformanceCase(FakePool().env, TASK, hang=no_hang))


async def test_an_episode_goes_on_from_bytes_alone():
    async with FakePool().env() as env:
        await env.reset(TASK, TASK.seed)
        await env.step(Wait())
        kept = await env.checkpoint()
        first = await env.step(Finished())
    assert (await resume_checkpoint(FakePool().env, TASK, kept, [Finished()]))[-1] == first
