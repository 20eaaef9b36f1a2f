"""Prefect's worker of a workspace's pool, as a process: it begins the runs that are asked for, each as its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import IO

import psutil

from flows import tied
from flows.beside import end
from flywheel.progress import tell

_LONGEST_WAIT_S = 60.0
_RUNS_END_S = 10.0


class Worker:
    """Begun again where it dies, a little later each time."""

    def __init__(self, pool: str, out: IO[bytes] | None) -> None:
        self._pool, self._out, self._wait, self._not_before = pool, out, 1.0, 0.0
        self._start()

    def _start(self) -> None:
        with _held_back(signal.SIGUSR1):  # until the worker listens to it; else it would end it
            self.process = subprocess.Popen(
                tied.command("flows.process_worker", self._pool),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._out,
                start_new_session=True,
            )
        self._started = time.monotonic()

    def begin_again(self) -> None:
        code, now = self.process.poll(), time.monotonic()
        if code is None:
            if now - self._started > _LONGEST_WAIT_S:
                self._wait = 1.0
            return
        if not self._not_before:
            tell("watch", f"the worker ended (code {code}); it is begun again in {self._wait:g} s")
            self._not_before = now + self._wait
            self._wait = min(2 * self._wait, _LONGEST_WAIT_S)
        elif now >= self._not_before:
            self._not_before = 0.0
            self._start()

    def look_now(self) -> None:
        """A run was asked for: it need not wait until the worker asks the server next."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """And the runs that it began: they go on with the next one."""
        runs = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        _each(runs, psutil.Process.terminate)
        end(self.process)
        _kill_what_is_left(runs)


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[None]:
    """From processes that begin within the block, until they let it in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_run(process: psutil.Process) -> None:
    """By SIGTERM; by SIGKILL where that does not end it."""
    _each([process], psutil.Process.terminate)
    _kill_what_is_left([process])


def _kill_what_is_left(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=_RUNS_END_S)
    _each(left, psutil.Process.kill)


def _each(processes: list[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            act(process)


@contextlib.contextmanager
def working(pool: str, out: IO[bytes] | None = None) -> Iterator[Worker]:
    """A worker of the pool, for as long as the block goes on. out: where it and its runs write; as this process."""
    worker = Worker(pool, out)
    try:
        yield worker
    finally:
        worker.end()
