"""Mirror the rules of the game merge and double (`double.js`) in Python; search for moves that make the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from flywheel.envs.suites.search import Way, beam

NEXT = -1  # in place of a source column: the next coming number
_WIDTHS = (10, 100, 600)  # of the beam search; the wider ones are for boards on which another player has moved
_BURIED = 1.6  # cost of a number that lies on a smaller one
_CHAINED = 0.4  # value of a number that lies on its double
_USED = 0.9  # value of a drop: the target needs many

Column = tuple[int, ...]
Move = tuple[int, int]  # the column whose top number moves, or NEXT; the column that it moves to


class State(NamedTuple):
    """Hold a state. columns: each one's numbers, bottom to top. used: how many of the coming numbers have dropped."""

    columns: tuple[Column, ...]
    used: int


def dropped(column: Column, number: int) -> Column:
    """Return the column after a number drops on it: as long as the top is equal, both merge into their double."""
    while column and column[-1] == number:
        column, number = column[:-1], 2 * number
    return (*column, number)


class Level:
    """Hold what a task fixes: start, coming numbers, maximum height of columns and target; list and search moves."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.target: int = params["target"]
        self._high: int = params["high"]
        self._coming = tuple(params["coming"])
        self.start = State(tuple(map(tuple, params["columns"])), 0)

    def next(self, state: State) -> int | None:
        """Return the number that a drop would bring; None where all have come."""
        return self._coming[state.used] if state.used < len(self._coming) else None

    def moves(self, state: State) -> Iterator[tuple[Move, State]]:
        """Yield (move, state after it): drops of the next number, and numbers that can be put onto an equal one."""
        columns, number = state.columns, self.next(state)
        for to, column in enumerate(columns):
            if number is not None and len(after := dropped(column, number)) <= self._high:
                yield (NEXT, to), State((*columns[:to], after, *columns[to + 1 :]), state.used + 1)
            for one, other in enumerate(columns):
                if one != to and other and column and other[-1] == column[-1]:
                    changed = list(columns)
                    changed[one], changed[to] = other[:-1], dropped(column, other[-1])
                    yield (one, to), State(tuple(changed), state.used)

    def won(self, state: State) -> bool:
        return any(number >= self.target for column in state.columns for number in column)

    def value(self, state: State) -> float:
        """Rate a state, higher is better: few numbers, none on a smaller one, each on its double, many drops."""
        worth = _USED * state.used
        for column in state.columns:
            worth -= len(column)
            for below, above in pairwise(column):
                if below < above:
                    worth -= _BURIED
                elif below == 2 * above:
                    worth += _CHAINED
        return worth

    def solve(self, state: State | None = None, widths: Sequence[int] = _WIDTHS) -> Way | None:
        """Find moves that make the target from `state` (None: the start); None where no search finds any.

        widths: of the beam search, tried in order.
        """
        for width in widths:
            way = beam(self.start if state is None else state, self.moves, self.won, self.value, width)
            if way is not None:
                return way
        return None
