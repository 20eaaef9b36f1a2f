"""Admission and choice: the formula exactly, and that the two rules together bound staleness whatever happens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.rollout.async_pool import choose_batch, compute_capacity

counts = st.integers(0, 60)


@pytest.mark.parametrize(
    ("max_concurrent", "running", "max_staleness", "version", "accepted", "expected"),
    [
        (16, 0, 0, 0, 0, 4),  # synchronous: one batch, then no more until it was trained on
        (16, 4, 0, 0, 0, 0),
        (16, 1, 0, 0, 3, 0),
        (16, 0, 0, 1, 4, 4),
        (16, 0, 1, 0, 0, 8),  # one batch ahead
        (3, 1, 1, 0, 0, 2),  # as many as there are environments
        (16, 5, 2, 3, 17, 2),  # (2 + 3 + 1) 4 - (17 + 5)
        (16, 9, 0, 0, 0, 0),  # more than there may be: none, and not less than none
    ],
)
def test_known_capacities(max_concurrent, running, max_staleness, version, accepted, expected):
    got = compute_capacity(
        max_concurrent=max_concurrent,
        running=running,
        max_staleness=max_staleness,
        version=version,
        batch=4,
        accepted=accepted,
    )
    assert got == expected


@given(counts, counts, counts, counts, st.integers(1, 20), counts)
def test_capacity_fills_the_smaller_bound_and_no_more(concurrent, running, staleness, version, batch, accepted):
    def free(running, accepted):
        return compute_capacity(
            max_concurrent=concurrent,
            running=running,
            max_staleness=staleness,
            version=version,
            batch=batch,
            accepted=accepted,
        )

    got = free(running, accepted)
    assert got >= 0
    if got:
        limit = (staleness + version + 1) * batch
        assert running + got <= concurrent
        assert accepted + running + got <= limit
        assert running + got == concurrent or accepted + running + got == limit
        assert free(running + got, accepted) == 0  # what it allowed is all
        assert free(running - 1, accepted) >= got + 1 if running else True  # one that failed gives its place back
        # One that finished frees an environment, and not a place in the bound.
        assert free(running - 1, accepted + 1) <= got + 1 if running else True


def test_the_oldest_are_taken():
    assert choose_batch({5: 1, 3: 1, 9: 0, 7: 2}, [], version=2, count=2, max_staleness=5) == [9, 3]
    assert choose_batch({5: 1}, [], version=2, count=2, max_staleness=5) is None


def test_training_waits_for_one_that_would_be_too_old():
    finished = {1: 3, 2: 3}
    assert choose_batch(finished, [2], version=3, count=2, max_staleness=2) == [1, 2]  # there is another step for it
    assert choose_batch(finished, [2], version=3, count=2, max_staleness=1) is None
    # Two old ones can still be used at the next step, three cannot where two are used at each.
    assert choose_batch(finished, [2, 2], version=3, count=2, max_staleness=2) == [1, 2]
    assert choose_batch(finished, [2, 2, 2], version=3, count=2, max_staleness=2) is None


@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(1, 5), st.integers(1, 9), st.integers(1, 8))
def test_whatever_finishes_first_nothing_is_too_old_and_nothing_is_left(seed, staleness, count, concurrent, steps):
    """Both rules against any order of finishing; a favourite few take long, as those with a long tail do."""
    chance = random.Random(seed)
    slow = chance.choice((0.0, 0.2, 0.7))
    version, begun, running, finished, accepted = 0, 0, {}, {}, 0
    while version < steps:
        ahead = min(staleness, steps - version - 1)
        free = compute_capacity(
            max_concurrent=concurrent,
            running=len(running),
            max_staleness=ahead,
            version=version,
            batch=count,
            accepted=accepted,
        )
        for _ in range(free):
            running[begun] = version
            begun += 1
        assert accepted + len(running) <= (staleness + version + 1) * count
        taken = choose_batch(finished, running.values(), version=version, count=count, max_staleness=staleness)
        if taken is None:
            assert running, "it would wait without end"
            quick = [number for number in running if random.Random(f"{seed} {number}").random() >= slow]
            number = chance.choice(quick or sorted(running))
            start = running.pop(number)
            if chance.random() < 0.9:  # else its environment failed
                finished[number], accepted = start, accepted + 1
            continue
        assert len(taken) == count
        assert all(version - finished.pop(number) <= staleness for number in taken)
        version += 1
    assert not running
    assert not finished
