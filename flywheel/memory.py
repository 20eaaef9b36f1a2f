"""Memory that this process has freed, given back to the machine."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Give freed memory back, where the C library can.

    glibc keeps what was freed for what is asked for next, in a heap of each thread. A model opens threads of its own,
    so each one that is opened and closed would leave a few hundred MB of freed screens behind.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
