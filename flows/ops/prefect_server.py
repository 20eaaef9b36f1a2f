"""Serve Prefect for a workspace on 127.0.0.1, and restart the server where it ends.

Whoever reaches it may decide a promotion. So it asks for the workspace's secret (`flywheel/utils/credentials.py`),
answers only requests to its own host (`flows/ops/prefect_server_main.py`), and lets no other origin read its responses.
`configure_prefect` must run before anything imports prefect: the library reads its settings from the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from flows.ops import tied_process
from flywheel.config.workspace import Workspace
from flywheel.utils import credentials
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.files import write_json
from flywheel.utils.local_ports import bind_local_port, bypass_proxies_on_loopback, check_connection_variables
from flywheel.utils.processes import run_periodically, terminate_process
from flywheel.utils.progress import announce

START_DEADLINE_S = 120
_FLUSH_S = 5
_LOOK_S = 0.2
_RESTARTS = 20  # of a server, in one run
_OURS: set[str] = set()  # addresses of servers that this process started or found
# Intervals of the server's services, in seconds. Saves 0.4% of a core while nothing runs, of 2.4% with Prefect's
# defaults, 5 to 20.
_SERVICES = {
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "30",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "60",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "20",
}
# Concurrency leases of deployments that run one at a time lie in PREFECT_HOME. By default they are in memory, and a
# restarted server ends the run, at its next renewal, within four minutes.
_LEASES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}


def configure_prefect(ws: Workspace, url: str = "") -> None:
    """Point Prefect at this workspace, by variables that subprocesses inherit; its telemetry is off.

    url: of the workspace's own server, set with its credentials; "": the environment's address and credentials stay.
    Raises BadInput where the environment's proxies or certificates cannot be used.
    """
    bypass_proxies_on_loopback()
    check_connection_variables()
    os.environ.update(
        PREFECT_HOME=str(ws.prefect_home),
        PREFECT_SERVER_ANALYTICS_ENABLED="false",
        DO_NOT_TRACK="1",
        # The run shows its own progress; Prefect's log goes to its server, where each run's page shows it.
        PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL="CRITICAL",
        PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW="ignore",
        # The server's response while its database is away, as it is for a moment where PostgreSQL restarts.
        PREFECT_CLIENT_RETRY_EXTRA_CODES="500",
    )
    if url:
        _OURS.add(url)
        os.environ.update(
            PREFECT_API_URL=f"{url}/api", PREFECT_API_AUTH_STRING=credentials.workspace_credentials(ws.state)
        )


@contextlib.contextmanager
def open_prefect_server(ws: Workspace, port: int = 0, meanwhile: Callable[[], None] | None = None) -> Iterator[str]:
    """Yield the URL of a Prefect server for the workspace's runs: the one of PREFECT_API_URL, else the workspace's own.

    A server of the workspace that runs already is used; else one is started, restarted where it ends early, and stopped
    at the end of the block. port: 0 takes a free one. meanwhile: called while it starts; a workspace's first start
    takes twenty seconds. Raises BadInput where the port is taken, PREFECT_API_URL does not answer, or the database
    cannot be used; FlywheelError where the server does not answer within START_DEADLINE_S.
    """
    configure_prefect(ws)
    url = find_external_server()
    if not url and (url := find_running_server(ws)):
        configure_prefect(ws, url)
    if url:
        if meanwhile:
            meanwhile()
        yield url
        return
    server = _PrefectServer(ws, bind_local_port(port))
    server.start()
    try:
        configure_prefect(ws, server.url)
        if meanwhile:
            meanwhile()
        server.wait_until_healthy()
        server.publish_note()
        with run_periodically(server.restart_if_dead, _LOOK_S):
            yield server.url
    finally:
        _note_path(ws).unlink(missing_ok=True)
        _flush()
        server.close()


def find_external_server() -> str:
    """Return the URL, without `/api`, of the user's own Prefect server (PREFECT_API_URL); "" where none is named.

    Raises BadInput where it does not answer.
    """
    api = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    url = api.removesuffix("/api")
    if not api or url in _OURS:
        return ""
    if not _is_healthy(url):
        raise BadInput(
            "no Prefect server answers there", where=f"PREFECT_API_URL={api}", fix="start it, or unset the variable"
        )
    return url


class _PrefectServer:
    """Run the Prefect server of a workspace as a subprocess. This process owns the socket: the port is reserved from
    the first moment, and requests during a restart wait for their response."""

    def __init__(self, ws: Workspace, listener: socket.socket) -> None:
        self._listener, self._port = listener, listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._ws = ws
        self._log, self._restarts = ws.prefect_home / "server.log", _RESTARTS

    def start(self) -> None:
        self._ws.prefect_home.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                tied_process.tied_command("flows.ops.prefect_server_main", str(self._listener.fileno())),
                pass_fds=[self._listener.fileno()],
                env={
                    **_SERVICES,
                    **_LEASES,
                    **os.environ,
                    "PREFECT_SERVER_UI_API_URL": f"{self.url}/api",
                    "PREFECT_SERVER_API_AUTH_STRING": credentials.workspace_credentials(self._ws.state),
                    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{self.url},http://localhost:{self._port}",
                    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
                    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
                    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",  # they take a second
                },
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
                last = lines[-1].strip() if lines else "without a word"
                if self.process.returncode == BadInput.exit_code:  # its last line says what to correct
                    raise BadInput(last)
                raise FlywheelError(
                    f"Prefect's server ended while starting (code {self.process.returncode}): {last}",
                    where=self._log,
                    fix="read its log",
                )
            if _is_healthy(self.url):
                return
            time.sleep(0.1)
        raise FlywheelError(
            f"Prefect's server gave no answer in {START_DEADLINE_S} s", where=self._log, fix="read its log"
        )

    def restart_if_dead(self) -> None:
        """Restart the server where it has ended, on its port and with its database. Prefect's client retries for a
        minute, so runs do not notice."""
        if (code := self.process.poll()) is None or not self._restarts:
            return
        self._restarts -= 1
        announce("prefect", f"its server ended (code {code}, {self._log}); it is begun again")
        self.start()
        self.publish_note()

    def publish_note(self) -> None:
        """Write the note by which others find the server (`find_running_server`)."""
        write_json(_note_path(self._ws), {"url": self.url, "pid": self.process.pid})

    def close(self) -> None:
        terminate_process(self.process)
        self._listener.close()


def find_running_server(ws: Workspace) -> str:
    """Find the URL of a Prefect server that answers for this workspace now; "" where there is none."""
    try:
        url = json.loads(_note_path(ws).read_text(encoding="utf-8"))["url"]
        return url if _is_healthy(url) else ""
    except (OSError, ValueError, KeyError):
        return ""


def _note_path(ws: Workspace) -> Path:
    return ws.prefect_home / "server.json"


def _is_healthy(url: str) -> bool:
    try:
        # Called ten times a second: without proxies, and without certificates, which take 50 ms to read.
        return httpx.get(f"{url}/api/health", timeout=2, trust_env=False, verify=False).status_code == 200
    except httpx.HTTPError:
        return False


def _flush() -> None:
    """Send logs and events that still wait to the server, before it ends."""
    if "prefect" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        for worker in (APILogWorker, EventsWorker):
            worker.drain_all(timeout=_FLUSH_S)
