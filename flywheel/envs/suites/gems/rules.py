"""Mirror the rules of the game gem merge (`gems.js`) in Python; search for joins that make the target's number."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from flywheel.envs.suites.search import Way, beam

Cell = tuple[int, int]  # column, and row from below
WILD = 0
LOW = 3  # the highest number that a wildcard joins
_WIDTHS = (8, 60, 300)  # of the beam search; the wider ones are for boards on which another player has moved
# Value of a gem by its number: more than two of the number below, so that high ones are made first.
_WORTH = [16.0, *(4.0**number for number in range(1, 40))]


class State(NamedTuple):
    """Hold a state. columns: numbers from bottom to top, 0 a wildcard. used: how many coming gems have dropped."""

    columns: tuple[tuple[int, ...], ...]
    used: int


def joined(one: int, other: int) -> int | None:
    """Return the number that two gems make; None where they do not join."""
    if one == other:
        return None if one == WILD else one + 1
    if WILD in (one, other) and max(one, other) <= LOW:
        return max(one, other) + 1
    return None


class Level:
    """Hold what a task fixes: the start, the gems to come and the target's number; list and search joins."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.target: int = params["target"]
        self._coming = tuple(params["coming"])
        self.start = State(tuple(map(tuple, params["columns"])), 0)

    def moves(self, state: State) -> Iterator[tuple[tuple[Cell, Cell], State]]:
        """Yield each join, (cell of the gem that moves, cell of the one that it joins), with the state after it."""
        for one, other in list_joinable_pairs(state.columns):
            yield (one, other), self.join(state, one, other)
            yield (other, one), self.join(state, other, one)

    def join(self, state: State, one: Cell, other: Cell) -> State:
        """Join the gem at `one` into that at `other`: gems above `one` fall, and the next gem drops in on top."""
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
        """Rate a state, higher is better: high gems, equal ones side by side, pairs to join."""
        columns = state.columns
        worth = sum(map(_worth_within, columns))
        return worth + 0.25 * sum(map(_worth_between, columns, columns[1:]))

    def solve(self, state: State | None = None, widths: Sequence[int] = _WIDTHS, most: int = 1000) -> Way | None:
        """Find at most `most` joins to the target from `state` (None: the start); None where no search finds them.

        widths: of the beam search, tried in order.
        """
        for width in widths:
            way = beam(self.start if state is None else state, self.moves, self.won, self.value, width, most)
            if way is not None:
                return way
        return None


def gem_at(columns: Sequence[Sequence[int]], cell: Cell) -> int:
    return columns[cell[0]][cell[1]]


def list_joinable_pairs(columns: Sequence[tuple[int, ...]]) -> Iterator[tuple[Cell, Cell]]:
    """Yield each pair of neighbours that join, as two cells."""
    for col, column in enumerate(columns):
        for row in _within(column):
            yield (col, row), (col, row + 1)
        if col + 1 < len(columns):
            for row in _between(column, columns[col + 1]):
                yield (col, row), (col + 1, row)


# A join changes two columns at most, so nearly all columns of a new state are in the cache.
@functools.lru_cache(maxsize=2**16)
def _within(column: tuple[int, ...]) -> list[int]:
    """List the rows whose gem joins the one above it."""
    return [row for row, two in enumerate(pairwise(column)) if joined(*two)]


@functools.lru_cache(maxsize=2**16)
def _between(left: tuple[int, ...], right: tuple[int, ...]) -> list[int]:
    """List the rows whose gems in two neighbouring columns join."""
    return [row for row, two in enumerate(zip(left, right, strict=False)) if joined(*two)]


@functools.lru_cache(maxsize=2**16)
def _worth_within(column: tuple[int, ...]) -> float:
    return sum(_WORTH[gem] for gem in column) + 0.25 * sum(_WORTH[column[row]] for row in _within(column))


@functools.lru_cache(maxsize=2**16)
def _worth_between(left: tuple[int, ...], right: tuple[int, ...]) -> float:
    return sum(_WORTH[left[row]] for row in _between(left, right))
