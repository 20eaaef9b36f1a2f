"""The manager: requests a second with many sessions, and what is left when all that plays, and the manager, is killed.

The environments are light (a number that is counted up), so that what is measured is the way to them. Who asks are
processes of their own, which take processor time from the manager on a small machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from bench_case import BenchCase

from flywheel.envs.remote.client import TOKEN_VARIABLE
from flywheel.utils.errors import EnvTimeout

_BENCH, _NODES, _KIND = "computer", 8, "light"
_SILENT_S, _WITHIN_S = 10.0, 60.0
_GOAL_QPS, _GOAL_P99_MS = 2000, 20
_CLIENTS_A_PROCESS = 100


def cases(options) -> Iterator[BenchCase]:
    yield from _rate(options.folder / "rate.db", options.sessions, options.seconds)
    yield _leaks(options.folder / "leaks.db", options.clients)


# -- how many requests ------------------------------------------------------------------------------------------------
def _rate(state: Path, sessions: int, seconds: float) -> Iterator[BenchCase]:
    """One asks by so many connections at once: a session is given back and another is leased, now and then all are
    said to be alive."""
    with _manager(state, silent_s=_WITHIN_S) as (address, token, _, pid), httpx.Client(base_url=address) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        for number in range(_NODES):
            places = {_KIND: [2 * sessions // _NODES, "x"]}
            about = {"boot": "1", "address": f"http://127.0.0.1:{number + 1}", "places": places}
            client.post(f"/nodes/n{number}", json=about).raise_for_status()
        program = Path(__file__).with_name("computer_asking.py")
        ran = subprocess.run(
            [sys.executable, str(program), address, str(sessions), str(seconds)],
            env={**os.environ, TOKEN_VARIABLE: token}, capture_output=True, text=True, check=True,
            timeout=seconds + 120,
        )  # fmt: skip
        found = json.loads(ran.stdout)
        used_s = sum(psutil.Process(pid()).cpu_times()[:2])
        held = client.get("/status").json()["sessions"]
    times = sorted(found["ms"])
    p99 = times[int(0.99 * len(times))]
    about = {"sessions": held, "connections": found["connections"], "median_ms": round(statistics.median(times), 2)}
    about["processor_us"] = round(
        used_s / (len(times) + sessions) * 1e6
    )  # of the manager, a request, its start included
    qps = len(times) / found["seconds"]
    yield _figure("manager_qps", "requests/s", qps, _GOAL_QPS, qps >= _GOAL_QPS, about)
    yield _figure("manager_p99_ms", "ms", p99, _GOAL_P99_MS, p99 <= _GOAL_P99_MS, about)


# -- what is left -----------------------------------------------------------------------------------------------------
def _leaks(state: Path, clients: int) -> BenchCase:
    """Sessions at the manager and at the node, when all clients were killed and the manager once."""
    processes = -(-clients // _CLIENTS_A_PROCESS)
    each = Path(__file__).with_name("computer_playing.py")
    with _manager(state, silent_s=_SILENT_S) as (address, token, kill, _), httpx.Client(base_url=address) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        environment = {**os.environ, TOKEN_VARIABLE: token}
        node = subprocess.Popen([sys.executable, str(each), "node", address, str(clients)], env=environment)
        playing = [
            subprocess.Popen(
                [sys.executable, str(each), "play", address, str(_CLIENTS_A_PROCESS)],
                env=environment,
                stdout=subprocess.PIPE,
            )
            for _ in range(processes)
        ]
        try:
            for one in playing:
                one.stdout.readline()  # all of its clients have a session
            before = client.get("/status").json()["sessions"]
            kill()
            _until(lambda: client.get("/status").json()["sessions"] == before, "the sessions after a start")
            for one in playing:
                one.kill()
            _until(lambda: not client.get("/status").json()["sessions"], "the end of all sessions", _WITHIN_S)
            client.post(f"/nodes/{_KIND}/drain", json={})
            node.wait(_WITHIN_S)  # a node that was drained ends when its own last session has
            left = client.get("/status").json()["sessions"]
        finally:
            for one in (*playing, node):
                one.kill()
                one.wait()
    about = {"clients": processes * _CLIENTS_A_PROCESS, "sessions_before": before}
    return _figure("leaks", "sessions", left, 0, left == 0, about)


def _figure(name: str, unit: str, ours: float, goal: float, met: bool, about: dict[str, Any]) -> BenchCase:
    return BenchCase(_BENCH, name, unit, ours, None, "", None, goal, met, about)


# -- the manager's process --------------------------------------------------------------------------------------------
@contextmanager
def _manager(state: Path, silent_s: float) -> Iterator[tuple[str, str, Callable[[], None], Callable[[], int]]]:
    """Its address, its token, what kills it and starts another on the same file, and what tells its process."""
    state.unlink(missing_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, token = f"http://127.0.0.1:{port}", secrets.token_hex(16)
    words = [
        sys.executable,
        "-c",
        "from flywheel.cli import main; main()",
        "env",
        "server",
        "manager",
        "--port",
        str(port),
    ]
    words += ["--state", str(state), "--heartbeat-timeout", str(silent_s)]

    def start() -> subprocess.Popen:
        made = subprocess.Popen(words, env={**os.environ, TOKEN_VARIABLE: token}, stderr=subprocess.DEVNULL)
        _until(lambda: _answers(address, token), "the manager")
        return made

    process = [start()]

    def anew() -> None:
        process[0].kill()
        process[0].wait()
        process[0] = start()

    try:
        yield address, token, anew, lambda: process[0].pid
    finally:
        process[0].kill()
        process[0].wait()


def _answers(address: str, token: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{address}/status", headers={"Authorization": f"Bearer {token}"}).is_success
    return False


def _until(holds: Callable[[], bool], what: str, within_s: float = _WITHIN_S) -> None:
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            raise EnvTimeout(f"{what} did not come in {within_s:g} s")
        time.sleep(0.05)
