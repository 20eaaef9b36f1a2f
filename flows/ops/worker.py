"""Run Prefect's worker for a workspace's work pool as a process, and restart it where it dies."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import IO

import psutil

from flows.ops import tied_process
from flywheel.utils.processes import terminate_process
from flywheel.utils.progress import announce

_LONGEST_WAIT_S = 60.0
_RUNS_END_S = 10.0


class WorkerProcess:
    """Run a worker as a subprocess, and start it again where it dies, a little later each time.

    pool: name of the work pool. out: file for its output; None: this process's own output.
    """

    def __init__(self, pool: str, out: IO[bytes] | None) -> None:
        self._pool, self._out, self._wait, self._not_before = pool, out, 1.0, 0.0
        self._start()

    def _start(self) -> None:
        with _block_signal(signal.SIGUSR1):  # until the worker handles it; before, the signal would end the worker
            self.process = subprocess.Popen(
                tied_process.tied_command("flows.ops.process_worker", self._pool),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._out,
                start_new_session=True,
            )
        self._started = time.monotonic()

    def restart_if_dead(self) -> None:
        """Start the worker again where it died, after a pause that grows from a second to a minute.

        Call it often: one call notes the death, a later one starts the worker.
        """
        code, now = self.process.poll(), time.monotonic()
        if code is None:
            if now - self._started > _LONGEST_WAIT_S:
                self._wait = 1.0
            return
        if not self._not_before:
            announce("watch", f"the worker ended (code {code}); it is begun again in {self._wait:g} s")
            self._not_before = now + self._wait
            self._wait = min(2 * self._wait, _LONGEST_WAIT_S)
        elif now >= self._not_before:
            self._not_before = 0.0
            self._start()

    def poll_now(self) -> None:
        """Make the worker poll the server at once: a run was requested."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)

    def terminate(self) -> None:
        """End the worker and the runs that it started, which a later run resumes."""
        runs = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        _call_each(runs, psutil.Process.terminate)
        terminate_process(self.process)
        _kill_survivors(runs)


@contextlib.contextmanager
def _block_signal(number: signal.Signals) -> Iterator[None]:
    """Block a signal in processes that are started within the block, until they unblock it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def terminate_run(process: psutil.Process) -> None:
    """End a run's process by SIGTERM; by SIGKILL where that does not end it within ten seconds."""
    _call_each([process], psutil.Process.terminate)
    _kill_survivors([process])


def _kill_survivors(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=_RUNS_END_S)
    _call_each(left, psutil.Process.kill)


def _call_each(processes: list[psutil.Process], act: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            act(process)


@contextlib.contextmanager
def run_worker(pool: str, out: IO[bytes] | None = None) -> Iterator[WorkerProcess]:
    """Run a worker of the work pool named `pool` for as long as the block lasts.

    out: file for the output of the worker and its runs; None: this process's own output. At the end of the block its
    runs are ended too.
    """
    worker = WorkerProcess(pool, out)
    try:
        yield worker
    finally:
        worker.terminate()
