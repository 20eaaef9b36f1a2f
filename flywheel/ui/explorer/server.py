"""Serve the explorer on this machine, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from flywheel.config.workspace import Workspace
from flywheel.ui.explorer.app import ChangeStream, ServerLinks, create_explorer_app
from flywheel.ui.explorer.auth import LoginSessions
from flywheel.ui.explorer.catalog_reader import CatalogReader
from flywheel.ui.explorer.sql import SqlWorkerPool
from flywheel.utils import credentials, processes
from flywheel.utils.errors import FlywheelError
from flywheel.utils.local_ports import bind_local_port
from flywheel.utils.local_server import LocalServer

_STOP_TIMEOUT_S = 20


@dataclass(frozen=True)
class ExplorerServer:
    """Of the workspace `ws`. url: where its pages are; login: who may see them; beside: what they link to."""

    ws: Workspace
    url: str
    login: LoginSessions
    beside: ServerLinks

    def entrance(self) -> str:
        """Make an address that lets in whoever opens it first."""
        return f"{self.url}/login?key={self.login.key()}"


@contextlib.contextmanager
def serve_explorer(ws: Workspace, port: int, other: Workspace | None = None) -> Iterator[ExplorerServer]:
    """Serve the workspace's explorer on 127.0.0.1, in a thread, within the block.

    port: 0 takes a free one. other: a workspace whose iterations are shown for comparison. Yields the server; its
    `entrance` lets a browser in, and the workspace's credentials are made where it has none. Raises BadInput where the
    port is taken.
    """
    processes.limit_malloc_arenas()
    listener = bind_local_port(port)
    port = listener.getsockname()[1]
    login = LoginSessions(credentials.workspace_credentials(ws.state), port)
    beside = ServerLinks()
    begun, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []  # the one it runs in
    failed: list[BaseException] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        asking, sql = CatalogReader(ws), SqlWorkerPool(ws)
        second = CatalogReader(other, lists=False) if other else None
        changing = ChangeStream(lambda: asking.standing() + (second.standing() if second else ""))
        server = LocalServer(create_explorer_app(asking, login, sql, changing, beside, second), [listener])
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
        yield ExplorerServer(ws, f"http://127.0.0.1:{port}", login, beside)
    finally:
        with contextlib.suppress(RuntimeError, IndexError):  # its loop is closed or never was: it has ended
            loops[0].call_soon_threadsafe(over.set)
        thread.join(_STOP_TIMEOUT_S)
        listener.close()
