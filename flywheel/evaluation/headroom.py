"""Estimate what more samples of a task find than one: headroom, and the share of groups that RL can learn from.

Rejection sampling and RL move only what sampling already reaches. A task has n samples, of which c are verified:
    pass@k = 1 - C(n - c, k) / C(n, k)                                       (Chen et al. 2021, equation 1),
    live group of G: 1 - C(c, G) / C(n, G) - C(n - c, G) / C(n, G),
both without bias: the shares of all draws without replacement that hold a success, and a success and a failure.
Headroom is pass@k - pass@1. The view `headroom` computes the same in SQL, by template too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb

_MOST_SAMPLES = 8  # k of pass@k


@dataclass(frozen=True)
class Headroom:
    """Hold the headroom of `tasks` tasks, as sums over them.

    k, group_size: samples that a task was taken to have; the most where tasks have different numbers; 0 without tasks.
    gains: sum of pass@k - pass@1. live: sum of the probabilities of a live group.
    """

    tasks: int
    k: int
    group_size: int
    gains: float
    live: float


def pass_at_k(verified: int, samples: int, k: int) -> float:
    """Estimate the probability that one or more of k samples of a task are verified.

    verified: how many of its `samples` are. k: at most `samples` (ZeroDivisionError).
    """
    return 1 - comb(samples - verified, k) / comb(samples, k)


def measure_headroom(counts: Iterable[tuple[int, int]], group_size: int) -> Headroom:
    """Estimate how much more of the tasks eight samples solve than one (headroom), and how many groups RL learns from.

    counts: (verified, scored samples) of each task, the first at most the second. group_size: `rl.group_size`; at least
    2 are taken. Returns sums over tasks, of pass@8 - pass@1 and of the probability of a live group. A task with fewer
    samples than k or the group counts with as many as it has, which tells too little rather than too much; one with
    fewer than two is left out, since it can tell nothing. All fields are 0 where no task is left.
    """
    tasks = most_k = most_group = 0
    gains = live = 0.0
    for verified, samples in counts:
        if samples < 2:
            continue
        k, group = min(_MOST_SAMPLES, samples), min(max(group_size, 2), samples)
        lost = samples - verified
        tasks, most_k, most_group = tasks + 1, max(most_k, k), max(most_group, group)
        gains += pass_at_k(verified, samples, k) - verified / samples
        live += 1 - (comb(verified, group) + comb(lost, group)) / comb(samples, group)
    return Headroom(tasks, most_k, most_group, gains, live)
