"""Memory that this process has freed: given back to the machine, or not kept by many threads each."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # of `mallopt`, from glibc's malloc.h


def few_heaps(count: int = 2) -> None:
    """Let so many heaps serve all threads, where the C library can. Each thread has one of its own otherwise, which
    keeps what it freed: forty threads that answered questions kept 300 MB."""
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None:
        choose(_M_ARENA_MAX, count)


def give_back() -> None:
    """Give freed memory back, where the C library can.

    glibc keeps what was freed for what is asked for next, in a heap of each thread. A model opens threads of its own,
    so each one that is opened and closed would leave a few hundred MB of freed screens behind.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
