"""Serve Prefect's pages, the report and the explorer of a workspace (`flywheel ui`)."""

from __future__ import annotations

import functools
import http.server
import re
import signal
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus

from flows.ops.prefect_server import open_prefect_server
from flywheel.config.workspace import Workspace
from flywheel.store.catalog.database import CatalogConnection
from flywheel.ui.explorer.app import serve_explorer as explorer
from flywheel.ui.report import pages
from flywheel.utils import credentials
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.local_ports import errors_of_port

_TRAJECTORY = re.compile(r"/trajectories/([\w-]+)\.html")


def serve_ui(
    ws: Workspace, port: int, say: Callable[[str], None], other: Workspace | None = None, *, allow_runs: bool = False
) -> None:
    """Serve Prefect's pages, the report and the explorer until Ctrl-C or SIGTERM.

    port: of Prefect's pages; the report has the next one, the explorer the one after. say: prints a line for the user.
    other: a workspace that the explorer shows for comparison; None: none. allow_runs: whether the explorer's pages may
    begin counterfactual runs. Raises BadInput where a port is taken, FlywheelError as `serve_explorer` and
    `open_prefect_server`, and as `write_report`, since the report is written at the start.
    """
    stop = threading.Event()
    with (
        start_report_server(ws, port + 1) as files,
        explorer(ws, port + 2, other, allow_runs=allow_runs) as explored,
        open_prefect_server(ws, port, lambda: pages.write_report(ws)) as url,
    ):
        explored.beside.prefect, explored.beside.report = url, f"http://127.0.0.1:{files.server_port}"
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        say(f"Prefect:  {url}")
        say(f"Report:   http://127.0.0.1:{files.server_port}/{ws.report_page.name}")
        say(f"Explorer: {explored.entrance()}")
        login = credentials.credentials_path(ws.state)
        say(f"Log in:   `cat {login}` prints USER:PASSWORD; Prefect's page wants the whole line,")
        say("          the explorer's address lets in whoever opens it first")
        say("Ctrl-C ends them.")
        try:
            while not stop.wait(3600):
                pass
        except KeyboardInterrupt:
            pass


def start_report_server(ws: Workspace, port: int) -> http.server.ThreadingHTTPServer:
    """Serve the report on 127.0.0.1, in a thread, to whoever has the workspace's secret.

    `/trajectories/ID.html` is made when it is requested. port: 0 takes a free one. Returns the server, a context
    manager that shuts it down at the end of the block. Raises BadInput where the port is taken, and as
    `workspace_credentials`.
    """
    handler = functools.partial(
        _ReportHandler,
        login=credentials.workspace_credentials(ws.state),
        catalogue=CatalogConnection(ws),
        directory=str(ws.report),
    )
    with errors_of_port(port):
        server = _ReportServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _ReportHandler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments, login: str, catalogue: CatalogConnection, **options) -> None:
        self._login, self._catalogue = login, catalogue
        super().__init__(*arguments, **options)

    def send_head(self):
        """Check host and credentials of every request, and make a trajectory's page when it is requested."""
        port = self.server.server_port
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        if not credentials.is_valid_basic_auth(self._login, self.headers.get("Authorization", "")):
            self.send_response(HTTPStatus.UNAUTHORIZED)
            self.send_header("WWW-Authenticate", 'Basic realm="flywheel", charset="UTF-8"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if asked := _TRAJECTORY.fullmatch(self.path):
            try:
                self._catalogue.run(
                    lambda connection: pages.write_trajectory_page(self._catalogue.ws, asked[1], connection)
                )
            except FlywheelError as error:
                status = HTTPStatus.NOT_FOUND if isinstance(error, BadInput) else HTTPStatus.INTERNAL_SERVER_ERROR
                self.send_error(status, explain=str(error))
                return None
        return super().send_head()

    def log_message(self, *_) -> None:
        """Print no requests."""


class _ReportServer(http.server.ThreadingHTTPServer):
    def __exit__(self, *error) -> None:
        self.shutdown()
        super().__exit__(*error)

    def handle_error(self, *_) -> None:
        """Ignore a client that disconnects during a response; report other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*_)
