"""Watch the reward's variance within RL's groups: a rise warns of reward hacking.

Where a policy begins to find a way to the reward that is not the task, some episodes of a group take it and others do
not, so that rewards within groups differ more than before. In Prime Intellect's runs this variance is highest just
before the hack takes over (Systematic Reward Hacking and Prime Sprints, 2026,
https://www.primeintellect.ai/blog/reward-hacking). Tasks that are learnt as they should be from few successes on raise
it too: a warning says where to look, and is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

HIGH_STEPS = 3  # steps in succession that lie above the band
_BAND, _LEAST = 20, 8  # steps before them that make the band: at most, at least
_DEVIATIONS, _LEAST_DEVIATION = 2.0, 0.025  # above the band's mean; of rewards from 0 to 1


def measure_groups(groups: Iterable[Sequence[tuple[float, bool]]]) -> dict[str, float]:
    """Compute metrics of an RL batch's groups: the variance of scores, and the shares that all succeed or all fail.

    groups: (score, success) of each episode of a group; groups of one episode are left out. Returns group_variance, the
    mean variance of the scores within a group, groups_all_success and groups_all_failed; {} where no group is left.
    """
    told = [list(zip(*group, strict=True)) for group in groups if len(group) > 1]
    if not told:
        return {}
    return {
        "group_variance": float(np.mean([np.var(scores) for scores, _ in told])),
        "groups_all_success": float(np.mean([all(successes) for _, successes in told])),
        "groups_all_failed": float(np.mean([not any(successes) for _, successes in told])),
    }


def find_variance_rises(series: Sequence[float]) -> list[tuple[int, int, float]]:
    """Find the steps at which the variance of rewards rises above its earlier band.

    It does where three steps in succession each lie more than two standard deviations (0.025 each at least) above the
    mean of the 8 to 20 steps before them. series: group_variance by step. Returns (first, last, limit) of each rise, []
    for none: indices in `series`, and the limit that it first crossed.
    """
    found: list[tuple[int, int, float]] = []
    for first in range(_LEAST, len(series) - HIGH_STEPS + 1):
        band, last = series[max(0, first - _BAND) : first], first + HIGH_STEPS - 1
        limit = float(np.mean(band) + _DEVIATIONS * max(np.std(band, ddof=1), _LEAST_DEVIATION))
        if min(series[first : last + 1]) > limit:
            if found and first <= found[-1][1] + 1:  # it goes on
                first, _, limit = found.pop()
            found.append((first, last, limit))
    return found
