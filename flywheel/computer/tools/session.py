"""One session with a server: begun, asked, and ended when nothing is asked of it any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import mcp_types
from mcp.client.session import ClientSession, IncomingMessage
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from flywheel.computer.machine import GuestRefused
from flywheel.computer.tools.line import Line
from flywheel.errors import EnvError

Connect = Callable[[Line], AbstractAsyncContextManager[tuple[Any, Any]]]
Result = TypeVar("Result", bound=BaseModel)
_END_S = 1.0  # that it has to end by itself
_ABOUT = mcp_types.Implementation(name="flywheel", version="1")
_SHOWN = 300  # characters of what a server says of its failure
_CLOSED = (mcp_types.CONNECTION_CLOSED, "Connection closed")  # as the SDK says it; servers use the code alone as well

for _name in (
    "mcp",
    "client",
):  # the agent reads what a server does wrong: it is no fault of ours, to be logged with all
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Fault(Exception):
    """What is wrong with a server, or with what was asked of it: a line for the agent."""


class Session:
    """It lives in a task of its own, as the SDK's parts must be left where they were entered.

    idle_s: seconds after which it ends where nothing is asked. changed: the server says that its tools have.
    """

    def __init__(self, connect: Connect, idle_s: float) -> None:
        self.line, self.changed = Line(), False
        self._idle_s, self._asked, self._busy = idle_s, 0.0, 0
        self._begun = asyncio.Event()
        self._session: ClientSession | None = None
        self._failure: BaseException | None = None
        self._task = asyncio.create_task(self._live(connect))

    @property
    def over(self) -> bool:
        return self._begun.is_set() and (self._session is None or self.line.over.is_set())

    async def ask(self, request: mcp_types.Request[Any, Any], kind: type[Result]) -> Result:
        """Raises Fault, and EnvError where it is the machine that is gone. Its deadline is the caller's."""
        await self._begun.wait()
        self._busy += 1
        try:
            if self._session is None:
                raise self._why()
            self.line.refill()
            return await self._session.send_request(request, kind)
        except ValidationError:
            raise Fault("its answer is not one of MCP") from None
        except MCPError as error:
            if not _closed(error):
                raise Fault(_short(error.error.message)) from None
            self.line.over.set()
            await self.ended()
            raise self._why() from None
        finally:
            self._busy -= 1
            self._asked = asyncio.get_running_loop().time()

    async def ended(self) -> None:
        """Wait until it is."""
        await asyncio.wait({self._task})

    async def close(self) -> None:
        """End it; a server that does not let it end in time is left."""
        self.line.over.set()
        if not self._begun.is_set():
            self._task.cancel()
        for _ in range(2):
            done, _pending = await asyncio.wait({self._task}, timeout=_END_S)
            if done:
                return
            self._task.cancel()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _live(self, connect: Connect) -> None:
        try:
            async with (
                connect(self.line) as (heard, said),
                ClientSession(heard, said, message_handler=self._hear, client_info=_ABOUT) as session,
            ):
                await session.initialize()
                self._session, self._asked = session, asyncio.get_running_loop().time()
                self._begun.set()
                await self._rest()
                self._session = None
        except Exception as error:  # of whatever kind: the server, which may be anything, has brought it about
            self._failure = error
        finally:
            self._session = None
            self._begun.set()

    async def _rest(self) -> None:
        """Until it is over, or nothing was asked for long enough."""
        time = asyncio.get_running_loop().time
        while not self.line.over.is_set():
            left = self._idle_s if self._busy else self._asked + self._idle_s - time()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.line.over.wait()

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.changed = True

    def _why(self) -> Exception:
        """Why it is over."""
        error = _first(self._failure)
        if isinstance(error, EnvError) and not isinstance(error, GuestRefused):
            return error
        if self.line.about or error is None:
            return Fault(self.line.about or "it has ended")
        if isinstance(error, MCPError):
            return Fault("it has ended" if _closed(error) else _short(error.error.message))
        if isinstance(error, ValidationError):
            return Fault("its answer is not one of MCP")
        return Fault(_short(error.what if isinstance(error, EnvError) else str(error) or type(error).__name__))


def _closed(error: MCPError) -> bool:
    return (error.error.code, error.error.message) == _CLOSED


def _first(error: BaseException | None) -> BaseException | None:
    """The exception itself, of those that groups hold."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
