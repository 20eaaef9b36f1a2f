"""Pass progress lines from any code of a stage to a listener that shows or records them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, str], None]

_listener: ContextVar[Listener] = ContextVar("listener", default=lambda stage, line: None)


def report_progress(stage: str, line: str) -> None:
    """Pass one short line about the stage named `stage` to the listener; the next line may replace it.

    Every line is passed on, so call it a few times per second at most. Without a listener it does nothing. Raises what
    the listener raises.
    """
    _listener.get()(stage, line)


class Announcement(str):
    """Hold a line that must be read: it is printed, and no later line replaces it."""


class ShardProgress(str):
    """Hold a line about a shard in progress. shard: its name. share: done part of it, 0 to 1."""

    shard: str = ""
    share: float = 0.0


class TimeLeft(str):
    """Hold a line about the remaining time of an iteration. seconds: the estimate."""

    seconds: float = 0.0


def report_time_left(seconds: float) -> None:
    """Pass the estimate of the running iteration's remaining time, in seconds, to the listener, as a `TimeLeft`.

    Its text says that it is based on the earlier durations of the stages. Raises what the listener raises.
    """
    line = TimeLeft(f"about {format_duration(seconds)} left, by what the stages took before")
    line.seconds = seconds
    _listener.get()("run", line)


def format_duration(seconds: float) -> str:
    """Format a duration in a suitable unit: `42 s`, `3.5 min` from 120 s on, `2.1 h` from 7200 s on."""
    size, unit = (3600, "h") if seconds >= 7200 else (60, "min") if seconds >= 120 else (1, "s")
    return f"{seconds / size:.{int(size > 1)}f} {unit}"


def report_shard_progress(stage: str, line: str, shard: str, share: float) -> None:
    """Pass a line about a shard to the listener, and the done part of the shard, as a `ShardProgress`.

    Without a listener nothing happens. stage, shard: their names. line: short; the next one may replace it. share: in
    [0, 1]. Raises what the listener raises.
    """
    part = ShardProgress(line)  # no constructor arguments: lines of other processes are unpickled without them
    part.shard, part.share = shard, share
    _listener.get()(stage, part)


def announce(stage: str, line: str) -> None:
    """Pass an important line to the listener, as an `Announcement`: something to do, a decision, a restored file.

    stage: name of the stage, or of the part of the program that the line comes from. Raises what the listener raises.
    """
    _listener.get()(stage, Announcement(line))


@contextmanager
def add_listener(listener: Listener) -> Iterator[None]:
    """Call `listener(stage, line)` for each line within the block, after the existing listener.

    It holds for this context (contextvars) only: asyncio's tasks inherit it, a thread started directly does not. `line`
    may be a `ShardProgress`, `Announcement` or `TimeLeft`. Errors of the listener are raised where a line is reported.
    """
    before = _listener.get()

    def both(stage: str, line: str) -> None:
        before(stage, line)
        listener(stage, line)

    with replace_listener(both):
        yield


@contextmanager
def replace_listener(listener: Listener) -> Iterator[None]:
    """Call `listener(stage, line)` for each line within the block, instead of the existing listener.

    Context, kinds of lines and errors are as in `add_listener`.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
