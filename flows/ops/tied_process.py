"""Run a Python module that is ended when the process that starts it dies.

`python -P -m flows.ops.tied_process PID MODULE WORDS...` is `python -P -m MODULE WORDS...`, tied to the process PID,
which starts it (Linux, by PR_SET_PDEATHSIG; elsewhere it only ends where that process ends it).

The signal is requested here, before MODULE is imported, and not in `preexec_fn`: in a process with threads, a fork at
the wrong moment runs the after-fork handlers without the before-fork ones. That released a lock of the explorer's
thread in one of five starts on a busy machine, and its server ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied_command(module: str, *words: str) -> Sequence[str]:
    """Build the command that runs a Python module with the arguments `words`, tied to this process."""
    return [sys.executable, "-P", "-m", "flows.ops.tied_process", str(os.getpid()), module, *words]


def untie_from_parent() -> None:
    """Let this process live on when the process that started it ends."""
    _end_with_parent_by(0)


def _end_with_parent_by(number: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _main(parent: int, module: str) -> None:
    _end_with_parent_by(signal.SIGTERM)
    if os.getppid() != parent:  # the parent has died already
        sys.exit(128 + signal.SIGTERM)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _, parent, module, *words = sys.argv
    sys.argv = [module, *words]
    _main(int(parent), module)
