"""Training in this process, or in several that make the same calls and exchange gradients: CT, SFT, RL, pretraining.

Several are all of them processes of their own: torch.distributed and DeepSpeed join a process for good, and this one
has other runs to lead. Between calls they wait, for as long as rollouts take; they end with this process, by whatever
it ends. They are all on this machine, but where a cluster has them begun elsewhere (`begun_by`).
"""

from __future__ import annotations

import atexit
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from flywheel.errors import FlywheelError, TrainingError, WorkerLost
from flywheel.training.parallel import processes
from flywheel.training.parallel.processes import Answer, LocalRanks, Place, Ranks, Start, meeting

T = TypeVar("T")

_MEET_S = 300.0  # until all have imported the libraries, and have reached one another


class Launch(Protocol):
    """Begins the processes of a group. address: of this machine, by which all of them reach it."""

    address: str

    def __call__(self, start: Start, meets: Place) -> Ranks:
        """meets: where they meet."""


class Here:
    """All of them on this machine."""

    address = "127.0.0.1"

    def __call__(self, start: Start, meets: Place) -> Ranks:
        return LocalRanks(start, range(start.size), meets, self.address)


_launch: ContextVar[Launch] = ContextVar("launch", default=Here())  # noqa: B039 (it has no state)


@contextmanager
def begun_by(launch: Launch) -> Iterator[None]:
    """Within the block groups of several processes are begun so."""
    token = _launch.set(launch)
    try:
        yield
    finally:
        _launch.reset(token)


class WorkerGroup(Generic[T]):
    """size: processes. make: gives each its member; it can be pickled. threads: that those of one machine share. limit:
    seconds that a call, or the start, may take where there are several. where: the setting that says how many, which
    errors name.

    Raises what `make` raises, TrainingError where a process ends (on the nodes of a cluster WorkerLost), ClusterError
    where a node cannot take part.
    """

    def __init__(
        self, make: Callable[[], T], size: int = 1, threads: int = 1, limit: float = 3600, where: str = "processes"
    ) -> None:
        self._limit, self._size, self._where = limit, size, where
        self._ranks: Ranks | None = None
        if size == 1:
            self._member = make()
            return
        atexit.register(self.close)  # else this process would wait for them as it ends
        launch = _launch.get()
        self._store = meeting(launch.address)
        try:
            start = Start(bytes(ForkingPickler.dumps(make)), size, threads, limit)
            self._ranks = launch(start, (launch.address, self._store.port))
            self._answers(min(limit, _MEET_S), "has not met the others")
            self._answers(limit)
        except BaseException:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of every member; returns what the first one's gives.

        Raises what it raises; TrainingError or WorkerLost where another process has ended, failed, or is late.
        """
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
                errors += [_Failed(2, rank, self._named(rank, why, TrainingError)) for rank in waiting]
                break
            for one in come:
                waiting.remove(one.rank)
                failed, results[one.rank] = self._read(one)
                if failed:
                    errors.append(failed)
                    grace_s = (0.0, processes.GRACE_S, self._ranks.grace_s)[failed.follows]
                    ends = min(ends, time.monotonic() + grace_s)
        if errors:
            raise min(errors, key=lambda failed: failed[:2]).error
        return results[0]

    def _read(self, answer: Answer) -> tuple[_Failed | None, Any]:
        rank = answer.rank
        if answer.ended:
            return _Failed(0, rank, self._named(rank, answer.ended, self._ranks.lost)), None
        result, error = pickle.loads(answer.said)
        if error is None:
            return None, result
        if not isinstance(error, FlywheelError):
            follows = 2 if error.startswith("RuntimeError") else 1
            return _Failed(follows, rank, self._named(rank, error, TrainingError)), None
        place = ", ".join(filter(None, (error.where, self._ranks.where(rank))))
        return _Failed(1, rank, type(error)(error.what, where=place, fix=error.fix)), None

    def _named(self, rank: int, why: str, kind: type[FlywheelError]) -> FlywheelError:
        again = "" if kind is WorkerLost else "start again, it goes on where it was; "
        fix = f"{again}if it comes again, take fewer processes or smaller packs"
        place = ", ".join(filter(None, (self._ranks.where(rank), self._where)))
        return kind(f"training process {rank + 1} of {self._size}: {why}", where=place, fix=fix)

    def close(self) -> None:
        atexit.unregister(self.close)
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()


class _Failed(NamedTuple):
    """follows: 0 for a process that has ended, 2 for an error that may be that of losing another one, 1 for others.
    error: what the run is to end with."""

    follows: int
    rank: int
    error: FlywheelError
