"""SIGTERM as an exception: what `systemctl stop`, a scheduler or `docker stop` sends ends a run as Ctrl-C does, with a
line that says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """SIGTERM came. No `Exception`, so that no step's own handling of errors takes it for one."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM raises Terminated, in the main thread of this process; one that was forked from it ends at
    once. Prefect, which takes the signal while a flow runs, marks its runs and then sends it again."""
    here = os.getpid()

    def raise_it(number: int, _frame: object) -> None:
        if os.getpid() != here:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
