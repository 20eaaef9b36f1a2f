"""Let a thread compute on one core, where threads that share small operations would wait for each other.

A forward pass of a small model is many small operations, which gain little from several threads: on two cores, two
passes in sequence, each on both cores, take 1.5 times as long as two passes in parallel on one core each. With other
work on the machine, such as browsers, it is worse: each operation waits for the slowest of its threads. The same holds
of merging. This module imports torch alone, so that merging need not wait for transformers.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

_START_S = 60.0


def use_one_core_in_thread() -> None:
    """Let the calling thread compute on one core; threads that start later use as many cores as before."""
    every = torch.get_num_threads()
    _use_one_core()
    other = threading.Thread(target=torch.set_num_threads, args=(every,))
    other.start()
    other.join()


def open_pass_pool(count: int) -> ThreadPoolExecutor | None:
    """Open a pool of `count` threads with one core each, for parallel passes; the caller shuts it down.

    None for a count below 2: the caller's own thread will do. torch.set_num_threads also sets the number for all
    threads that start later. So all threads of the pool start here, and the number is restored afterwards. Raises
    threading.BrokenBarrierError where they do not start within 60 seconds.
    """
    if count < 2:
        return None
    every, begun = torch.get_num_threads(), threading.Barrier(count)
    pool = ThreadPoolExecutor(count, "policy-pass", _use_one_core)
    list(pool.map(lambda _: begun.wait(_START_S), range(count)))
    torch.set_num_threads(every)
    return pool


def _use_one_core() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread that never calls this takes the global number when it first computes
