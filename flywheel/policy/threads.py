"""How passes of a model share the cores.

A pass of a small model is many small operations, which threads share badly: on two cores one pass after another, on
both, takes half again as long as two at a time, each on one. Where something else is at work beside them, as browsers
are, it is worse: each operation waits until the last of its threads had its turn.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

_START_S = 60.0
_SMALL = 100_000_000  # numbers of a model whose passes over a few rows gain nothing by a second core
_MOST = 8  # parts of a batch: the smaller they are, the less of what its samples share is computed once


def takes_one_core(model: nn.Module) -> bool:
    return sum(weight.numel() for weight in model.parameters()) < _SMALL


def passes_at_once(model: nn.Module) -> int:
    """How many passes over a batch's parts are best made side by side, each on one core, by the calling thread's share
    of the cores; 1: one after the other, each on all of them."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    return min(torch.get_num_threads(), _MOST) if on_cpu and takes_one_core(model) else 1


def keep_to_one_core() -> None:
    """The calling thread computes on one core from here on; those that begin later, on as many as before."""
    every = torch.get_num_threads()
    _alone()
    other = threading.Thread(target=torch.set_num_threads, args=(every,))
    other.start()
    other.join()


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
