"""The processes of one machine that train together: they are started, told what to do, and heard.

What an error of one means for the others, `workers.py` knows; how those of several machines come together,
`flywheel/cluster/trainers.py`.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from flywheel.errors import FlywheelError, TrainingError, last_line
from flywheel.parent import end_with_parent

if TYPE_CHECKING:
    import torch.distributed as dist

GRACE_S = 10.0  # once one has failed or is to end, for the others
_WORDS_S = 1.0  # for the last words of a process that has ended: what it has started itself may still hold its stderr
_WORDS = 4096  # bytes of them
# One process, that does nothing else, imports the libraries; all members are its forks. A fork of this one would have
# its locks, and no thread that frees them.
_forks = get_context("forkserver")
_forks.set_forkserver_preload(["flywheel.policy.model"])

Place = tuple[str, int]  # address and port


@dataclass(frozen=True)
class Start:
    """What a group begins with.

    make: gives each process its member; pickled. size: processes, on whichever machines. threads: that the processes of
    one machine share. limit: seconds that an exchange between processes may take.
    """

    make: bytes
    size: int
    threads: int
    limit: float


@dataclass(frozen=True)
class Answer:
    """Of one process. said: (result, error), pickled. ended: why there will be none, in words."""

    rank: int
    said: bytes = b""
    ended: str = ""


class Ranks(Protocol):
    """The processes of a group, by rank, wherever they run. lost: what the end of one is. grace_s: seconds by which it
    is known of all that have ended, once others have lost them."""

    lost: type[FlywheelError]
    grace_s: float

    def where(self, rank: int) -> str:
        """The machine that it is on; empty for this one."""

    def ask(self, call: bytes) -> None:
        """Have all of them call a method of their members: (name, arguments), pickled."""

    def answers(self, waiting: Collection[int], seconds: float) -> list[Answer]:
        """Of those that are waited for, once there are any; none where the seconds are over before."""

    def close(self) -> None:
        """None of them is there after it."""


class LocalRanks:
    """Those of this machine. ranks: theirs, in the whole group. meets: where all of the group meet. address: of this
    machine, by which the others reach it."""

    lost, grace_s = TrainingError, GRACE_S

    def __init__(self, start: Start, ranks: Sequence[int], meets: Place, address: str) -> None:
        self._processes: dict[int, _Process] = {}
        place = {"WORLD_SIZE": str(start.size), "MASTER_ADDR": meets[0], "MASTER_PORT": str(meets[1])}
        place = _by_interface(address) | os.environ | place
        threads = max(1, start.threads // len(ranks))
        try:
            for local, rank in enumerate(ranks):
                own = place | {"RANK": str(rank), "LOCAL_RANK": str(local)}
                self._processes[rank] = _Process(start, rank, own, threads)
        except BaseException:
            self.close()
            raise

    def where(self, rank: int) -> str:
        return ""

    def ask(self, call: bytes) -> None:
        for process in self._processes.values():
            process.ask(call)

    def answers(self, waiting: Collection[int], seconds: float, wake: Sequence[Connection] = ()) -> list[Answer]:
        """wake: it returns, too, where one of them can be read."""
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


class _Process:
    """One of them, as this process sees it. place: the environment that it is to have, with what torchrun would set."""

    def __init__(self, start: Start, rank: int, place: Mapping[str, str], threads: int) -> None:
        self._rank = rank
        self.pipe, theirs = _forks.Pipe()
        self._errors, their_errors = _forks.Pipe(duplex=False)
        self._words = b""
        # No daemon, which could start none of its own: pretraining has its screens drawn beside it.
        arguments = (theirs, their_errors, start.make, dict(place), threads, start.limit)
        self._process = _forks.Process(target=_work, args=arguments)
        self._process.start()
        self.sentinel = self._process.sentinel
        theirs.close()
        their_errors.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, call: bytes) -> None:
        with suppress(OSError):  # it has ended, which its answer will say
            self.pipe.send_bytes(call)

    def answer(self) -> Answer | None:
        """What it has said, or that it has ended; None where neither is."""
        gone = connection.wait([self.sentinel], 0)  # looked at first: what it said before it ended counts
        with suppress(EOFError, OSError):
            if self.pipe.poll():
                return Answer(self._rank, self.pipe.recv_bytes())
            if not gone:
                return None
        self._process.join(GRACE_S)
        self._listener.join(_WORDS_S)
        said = last_line(self._words.decode(errors="replace"))
        ended = f"has ended (exit status {self._process.exitcode})"
        return Answer(self._rank, ended=f"{ended}, its last words: {said}" if said else ended)

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
            while words := os.read(self._errors.fileno(), _WORDS):
                self._words = (self._words + words)[-_WORDS:]
                os.write(2, words)


def meeting(address: str) -> dist.TCPStore:
    """Where the processes of a group meet: at a free port of that address alone, in this process. It is bound before
    anyone is told of it: a port that is only looked up may be gone by then."""
    import torch.distributed as dist  # who only starts them, as on the other nodes of a cluster, waits for no torch

    server = socket.create_server((address, 0))
    port = server.getsockname()[1]
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def _by_interface(address: str) -> dict[str, str]:
    """Has gloo exchange by the interface of this address: left alone, it takes the one that the machine's name stands
    for, often 127.0.1.1."""
    for name, own in psutil.net_if_addrs().items():
        if address in {one.address for one in own}:
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _work(pipe: Connection, errors: Connection, make: bytes, place: dict[str, str], threads: int, limit: float) -> None:
    """What each process does: meet the others, make its member, then what it is told, until the pipe is closed."""
    import torch

    end_with_parent()
    os.dup2(errors.fileno(), 2)
    errors.close()
    torch.set_num_threads(threads)
    try:
        _meet(place, limit)
        pipe.send((None, None))
        member = pickle.loads(make)()
        pipe.send((None, None))
        while call := _told(pipe):
            name, arguments = call
            pipe.send((getattr(member, name)(*arguments), None))
    except BrokenPipeError:  # who held it has ended
        pass
    except BaseException as error:
        with suppress(OSError):
            pipe.send((None, error if isinstance(error, FlywheelError) else f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)  # without an exchange with processes that may be gone


def _told(pipe: Connection) -> tuple[str, tuple[Any, ...]] | None:
    """What to do next; None once the pipe is closed, or who held it has ended."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return None


def _meet(place: dict[str, str], limit: float) -> None:
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
