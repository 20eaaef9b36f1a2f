"""An `Env` of a desktop: a fresh one for each task, whose files say how far the task is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from flywheel.agent.actions import Action, CallUser, Finished
from flywheel.computer.desktop import Desktop
from flywheel.computer.home import Home
from flywheel.computer.warm import Warm
from flywheel.environments.env import Observation, StepResult, Task
from flywheel.errors import EnvError, EnvTimeout
from flywheel.reward.verdict import Verdict
from flywheel.reward.verifier import Verifier, apply

_MOST = 64 * 2**10  # bytes of a file that a state holds; of a longer one its digest


class DesktopEnv:
    """warm: gives fresh desktops. find: the verifier of a task. No checkpoints: a program's memory cannot be kept."""

    def __init__(self, warm: Warm, find: Callable[[Task], Verifier], limit_s: float) -> None:
        self._warm, self._find, self._limit_s = warm, find, limit_s
        self._desktop: Desktop | None = None
        self._task: Task | None = None
        self._steps, self._over, self._broken = 0, True, False
        self._answer = ""

    async def reset(self, task: Task, seed: int) -> StepResult:
        """A fresh home and a fresh desktop. seed: what the task shows is drawn already, so it changes nothing."""
        async with self._deadline("reset", task):
            await self._end()
            self._task, self._steps, self._over, self._answer = task, 0, False, ""
            self._desktop = await self._warm.take()
            await self._desktop.open(task.params["files"], task.params["apps"])
            result = await self._result("", await self._desktop.screenshot(), False)
            self._warm.fill()
            return result

    async def step(self, action: Action) -> StepResult:
        if self._task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        async with self._deadline("step", self._task):
            self._steps += 1
            note, screenshot = await self._desktop.do(action)
            if isinstance(action, Finished):
                self._answer = action.content
            return await self._result(note, screenshot, isinstance(action, Finished | CallUser))

    async def close(self) -> None:
        self._task, self._over = None, True
        await self._end()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _result(self, note: str, screenshot: bytes, said_done: bool) -> StepResult:
        task, desktop = self._task, self._desktop
        state: dict[str, Any] = {"files": await asyncio.to_thread(files, desktop.home), "terminated": False}
        if self._answer:
            state["answer"] = self._answer
        score = apply(self._find(task), task.verifier, task.params, state, task.task_id)
        terminated = state["terminated"] = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and self._steps >= task.max_steps
        self._over = terminated or truncated
        info = {"state": state, "score": score} | ({"note": note} if note else {})
        observation = Observation(screenshot, desktop.width, desktop.height, task.world)
        return StepResult(observation, score if terminated else 0.0, terminated, truncated, info)

    async def _end(self) -> None:
        desktop, self._desktop = self._desktop, None
        if desktop is not None:
            await desktop.close()

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task) -> AsyncIterator[None]:
        """The contract's errors: whatever goes wrong inside breaks this env, by a named error."""
        if self._broken:
            raise EnvError("the desktop is broken", where=self._where(), fix="lease another environment")
        try:
            async with asyncio.timeout(self._limit_s):
                yield
        except TimeoutError:
            self._broken = True
            raise EnvTimeout(
                f"no answer to a {what} within {self._limit_s:g} s", where=f"task {task.task_id}"
            ) from None
        except BaseException:
            self._broken = True
            raise

    def _where(self) -> str:
        return f"world {self._task.world}, task {self._task.task_id}" if self._task else "a desktop"


def files(home: Home) -> dict[str, str]:
    """What a verifier reads of a home: each file's text, or `sha256:` and its digest, by path; a folder ends in /. What
    lies in hidden folders, where applications keep what they need, is left out; links and pipes are named and not read.
    """
    found = {}
    for entry in home.entries():
        if entry.path.startswith(".") or "/." in entry.path:
            continue
        name = entry.path.encode("utf-8", "replace").decode()
        if entry.kind == "folder":
            found[f"{name}/"] = ""
        elif entry.kind != "file":
            found[name] = "a link" if entry.kind == "link" else "no file"
        elif entry.size > _MOST:
            found[name] = f"sha256:{home.digest(entry.path)}"
        elif (data := home.read(entry.path, _MOST + 1)) is not None:
            found[name] = data.decode("utf-8", "replace")
    return found
