"""Threads that compute side by side, one core each.

A pass over a screen or a short prompt of a small model is many small operations, which threads share badly: on two
cores one pass after another, on both, takes half again as long as two at a time, each on one.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

_START_S = 60.0


def side_by_side(count: int) -> ThreadPoolExecutor | None:
    """`count` threads of one core each; None for one, since the caller's own will do.

    Setting the number of threads in one thread also sets it for all that begin later. So these begin at once, and the
    number is put back.
    """
    if count < 2:
        return None
    every, begun = torch.get_num_threads(), threading.Barrier(count)
    pool = ThreadPoolExecutor(count, "policy-pass", _alone)
    list(pool.map(lambda _: begun.wait(_START_S), range(count)))
    torch.set_num_threads(every)
    return pool


def _alone() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread that has never asked would take the number of the others when it first computes
