"""Start the processes that train one model, call them, and raise what fails in them."""

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

GRACE_S = 10.0  # that the other processes get to end, once one has failed or all are to end
_STDERR_S = 1.0  # for the last words of a process that has ended: what it has started itself may still hold its stderr
_STDERR_BYTES = 4096  # bytes of them
# All members are forks of a server process that only imports the libraries. A fork of this process would inherit locks
# without the threads that free them.
_forks = get_context("forkserver")
_forks.set_forkserver_preload(["flywheel.policy.model"])

HostPort = tuple[str, int]  # address and port


@dataclass(frozen=True)
class GroupSpec:
    """What a group begins with. make: gives each process its member; pickled. size: processes, on whichever machines.
    threads: that those of one machine share. limit: seconds that an exchange between processes may take."""

    make: bytes
    size: int
    threads: int
    limit: float


@dataclass(frozen=True)
class RankAnswer:
    """Of one process. said: (result, error), pickled. ended: why there will be none, in words."""

    rank: int
    said: bytes = b""
    ended: str = ""


class RankProcesses(Protocol):
    """The processes of a group, by rank, wherever they run (`LocalRanks`, or `flywheel/cluster/nodes.py`). lost: what
    the end of one is. grace_s: seconds by which it is known of all that have ended, once others have lost them."""

    lost: type[FlywheelError]
    grace_s: float

    def where(self, rank: int) -> str:
        """Return the machine that it is on; empty for this one."""

    def ask(self, call: bytes) -> None:
        """Have all of them call a method of their members: (name, arguments), pickled."""

    def answers(self, waiting: Collection[int], seconds: float) -> list[RankAnswer]:
        """Wait for answers of those ranks and return those that have come; none where the seconds are over before."""

    def close(self) -> None:
        """End all processes and wait for it."""


class LocalRanks:
    """Run, as `RankProcesses`, those of a group that are on this machine. start: what the group begins with. ranks:
    theirs, in the whole group, one at least. meets: address where all of the group meet. address: of this machine, by
    which the others reach it."""

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
        return ""

    def ask(self, call: bytes) -> None:
        for process in self._processes.values():
            process.ask(call)

    def answers(self, waiting: Collection[int], seconds: float, wake: Sequence[Connection] = ()) -> list[RankAnswer]:
        """As `RankProcesses.answers`. wake: connections that end the wait where one of them can be read."""
        mine = [self._processes[rank] for rank in waiting if rank in self._processes]
        signs = [sign for process in mine for sign in (process.pipe, process.sentinel)]
        connection.wait([*signs, *wake], max(0.0, seconds))
        return [answer for process in mine if (answer := process.answer())]

    def close(self) -> None:
        for process in self._processes.values():
            process.pipe.close()
        ends = time.monotonic() + GRACE_S
        for process in self._processes.values():
            process.end(ends)
        self._processes = {}


