"""The watch on the reward's variance within groups: known figures, no alarm on flat noise, an alarm where it rises."""

from __future__ import annotations

import numpy as np
import pytest

from flywheel.evaluation.reward_variance import find_variance_rises, measure_groups


def test_figures_of_groups_are_known():
    won, lost = (1.0, True), (0.0, False)
    found = measure_groups([[won, lost], [won, won], [lost, lost, lost], [(0.5, False), (1.0, True)], [won]])
    assert found == {
        "group_variance": pytest.approx((0.25 + 0 + 0 + 0.0625) / 4),
        "groups_all_success": 0.25,
        "groups_all_failed": 0.25,
    }
    assert measure_groups([[won], [lost]]) == measure_groups([]) == {}


def batches(rng: np.random.Generator, rates, groups: int = 6, size: int = 8) -> list[float]:
    """The mean variance within groups, of groups whose tasks have success rates of a Beta distribution around each."""
    each = (rng.beta(4 * p, 4 * (1 - p), (groups, 1)) for p in rates)
    return [float((rng.random((groups, size)) < p).var(axis=1).mean()) for p in each]


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: batches(rng, [0.3] * 60),
        lambda rng: batches(rng, [0.5] * 150),
        lambda rng: batches(rng, [0.05] * 150),
        lambda rng: list(rng.normal(0.1, 0.03, 60)),
        lambda rng: [0.0] * 60,
        lambda rng: list(np.linspace(0.25, 0.05, 40) + rng.normal(0, 0.01, 40)),  # it falls
    ],
)
def test_flat_noise_alarms_in_one_of_twenty_at_most(draw):
    alarms = sum(bool(find_variance_rises(draw(np.random.default_rng(seed)))) for seed in range(300))
    assert alarms <= 15


def test_a_rise_alarms():
    def planted(seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        return [*rng.normal(0.08, 0.02, 30), *rng.normal(0.18, 0.02, 6), *rng.normal(0.08, 0.02, 10)]

    found = [find_variance_rises(planted(seed)) for seed in range(200)]
    right = [rises for rises in found if rises and 28 <= rises[-1][0] <= 32 and 32 <= rises[-1][1] <= 37]
    assert len(right) >= 190


def test_where_it_rises_is_told_by_step():
    series = [0.1] * 12 + [0.2] * 5 + [0.1] * 12
    # The band is 0.1 without spread, so that its limit is two least deviations above it.
    ((first, last, limit),) = find_variance_rises(series)
    assert (first, last) == (12, 16)
    assert limit == pytest.approx(0.15)
    assert find_variance_rises([0.1] * 12 + [0.2] * 2 + [0.1] * 12) == []  # two steps are too few
    assert find_variance_rises([0.1] * 7 + [0.2] * 3) == []  # too short a band
    assert find_variance_rises([]) == []
