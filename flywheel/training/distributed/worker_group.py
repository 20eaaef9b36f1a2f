"""Start the processes that train one model together, call them, and raise their errors."""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import psutil

from flywheel.utils.errors import FlywheelError, TrainingError, WorkerLost, last_line
from flywheel.utils.processes import exit_with_parent

if TYPE_CHECKING:
    import torch.distributed as dist

GRACE_S = 10.0  # seconds that processes get to end, once one has failed or the group is closed
_STDERR_S = 1.0  # wait for the last stderr of a process that has ended; its own children may keep it open
_STDERR_BYTES = 4096  # bytes of that stderr that are kept
# All workers are forks of a server process that only imports the libraries. A fork of this process would inherit locks
# without the threads that release them.
_forks = get_context("forkserver")
_forks.set_forkserver_preload(["flywheel.policy.model"])

HostPort = tuple[str, int]  # address and port


@dataclass(frozen=True)
class GroupSpec:
    """Hold the description of a group of processes to start.

    make: pickled function that makes the member of each process. size: number of processes, on all machines. threads:
    CPU threads that the processes of one machine share. limit: timeout of an exchange between processes, in seconds.
    """

    make: bytes
    size: int
    threads: int
    limit: float


@dataclass(frozen=True)
class RankAnswer:
    """Hold the answer of one process of a group.

    rank: of the process. said: (result, error), pickled. ended: why the process has ended instead; "" where it
    answered.
    """

    rank: int
    said: bytes = b""
    ended: str = ""


class RankProcesses(Protocol):
    """Hold the processes of a group, on this machine (`LocalRanks`) or on nodes (`flywheel/cluster/nodes.py`).

    lost: error class for a process that has ended. grace_s: after an exchange between processes has failed, seconds
    within which it becomes known which process has ended.
    """

    lost: type[FlywheelError]
    grace_s: float

    def where(self, rank: int) -> str:
        """Return the name of the machine of process `rank`; "" for this machine."""

    def ask(self, call: bytes) -> None:
        """Send all processes a call of a method of their members. call: (name, arguments), pickled."""

    def answers(self, waiting: Collection[int], seconds: float) -> list[RankAnswer]:
        """Wait up to `seconds` for an answer of one of the ranks `waiting`; return all that have come, [] for none.

        A process that has ended answers so (`RankAnswer.ended`).
        """

    def close(self) -> None:
        """End all processes and wait for their end."""


