"""When our worker asks the server for runs; that it runs them is tested with `workspace up` and stages apart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from unittest import mock
from uuid import uuid4

import psutil
import pytest
from night import by_day
from prefect.client.schemas.objects import FlowRun
from prefect.utilities.processutils import command_from_string
from processes import PATIENCE_S

from flows.ops import process_worker
from flows.ops.worker import WorkerProcess

_WAITS = [sys.executable, "-c", "input()"]


@pytest.fixture
def clock(monkeypatch):
    now = mock.Mock(return_value=1000.0)
    monkeypatch.setattr(process_worker.time, "monotonic", now)
    return now


@pytest.fixture
def asked():
    return mock.AsyncMock(return_value=[])


@pytest.fixture
def runs():
    """Whether a run is at work."""
    return mock.Mock(return_value=False)


@pytest.fixture
def question(clock, asked, runs):
    before = signal.getsignal(signal.SIGUSR1)
    yield process_worker.AdaptivePoller(asked, runs)
    signal.signal(signal.SIGUSR1, before)


def times(question, clock, asked, seconds: int) -> int:
    """How often the server is asked in so many seconds."""
    asked.reset_mock()
    for _ in range(4 * seconds):
        clock.return_value += 0.25
        asyncio.run(question())
    return asked.await_count


def test_it_asks_each_second_at_work_and_for_a_minute_after_else_each_ten(question, clock, asked, runs):
    assert times(question, clock, asked, 60) == 60
    assert times(question, clock, asked, 100) == 10
    runs.return_value = True
    assert times(question, clock, asked, 100) == 100
    runs.return_value = False
    assert times(question, clock, asked, 60) == 60
    assert times(question, clock, asked, 100) == 10


def test_it_asks_at_once_where_it_is_told_so(question, clock, asked):
    times(question, clock, asked, 100)
    assert times(question, clock, asked, 1) == 0
    os.kill(os.getpid(), signal.SIGUSR1)
    clock.return_value += 0.25
    asyncio.run(question())
    asked.assert_awaited_once()
    assert times(question, clock, asked, 9) == 0


def test_to_be_told_does_not_end_one_that_is_just_beginning(monkeypatch):
    begin = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: begin(_WAITS, **options))
    worker = WorkerProcess("none", None)
    worker.poll_now()
    assert worker.process.wait(PATIENCE_S) == 1  # of its closed input, not of the signal


@pytest.mark.parametrize(
    ("named", "used"), [(None, [sys.executable, "-P", "-m", "prefect.engine"]), ("mine", ["mine"])]
)
def test_a_run_is_one_process_of_the_workers_python_unless_its_deployment_names_a_command(named, used):
    run = FlowRun(flow_id=uuid4(), name="a run")
    configuration = process_worker.DirectJob(command=named)
    configuration.prepare_for_flow_run(run)
    assert command_from_string(configuration.command) == used
    assert configuration._command_configured  # so that Prefect takes it as it is


@pytest.mark.exhaustive
def test_that_a_run_is_killed_is_known_at_once_though_what_it_began_is_there_still():
    killed = (
        "import os, subprocess, sys; began = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']);"
        "print(began.pid, file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"
    )
    told = (
        "import asyncio, sys; from unittest import mock; from flows.ops.process_worker import RunProcesses;"
        "runs = RunProcesses();"
        "runs.spare.start = mock.AsyncMock();"
        "status = mock.Mock(); options = {'task_status': status, 'task_status_handler': lambda process: process.pid};"
        f"done = asyncio.run(runs.run_process([sys.executable, '-c', {killed!r}], **options));"
        "print(done.returncode, status.started.call_args.args == (done.pid,), runs.at_work())"
    )
    done = subprocess.Popen([sys.executable, "-c", told], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child = psutil.Process(int(done.stderr.readline()))
    try:
        assert done.stdout.readline().split() == ["-9", "True", "False"]
        assert child.is_running()
    finally:
        child.kill()
        done.communicate()


@pytest.mark.parametrize("number", by_day([signal.SIGTERM, signal.SIGINT]))
def test_it_ends_though_the_signal_comes_where_python_forgets_what_is_raised(number):
    always_in_a_callback = """
import asyncio, time, weakref
from flows.ops.process_worker import cancel_on_signals

class Thing: pass

async def work():
    cancel_on_signals(asyncio.current_task())
    print("begun", flush=True)
    while True:
        thing = Thing()
        kept = weakref.ref(thing, lambda _: time.sleep(0.2))
        del thing
        await asyncio.sleep(0)

try:
    asyncio.run(work())
except asyncio.CancelledError:
    print("in order")
"""
    begun = subprocess.Popen([sys.executable, "-c", always_in_a_callback], stdout=subprocess.PIPE, text=True)
    assert begun.stdout.readline() == "begun\n"
    begun.send_signal(number)
    told, _ = begun.communicate(timeout=PATIENCE_S)
    assert (begun.returncode, told) == (0, f"The worker ends by {number.name}\nin order\n")


@pytest.mark.exhaustive
def test_it_ends_at_once_by_a_second_signal_and_by_time_where_it_does_not_end_in_order():
    never_in_order = """
import asyncio, sys
from flows.ops import process_worker

async def work():
    process_worker._ENDS_S = int(sys.argv[1])
    process_worker.cancel_on_signals(asyncio.current_task())
    print("begun", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

asyncio.run(work())
"""
    for seconds, second, code in (("600", signal.SIGTERM, -signal.SIGTERM), ("1", None, -signal.SIGALRM)):
        begun = subprocess.Popen([sys.executable, "-c", never_in_order, seconds], stdout=subprocess.PIPE, text=True)
        assert begun.stdout.readline() == "begun\n"
        begun.send_signal(signal.SIGTERM)
        assert begun.stdout.readline() == "The worker ends by SIGTERM\n"
        if second:
            begun.send_signal(second)
        begun.communicate(timeout=PATIENCE_S)
        assert begun.returncode == code
