"""`flywheel ui`: Prefect's pages on the workspace's history, and the report beside them."""

from __future__ import annotations

import functools
import http.server
import signal
import threading
from collections.abc import Callable

from flows.server import prefect_server
from flywheel.report import page
from flywheel.workspace import Workspace


def serve(ws: Workspace, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM. The report is on the port after Prefect's."""
    page.build(ws)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    handler = functools.partial(_Quiet, directory=str(ws.report))
    with prefect_server(ws, port) as url, http.server.ThreadingHTTPServer(("127.0.0.1", port + 1), handler) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        say(f"Prefect:  {url}")
        say(f"Report:   http://127.0.0.1:{files.server_port}/{ws.report_page.name}")
        say("Ctrl-C ends both.")
        try:
            while not stop.wait(3600):
                pass
        except KeyboardInterrupt:
            pass
        files.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        """Requests are not printed."""
