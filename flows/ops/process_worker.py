"""Run Prefect's process worker with adaptive polling, one process a run, and prewarmed processes.

`python -m flows.ops.process_worker POOL`. Polls each second would be much of the work of a night without runs. SIGUSR1
says that a run was requested: the worker polls at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from anyio.abc import Process, TaskStatus
from prefect.runner import _starter_engine
from prefect.settings import PREFECT_WORKER_QUERY_SECONDS, temporary_settings
from prefect.utilities.processutils import command_to_string, open_process
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from flows.ops.deployments import worker_name
from flows.ops.prewarmed_process import ENGINE, PrewarmedProcess

_LOOK_S = 0.25  # how often the worker decides whether to poll
_AT_WORK_S = 1.0  # while a run is at work, and for a minute after: stages follow one another
_WORK_FOLLOWS_S = 60.0
_ENGINE = [sys.executable, "-P", "-m", ENGINE]
_IDLE_S = 10.0  # Prefect's own default; runs of a schedule are known ten seconds before
_ENDED_BY = (signal.SIGTERM, signal.SIGINT)
_ENDS_S = 10  # seconds in which it may end in order


class AdaptivePoller:
    """Poll Prefect's server for runs: called often, it asks each second while runs are at work, else every ten.

    There is at most one in a process, as it handles SIGUSR1, after which it asks at once. Saves 2.3% of a core while
    nothing runs, of 4.3% where the worker polls each second. Polling each ten seconds, as Prefect does by default,
    delays a run that data trigger by up to ten seconds.
    """

    def __init__(self, ask: Callable[[], Awaitable[list]], at_work: Callable[[], bool]) -> None:
        """Take over SIGUSR1. ask: asks the server for runs. at_work: tells whether a run is at work."""
        self._ask, self._runs = ask, at_work
        self._now, self._at_work, self._last = False, time.monotonic(), float("-inf")
        signal.signal(signal.SIGUSR1, self._poll_now)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # blocked until here by `worker.py`

    async def __call__(self) -> list:
        """Return the runs that the server gives; [] where it is not polled yet."""
        now = time.monotonic()
        if self._runs():
            self._at_work = now
        every = _AT_WORK_S if now - self._at_work < _WORK_FOLLOWS_S else _IDLE_S
        if not self._now and now - self._last < every:
            return []
        self._now, self._last = False, now
        return await self._ask()

    def _poll_now(self, *_: object) -> None:
        self._now = True


class DirectJob(ProcessJobConfiguration):
    """Run a flow in one process from its start: Prefect's engine in the Python of this worker.

    Where no command is named, Prefect prepares the flow's folder in a process before that one, which imports Prefect
    too. That is not needed: flywheel is installed where the worker is. Saves 2.9 s a run: from *Submitting* to
    *Running* 3.6 s, 6.5 with two processes.
    """

    def prepare_for_flow_run(self, *run: Any, **about: Any) -> None:
        """Prepare as Prefect does, with its engine as the command where the run names none."""
        if self.command is None:
            self.command = command_to_string(_ENGINE)
        super().prepare_for_flow_run(*run, **about)


class RunProcesses:
    """Start the processes of flow runs, and count those at work."""

    def __init__(self) -> None:
        self.spare, self._at_work = PrewarmedProcess(), 0

    def at_work(self) -> bool:
        """Tell whether the process of a run is at work."""
        return self._at_work > 0

    async def run_process(
        self,
        command: list[str],
        *,
        task_status: TaskStatus,
        task_status_handler: Callable[[Process], Any],
        stream_output: bool = True,
        **options: Any,
    ) -> Process:
        """Run the process of a flow run, in place of Prefect's function of this name; return it once it has ended.

        command, task_status, task_status_handler, options: as of that function. The process's output goes where this
        worker's goes; nowhere, where stream_output is false. The spare process is used for a run without a command of
        its own, where one waits. Prefect's function reads a pipe to its end, which subprocesses of a killed run hold
        open. Without a pipe it is known up to 8 s earlier that a run was killed, and a run whose worker is killed still
        has somewhere to write.
        """
        self._at_work += 1
        try:
            process = None
            if command == _ENGINE and stream_output and options.keys() == {"env", "cwd"}:
                process = await self.spare.become_run(**options)
            out = None if stream_output else subprocess.DEVNULL
            started = (
                _terminate_on_exit(process)
                if process
                else open_process(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, **options)
            )
            async with started as running:
                task_status.started(task_status_handler(running))
                await self.spare.start()
                await running.wait()
            return running
        finally:
            self._at_work -= 1


@contextlib.asynccontextmanager
async def _terminate_on_exit(process: Process) -> AsyncIterator[Process]:
    """End the process at the end of the block, as Prefect ends those that it opens."""
    try:
        async with process:
            yield process
    finally:
        with contextlib.suppress(OSError):
            process.terminate()


def cancel_on_signals(task: asyncio.Task) -> None:
    """Let SIGTERM and Ctrl-C cancel `task`; a second signal, or ten seconds, end the process at once.

    Call it in the running loop. Prefect's own handlers raise KeyboardInterrupt wherever Python happens to be. In the
    callback of a weak reference Python only logs it, and so the worker of a killed run would go on for good.
    """
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        for each in _ENDED_BY:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        signal.alarm(_ENDS_S)
        print(f"The worker ends by {number.name}", flush=True)
        task.cancel()

    for each in _ENDED_BY:
        loop.add_signal_handler(each, end, each)


def run_process_worker(pool: str) -> None:
    """Run the worker of the work pool named `pool`, which is made where there is none, until SIGTERM or Ctrl-C."""
    worker, runs = ProcessWorker(pool, name=worker_name(), create_pool_if_not_found=True), RunProcesses()
    worker.job_configuration = DirectJob
    _starter_engine.run_process = runs.run_process  # where Prefect says that it may be replaced
    worker.get_and_submit_flow_runs = AdaptivePoller(worker.get_and_submit_flow_runs, runs.at_work)

    async def work() -> None:
        cancel_on_signals(asyncio.current_task())
        await runs.spare.start()
        await worker.start(printer=print)

    with temporary_settings({PREFECT_WORKER_QUERY_SECONDS: _LOOK_S}), contextlib.suppress(asyncio.CancelledError):
        asyncio.run(work())


if __name__ == "__main__":
    run_process_worker(sys.argv[1])
