"""An `Env` of a computer: a fresh one for each task, and what lies and runs there says how far the task is done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from flywheel.agent.actions import Action, CallUser, Finished
from flywheel.computer import checker, keeping
from flywheel.computer.computer import Computer, Done
from flywheel.computer.given import Given
from flywheel.computer.keeping import Kept
from flywheel.computer.osworld import evaluation
from flywheel.computer.state import state
from flywheel.computer.warm import Warm
from flywheel.environments.env import Observation, StepResult, Task
from flywheel.environments.watchable import Streams
from flywheel.errors import EnvError, EnvTimeout
from flywheel.reward.verdict import Verdict
from flywheel.reward.verifier import Verifier, apply


class ComputerEnv:
    """warm: gives fresh computers. find: the verifier of a task. limit_s: deadline of a reset and of a step.

    No checkpoints: the memory of running programs cannot be kept. A part can (`environments.env.Keepable`).
    """

    def __init__(self, warm: Warm[Computer], find: Callable[[Task], Verifier], limit_s: float) -> None:
        self._warm, self._find, self._limit_s = warm, find, limit_s
        self._computer: Computer | None = None
        self._task: Task | None = None
        self._given = Given()
        self._steps, self._over, self._broken = 0, True, False
        self._answer, self._gave_up = "", False

    async def reset(self, task: Task, seed: int) -> StepResult:
        """A fresh computer. seed: what the task shows is drawn already, so it changes nothing."""
        async with self._deadline("reset", task):
            self._task, self._steps, self._over, self._answer = task, 0, False, ""
            self._given = Given.of(task)
        more_s = self._given.osworld.seconds if self._given.osworld else 0.0
        async with self._deadline("reset", task, more_s), self._instead() as computer:
            return await self._result(await computer.begin(self._given, self._limit_s), False)

    async def step(self, action: Action) -> StepResult:
        if self._task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        self._steps += 1
        ends = isinstance(action, Finished | CallUser) or self._steps >= self._task.max_steps
        async with self._deadline("step", self._task, self._given.judging_s if ends else 0.0):
            done = await self._computer.do(action)
            if isinstance(action, Finished):
                self._answer = action.content
            self._gave_up = isinstance(action, CallUser)
            return await self._result(done, isinstance(action, Finished | CallUser), ends)

    async def keep(self) -> bytes:
        if self._task is None or self._over:
            raise EnvError("no episode is played", where=self._where(), fix="reset the environment first")
        async with self._deadline("keep", self._task):
            return (await keeping.keep(self._computer, self._task, self._steps)).packed()

    async def bring_back(self, kept: bytes) -> StepResult:
        if self._task is None:
            raise EnvError("no task was begun", where=self._where(), fix="reset the environment to the task first")
        async with self._deadline("bring back", self._task):
            part = Kept.opened(kept)
            if part.task != self._task.task_id:
                raise EnvError(f"what was kept is of task {part.task}", where=self._where(), fix="reset to that task")
            self._steps, self._over, self._answer, self._gave_up = part.steps, False, "", False
            async with self._instead() as computer:
                done, lost = await keeping.bring_back(computer, self._given, part)
                result = await self._result(done, False)
                return replace(result, info={**result.info, "lost": lost})

    async def close(self) -> None:
        self._task, self._over = None, True
        computer, self._computer = self._computer, None
        await self._end(computer)

    # -- to be watched ------------------------------------------------------------------------------------------------
    async def screen(self) -> Streams:
        if self._played.desktop is None:
            raise EnvError("there is no desktop to be seen", where=self._where())
        return await self._played.desktop.vnc()

    async def service(self, port: int) -> Streams:
        return await self._played.machine.stream("/port", {"port": port})

    async def terminal(self) -> Streams:
        return await self._played.machine.stream("/terminal/watch", {})

    async def shell(self, rows: int, columns: int) -> Streams:
        return await self._played.machine.stream("/terminal/own", {"rows": rows, "columns": columns})

    async def listed(self, path: str) -> Mapping[str, Any]:
        return json.loads(await self._played.machine.request("GET", "/files/list", params={"path": path}))

    async def read(self, path: str, most: int) -> bytes:
        return await self._played.machine.request("GET", "/files/read", params={"path": path, "limit": most})

    async def write(self, path: str, content: bytes) -> None:
        await self._played.machine.request("PUT", "/files/write", params={"path": path}, content=content)

    @property
    def _played(self) -> Computer:
        if self._computer is None:
            raise EnvError("no episode is played", where=self._where())
        return self._computer

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _result(self, done: Done, said_done: bool, ends: bool = False) -> StepResult:
        task, computer = self._task, self._computer
        found: dict[str, Any] = {**await state(computer.machine, self._given, said_done), "terminated": False}
        if computer.site is not None:
            found["received"] = list(computer.site.received)
        if self._answer:
            found["answer"] = self._answer
        if ends and (judged := await self._judged(found)) is not None:
            found["checked"] = judged.model_dump()
        score = apply(self._find(task), task.verifier, task.params, found, task.task_id)
        terminated = found["terminated"] = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and self._steps >= task.max_steps
        self._over = terminated or truncated
        told = {name: text for name, text in (("note", done.note), ("result", done.result)) if text}
        width, height = (computer.desktop.width, computer.desktop.height) if done.screenshot else (0, 0)
        observation = Observation(done.screenshot, width, height, task.world, done.text)
        info = {"state": found, "score": score, **told}
        return StepResult(observation, score if terminated else 0.0, terminated, truncated, info)

    async def _judged(self, found: dict[str, Any]) -> checker.Judgement | None:
        """What the program says that judges the task's end; None where there is none."""
        given, machine = self._given, self._computer.machine
        if given.osworld is not None:
            return await evaluation.evaluate(self._computer, given.osworld, self._gave_up)
        if given.checker is None:
            return None
        state = {name: value for name, value in found.items() if name not in ("files", "terminated")}
        told = {"answer": self._answer, "values": given.values, "begin": given.files, "state": state}
        return await checker.check(given.checker, machine.home, machine.home_bytes, told)

    @staticmethod
    async def _end(computer: Computer | None) -> None:
        if computer is not None:
            await computer.close()

    @asynccontextmanager
    async def _instead(self) -> AsyncIterator[Computer]:
        """A fresh computer in the place of the one that was played, which ends meanwhile: engines take long to clean
        up after a container. Another one is begun to be warm afterwards."""
        ending, self._computer = asyncio.ensure_future(self._end(self._computer)), None
        try:
            self._computer = await self._warm.take()
            yield self._computer
        finally:
            await ending
        self._warm.fill()

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task, more_s: float = 0.0) -> AsyncIterator[None]:
        """The contract's errors: whatever goes wrong inside breaks this env, by a named error. more_s: beyond the limit
        of every call."""
        limit_s = self._limit_s + more_s
        if self._broken:
            raise EnvError("the computer is broken", where=self._where(), fix="lease another environment")
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            self._broken = True
            raise EnvTimeout(f"no answer to a {what} within {limit_s:g} s", where=f"task {task.task_id}") from None
        except BaseException:
            self._broken = True
            raise

    def _where(self) -> str:
        return f"world {self._task.world}, task {self._task.task_id}" if self._task else "a computer"
