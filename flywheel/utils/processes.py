"""End processes in order: by SIGTERM, with their parent, beside a background thread; trim their memory."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

# What a process does that another one has started: it does not outlive it.


def exit_with_parent() -> None:
    """In a process that was started: a killed parent must not leave it, or what it has started itself, behind."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# Memory that this process has freed: given back to the machine, or not kept by many threads each.

_M_ARENA_MAX = -8  # of `mallopt`, from glibc's malloc.h


def limit_malloc_arenas(count: int = 2) -> None:
    """Let so many heaps serve all threads, where the C library can. Each thread has one of its own otherwise, which
    keeps what it freed: forty threads that answered questions kept 300 MB."""
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_ARENA_MAX, count)


def trim_heap() -> None:
    """Give freed memory back, where the C library can.

    glibc keeps what was freed for what is asked for next, in a heap of each thread. A model opens threads of its own,
    so each one that is opened and closed would leave a few hundred MB of freed screens behind.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# What runs beside a block: a thread that looks at something every so often, and processes that are ended in order.

_END_S = 10


@contextlib.contextmanager
def run_periodically(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Within the block `look` is called in a thread, in the context of the caller, `every_s` after its last end."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def terminate_process(process: subprocess.Popen) -> None:
    """By SIGTERM; by SIGKILL where that does not end it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)


# SIGTERM as an exception: what `systemctl stop`, a scheduler or `docker stop` sends ends a run as Ctrl-C does, with a
# line that says so.
#
# What a signal's handler raises is raised wherever Python happens to be, and is lost in some places: in the callback of
# a weak reference and in `__del__` Python writes it down and goes on (`sigterm_raises` sends the signal again), and a
# task of asyncio keeps it for who asks (`run` raises nothing within the loop).

_AGAIN_S = 0.1  # by then Python has left the callback in which the exception was lost

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM came. No `Exception`, so that no step's own handling of errors takes it for one."""

    signal = signal.SIGTERM  # Prefect's exception of this kind has it too


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Within it SIGTERM raises Terminated, in the main thread of this process; one that was forked from it ends at
    once. Prefect, which takes the signal while a flow runs, marks its runs and then sends it again."""
    here = os.getpid()

    def raise_it(number: int, _frame: object) -> None:
        if os.getpid() != here:
            _end_by_signal(number)
        raise Terminated

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        hook(lost)
        if (number := _signal_behind(lost.exc_value)) and os.getpid() == here:
            again = threading.Timer(_AGAIN_S, os.kill, (here, number))
            again.daemon = True
            again.start()

    before, hook = signal.signal(signal.SIGTERM, raise_it), sys.unraisablehook
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def run_until_sigterm(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, which SIGTERM ends in order, as it is ended by Ctrl-C: its main task is cancelled, and when all of
    it is over who had the signal before gets it, so that nothing is raised within the loop. A second one is raised
    wherever Python is. Outside the main thread, or where nobody had the signal, it is `asyncio.run`."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        return asyncio.run(work)
    here, came = os.getpid(), False

    async def watched() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel(number: int, frame: Any) -> None:
            nonlocal came
            if os.getpid() != here:
                _end_by_signal(number)
            if came:
                before(number, frame)
            came = True
            if not task.done():
                task.cancel()
                loop.call_soon_threadsafe(lambda: None)  # it may be waiting

        signal.signal(signal.SIGTERM, cancel)
        return await work

    try:
        return asyncio.run(watched())
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            before(signal.SIGTERM, None)


def _end_by_signal(number: int) -> None:
    """This process, at once."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _signal_behind(error: BaseException | None) -> int | None:
    """The one whose handler raised it, if one did."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return None if isinstance(error, Exception) else getattr(error, "signal", None)
