"""What a process does that another one has started: it does not outlive it."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """In a process that was started: a killed parent must not leave it, or what it has started itself, behind."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
