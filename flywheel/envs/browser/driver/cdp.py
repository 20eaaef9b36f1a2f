"""Speak the Chrome DevTools Protocol over the two pipes of `--remote-debugging-pipe`; tell who owns each page.

Sessions are flattened: one connection carries the browser's own commands and those of every page, told apart by
`sessionId`. A command is written at once and answered by a future, so that several may be under way (pipelined), and
when the pipe closes, all of them fail at once: a killed browser is noticed within milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flywheel.utils.errors import EnvError, EnvTimeout

CdpListener = Callable[[str, Mapping[str, Any]], None]
_MAX_MESSAGE_BYTES = 256 * 2**20  # bytes; no answer of a sound page comes near
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


class CdpCommandError(EnvError):
    """The browser refused a command. method: which. code: of JSON-RPC."""

    def __init__(self, what: str, *, where: str = "", fix: str = "", code: int = 0) -> None:
        super().__init__(what, where=where, fix=fix)
        self.code = code


class CdpConnection(asyncio.Protocol):
    """One browser's pipes. `closed` is a future, done when the browser is gone."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next = 0
        self._waiting: dict[int, tuple[asyncio.Future[dict[str, Any]], str, str]] = {}
        self._listeners: dict[str, CdpListener] = {}
        self._buffer = bytearray()
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None

    @classmethod
    async def open(cls, reads: int, writes: int) -> CdpConnection:
        """Open a connection over two file descriptors, which it owns from then on."""
        loop = asyncio.get_running_loop()
        connection = cls()
        connection._reader, _ = await loop.connect_read_pipe(lambda: connection, os.fdopen(reads, "rb", 0))
        connection._writer, _ = await loop.connect_write_pipe(
            lambda: _WritePipe(connection), os.fdopen(writes, "wb", 0)
        )
        return connection

    def send(
        self, method: str, params: Mapping[str, Any] | None = None, session: str = ""
    ) -> asyncio.Future[dict[str, Any]]:
        """Write a command. The future gives its result; raises CdpCommandError (refused), EnvError (browser gone)."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.closed.done():
            answer.set_exception(_browser_gone(method))
            return answer
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self._waiting[self._next] = (answer, method, session)
        self._writer.write(_encode(message).encode() + b"\0")
        return answer

    def post(self, method: str, params: Mapping[str, Any] | None = None, session: str = "") -> None:
        """Write a command whose answer nobody waits for."""
        self.send(method, params, session).add_done_callback(_ignore_answer)

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, session: str = "", *, timeout_s: float
    ) -> dict[str, Any]:
        """Send a command and wait for the answer. Raises EnvTimeout after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.send(method, params, session)
        except TimeoutError:
            raise EnvTimeout(f"the browser did not answer {method} within {timeout_s:g} s", where="browser") from None

    def listen(self, session: str, listener: CdpListener) -> None:
        """Send the events of a session ("": the browser's own) to `listener(method, params)`."""
        self._listeners[session] = listener

    def end(self, session: str, error: EnvError) -> None:
        """End a session: its events go nowhere, and what it was asked fails with `error`."""
        self._listeners.pop(session, None)
        for number in [number for number, waiting in self._waiting.items() if waiting[2] == session]:
            answer = self._waiting.pop(number)[0]
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        """Close the pipes; the browser ends by itself when it notices."""
        for transport in (self._writer, self._reader):
            if transport is not None:
                transport.close()
        self._gone()

    # -- what arrives ---------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        searched = len(self._buffer)
        self._buffer += data
        start = 0
        while (end := self._buffer.find(b"\0", max(start, searched))) >= 0:
            self._take(self._buffer[start:end])
            start = end + 1
        if start:
            del self._buffer[:start]
        if len(self._buffer) > _MAX_MESSAGE_BYTES:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def _take(self, text: bytearray) -> None:
        message = json.loads(text)
        number = message.get("id")
        if number is None:
            listener = self._listeners.get(message.get("sessionId", ""))
            if listener is not None:
                listener(message["method"], message.get("params", {}))
            return
        answer, method, _ = self._waiting.pop(number, (None, "", ""))
        if answer is None or answer.done():
            return
        if "error" in message:
            error = message["error"]
            answer.set_exception(
                CdpCommandError(str(error.get("message", error)), where=method, code=int(error.get("code", 0)))
            )
        else:
            answer.set_result(message["result"])

    def _gone(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for answer, method, _ in waiting.values():
            if not answer.done():
                answer.set_exception(_browser_gone(method))


class _WritePipe(asyncio.BaseProtocol):
    """Of the pipe that is written to: asyncio notices a reader's end here."""

    def __init__(self, connection: CdpConnection) -> None:
        self._connection = connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection._gone()


def _browser_gone(method: str) -> EnvError:
    return EnvError("the browser is gone", where=method)


def _ignore_answer(answer: asyncio.Future) -> None:
    if not answer.cancelled():
        answer.exception()  # told to nobody


class TargetListener(Protocol):
    """What hears of the pages of a browser context: a tab, or what is shown over it."""

    def attached(self, session: str, info: Mapping[str, Any]) -> None: ...

    def detached(self, session: str) -> None: ...


class TargetRouter:
    """Tell each browser context's owner of its pages; close the pages of nobody. owners: by the context's id."""

    def __init__(self, connection: CdpConnection) -> None:
        self._connection = connection
        self.owners: dict[str, TargetListener] = {}
        connection.listen("", self._hear)

    def adopt(self, context: str, owner: TargetListener | None) -> None:
        """Give the targets of a browser context to `owner`; None: to nobody any more."""
        if owner is None:
            self.owners.pop(context, None)
        else:
            self.owners[context] = owner

    def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Target.attachedToTarget":
            info, session = params["targetInfo"], params["sessionId"]
            owner = self.owners.get(info.get("browserContextId", ""))
            if owner is not None and info["type"] == "page":
                owner.attached(session, info)
                return
            if info["type"] == "page":  # the page that some builds begin with, or one of a tab that is closed
                self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
        elif method == "Target.detachedFromTarget":
            for owner in list(self.owners.values()):
                owner.detached(params["sessionId"])
