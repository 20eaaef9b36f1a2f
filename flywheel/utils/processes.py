"""End processes cleanly on SIGTERM or with their parent, run periodic background calls, and limit heap memory."""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import subprocess

# The command imports this module at its start: asyncio, ctypes, multiprocessing and subprocess are imported where used.

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # parameters of `mallopt`, from glibc's malloc.h
_LARGE = 1 << 20  # bytes
_END_S = 10  # wait for the end of a thread or process
_AGAIN_S = 0.1  # after this time Python has left the callback in which the exception was lost

T = TypeVar("T")


def exit_with_parent() -> None:
    """End this process, and so its daemon processes, as soon as its parent has died.

    Call it in a process that `multiprocessing` has started; elsewhere it only prints a traceback. The process ends
    without any cleanup.
    """
    import multiprocessing

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def limit_malloc_arenas() -> None:
    """Limit glibc's malloc to two heaps for all threads; no effect with other C libraries.

    By default each thread has its own heap, which keeps freed memory: 300 MB for forty threads that answer requests.
    """
    _call_libc("mallopt", _M_ARENA_MAX, 2)


def return_large_blocks() -> None:
    """Make glibc return each freed block of a megabyte or more to the system; no effect with other C libraries.

    By default glibc raises that threshold up to 32 MB, and keeps smaller blocks in a heap that becomes fragmented:
    training with large tensors then takes twice the memory that it uses. This slows a large model's step little, a
    small model's much.
    """
    _call_libc("mallopt", _M_MMAP_THRESHOLD, _LARGE)


def trim_heap() -> None:
    """Return freed memory to the system, with glibc; no effect with other C libraries.

    glibc keeps freed memory in a heap of each thread, and each loaded model starts threads: without this call each
    model that was opened and closed leaves a few hundred MB of freed screens.
    """
    _call_libc("malloc_trim", 0)


def _call_libc(name: str, *arguments: int) -> None:
    import ctypes

    if function := getattr(ctypes.CDLL(None), name, None):
        function(*arguments)


@contextlib.contextmanager
def run_periodically(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call `look` repeatedly during the block, in a daemon thread, with pauses of `every_s` seconds.

    The first call comes after `every_s` seconds. The thread has the caller's context (contextvars). A call that raises
    is the last one: its traceback goes to stderr, and the block continues. The end of the block waits up to 10 seconds
    for a running call.
    """
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
    """End `process` by SIGTERM, or by SIGKILL after 10 seconds, and reap it; its children are not ended.

    Raises subprocess.TimeoutExpired where it still runs 10 seconds after SIGKILL.
    """
    import subprocess

    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)


# SIGTERM, which `systemctl stop`, a scheduler or `docker stop` sends, ends a run by an exception, as Ctrl-C does. A
# signal handler's exception is raised wherever Python happens to be, and some places lose it: in the callback of a weak
# reference and in `__del__` Python logs it and continues (so `raise_on_sigterm` sends the signal again), and a task of
# asyncio stores it (so `run_until_sigterm` raises nothing within the loop).


class Terminated(BaseException):
    """Signal that SIGTERM came. It is no `Exception`, so that error handling within a run does not catch it."""

    signal = signal.SIGTERM  # Prefect's exception for signals has this attribute too


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raise Terminated in the main thread of this process when SIGTERM comes within the block.

    Call it in the main thread; elsewhere it raises ValueError. The end of the block restores the earlier handler. A
    process that was forked from this one ends at once by the signal. While a flow runs, Prefect handles the signal: it
    marks its runs and then sends the signal again.
    """
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
    """Run the coroutine `work` as `asyncio.run` does, but cancel it on SIGTERM. Returns what `work` returns.

    SIGTERM cancels the main task; after the loop has ended, the signal's earlier handler is called, so that it raises
    nothing within the loop. A second SIGTERM calls that handler at once. Outside the main thread, or without an earlier
    handler, it is plain `asyncio.run`. Raises what `work` and that handler raise (Terminated within
    `raise_on_sigterm`).
    """
    import asyncio

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
                loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may be waiting

        signal.signal(signal.SIGTERM, cancel)
        return await work

    try:
        return asyncio.run(watched())
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            before(signal.SIGTERM, None)


def _end_by_signal(number: int) -> None:
    """End this process at once by the signal's default action."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _signal_behind(error: BaseException | None) -> int | None:
    """Return the signal whose handler raised `error`; None for another error."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return None if isinstance(error, Exception) else getattr(error, "signal", None)
