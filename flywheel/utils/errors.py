"""Define the errors: each says in one line what went wrong, where, and how to fix it.

The command turns them into exit codes: `BadInput` is 2, every other `FlywheelError` is 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial


class FlywheelError(Exception):
    """Something failed that the user can understand and act on.

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
        # Keyword-only arguments do not survive pickling by themselves, and tasks may run in other processes.
        return partial(type(self), where=self.where, fix=self.fix), (self.what,)


class BadInput(FlywheelError):
    """The user gave something that cannot be used: a parameter, a file, a folder."""

    exit_code = 2


class DataError(FlywheelError):
    """A dataset file is missing, cut off, or does not match its schema."""


class QueryTimeout(FlywheelError):
    """A query was not answered within its deadline."""


class ContractBroken(FlywheelError):
    """A data contract that spans tables does not hold."""


class EnvError(FlywheelError):
    """An environment failed (a crash, not an end of the task). Never scored: retried in a fresh one."""


class EnvTimeout(EnvError):
    """An environment did not answer within its deadline."""


class PolicyError(FlywheelError):
    """The policy could not answer."""


class PolicyTimeout(PolicyError):
    """The policy did not answer within its deadline."""


class PolicyBusy(PolicyError):
    """The policy's queue is full: the request was not taken."""


class ModelError(BadInput):
    """A model folder that cannot be loaded."""


class TrainingError(FlywheelError):
    """Training cannot go on (no samples, a loss that is not finite)."""


class ShardBusy(FlywheelError):
    """Another worker has been at a shard for too long."""


class ClusterError(FlywheelError):
    """The machines that shards are to be done on cannot do them."""


class HeadLost(ClusterError):
    """The head of the cluster does not answer."""


class WorkerLost(ClusterError):
    """A worker ended, or gave no sign of life, before its shard was done."""


class DiskFull(FlywheelError):
    """No space is left where the workspace lies."""


def first_line(text: str) -> str:
    """Return the first line that is not blank, from its first sign on, at most 200 characters; "" where `text` has
    none."""
    return (text.strip().splitlines() or [""])[0][:200]


def last_line(text: str) -> str:
    """Return the last line that is not blank, less the blanks at its ends, and of that at most 200 characters.

    A traceback has its reason there. "" where `text` has no such line.
    """
    return (text.strip().splitlines() or [""])[-1].strip()[:200]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest, in words for an error's `fix`, what an unknown name was meant to be: the nearest of the known `names`,
    if one is near, and all of them."""
    import difflib  # not at the start of every command

    names = list(names)
    near = difflib.get_close_matches(str(name), names, 1)
    return (f"did you mean {near[0]}? " if near else "") + f"known are {', '.join(names)}"


@contextlib.contextmanager
def errors_of_setting(name: str) -> Iterator[None]:
    """Name a parameter in the errors of bad input that are raised within the block.

    name: dotted, as in `params.yaml`. Raises the same kind of BadInput again, with the name in its place; as it is
    where it has the name already.
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
    """Turn the system's refusal of a path that the user named into bad input.

    place: the path, for the message. Raises BadInput for any OSError of the block.
    """
    try:
        yield
    except OSError as error:
        raise BadInput(f"nothing can be made here: {error.strerror}", where=place, fix="name another place") from error


@dataclass(frozen=True)
class Finding:
    """Hold one finding of `flywheel doctor`.

    name: of what was looked for. state: ok, missing (something does not work without it) or optional (not there, and
    not needed here). detail: what was found. fix: what to type; "" where nothing is to be done.
    """

    name: str
    state: str
    detail: str
    fix: str = ""


def run_diagnostic(name: str, look: Callable[[], str]) -> Finding:
    """Run one check of the machine. name: of what is looked for. look: returns what it found, as a line, or raises.

    Returns a finding `ok`, or `missing` with what a FlywheelError says and how to fix it; other errors are raised.
    """
    try:
        return Finding(name, "ok", look())
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)
