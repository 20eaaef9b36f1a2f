"""End processes in order: by SIGTERM, with their parent, beside a background thread; trim their memory."""

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

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of `mallopt`, from glibc's malloc.h
_LARGE = 1 << 20  # bytes
_END_S = 10  # for a thread or a process to end in
_AGAIN_S = 0.1  # by then Python has left the callback in which the exception was lost

T = TypeVar("T")


def exit_with_parent() -> None:
    """End this process, and so the daemons that it has started, as soon as its parent has died.

    Call it in a process that `multiprocessing` has started; elsewhere it has no effect but a traceback. What the
    parent's end interrupts is not cleaned up.
    """
    import multiprocessing

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def limit_malloc_arenas() -> None:
    """Let two heaps serve all threads, where the C library can.

    Else each thread has a heap of its own, which keeps what it freed: 300 MB for forty threads that answer questions.
    """
    _call_libc("mallopt", _M_ARENA_MAX, 2)


def return_large_blocks() -> None:
    """Let this process give each freed block of a megabyte or more back to the machine, where the C library can.

    Else glibc comes to keep those of up to 32 MB in a heap that grows full of holes: a training of large tensors then
    takes twice the memory that it holds. It costs a large model's step little, and a small one's much.
    """
    _call_libc("mallopt", _M_MMAP_THRESHOLD, _LARGE)


def trim_heap() -> None:
    """Give freed memory back to the machine, where the C library can.

    glibc keeps it in a heap of each thread, and a model opens threads of its own: each one that is opened and closed
    would leave a few hundred MB of freed screens behind.
    """
    _call_libc("malloc_trim", 0)


def _call_libc(name: str, *arguments: int) -> None:
    import ctypes

    if function := getattr(ctypes.CDLL(None), name, None):
        function(*arguments)


@contextlib.contextmanager
def run_periodically(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Call `look` in a daemon thread, in the caller's context, `every_s` seconds after the end of its last call.

    The first call comes after `every_s` seconds. One that raises is the last; its traceback goes to stderr, the block
    goes on. It stops at the end of the block, which waits up to 10 seconds for a call that has begun.
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
    """End `process` by SIGTERM, by SIGKILL where that does not end it in 10 seconds, and reap it; its children live."""
    import subprocess

    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)


# SIGTERM, which `systemctl stop`, a scheduler or `docker stop` sends, ends a run as Ctrl-C does: as an exception. One
# from a signal handler is raised wherever Python happens to be, and is lost in some places: in the callback of a weak
# reference and in `__del__` Python logs it and goes on (`raise_on_sigterm` sends the signal again), and a task of
# asyncio stores it (`run_until_sigterm` raises nothing within the loop).


class Terminated(BaseException):
    """Say that SIGTERM came. No `Exception`, so that no step's own handling of errors takes it for one."""

    signal = signal.SIGTERM  # Prefect's exception of this kind has it too


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raise Terminated in the main thread of this process when SIGTERM comes within the block.

    Call it in the main thread; elsewhere it raises ValueError. The handler before is back at the end of the block.
    A process that was forked from this one ends at once. Prefect, which takes the signal while a flow runs, marks its
    runs and then sends it again.
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
    """Run a coroutine as `asyncio.run` does, but end it in order on SIGTERM. Returns what `work` returns.

    The main task is cancelled; once the loop is over, the handler that the signal had before is called, so that nothing
    is raised within the loop. A second SIGTERM calls that handler at once. Outside the main thread, or where the signal
    had no handler, it is `asyncio.run`. Raises what `work` raises and what that handler does (Terminated within
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
    """End this process by a signal, at once."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _signal_behind(error: BaseException | None) -> int | None:
    """The signal whose handler raised this error, if one did."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    return None if isinstance(error, Exception) else getattr(error, "signal", None)
