"""Pass progress lines from deep inside a stage to whoever shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, str], None]

_listener: ContextVar[Listener] = ContextVar("listener", default=lambda stage, line: None)


def report_progress(stage: str, line: str) -> None:
    """Pass one short line about the `stage` of that name to the listener; the next line may replace it.

    Each line is passed: call it a few times a second at most. Nothing happens where there is no listener; what one
    raises reaches the caller.
    """
    _listener.get()(stage, line)


class Announcement(str):
    """A line that must be read: it is printed wherever it is shown, and nothing replaces it."""


class ShardProgress(str):
    """A line about a shard that is partly done. shard: its name; share: how much of it is done, 0 to 1."""

    shard: str = ""
    share: float = 0.0


class TimeLeft(str):
    """A line about how long the iteration goes on. seconds: as far as is known."""

    seconds: float = 0.0


def report_time_left(seconds: float) -> None:
    """Pass on how many `seconds` the iteration at work goes on, by what its stages took before."""
    line = TimeLeft(f"about {format_duration(seconds)} left, by what the stages took before")
    line.seconds = seconds
    _listener.get()("run", line)


def format_duration(seconds: float) -> str:
    """Write a duration in the unit that suits it: `42 s`, `3.5 min`, `2.1 h`."""
    size, unit = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    return f"{seconds / size:.{int(size > 1)}f} {unit}"


def report_shard_progress(stage: str, line: str, shard: str, share: float) -> None:
    """Pass a line about a shard to the listener, and how much of the shard is done.

    stage, shard: their names. line: short; the next one may replace it. share: in [0, 1].
    """
    part = ShardProgress(line)  # fields are set afterwards, as pickle does: lines come from other processes too
    part.shard, part.share = shard, share
    _listener.get()(stage, part)


def announce(stage: str, line: str) -> None:
    """Pass a line that matters to the listener: something to do, a decision, a file restored.

    stage: name of the stage, or of the part that it comes from. It is an `Announcement`: nothing replaces it.
    """
    _listener.get()(stage, Announcement(line))


@contextmanager
def add_listener(listener: Listener) -> Iterator[None]:
    """Call `listener(stage, line)` for each line within the block, after the listener that is there already.

    Lines of this context alone: tasks of asyncio inherit it, a thread started by hand has none. It also gets
    `ShardProgress` and `Announcement`, which are lines with more to tell. What it raises, whoever reports the line
    gets.
    """
    before = _listener.get()

    def both(stage: str, line: str) -> None:
        before(stage, line)
        listener(stage, line)

    with replace_listener(both):
        yield


@contextmanager
def replace_listener(listener: Listener) -> Iterator[None]:
    """Call `listener(stage, line)` for each line within the block, instead of the listener that is there.

    Lines of this context alone, of all kinds, as for `add_listener`.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
