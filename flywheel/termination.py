"""SIGTERM as an exception: what `systemctl stop`, a scheduler or `docker stop` sends ends a run as Ctrl-C does, with a
line that says so.

What a signal's handler raises is raised wherever Python happens to be, and is lost in some places: in the callback of a
weak reference and in `__del__` Python writes it down and goes on (`sigterm_raises` sends the signal again), and a task
of asyncio keeps it for who asks (`run` raises nothing within the loop).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

_AGAIN_S = 0.1  # by then Python has left the callback in which the exception was lost

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM came. No `Exception`, so that no step's own handling of errors takes it for one."""

    signal = signal.SIGTERM  # Prefect's exception of this kind has it too


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM raises Terminated, in the main thread of this process; one that was forked from it ends at
    once. Prefect, which takes the signal while a flow runs, marks its runs and then sends it again."""
    here = os.getpid()

    def raise_it(number: int, _frame: object) -> None:
        if os.getpid() != here:
            _end_by(number)
        raise Terminated

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        hook(lost)
        if (number := _signal_of(lost.exc_value)) and os.getpid() == here:
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


def run(work: Coroutine[Any, Any, T]) -> T:
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
                _end_by(number)
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


def _end_by(number: int) -> None:
    """This process, at once."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _signal_of(error: BaseException | None) -> int | None:
    """The one whose handler raised it, if one did."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return None if isinstance(error, Exception) else getattr(error, "signal", None)
