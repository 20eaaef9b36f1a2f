"""The process that waits to become a run: what it becomes, when it is not taken, who outlives whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from unittest import mock

import anyio
import psutil
import pytest
from night import by_day
from processes import PATIENCE_S, alive, gone

from flows.ops import process_worker
from flows.ops.prewarmed_process import PrewarmedProcess
from flows.ops.process_worker import RunProcesses

_NO_RUN = {"PREFECT__FLOW_RUN_ID": "none"}  # Prefect's engine says so and ends with 1


async def ended(spare: PrewarmedProcess) -> None:
    if spare._waits is not None:
        with contextlib.suppress(ProcessLookupError):  # the one that was killed, where the loop had not heard of it yet
            spare._waits.terminate()
        await spare._waits.wait()


async def test_it_becomes_the_run_and_another_waits(tmp_path, capfd):
    runs, started = RunProcesses(), mock.Mock()
    await runs.spare.start()
    first = runs.spare._waits
    done = await runs.run_process(
        process_worker._ENGINE,
        task_status=started,
        task_status_handler=lambda process: (process.pid, runs.at_work()),
        env={**os.environ, **_NO_RUN},
        cwd=tmp_path,
    )
    assert done is first
    assert done.returncode == 1
    started.started.assert_called_once_with((first.pid, True))
    assert not runs.at_work()
    assert runs.spare._waits.pid != first.pid
    assert runs.spare._waits.returncode is None
    await ended(runs.spare)
    assert "Invalid flow run id. Received arguments: ['" in capfd.readouterr().err


@pytest.mark.parametrize("options", by_day([{}, {"stream_output": False}]))
@pytest.mark.exhaustive
async def test_a_run_begins_without_it_where_it_was_killed(tmp_path, capfd, options):
    runs = RunProcesses()
    await runs.spare.start()
    killed = runs.spare._waits
    killed.kill()
    assert await gone([killed.pid])
    done = await runs.run_process(
        process_worker._ENGINE,
        task_status=mock.Mock(),
        task_status_handler=lambda process: process,
        env={**os.environ, **_NO_RUN},
        cwd=tmp_path,
        **options,
    )
    assert done.pid != killed.pid
    assert done.returncode == 1
    await ended(runs.spare)
    assert ("Invalid flow run id" in capfd.readouterr().err) == (not options)


@pytest.mark.parametrize(
    "more", [{"PYTHONPATH": "/elsewhere"}, {"PREFECT_LOGGING_LEVEL": "DEBUG"}, {"TZ": "Asia/Tokyo"}]
)
async def test_it_is_not_taken_for_a_run_of_another_environment(more):
    spare = PrewarmedProcess()
    spare._waits, spare._environment = mock.Mock(), dict(os.environ)
    assert await spare.become_run({**os.environ, **more}, None) is None
    assert spare._waits is not None


@pytest.fixture
def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process
    assert process.wait() == 0  # whoever waits for it still can


async def test_a_process_that_has_just_ended_is_told_nothing(ended_process):
    """The event loop has not heard of it, and its pipe would take the line."""
    spare = PrewarmedProcess()
    waits = spare._waits = mock.Mock(pid=ended_process.pid, returncode=None, stdin=mock.AsyncMock())
    spare._environment = dict(os.environ)
    assert await spare.become_run(os.environ, None) is None
    assert not waits.stdin.send.called


async def test_of_two_runs_that_begin_at_once_one_process_is_left_to_wait(monkeypatch):
    begun = []

    async def begin(*_, **__):
        begun.append(mock.Mock(returncode=None))
        await asyncio.sleep(0)  # the other comes meanwhile
        return begun[-1]

    monkeypatch.setattr(anyio, "open_process", begin)
    spare = PrewarmedProcess()
    await asyncio.gather(spare.start(), spare.start())
    assert begun == [spare._waits]


@pytest.mark.parametrize("taken", by_day([False, True]))
def test_it_ends_with_its_worker_unless_it_has_become_a_run(taken):
    """The run waits for a server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/api"
        worker = (
            "import asyncio, os, sys; from flows.ops.prewarmed_process import PrewarmedProcess\n"
            "from uuid import uuid4\n"
            "async def main():\n"
            "    spare = PrewarmedProcess(); await spare.start(); pid = spare._waits.pid\n"
            f"    run = {{'PREFECT_API_URL': {url!r}, 'PREFECT__FLOW_RUN_ID': str(uuid4())}}\n"
            f"    if {taken}: await spare.become_run({{**os.environ, **run}}, None)\n"
            "    print(pid, flush=True); await asyncio.to_thread(sys.stdin.read)\n"
            "asyncio.run(main())"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", worker], text=True, **pipes)
        pid = int(process.stdout.readline())
        try:
            if taken:
                server.settimeout(PATIENCE_S)
                server.accept()  # it is the run
            process.send_signal(signal.SIGKILL)
            process.wait()
            deadline = time.monotonic() + PATIENCE_S
            while not taken and alive(pid):
                assert time.monotonic() < deadline, "it lives on"
                time.sleep(0.05)
            assert alive(pid) == taken
        finally:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
            process.communicate()
