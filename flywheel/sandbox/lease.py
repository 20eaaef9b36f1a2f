"""A lease: one page for one holder, as an `Env`, which the pool can end at any moment.

What the pool adds to the environment's own deadlines: a session that was reclaimed or whose browser died fails at
once, by name, in the call under way or in the next one; each answer is told as an event; screens are recorded where
that is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from flywheel.agent.actions import Action
from flywheel.environments.env import StepResult, Task
from flywheel.environments.gestures import Gesture
from flywheel.environments.watchable import Pictures
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox.events import Stepped
from flywheel.sandbox.hosts import PageSlot
from flywheel.sandbox.recording import Camera, Film

T = TypeVar("T")


class Owner(Protocol):
    """What a lease tells the pool."""

    def stepped(self, event: Stepped) -> None: ...

    def lost(self, lease: Lease, error: EnvError) -> None: ...

    def filmed(self, film: Film, folder: Path) -> asyncio.Task[Any]: ...


class Lease:
    """The contract of `flywheel.environments.env.Env`, over one page. Made by `BrowserPool.env` alone.

    session: its name in events and status. timeout_s: of one call of the environment; twice that ends a call which
    the environment itself does not end. camera: None where nothing is recorded. start_s: what a reset may take beside,
    for a server of the session's own.
    """

    def __init__(
        self,
        session: str,
        page: PageSlot,
        owner: Owner,
        clock: Callable[[], float],
        timeout_s: float,
        camera: Camera | None,
        start_s: float = 0.0,
    ) -> None:
        self.session, self.page = session, page
        self._owner, self._clock, self._limit_s, self._camera = owner, clock, 2 * timeout_s, camera
        self._reset_s = self._limit_s + start_s
        self._scope: asyncio.Timeout | None = None
        self._over: EnvError | None = None
        self.task: Task | None = None
        self.episodes = self.steps = self.step_number = 0
        self.began = self.used = clock()
        self.chores: set[asyncio.Task[Any]] = set()  # that its end waits for

    # -- the contract ---------------------------------------------------------------------------------------------
    async def reset(self, task: Task, seed: int) -> StepResult:
        self.cut()
        self.task, self.step_number = task, 0
        began = self._clock()
        self.episodes += 1
        self.page.host.episodes += 1
        result = await self._call("reset", lambda: self.env.reset(task, seed), self._reset_s)
        if self._camera:
            self._camera.begin(task, seed, result)
        self._tell(result, began)
        return result

    async def step(self, action: Action) -> StepResult:
        began = self._clock()
        result = await self._call("step", lambda: self.env.step(action), self._limit_s)
        self.steps, self.step_number = self.steps + 1, self.step_number + 1
        if self._camera:
            self._camera.add(action, result)
        self._tell(result, began)
        return result

    async def checkpoint(self) -> bytes:
        return await self._call("checkpoint", self.env.checkpoint, self._limit_s)

    async def restore(self, checkpoint: bytes) -> StepResult:
        # Many steps, each with a deadline of its own; all of them have the lease's.
        result = await self._call("restore", lambda: self.env.restore(checkpoint), None)
        if self._camera:
            self._camera.add(None, result)
        return result

    async def close(self) -> None:
        if self._over is None:
            self.cut()
            await self._call("close", self.env.close, self._limit_s)

    # -- to be watched --------------------------------------------------------------------------------------------
    @property
    def touch(self) -> bool:
        return self.env.touch

    def watch(self) -> AbstractContextManager[Pictures]:
        return self.env.watch()

    async def visit(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        return await self._call("person's gesture", lambda: self.env.visit(gestures, ms), self._limit_s)

    async def leave(self) -> None:
        await self._call("person's leave", self.env.leave, self._limit_s)

    # -- for tests, tools and the pool ----------------------------------------------------------------------------
    async def cdp(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send the page a command of the Chrome DevTools Protocol."""
        return await self._call(method, lambda: self.env.cdp(method, params), self._limit_s)

    @property
    def env(self) -> Any:
        """The environment itself."""
        return self.page.env

    @property
    def tab(self) -> Any:
        return self.page.tab

    @property
    def busy(self) -> bool:
        """A call is under way."""
        return self._scope is not None

    @property
    def over(self) -> bool:
        return self._over is not None

    @property
    def where(self) -> str:
        task = f", task {self.task.task_id}" if self.task else ""
        return f"session {self.session}, browser {self.page.host.pid}, page {self.page.number}{task}"

    def end(self, error: EnvError) -> None:
        """From now on every call raises this error, the one under way included."""
        self._over = error
        self.cut(str(error))
        if self._scope is not None:
            with suppress(RuntimeError):  # it has just ended, or its own deadline has struck
                self._scope.reschedule(asyncio.get_running_loop().time())

    def cut(self, error: str = "") -> None:
        """The episode is over: what was recorded of it is kept."""
        film = self._camera.cut(error) if self._camera else None
        if film is not None:
            self.chores.add(self._owner.filmed(film, self._camera.folder))

    # -- inside ---------------------------------------------------------------------------------------------------
    async def _call(self, what: str, call: Callable[[], Awaitable[T]], limit_s: float | None) -> T:
        if self._over is not None:
            raise self._again()
        if self.busy:
            raise EnvError("another call of this session is under way", where=self.where, fix="await it first")
        try:
            async with asyncio.timeout(limit_s) as self._scope:
                return await call()
        except TimeoutError:
            if self._over is None:
                late = EnvTimeout(f"the environment did not answer a {what} in {limit_s:g} s", where=self.where)
                self._owner.lost(self, late)
            raise self._again() from None
        except EnvError as error:
            if self._over is not None:
                raise self._again() from error
            if self.env.broken:
                self._owner.lost(self, error)
            raise
        finally:
            self._scope = None
            self.used = self._clock()

    def _again(self) -> EnvError:
        """The error that ended this session, made anew: one exception is raised once."""
        return type(self._over)(self._over.what, where=self._over.where, fix=self._over.fix)

    def _tell(self, result: StepResult, began: float) -> None:
        event = Stepped(
            browser=self.page.host.pid,
            page=self.page.number,
            session=self.session,
            task=self.task.task_id,
            step=self.step_number,
            seconds=self._clock() - began,
            ended=result.terminated or result.truncated,
        )
        self._owner.stepped(event)
