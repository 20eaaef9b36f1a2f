"""The Prefect server of a workspace: one SQLite database in `.flywheel/prefect`, served on 127.0.0.1.

Whoever reaches it may decide a promotion, so it asks for the workspace's secret (`flywheel/secret.py`), answers to its
own host alone (`flows/guarded.py`), and no other origin may read what it says.
`configure` must run before anything imports prefect: the library reads its settings from the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx

from flywheel import secret
from flywheel.errors import FlywheelError
from flywheel.files import write_json
from flywheel.local_server import at_port
from flywheel.workspace import Workspace

START_DEADLINE_S = 120
_FLUSH_S = 5
_PR_SET_PDEATHSIG = 1


def configure(ws: Workspace, url: str = "") -> None:
    """Point Prefect at this workspace; its telemetry is off."""
    os.environ.update(
        PREFECT_HOME=str(ws.prefect_home),
        PREFECT_SERVER_ANALYTICS_ENABLED="false",
        DO_NOT_TRACK="1",
        # The run shows its own progress; Prefect's log goes to its server, where each run's page shows it.
        PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL="CRITICAL",
        PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW="ignore",
    )
    if url:
        os.environ.update(PREFECT_API_URL=f"{url}/api", PREFECT_API_AUTH_STRING=secret.of(ws.state))


@contextlib.contextmanager
def prefect_server(ws: Workspace, port: int = 0, meanwhile: Callable[[], None] | None = None) -> Iterator[str]:
    """The workspace's server: the one that runs already, else one of our own, ended with us. Yields its address.

    meanwhile: what is done while it starts; the first start of a workspace takes twenty seconds.
    port: 0 takes a free one. Raises BadInput where it is taken, FlywheelError where the server does not answer within
    START_DEADLINE_S.
    """
    configure(ws)
    url = running(ws)
    if url:
        configure(ws, url)
        if meanwhile:
            meanwhile()
        yield url
        return
    ws.prefect_home.mkdir(parents=True, exist_ok=True)
    port = _free_port(port)
    url = f"http://127.0.0.1:{port}"
    log = ws.prefect_home / "server.log"
    with log.open("ab") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.guarded", str(port)],
            env={
                **os.environ,
                "PREFECT_SERVER_UI_API_URL": f"{url}/api",
                "PREFECT_SERVER_API_AUTH_STRING": secret.of(ws.state),
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{url},http://localhost:{port}",
                "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
                "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",  # no flow has any, and they take a second
            },
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
            start_new_session=True,
        )
    note = ws.prefect_home / "server.json"
    try:
        configure(ws, url)
        if meanwhile:
            meanwhile()
        _wait_until_healthy(url, server, log)
        write_json(note, {"url": url, "pid": server.pid})
        yield url
    finally:
        note.unlink(missing_ok=True)
        _flush()
        _end(server)


def running(ws: Workspace) -> str:
    """Address of a server that answers for this workspace now; empty where there is none."""
    try:
        url = json.loads((ws.prefect_home / "server.json").read_text(encoding="utf-8"))["url"]
        return url if _healthy(url) else ""
    except (OSError, ValueError, KeyError):
        return ""


def _healthy(url: str) -> bool:
    try:
        # Asked ten times a second: neither a proxy nor certificates, which take 50 ms to read, have a part in it.
        return httpx.get(f"{url}/api/health", timeout=2, trust_env=False, verify=False).status_code == 200
    except httpx.HTTPError:
        return False


def _wait_until_healthy(url: str, server: subprocess.Popen, log) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise FlywheelError("Prefect's server ended while starting", where=log, fix="read its log")
        if _healthy(url):
            return
        time.sleep(0.1)
    raise FlywheelError(f"Prefect's server gave no answer in {START_DEADLINE_S} s", where=log, fix="read its log")


def _flush() -> None:
    """Logs and events that still wait to be sent go to the server before it ends."""
    if "prefect" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        for worker in (APILogWorker, EventsWorker):
            worker.drain_all(timeout=_FLUSH_S)


def _end(server: subprocess.Popen) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(10)


def _free_port(wanted: int) -> int:
    with socket.socket() as probe, at_port(wanted):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was given back a moment ago is free
        probe.bind(("127.0.0.1", wanted))
        return probe.getsockname()[1]


def _die_with_parent() -> None:
    """So that no server is left behind where this process is killed (Linux; elsewhere it is ended in order)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
