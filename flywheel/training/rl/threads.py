"""How the trainer of an RL run and the policy that acts meanwhile share the cores."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from flywheel.settings import Settings


@contextmanager
def trainer_thread(settings: Settings) -> Iterator[ThreadPoolExecutor]:
    """The one thread that all of the trainer's arithmetic is done on; meanwhile the policy has the other cores.

    A thread that computes gets a team of OpenMP threads of its own, and keeps it.
    """
    every = torch.get_num_threads()
    trainer = share(settings, every)
    torch.set_num_threads(max(1, every - trainer) if trainer < every else every)  # of threads that begin now
    try:
        with ThreadPoolExecutor(1, "trainer", torch.set_num_threads, (trainer,)) as thread:
            yield thread
    finally:
        torch.set_num_threads(every)


def share(settings: Settings, every: int) -> int:
    """Threads of the trainer's arithmetic, of `every` that there are.

    Two Python threads that each drive a full team of OpenMP threads make both slow, even where only one of them is at
    work: so trainer and policy share the cores where the policy is on them too.
    """
    policy = settings.policy
    beside = policy.backend == "transformers" and (
        policy.device == "cpu" or (policy.device == "auto" and not torch.cuda.is_available())
    )
    return settings.rl.threads or (max(1, every // 2) if beside else every)
