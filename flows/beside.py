"""What runs beside a block: a thread that looks at something every so often, and processes that are ended in order."""

from __future__ import annotations

import contextlib
import contextvars
import subprocess
import threading
from collections.abc import Callable, Iterator

_END_S = 10


@contextlib.contextmanager
def looking(look: Callable[[], object], every_s: float) -> Iterator[None]:
    """Within the block `look` is called in a thread, in the context of the caller, `every_s` after its last end."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def end(process: subprocess.Popen) -> None:
    """By SIGTERM; by SIGKILL where that does not end it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)
