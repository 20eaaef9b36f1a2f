"""An environment without a browser: one coloured square to click. For tests of what happens when environments fail.

In its healthy mode it passes `check_env` like any other; `Faults` make it crash or hang at a step.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from flywheel.agent.actions import Action, CallUser, Click, Finished, Point, Wait, actions_from_json, actions_to_json
from flywheel.envs.base import Observation, StepResult, Task, Verdict
from flywheel.utils.errors import EnvError, EnvTimeout

SIZE = 224
SQUARE = 48  # pixels


def fake_task(seed: int = 0, max_steps: int = 4, split: str = "train") -> Task:
    """A task that `FakeEnv` understands: click the red square."""
    return Task(
        task_id=f"kfake{seed:04d}",
        domain="sites",
        world="shop",
        template="open",
        level=1,
        seed=seed,
        instruction="Open the red mug.",
        params={"item": "red mug", "cart": []},
        max_steps=max_steps,
        split=split,
        verifier="shop_opened",
        threshold=1.0,
        checksum="fake",
    )


@dataclass(frozen=True)
class Faults:
    """crash_at, hang_at: the step (1 is the first, 0 the reset) at which it fails; None: never."""

    crash_at: int | None = None
    hang_at: int | None = None


class FakeEnv:
    def __init__(self, faults: Faults = Faults(), timeout_s: float = 10.0) -> None:
        self._faults, self._timeout_s = faults, timeout_s
        self._task: Task | None = None
        self._actions: list[Action] = []
        self._seed = 0
        self._page = ""
        self._over = True
        self.broken = False

    async def reset(self, task: Task, seed: int) -> StepResult:
        self._task, self._seed, self._actions, self._page, self._over = task, seed, [], "", False
        rng = random.Random(f"{task.task_id} {seed}")
        self._corner = (rng.randrange(SIZE - SQUARE), rng.randrange(SIZE - SQUARE))
        await self._fail()
        return self._result("")

    async def step(self, action: Action) -> StepResult:
        if self._task is None or self._over:
            raise EnvError("the episode is over", fix="reset the environment first")
        self._actions.append(action)
        await self._fail()
        note = ""
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if not all(0 <= point.x < 1 and 0 <= point.y < 1 for point in points):
            note = "the point is outside the viewport"
        elif isinstance(action, Click):
            x, y = action.point.x * SIZE - self._corner[0], action.point.y * SIZE - self._corner[1]
            if 0 <= x < SQUARE and 0 <= y < SQUARE:
                self._page = "item/" + self._task.params["item"].replace(" ", "-")
        elif not isinstance(action, Wait | Finished | CallUser):
            note = "the fake takes clicks alone"
        return self._result(note, isinstance(action, Finished | CallUser))

    async def checkpoint(self) -> bytes:
        if self._task is None:
            raise EnvError("nothing to keep", fix="reset the environment first")
        return json.dumps({"seed": self._seed, "actions": actions_to_json(self._actions)}).encode()

    async def restore(self, checkpoint: bytes) -> StepResult:
        try:
            kept = json.loads(checkpoint)
            seed, actions = int(kept["seed"]), actions_from_json(kept["actions"])
        except (ValueError, KeyError, TypeError):
            raise EnvError("this is no checkpoint", where=f"{len(checkpoint)} bytes") from None
        result = await self.reset(self._task, seed)
        for action in actions:
            result = await self.step(action)
        return result

    async def close(self) -> None:
        self._task, self._over = None, True

    async def _fail(self) -> None:
        step = len(self._actions)
        if self.broken:
            raise EnvError("the page is broken", fix="lease another environment")
        if step == self._faults.crash_at:
            self.broken = True
            raise EnvError(f"the fake crashed at step {step}", where="fake environment")
        if step == self._faults.hang_at:
            self.broken = True
            try:
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.Event().wait()
            except TimeoutError:
                raise EnvTimeout(
                    f"the fake did not answer within {self._timeout_s:g} s", where=f"fake environment, step {step}"
                ) from None

    def _result(self, note: str, said_done: bool = False) -> StepResult:
        task = self._task
        left, top = (value / SIZE for value in self._corner)
        square = {"name": f"open {task.params['item']}", "x": left, "y": top, "focused": False}
        state: dict[str, Any] = {
            "page": self._page,
            "cart": {},
            "orders": [],
            "terminated": False,
            "elements": [{**square, "w": SQUARE / SIZE, "h": SQUARE / SIZE}],
        }
        score = float(bool(self._page))
        terminated = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and len(self._actions) >= task.max_steps
        self._over = terminated or truncated
        info = {"state": state, "score": score} | ({"note": note} if note else {})
        shot = Observation(self._draw(), SIZE, SIZE, f"fake/{self._page}")
        return StepResult(shot, score if terminated else 0.0, terminated, truncated, info)

    def _draw(self) -> bytes:
        image = Image.new("RGB", (SIZE, SIZE), "#eef1f6")
        x, y = self._corner
        fill = "#2e9e44" if self._page else "#e53935"
        ImageDraw.Draw(image).rectangle((x, y, x + SQUARE - 1, y + SQUARE - 1), fill)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()


class FakePool:
    """Leases fakes as `BrowserPool` leases pages. The first `failing` leases have `faults`, the others none."""

    def __init__(self, faults: Faults = Faults(), failing: int = 0, timeout_s: float = 10.0) -> None:
        self._faults, self._failing, self._timeout_s = faults, failing, timeout_s
        self.leases = 0

    @asynccontextmanager
    async def env(self) -> AsyncIterator[FakeEnv]:
        self.leases += 1
        env = FakeEnv(self._faults if self.leases <= self._failing else Faults(), self._timeout_s)
        try:
            yield env
        finally:
            await env.close()
