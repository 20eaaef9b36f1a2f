"""Reimplement the random generator of the games' pages (`shared/game.js`), so that solvers foresee its numbers."""

from __future__ import annotations

from collections.abc import Callable

_MASK = 0xFFFFFFFF


def prng(seed: int) -> Callable[[], float]:
    """Make a Mulberry32 generator: a function that returns the next number in [0, 1), as `prng(seed)` of a page
    does."""
    a = seed & _MASK

    def following() -> float:
        nonlocal a
        a = (a + 0x6D2B79F5) & _MASK
        t = ((a ^ (a >> 15)) * (a | 1)) & _MASK
        t = ((t + (((t ^ (t >> 7)) * (t | 61)) & _MASK)) & _MASK) ^ t
        return (t ^ (t >> 14)) / 2**32

    return following
