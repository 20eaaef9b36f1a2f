"""When our worker asks the server for runs; that it runs them is tested with `flywheel up` and stages apart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest

from flows import process_worker
from flows.worker import Worker

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
def question(clock, asked):
    before = signal.getsignal(signal.SIGUSR1)
    yield process_worker.Sparing(asked)
    signal.signal(signal.SIGUSR1, before)


def times(question, clock, asked, seconds: int) -> int:
    """How often the server is asked in so many seconds."""
    asked.reset_mock()
    for _ in range(4 * seconds):
        clock.return_value += 0.25
        asyncio.run(question())
    return asked.await_count


def test_it_asks_each_second_at_work_and_for_a_minute_after_else_each_ten(question, clock, asked):
    assert times(question, clock, asked, 60) == 60
    assert times(question, clock, asked, 100) == 10
    with subprocess.Popen(_WAITS, stdin=subprocess.PIPE) as run:
        assert times(question, clock, asked, 100) == 100
        run.stdin.close()
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
    worker = Worker("none", None)
    worker.look_now()
    assert worker.process.wait(60) == 1  # of its closed input, not of the signal
