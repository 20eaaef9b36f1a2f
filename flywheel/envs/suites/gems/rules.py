"""The rules of the gem merge, as `gems.js` has them, and a search for a gem of the target's number."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from flywheel.envs.suites.search import Way, beam

Cell = tuple[int, int]  # column, and row from below
WILD = 0
LOW = 3  # the highest number that a wildcard fits
_WIDTHS = (8, 60, 300)  # of the search; the wider ones are for a board on which somebody else has played
# What a gem is worth, by number: more than two of the number below, so that high ones are made first.
_WORTH = [16.0, *(4.0**number for number in range(1, 40))]


class State(NamedTuple):
    """columns: numbers from below, 0 a wildcard. used: gems of those to come that have come."""

    columns: tuple[tuple[int, ...], ...]
    used: int


def joined(one: int, other: int) -> int | None:
    """What two gems make; None where they do not join."""
    if one == other:
        return None if one == WILD else one + 1
    if WILD in (one, other) and max(one, other) <= LOW:
        return max(one, other) + 1
    return None


class Level:
    """What does not change: the gems to come, and the number to make."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.target: int = params["target"]
        self._coming = tuple(params["coming"])
        self.start = State(tuple(map(tuple, params["columns"])), 0)

    def moves(self, state: State) -> Iterator[tuple[tuple[Cell, Cell], State]]:
        """Each ((col, row) of the gem that goes, (col, row) of the one it joins), with the state after it."""
        for one, other in pairs(state.columns):
            yield (one, other), self.join(state, one, other)
            yield (other, one), self.join(state, other, one)

    def join(self, state: State, one: Cell, other: Cell) -> State:
        """One goes into the other; what is above it falls, and a new gem comes from above."""
        columns = list(state.columns)
        made = joined(columns[one[0]][one[1]], columns[other[0]][other[1]])
        columns[other[0]] = (*columns[other[0]][: other[1]], made, *columns[other[0]][other[1] + 1 :])
        columns[one[0]] = (
            *columns[one[0]][: one[1]],
            *columns[one[0]][one[1] + 1 :],
            *self._coming[state.used : state.used + 1],
        )
        return State(tuple(columns), state.used + 1)

    def won(self, state: State) -> bool:
        return max(map(max, filter(None, state.columns))) >= self.target

    def value(self, state: State) -> float:
        """How promising a state is: high gems, equal ones near one another, some pair to join."""
        columns = state.columns
        worth = sum(map(_worth_within, columns))
        return worth + 0.25 * sum(map(_worth_between, columns, columns[1:]))

    def solve(self, state: State | None = None, widths: Sequence[int] = _WIDTHS, most: int = 1000) -> Way | None:
        """At most so many joins that make the target from `state` (the start where None); None where none are found."""
        for width in widths:
            way = beam(self.start if state is None else state, self.moves, self.won, self.value, width, most)
            if way is not None:
                return way
        return None


def gem_at(columns: Sequence[Sequence[int]], cell: Cell) -> int:
    return columns[cell[0]][cell[1]]


def pairs(columns: Sequence[tuple[int, ...]]) -> Iterator[tuple[Cell, Cell]]:
    """Neighbours that join."""
    for col, column in enumerate(columns):
        for row in _within(column):
            yield (col, row), (col, row + 1)
        if col + 1 < len(columns):
            for row in _between(column, columns[col + 1]):
                yield (col, row), (col + 1, row)


# A join changes two columns at most, so that nearly all that is asked of columns has been asked before.
@functools.lru_cache(maxsize=2**16)
def _within(column: tuple[int, ...]) -> list[int]:
    """Rows whose gem joins the one above it."""
    return [row for row, two in enumerate(pairwise(column)) if joined(*two)]


@functools.lru_cache(maxsize=2**16)
def _between(left: tuple[int, ...], right: tuple[int, ...]) -> list[int]:
    """Rows whose gems in two columns side by side join."""
    return [row for row, two in enumerate(zip(left, right, strict=False)) if joined(*two)]


@functools.lru_cache(maxsize=2**16)
def _worth_within(column: tuple[int, ...]) -> float:
    return sum(_WORTH[gem] for gem in column) + 0.25 * sum(_WORTH[column[row]] for row in _within(column))


@functools.lru_cache(maxsize=2**16)
def _worth_between(left: tuple[int, ...], right: tuple[int, ...]) -> float:
    return sum(_WORTH[left[row]] for row in _between(left, right))
