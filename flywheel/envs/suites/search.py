"""Search the states of a game: solvers prove with it that a level can be won, experts play by it."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from flywheel.utils.errors import DataError

# A way is a list of moves, each with the state that it leads to.
Way = list[tuple[Any, Any]]
Moves = Callable[[Any], Iterable[tuple[Any, Any]]]


class SearchLimit(DataError):
    """Report that a search has reached its limit of states without finding a way."""


def shortest(start: Hashable, moves: Moves, done: Callable[[Any], bool], limit: int = 200_000) -> Way | None:
    """Find a way of fewest moves from `start` to a state that is `done` (breadth first); None where there is none.

    moves(state): yields (move, next state); states are hashable. limit: states found at most. Raises SearchLimit beyond
    it.
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
    """Find a way from `start` to a state that is `done`, by A* on moves made + weight x left(state); None if none.

    moves(state): yields (move, next state). left(state): estimate of the moves that are left. Where it never
    overestimates and `weight` is 1, the way is a shortest one; a larger weight expands fewer states. limit: states
    expanded at most. Raises SearchLimit beyond it.
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
    """Find a way from `start` to a state that is `done`, keeping the `width` best states after each move (beam search).

    moves(state): yields (move, next state). value(state): its rating, higher is better. most: moves at most. Returns
    None where these states lead nowhere, although there may be a way. For long games in which each move brings the end
    nearer, and which have too many states for a complete search.
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
    """Cache the ways that an expert finds, so that a state on one of them needs no new search.

    `solve` must depend on the task and the state alone. A way is followed only as long as the states are those
    foreseen. size: moves that are kept; the oldest are dropped.
    """

    def __init__(self, size: int = 20_000) -> None:
        self._size = size
        self._moves: OrderedDict[Hashable, Any] = OrderedDict()

    def move(self, task_id: str, state: Hashable, solve: Callable[[Any], Way | None]) -> Any | None:
        """Return the next move of the task `task_id` from `state`.

        None where `solve` finds no way, reaches its limit (SearchLimit) or finds an empty one.
        """
        key = (task_id, state)
        if key not in self._moves:
            try:
                way = solve(state)
            except SearchLimit:
                return None
            if not way:
                return None
            befores = [state, *(after for _, after in way[:-1])]
            for before, (move, _) in zip(befores, way, strict=True):
                self._moves[(task_id, before)] = move
            while len(self._moves) > self._size:
                self._moves.popitem(last=False)
        return self._moves[key]
