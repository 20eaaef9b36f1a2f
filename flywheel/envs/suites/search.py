"""Search over the states of a game: solvers prove a level solvable, experts play by it."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from flywheel.utils.errors import DataError

# A way: each move with the state that it leads to.
Way = list[tuple[Any, Any]]
Moves = Callable[[Any], Iterable[tuple[Any, Any]]]


class SearchLimit(DataError):
    """A search looked at as many states as it may and had found no way."""


def shortest(start: Hashable, moves: Moves, done: Callable[[Any], bool], limit: int = 200_000) -> Way | None:
    """Find a way of fewest moves from `start` to a state that is `done` (breadth first); None where there is none.

    moves(state): the (move, next state) pairs there are; states are hashable. limit: states looked at. Raises
    SearchLimit beyond it.
    """
    queue, came = deque([start]), {start: None}
    while queue:
        state = queue.popleft()
        if done(state):
            return _trace(came, state)
        for move, after in moves(state):
            if after not in came:
                came[after] = (state, move)
                if len(came) > limit:
                    raise SearchLimit(f"no way found among {limit} states", where="search.shortest")
                queue.append(after)
    return None


def best_first(
    start: Hashable,
    moves: Moves,
    done: Callable[[Any], bool],
    left: Callable[[Any], float],
    limit: int = 100_000,
    weight: float = 1.0,
) -> Way | None:
    """Find a way from `start` to a state that is `done`, cheapest (moves made + weight x left) first (A*); None if
    none.

    moves(state): the (move, next state) pairs there are. left: how many moves may be left. Where it never says too many
    and weight is 1, the way is a shortest one; a larger weight looks at fewer states. limit: states looked at. Raises
    SearchLimit beyond it.
    """
    order = itertools.count()  # equal states in the order they were found: the same answer each time
    heap = [(weight * left(start), next(order), 0, start)]
    came: dict[Any, tuple[Any, Any] | None] = {start: None}
    made = {start: 0}
    looked = 0
    while heap:
        _, _, depth, state = heapq.heappop(heap)
        if depth > made[state]:
            continue  # a shorter way here was found meanwhile
        if done(state):
            return _trace(came, state)
        looked += 1
        if looked > limit:
            raise SearchLimit(f"no way found among {limit} states", where="search.best_first")
        for move, after in moves(state):
            if after not in made or depth + 1 < made[after]:
                made[after] = depth + 1
                came[after] = (state, move)
                heapq.heappush(heap, (depth + 1 + weight * left(after), next(order), depth + 1, after))
    return None


def beam(
    start: Hashable,
    moves: Moves,
    done: Callable[[Any], bool],
    value: Callable[[Any], float],
    width: int,
    most: int = 1000,
) -> Way | None:
    """Find a way from `start` to a state that is `done`, following the `width` states of highest value (beam search).

    moves(state): the (move, next state) pairs there are. value: of a state. most: moves, after which it gives up.
    Returns None where they lead nowhere: it may miss a way. For long games that every move brings nearer to their end,
    and in which no search sees all.
    """
    if done(start):
        return []
    came: dict[Any, tuple[Any, Any] | None] = {start: None}
    front = [start]
    for _ in range(most):
        behind = []
        for state in front:
            for move, after in moves(state):
                if after not in came:
                    came[after] = (state, move)
                    if done(after):
                        return _trace(came, after)
                    behind.append(after)
        front = heapq.nlargest(width, behind, key=value)  # equal ones in the order they were found
    return None


def _trace(came: dict[Any, tuple[Any, Any] | None], state: Any) -> Way:
    way: Way = []
    while (step := came[state]) is not None:
        before, move = step
        way.append((move, state))
        state = before
    return way[::-1]


class Plans:
    """Remember ways that an expert has found: a state on one needs no search of its own.

    It changes nothing of what is played where `solve` is a function of (task, state) alone. A way is followed only as
    long as the states come as foreseen.
    """

    def __init__(self, size: int = 20_000) -> None:
        self._size = size
        self._moves: OrderedDict[Hashable, Any] = OrderedDict()

    def move(self, task_id: str, state: Hashable, solve: Callable[[Any], Way | None]) -> Any | None:
        """Return the next move of the task `task_id` from `state`; None where `solve` finds no way, or an empty one."""
        key = (task_id, state)
        if key not in self._moves:
            way = solve(state)
            if not way:
                return None
            befores = [state, *(after for _, after in way[:-1])]
            for before, (move, _) in zip(befores, way, strict=True):
                self._moves[(task_id, before)] = move
            while len(self._moves) > self._size:
                self._moves.popitem(last=False)
        return self._moves[key]