class LocalRanks:
    """Hold the processes of a group that are on this machine (a `RankProcesses`).

    start: description of the group. ranks: their ranks in the whole group, at least one. meets: address of the group's
    rendezvous. address: of this machine, for the other machines. Raises OSError where a process cannot be started;
    those started before are ended.
    """

    lost, grace_s = TrainingError, GRACE_S

    def __init__(self, start: GroupSpec, ranks: Sequence[int], meets: HostPort, address: str) -> None:
        self._processes: dict[int, _RankProcess] = {}
        place = {"WORLD_SIZE": str(start.size), "MASTER_ADDR": meets[0], "MASTER_PORT": str(meets[1])}
        place = _gloo_interface(address) | os.environ | place
        threads = max(1, start.threads // len(ranks))
        try:
            for local, rank in enumerate(ranks):
                own = place | {"RANK": str(rank), "LOCAL_RANK": str(local)}
                self._processes[rank] = _RankProcess(start, rank, own, threads)
        except BaseException:
            self.close()
            raise

    def where(self, rank: int) -> str:
        """Return "", as all ranks are on this machine."""
        return ""

    def ask(self, call: bytes) -> None:
        """Send all processes a call, without waiting.

        call: as of `RankProcesses.ask`. One that has ended is no error here: `answers` tells.
        """
        for process in self._processes.values():
            process.ask(call)

    def answers(self, waiting: Collection[int], seconds: float, wake: Sequence[Connection] = ()) -> list[RankAnswer]:
        """Wait up to `seconds` for answers, as `RankProcesses.answers`.

        Of the ranks `waiting`, those of other machines are left out. wake: connections that end the wait when one is
        readable.
        """
        mine = [self._processes[rank] for rank in waiting if rank in self._processes]
        signs = [sign for process in mine for sign in (process.pipe, process.sentinel)]
        connection.wait([*signs, *wake], max(0.0, seconds))
        return [answer for process in mine if (answer := process.answer())]

    def close(self) -> None:
        """End all processes: each gets until 10 s from now, then it is killed. May be called twice."""
        for process in self._processes.values():
            process.pipe.close()
        ends = time.monotonic() + GRACE_S
        for process in self._processes.values():
            process.end(ends)
        self._processes = {}


class _RankProcess:
    """Hold a worker process. place: its environment variables, those of torchrun included. threads: CPU threads."""

    def __init__(self, start: GroupSpec, rank: int, place: Mapping[str, str], threads: int) -> None:
        self._rank = rank
        self.pipe, theirs = _forks.Pipe()
        self._errors, their_errors = _forks.Pipe(duplex=False)
        self._words = b""
        # Not a daemon, which could not start processes itself: pretraining draws its screens in a subprocess.
        arguments = (theirs, their_errors, start.make, dict(place), threads, start.limit)
        self._process = _forks.Process(target=_run_rank, args=arguments)
        self._process.start()
        self.sentinel = self._process.sentinel
        theirs.close()
        their_errors.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, call: bytes) -> None:
        with suppress(OSError):  # the worker has ended, which `answer` reports
            self.pipe.send_bytes(call)

    def answer(self) -> RankAnswer | None:
        """Return the worker's answer, or that it has ended; None if it is still at work."""
        gone = connection.wait([self.sentinel], 0)  # checked first, as an answer that it sent before its end counts
        with suppress(EOFError, OSError):
            if self.pipe.poll():
                return RankAnswer(self._rank, self.pipe.recv_bytes())
            if not gone:
                return None
        self._process.join(GRACE_S)
        self._listener.join(_STDERR_S)
        reason = last_line(self._words.decode(errors="replace"))
        ended = f"has ended (exit status {self._process.exitcode})"
        return RankAnswer(self._rank, ended=f"{ended}, its last words: {reason}" if reason else ended)

    def end(self, ends: float) -> None:
        """Wait for the worker's end, and kill it at `ends` (time.monotonic)."""
        self._process.join(max(0.0, ends - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _listen(self) -> None:
        """Copy the worker's stderr to that of this process, and keep the last bytes."""
        with self._errors, suppress(OSError):
            while words := os.read(self._errors.fileno(), _STDERR_BYTES):
                self._words = (self._words + words)[-_STDERR_BYTES:]
                os.write(2, words)


def open_rendezvous(address: str) -> dist.TCPStore:
    """Open the rendezvous where a group's processes meet, served by this process at a free port of `address`.

    address: one of this machine's; else OSError. The port is bound before its number is passed on, as a free port that
    is only looked up may be taken in between.
    """
    import torch.distributed as dist  # imported here: other nodes of a cluster only start processes and need no torch

    server = socket.create_server((address, 0))
    port = server.getsockname()[1]
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def _gloo_interface(address: str) -> dict[str, str]:
    """Return the environment that makes gloo use the network interface of `address`; by default it often takes
    127.0.1.1."""
    for name, own in psutil.net_if_addrs().items():
        if address in {one.address for one in own}:
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _run_rank(
    pipe: Connection, errors: Connection, make: bytes, place: dict[str, str], threads: int, limit: float
) -> None:
    """Run a worker process: join the group, make the member, then call its methods until the pipe is closed."""
    import torch

    exit_with_parent()
    os.dup2(errors.fileno(), 2)
    errors.close()
    torch.set_num_threads(threads)
    try:
        _join_process_group(place, limit)
        pipe.send((None, None))
        member = pickle.loads(make)()
        pipe.send((None, None))
        while call := _receive_call(pipe):
            name, arguments = call
            pipe.send((getattr(member, name)(*arguments), None))
    except BrokenPipeError:  # the parent process has ended
        pass
    except BaseException as error:
        with suppress(OSError):
            pipe.send((None, error if isinstance(error, FlywheelError) else f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)  # without torch's shutdown, which would exchange with processes that may have ended


def _receive_call(pipe: Connection) -> tuple[str, tuple[Any, ...]] | None:
    """Receive the next call (name, arguments); None once the pipe is closed or the parent process has ended."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return None


def _join_process_group(place: dict[str, str], limit: float) -> None:
    """Join torch's process group by the environment `place`, which is set because DeepSpeed reads it too. limit:
    timeout of an exchange, in seconds."""
    import torch
    import torch.distributed as dist

    os.environ |= place
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(place["LOCAL_RANK"]) % torch.cuda.device_count())
    wait = timedelta(seconds=limit)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=dist.TCPStore(place["MASTER_ADDR"], int(place["MASTER_PORT"]), is_master=False, timeout=wait),
        rank=int(place["RANK"]),
        world_size=int(place["WORLD_SIZE"]),
        timeout=wait,
    )


# The group: one member in this process, or several members that get the same calls and exchange gradients. Each of
# several has its own process, as torch.distributed and DeepSpeed cannot leave a process, and this one continues with
# other runs. They end with this process, even if it is killed, and run on this machine unless a cluster starts them
# elsewhere.

T = TypeVar("T")

_RENDEZVOUS_S = 300.0  # timeout for all processes to import the libraries and reach one another


class RankLauncher(Protocol):
    """Start the processes of a group when called. address: of this machine, for all processes of the group."""

    address: str

    def __call__(self, start: GroupSpec, meets: HostPort) -> RankProcesses:
        """Start the processes of the group `start`, which meet at the address `meets`.

        Raises ClusterError where a node cannot take part.
        """


class SingleNodeLauncher:
    """Start all processes of a group on this machine."""

    address = "127.0.0.1"

    def __call__(self, start: GroupSpec, meets: HostPort) -> RankProcesses:
        return LocalRanks(start, range(start.size), meets, self.address)


_launcher: ContextVar[RankLauncher] = ContextVar("launch", default=SingleNodeLauncher())  # noqa: B039 (it has no state)


@contextmanager
def use_launcher(launch: RankLauncher) -> Iterator[None]:
    """Let `WorkerGroup` start groups of several processes by `launch` within the block, such as on a cluster's nodes.

    launch: starts the processes of one group; without this they start on this machine. A group of one process stays in
    this one. It holds for this context (contextvars) only: a thread started directly has another one.
    """
    token = _launcher.set(launch)
    try:
        yield
    finally:
        _launcher.reset(token)


class WorkerGroup(Generic[T]):
    """Run the processes that train one model, and call a method of all their members at once.

    make: makes the member of each process; must be picklable. size: number of processes; 1: the member is in this
    process. threads: CPU threads that the processes of one machine share. limit: timeout of a call, and of the start,
    in seconds, with several processes. where: name of the setting of `size`, for errors. Raises what `make` raises,
    TrainingError where a process ends or times out (on the nodes of a cluster WorkerLost where one ends), ClusterError
    where a node cannot take part.
    """

    def __init__(
        self, make: Callable[[], T], size: int = 1, threads: int = 1, limit: float = 3600, where: str = "processes"
    ) -> None:
        self._limit, self._size, self._where = limit, size, where
        self._ranks: RankProcesses | None = None
        if size == 1:
            self._member = make()
            return
        atexit.register(self.close)  # else this process would wait for its workers at exit
        launch = _launcher.get()
        self._store = open_rendezvous(launch.address)
        try:
            start = GroupSpec(bytes(ForkingPickler.dumps(make)), size, threads, limit)
            self._ranks = launch(start, (launch.address, self._store.port))
            self._answers(min(limit, _RENDEZVOUS_S), "has not met the others")
            self._answers(limit)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the method `name` of every member with `arguments`; return the first member's result.

        Raises what the method raises, TrainingError or WorkerLost where a process ends, fails or times out. With
        several processes, after an error the group is only to be closed; once closed, it has no call.
        """
        if self._ranks is None:
            return getattr(self._member, name)(*arguments)
        self._ranks.ask(bytes(ForkingPickler.dumps((name, arguments))))
        return self._answers(self._limit)

    def _answers(self, limit: float, late: str = "has not answered") -> Any:
        """Wait for all answers and return the result of rank 0. If some fail, raise the error that caused the others
        (`_RankFailure`). late: words for a timeout."""
        ends, waiting, results, errors = time.monotonic() + limit, set(range(self._size)), {}, []
        while waiting:
            left = ends - time.monotonic()
            come = self._ranks.answers(waiting, left)
            if not come and left <= 0:
                why = f"{late} in time ({limit:.0f} s)"
                errors += [_RankFailure(2, rank, self._named(rank, why, TrainingError)) for rank in waiting]
                break
            for one in come:
                waiting.remove(one.rank)
                failed, results[one.rank] = self._read(one)
                if failed:
                    errors.append(failed)
                    grace_s = (0.0, GRACE_S, self._ranks.grace_s)[failed.follows]
                    ends = min(ends, time.monotonic() + grace_s)
        if errors:
            raise min(errors, key=lambda failed: failed[:2]).error
        return results[0]

    def _read(self, answer: RankAnswer) -> tuple[_RankFailure | None, Any]:
        rank = answer.rank
        if answer.ended:
            return _RankFailure(0, rank, self._named(rank, answer.ended, self._ranks.lost)), None
        result, error = pickle.loads(answer.said)
        if error is None:
            return None, result
        if not isinstance(error, FlywheelError):
            follows = 2 if error.startswith("RuntimeError") else 1
            return _RankFailure(follows, rank, self._named(rank, error, TrainingError)), None
        place = ", ".join(filter(None, (error.where, self._ranks.where(rank))))
        return _RankFailure(1, rank, type(error)(error.what, where=place, fix=error.fix)), None

    def _named(self, rank: int, why: str, kind: type[FlywheelError]) -> FlywheelError:
        again = "" if kind is WorkerLost else "start again, it goes on where it was; "
        fix = f"{again}if it comes again, take fewer processes or smaller packs"
        place = ", ".join(filter(None, (self._ranks.where(rank), self._where)))
        return kind(f"training process {rank + 1} of {self._size}: {why}", where=place, fix=fix)

    def close(self) -> None:
        """End the processes, where there are several. May be called twice."""
        atexit.unregister(self.close)
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()


class _RankFailure(NamedTuple):
    """Hold the failure of one process. follows: 0 if the process has ended, 2 for an error that losing another process
    may have caused, 1 for other errors; the lowest is the likeliest cause. error: to raise."""

    follows: int
    rank: int
    error: FlywheelError
