"""An `Env` of a real phone: a task's commands prepare it, and tell how far the task is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from flywheel.agent.actions import Action, CallUser, Finished
from flywheel.environments.env import Observation, StepResult, Task
from flywheel.errors import EnvError, EnvTimeout
from flywheel.phone import android_acts
from flywheel.phone.adb import Phone, Screen
from flywheel.phone.android_tasks import as_wanted
from flywheel.reward.verdict import Verdict
from flywheel.reward.verifier import apply


class AndroidEnv:
    """find: the phone, looked for at each reset. limit_s: deadline of a reset and of a step. settle_s: after an action,
    until the screen is looked at. No checkpoints: a phone cannot be put back."""

    def __init__(self, find: Callable[[], Awaitable[Phone]], limit_s: float, settle_s: float) -> None:
        self._find, self._limit_s, self._settle_s = find, limit_s, settle_s
        self._phone: Phone | None = None
        self._screen: Screen | None = None
        self._task: Task | None = None
        self._keyboard, self._answer = False, ""
        self._steps, self._over = 0, True
        self.broken = False

    async def reset(self, task: Task, seed: int) -> StepResult:
        """seed: what the task shows is drawn already, so it changes nothing."""
        async with self._deadline("reset", task):
            self._task, self._steps, self._over, self._answer = task, 0, False, ""
            phone = self._phone = await self._find()
            self._keyboard = await android_acts.take_keyboard(phone)
            for command in task.params["reset"]:
                await phone.shell(command)
            await phone.shell("input keyevent 3")
            return await self._result("", False)

    async def step(self, action: Action) -> StepResult:
        if self._task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        async with self._deadline("step", self._task):
            self._steps += 1
            if isinstance(action, Finished):
                self._answer = action.content
            apps = self._task.params["apps"]
            note = await android_acts.do(self._phone, action, self._screen, apps, self._keyboard)
            return await self._result(note, isinstance(action, Finished | CallUser))

    async def close(self) -> None:
        self._task, self._phone, self._over = None, None, True

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _result(self, note: str, said_done: bool) -> StepResult:
        task, phone = self._task, self._phone
        await asyncio.sleep(self._settle_s)
        self._screen = await phone.screen()
        shown = {name: await phone.shell(command) for name, command in task.params["state"].items()}
        state: dict[str, Any] = {"shown": shown} | ({"answer": self._answer} if self._answer else {})
        score = apply(as_wanted, task.verifier, task.params, state, task.task_id)
        terminated = state["terminated"] = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and self._steps >= task.max_steps
        self._over = terminated or truncated
        observation = Observation(self._screen.png, self._screen.width, self._screen.height, task.world)
        info = {"state": state, "score": score} | ({"note": note} if note else {})
        return StepResult(observation, score if terminated else 0.0, terminated, truncated, info)

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task) -> AsyncIterator[None]:
        """The contract's errors: whatever goes wrong inside breaks this env, by a named error."""
        if self.broken:
            raise EnvError("the phone is broken", where=self._where(), fix="lease another environment")
        try:
            async with asyncio.timeout(self._limit_s):
                yield
        except TimeoutError:
            self.broken = True
            late = f"the phone did not answer a {what} within {self._limit_s:g} s"
            raise EnvTimeout(late, where=f"task {task.task_id}") from None
        except BaseException:
            self.broken = True
            raise

    def _where(self) -> str:
        return f"world {self._task.world}, task {self._task.task_id}" if self._task else "a phone"
