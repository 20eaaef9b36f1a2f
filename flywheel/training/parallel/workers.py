"""Training in this process, or in several of one machine that make the same calls and exchange gradients: CT, SFT, RL,
pretraining.

Several are all of them processes of their own: torch.distributed and DeepSpeed join a process for good, and this one
has other runs to lead. Between calls they wait at a pipe, for as long as rollouts take; they end with this process, by
whatever it ends.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from flywheel.errors import FlywheelError, TrainingError
from flywheel.training.parallel.parent import end_with_parent

T = TypeVar("T")

_HERE = "127.0.0.1"
_GRACE_S = 10.0  # once one has failed or is to end, for the others
# One process, that does nothing else, imports the libraries; all members are its forks. A fork of this one would have
# its locks, and no thread that frees them.
_forks = get_context("forkserver")
_forks.set_forkserver_preload(["flywheel.policy.model"])


class WorkerGroup(Generic[T]):
    """size: processes. make: gives each its member; it can be pickled. threads: of each. limit: seconds that a call, or
    the start, may take where there are several. where: the setting that says how many, which errors name.

    Raises what `make` raises, or TrainingError where a process ends.
    """

    def __init__(
        self, make: Callable[[], T], size: int = 1, threads: int = 1, limit: float = 3600, where: str = "processes"
    ) -> None:
        self._processes: list[_Process] = []
        self._limit = limit
        if size == 1:
            self._member = make()
            return
        atexit.register(self.close)  # else this process would wait for them as it ends
        # Here they meet. It takes a free port as it begins to listen: one that is only looked up may be gone by then.
        self._store = dist.TCPStore(_HERE, 0, is_master=True, wait_for_workers=False)
        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": _HERE, "MASTER_PORT": str(self._store.port)}
        try:
            for rank in range(size):
                self._processes.append(_Process(make, rank, place, threads, limit, where))
            self._answers()
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of every member; returns what the first one's gives.

        Raises what it raises; TrainingError where another process has ended, failed, or is late.
        """
        if not self._processes:
            return getattr(self._member, name)(*arguments)
        for process in self._processes:
            process.ask((name, arguments))
        return self._answers()

    def _answers(self) -> Any:
        """The first one's. Where some fail: the error of the one that the others fell with."""
        ends, errors, answers = time.monotonic() + self._limit, [], []
        for process in self._processes:
            try:
                answers.append(process.answer(_GRACE_S if errors else ends - time.monotonic()))
            except _Failed as failed:
                errors.append(failed)
        if errors:
            raise min(errors, key=lambda failed: failed.follows).error
        return answers[0]

    def close(self) -> None:
        atexit.unregister(self.close)
        for process in self._processes:
            process.pipe.close()
        for process in self._processes:
            process.end()
        self._processes = []


class _Failed(Exception):
    """error: what the run is to end with. follows: 0 for a process that has ended, 2 for an error that may be that of
    losing another one, 1 for others."""

    def __init__(self, error: BaseException, follows: int) -> None:
        super().__init__(str(error))
        self.error, self.follows = error, follows


class _Process:
    """One of them, as this process sees it."""

    def __init__(
        self, make: Callable[[], Any], rank: int, place: dict[str, str], threads: int, limit: float, where: str
    ) -> None:
        self.pipe, theirs = _forks.Pipe()
        self._name = f"training process {rank + 1} of {place['WORLD_SIZE']}"
        self._where = where
        place = {**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        # No daemon, which could start none of its own: pretraining has its screens drawn beside it.
        self._process = _forks.Process(target=_work, args=(theirs, make, place, threads, limit))
        self._process.start()
        theirs.close()

    def ask(self, call: tuple[str, tuple[Any, ...]]) -> None:
        with suppress(OSError):  # it has ended, which its answer will say
            self.pipe.send(call)

    def answer(self, limit: float) -> Any:
        """Raises _Failed."""
        connection.wait([self.pipe, self._process.sentinel], max(0.0, limit))
        try:
            if not self.pipe.poll():
                raise EOFError
            result, error = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join(0.1 if limit > 0 else 0)
            code = self._process.exitcode
            why = f"has not answered in time ({limit:.0f} s)" if code is None else f"has ended (exit status {code})"
            raise _Failed(self._named(why), 2 if code is None else 0) from None
        if isinstance(error, FlywheelError):
            raise _Failed(error, 1)
        if error is not None:
            raise _Failed(self._named(error), 2 if error.startswith("RuntimeError") else 1)
        return result

    def _named(self, why: str) -> TrainingError:
        fix = "start again, it goes on where it was; if it comes again, take fewer processes or smaller packs"
        return TrainingError(f"{self._name}: {why}", where=self._where, fix=fix)

    def end(self) -> None:
        self._process.join(_GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _work(pipe: Connection, make: Callable[[], Any], place: dict[str, str], threads: int, limit: float) -> None:
    """What each process does: make its member, then what it is told, until the pipe is closed."""
    end_with_parent()
    torch.set_num_threads(threads)
    try:
        _meet(place, limit)
        member = make()
        pipe.send((None, None))
        while True:
            name, arguments = pipe.recv()
            pipe.send((getattr(member, name)(*arguments), None))
    except (EOFError, BrokenPipeError):  # the pipe was closed, or who held it has ended
        pass
    except BaseException as error:
        with suppress(OSError):
            pipe.send((None, error if isinstance(error, FlywheelError) else f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)  # without an exchange with processes that may be gone


def _meet(place: dict[str, str], limit: float) -> None:
    """place: the environment that this process is to have, with what torchrun would set; DeepSpeed reads it too."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"} | place
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(place["RANK"]) % torch.cuda.device_count())
    wait = timedelta(seconds=limit)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=dist.TCPStore(_HERE, int(place["MASTER_PORT"]), is_master=False, timeout=wait),
        rank=int(place["RANK"]),
        world_size=int(place["WORLD_SIZE"]),
        timeout=wait,
    )
