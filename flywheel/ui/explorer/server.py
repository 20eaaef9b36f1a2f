"""Serve the explorer on this machine, in a thread."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from anyio.from_thread import start_blocking_portal

from flywheel.config.workspace import Workspace
from flywheel.ui.explorer.app import ChangeStream, ServerLinks, create_explorer_app
from flywheel.ui.explorer.auth import LoginSessions
from flywheel.ui.explorer.catalog_reader import CatalogReader
from flywheel.ui.explorer.sql import SqlWorkerPool
from flywheel.utils import credentials, processes
from flywheel.utils.errors import FlywheelError
from flywheel.utils.local_ports import bind_local_port
from flywheel.utils.local_server import LocalServer


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
    with contextlib.closing(bind_local_port(port)) as listener, start_blocking_portal(name="explorer") as portal:
        port = listener.getsockname()[1]
        login = LoginSessions(credentials.workspace_credentials(ws.state), port)
        beside = ServerLinks()
        with portal.wrap_async_context_manager(_serving(ws, other, login, beside, listener)):
            yield ExplorerServer(ws, f"http://127.0.0.1:{port}", login, beside)


@contextlib.asynccontextmanager
async def _serving(
    ws: Workspace, other: Workspace | None, login: LoginSessions, beside: ServerLinks, listener: socket.socket
) -> AsyncIterator[None]:
    asking, sql = CatalogReader(ws), SqlWorkerPool(ws)
    second = CatalogReader(other, lists=False) if other else None
    changing = ChangeStream(lambda: asking.standing() + (second.standing() if second else ""))
    server = LocalServer(create_explorer_app(asking, login, sql, changing, beside, second), [listener])
    await server.start(where=f"port {listener.getsockname()[1]}", error=FlywheelError)
    try:
        yield
    finally:
        changing.end()
        await sql.aclose()
        await server.stop()
