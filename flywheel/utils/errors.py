"""Define the errors of this project, which say in one line what went wrong, where, and how to fix it.

The command line turns them into exit codes: 2 for `BadInput` and its subclasses, 1 for every other `FlywheelError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial


class FlywheelError(Exception):
    """Signal a failure that the user can understand and act on.

    what: the fact, without blame ("the Parquet file is cut off").
    where: the file, parameter, page or stage concerned.
    fix: what to type or change.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, str(where), fix
        super().__init__(what, self.where, fix)

    def __str__(self) -> str:
        line = self.what
        if self.where:
            line += f" ({self.where})"
        if self.fix:
            line += f"; {self.fix}"
        return " ".join(line.split())

    def __reduce__(self):
        # Keyword-only arguments are lost by the default pickling, and tasks may run in other processes.
        return partial(type(self), where=self.where, fix=self.fix), (self.what,)


class BadInput(FlywheelError):
    """Signal that the user gave something that cannot be used: a parameter, a file, a folder."""

    exit_code = 2


class DataError(FlywheelError):
    """Signal that a dataset file is missing, cut off, or does not match its schema."""


class QueryTimeout(FlywheelError):
    """Signal that a query was not answered within its time limit."""


class ContractBroken(FlywheelError):
    """Signal that a data contract over several tables does not hold."""


class EnvError(FlywheelError):
    """Signal that an environment crashed: the episode is not scored, but played again in a fresh environment."""


class EnvTimeout(EnvError):
    """Signal that an environment did not answer within its timeout."""


class PolicyError(FlywheelError):
    """Signal that the policy could not answer."""


class PolicyTimeout(PolicyError):
    """Signal that the policy did not answer within its timeout."""


class PolicyBusy(PolicyError):
    """Signal that the policy's queue is full and the request was not accepted."""


class ModelError(BadInput):
    """Signal a checkpoint that cannot be used."""


class TrainingError(FlywheelError):
    """Signal that training cannot continue (no samples, a loss that is not finite)."""


class ShardBusy(FlywheelError):
    """Signal that another worker has held a shard for too long."""


class ClusterError(FlywheelError):
    """Signal that the machines of a cluster cannot run the shards."""


class HeadLost(ClusterError):
    """Signal that the head of the cluster does not answer."""


class WorkerLost(ClusterError):
    """Signal that a worker ended, or sent no heartbeat, before its shard was done."""


class DiskFull(FlywheelError):
    """Signal that the disk is full."""


def first_line(text: str) -> str:
    """Return the first line of `text` that is not blank, cut to 200 characters; "" where there is none."""
    return (text.strip().splitlines() or [""])[0][:200]


def last_line(text: str) -> str:
    """Return the last line of `text` that is not blank, stripped and cut to 200 characters; "" where there is none.

    In a traceback this line is the reason.
    """
    return (text.strip().splitlines() or [""])[-1].strip()[:200]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return an error's `fix` for an unknown `name`: the most similar of the known `names`, if any, and all names."""
    import difflib  # imported here, not at the start of every command

    names = list(names)
    near = difflib.get_close_matches(str(name), names, 1)
    return (f"did you mean {near[0]}? " if near else "") + f"known are {', '.join(names)}"


@contextlib.contextmanager
def errors_of_setting(name: str) -> Iterator[None]:
    """Add a parameter's name to each BadInput that is raised within the block.

    name: dotted, as in `params.yaml`. Raises the same class of BadInput, with the name in `where`; an error that
    contains the name already passes unchanged.
    """
    try:
        yield
    except BadInput as error:
        if name in str(error):
            raise
        where = f"{name}: {error.where}" if error.where else name
        raise type(error)(error.what, where=where, fix=error.fix) from error


@contextlib.contextmanager
def errors_of_place(place: object) -> Iterator[None]:
    """Raise BadInput for any OSError within the block, which makes files where the user said.

    place: the path that the user named, for the message. Other errors pass.
    """
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"nothing can be made here: {error.strerror or error}", where=place, fix="name another place"
        ) from error


@dataclass(frozen=True)
class Finding:
    """Hold what one check of `flywheel doctor` found.

    name: of the checked thing. state: ok, missing (something does not work without it) or optional (missing, but not
    needed here). detail: what was found. fix: what to type; "" where nothing is to be done.
    """

    name: str
    state: str
    detail: str
    fix: str = ""


def run_diagnostic(name: str, look: Callable[[], str]) -> Finding:
    """Run one check for `flywheel doctor`: `ok` with what `look` returns, `missing` where it raises a FlywheelError.

    name: of the checked thing. look: returns what it found, in one line. The finding `missing` has the error's message
    and fix. Raises other errors.
    """
    try:
        return Finding(name, "ok", look())
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)