class _RankProcess:
    """One of them, as this process sees it. place: the environment that it is to have, with what torchrun would set."""

    def __init__(self, start: GroupSpec, rank: int, place: Mapping[str, str], threads: int) -> None:
        self._rank = rank
        self.pipe, theirs = _forks.Pipe()
        self._errors, their_errors = _forks.Pipe(duplex=False)
        self._words = b""
        # Not a daemon, which could start no processes: pretraining draws its screens in another one.
        arguments = (theirs, their_errors, start.make, dict(place), threads, start.limit)
        self._process = _forks.Process(target=_run_rank, args=arguments)
        self._process.start()
        self.sentinel = self._process.sentinel
        theirs.close()
        their_errors.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, call: bytes) -> None:
        with suppress(OSError):  # it has ended, which its answer will say
            self.pipe.send_bytes(call)

    def answer(self) -> RankAnswer | None:
        """What it has said, or that it has ended; None where neither is."""
        gone = connection.wait([self.sentinel], 0)  # read first: an answer before its end counts
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
        """ends: the moment from which on it is killed."""
        self._process.join(max(0.0, ends - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _listen(self) -> None:
        """What it writes to its stderr is passed on to this one's; the end of it is kept."""
        with self._errors, suppress(OSError):
            while words := os.read(self._errors.fileno(), _STDERR_BYTES):
                self._words = (self._words + words)[-_STDERR_BYTES:]
                os.write(2, words)


def open_rendezvous(address: str) -> dist.TCPStore:
    """Open the meeting point of a group's processes, at a free port of that address. It is bound before anyone is told
    of it: a port that is only looked up may be taken by then."""
    import torch.distributed as dist  # imported here: other nodes of a cluster only start processes and need no torch

    server = socket.create_server((address, 0))
    port = server.getsockname()[1]
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def _gloo_interface(address: str) -> dict[str, str]:
    """Has gloo exchange by the interface of this address: left alone, it often takes 127.0.1.1."""
    for name, own in psutil.net_if_addrs().items():
        if address in {one.address for one in own}:
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _run_rank(
    pipe: Connection, errors: Connection, make: bytes, place: dict[str, str], threads: int, limit: float
) -> None:
    """What each process does: meet the others, make its member, then what it is told, until the pipe is closed."""
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
    except BrokenPipeError:  # its holder has ended
        pass
    except BaseException as error:
        with suppress(OSError):
            pipe.send((None, error if isinstance(error, FlywheelError) else f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)  # without an exchange with processes that may be gone


def _receive_call(pipe: Connection) -> tuple[str, tuple[Any, ...]] | None:
    """What to do next; None once the pipe is closed, or who held it has ended."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return None


def _join_process_group(place: dict[str, str], limit: float) -> None:
    """DeepSpeed reads the environment too."""
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


# The group: one member in this process, or several that make the same calls and exchange gradients. Several are all
# processes of their own: torch.distributed and DeepSpeed join a process for good, and this one goes on to other runs.
# They end with this process, even if it is killed, and are on this machine unless a cluster starts them elsewhere.

T = TypeVar("T")

_RENDEZVOUS_S = 300.0  # until all have imported the libraries, and have reached one another


class RankLauncher(Protocol):
    """Begin the processes of a group. address: of this machine, by which all of them reach it."""

    address: str

    def __call__(self, start: GroupSpec, meets: HostPort) -> RankProcesses:
        """Begin those of `start`, which meet at `meets`. Raises ClusterError where a node cannot take part."""


class SingleNodeLauncher:
    """All of them on this machine."""

    address = "127.0.0.1"

    def __call__(self, start: GroupSpec, meets: HostPort) -> RankProcesses:
        return LocalRanks(start, range(start.size), meets, self.address)


_launcher: ContextVar[RankLauncher] = ContextVar("launch", default=SingleNodeLauncher())  # noqa: B039 (it has no state)


@contextmanager
def use_launcher(launch: RankLauncher) -> Iterator[None]:
    """Start groups of several processes by `launch` within the block, and in its context alone: a thread that is
    started by hand has another."""
    token = _launcher.set(launch)
    try:
        yield
    finally:
        _launcher.reset(token)


class WorkerGroup(Generic[T]):
    """Start the processes that train one model, and call them together.

    size: processes. make: gives each its member; it can be pickled. threads: that those of one machine share. limit:
    seconds that a call, or the start, may take where there are several. where: the setting that says how many, which
    errors name. Raises what `make` raises, TrainingError where a process ends or is late (on the nodes of a cluster
    WorkerLost where one ends), ClusterError where a node cannot take part.
    """

    def __init__(
        self, make: Callable[[], T], size: int = 1, threads: int = 1, limit: float = 3600, where: str = "processes"
    ) -> None:
        self._limit, self._size, self._where = limit, size, where
        self._ranks: RankProcesses | None = None
        if size == 1:
            self._member = make()
            return
        atexit.register(self.close)  # else this process would wait for them as it ends
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
        """Call the method `name` of every member; returns what the first one's gives. Raises what it raises;
        TrainingError or WorkerLost where another process has ended, failed, or is late."""
        if self._ranks is None:
            return getattr(self._member, name)(*arguments)
        self._ranks.ask(bytes(ForkingPickler.dumps((name, arguments))))
        return self._answers(self._limit)

    def _answers(self, limit: float, late: str = "has not answered") -> Any:
        """The first one's. Where some fail: the error of the one that the others fell with."""
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
    """follows: 0 for a process that has ended, 2 for an error that may be that of losing another one, 1 for others.
    error: what the run is to end with."""

    follows: int
    rank: int
    error: FlywheelError
