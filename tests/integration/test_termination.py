"""SIGTERM and Ctrl-C end the work wherever Python happens to be when they come."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from processes import PATIENCE_S

from flywheel.utils import processes
from flywheel.utils.processes import Terminated, raise_on_sigterm

NOT_RAISED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
RAISED = {signal.SIGTERM: Terminated, signal.SIGINT: KeyboardInterrupt}


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    """Also where who began the tests has it ignored, as a shell does for what it begins in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send(number: int) -> None:
    os.kill(os.getpid(), number)
    for _ in range(1000):  # Python looks for signals between two of its instructions
        pass


def wait() -> None:
    """Until something is raised."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        time.sleep(0.01)


class Thing:
    pass


class Last:
    def __init__(self, does: Callable[[], None]) -> None:
        self.does = does

    def __del__(self) -> None:
        self.does()


def in_a_weak_references_callback(number: int) -> None:
    thing = Thing()
    kept = weakref.ref(thing, lambda _: send(number))
    del thing
    wait()
    del kept


def in_del(number: int) -> None:
    Last(lambda: send(number))
    wait()


async def _sleep() -> None:
    await asyncio.sleep(PATIENCE_S)


async def _send(number: int) -> None:
    send(number)


def in_a_callback_of_a_loop(number: int) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(send, number)
        await _sleep()

    processes.run_until_sigterm(work())


def in_a_task_that_nobody_asks(number: int) -> None:
    async def work() -> None:
        kept = asyncio.create_task(_send(number))
        await _sleep()
        del kept

    processes.run_until_sigterm(work())


def in_a_task_of_a_group(number: int) -> None:
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_send(number))
            group.create_task(_sleep())

    processes.run_until_sigterm(work())


def while_a_loop_waits(number: int) -> None:
    async def work() -> None:
        asyncio.get_running_loop().run_in_executor(None, send, number)
        await _sleep()

    processes.run_until_sigterm(work())


@NOT_RAISED
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "come",
    [
        in_a_weak_references_callback,
        in_del,
        in_a_callback_of_a_loop,
        in_a_task_that_nobody_asks,
        in_a_task_of_a_group,
        while_a_loop_waits,
    ],
)
def test_it_is_never_lost(come, number):
    with pytest.raises(RAISED[number]), raise_on_sigterm():
        come(number)


@NOT_RAISED
@pytest.mark.parametrize("come", [in_a_weak_references_callback, in_a_callback_of_a_loop, in_a_task_of_a_group])
def test_it_is_not_lost_while_prefect_has_the_signal(come):
    from prefect.exceptions import TerminationSignal
    from prefect.utilities.engine import capture_sigterm

    with pytest.raises(Terminated) as raised, raise_on_sigterm(), capture_sigterm():
        come(signal.SIGTERM)
    assert isinstance(raised.value.__context__, TerminationSignal)


def test_what_else_is_lost_sends_nothing(monkeypatch):
    lost, sent = [], []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    monkeypatch.setattr(processes.threading, "Timer", lambda *about: sent.append(about))

    def fail() -> None:
        raise OSError("a plain error")

    def leave() -> None:
        raise SystemExit

    with raise_on_sigterm():
        Last(fail)
        Last(leave)
    assert [type(one.exc_value) for one in lost] == [OSError, SystemExit]
    assert sent == []
    assert sys.unraisablehook == lost.append


def test_a_loop_is_closed_in_order_first():
    closed = []

    async def work() -> None:
        try:
            send(signal.SIGTERM)
            await _sleep()
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    with pytest.raises(Terminated), raise_on_sigterm():
        processes.run_until_sigterm(work())
    assert closed == ["closed"]


def test_a_second_one_does_not_wait_for_the_order():
    async def work() -> None:
        try:
            send(signal.SIGTERM)
            await _sleep()
        finally:
            send(signal.SIGTERM)
            await _sleep()

    with pytest.raises(Terminated), raise_on_sigterm():
        processes.run_until_sigterm(work())


def test_a_result_and_an_error_come_through_and_the_signal_is_who_had_it():
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise ZeroDivisionError

    with raise_on_sigterm():
        before = signal.getsignal(signal.SIGTERM)
        assert processes.run_until_sigterm(give()) == 7
        with pytest.raises(ZeroDivisionError):
            processes.run_until_sigterm(fail())
        assert signal.getsignal(signal.SIGTERM) is before


def test_where_nobody_has_the_signal_it_ends_the_process_at_once():
    program = """
        import asyncio, os, signal
        from flywheel.utils.processes import run_until_sigterm

        async def work():
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
            print("it goes on")

        run_until_sigterm(work())
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_within_the_loop_ends_alone():
    """Its SIGTERM does not reach the process that it was forked from."""

    def fork() -> int:
        if (child := os.fork()) == 0:
            send(signal.SIGTERM)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async def work() -> int:
        return fork()

    with raise_on_sigterm():
        assert processes.run_until_sigterm(work()) == -signal.SIGTERM
