"""The explorer as a server of this machine, in a thread of the command that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from flywheel import memory, secret
from flywheel.errors import FlywheelError
from flywheel.explorer.app import application
from flywheel.explorer.asking import Asking
from flywheel.explorer.beside import Beside
from flywheel.explorer.changes import Changes
from flywheel.explorer.login import Login
from flywheel.explorer.sql import Sql
from flywheel.local_server import LocalServer, at_own
from flywheel.workspace import Workspace

_END_S = 20


@dataclass(frozen=True)
class Explorer:
    """Of the workspace `ws`. url: where its pages are; login: who may see them; beside: what they link to."""

    ws: Workspace
    url: str
    login: Login
    beside: Beside

    def entrance(self) -> str:
        """An address that lets in who opens it first."""
        return f"{self.url}/login?key={self.login.key()}"


@contextlib.contextmanager
def serving(ws: Workspace, port: int, other: Workspace | None = None) -> Iterator[Explorer]:
    """Serve the workspace's explorer within the block; 0: at any free port. other: a workspace whose iterations are
    laid over those of this one. Raises BadInput where the port is taken."""
    memory.few_heaps()
    listener = at_own(port)
    port = listener.getsockname()[1]
    login = Login(secret.of(ws.state), port)
    beside = Beside()
    begun, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []  # the one it runs in
    failed: list[BaseException] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        asking, sql = Asking(ws), Sql(ws)
        second = Asking(other, lists=False) if other else None
        changing = Changes(lambda: asking.standing() + (second.standing() if second else ""))
        server = LocalServer(application(asking, login, sql, changing, beside, second), [listener])
        try:
            await server.start(where=f"port {port}", error=FlywheelError)
            begun.set()
            await over.wait()
        finally:
            changing.end()
            await sql.aclose()
            await server.stop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if begun.is_set():  # nobody waits for it any more: the thread's end says it, on the standard error
                raise
            failed.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=run, name="explorer", daemon=True)
    thread.start()
    try:
        begun.wait()
        if failed:
            raise failed[0]
        yield Explorer(ws, f"http://127.0.0.1:{port}", login, beside)
    finally:
        with contextlib.suppress(RuntimeError, IndexError):  # its loop is closed or never was: it has ended
            loops[0].call_soon_threadsafe(over.set)
        thread.join(_END_S)
        listener.close()
