"""Mirror the rules of the game number merge (`merge.js`) in Python; search for a target tile and for points."""

from __future__ import annotations

import functools
import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from flywheel.envs.suites.prng import prng
from flywheel.envs.suites.search import Way

Row = tuple[int, ...]
Board = tuple[Row, ...]
KEYS = ("left", "right", "up", "down")
SIZE = 4
_WIDTH = 24  # boards that the beam search keeps after each move


@dataclass(frozen=True)
class State:
    board: Board
    moves: int = 0
    points: int = 0


@functools.cache
def _slide_left(row: Row) -> tuple[Row, int]:
    """Return the row after a slide, and the points of its merges."""
    merged: list[int] = []
    mergeable, points = False, 0
    for value in filter(None, row):
        if mergeable and merged[-1] == value:
            merged[-1] += value
            points += merged[-1]
            mergeable = False
        else:
            merged.append(value)
            mergeable = True
    return tuple(merged + [0] * (SIZE - len(merged))), points


@functools.cache
def _slide_right(row: Row) -> tuple[Row, int]:
    after, points = _slide_left(row[::-1])
    return after[::-1], points


def _slide(board: Board, key: str) -> tuple[Board, int]:
    upright = key in ("up", "down")
    rows = tuple(zip(*board, strict=True)) if upright else board
    slid = [(_slide_right if key in ("right", "down") else _slide_left)(row) for row in rows]
    after = tuple(row for row, _ in slid)
    return tuple(zip(*after, strict=True)) if upright else after, sum(points for _, points in slid)


def slide(board: Board, key: str) -> Board:
    """Slide all tiles to one side; two equal ones that meet become their sum, each tile once a move."""
    return _slide(board, key)[0]


def play(board: Board, key: str, moves: int, spawn: int | None) -> Board:
    """Slide, then add the tile that the game spawns. moves: made before this one. spawn: its seed; None: no tiles."""
    after = slide(board, key)
    return after if after == board or spawn is None else _fill(after, moves + 1, spawn)


def _fill(board: Board, moves: int, spawn: int) -> Board:
    empty = [(y, x) for y in range(SIZE) for x in range(SIZE) if not board[y][x]]
    chance = prng(spawn + moves)
    y, x = empty[int(chance() * len(empty))]
    value = 2 if chance() < 0.9 else 4
    return (*board[:y], (*board[y][:x], value, *board[y][x + 1 :]), *board[y + 1 :])


def step(state: State, key: str, spawn: int | None) -> State | None:
    """Return the state after a key; None where the key moves nothing."""
    after, points = _slide(state.board, key)
    if after == state.board:
        return None
    moves = state.moves + 1
    return State(after if spawn is None else _fill(after, moves, spawn), moves, state.points + points)


def first_random(seed: int) -> float:
    """Return the first number of `prng(seed)` in `shared/game.js`."""
    return prng(seed)()


def solve(board: Board, target: int, moves: int, spawn: int | None, limit: int) -> list[str] | None:
    """Return a shortest list of keys that makes a tile of `target`; None where `limit` keys do not.

    moves: made so far. spawn: as in `play`.
    """
    queue: deque[tuple[Board, list[str]]] = deque([(board, [])])
    seen = {board}
    while queue:
        now, keys = queue.popleft()
        if max(map(max, now)) >= target:
            return keys
        if len(keys) == limit:
            continue
        for key in KEYS:
            after = play(now, key, moves + len(keys), spawn)
            if after != now and (after not in seen or spawn is not None):
                seen.add(after)
                queue.append((after, [*keys, key]))
    return None


def luck(board: Board, target: int, spawn: int | None, budget: int, moves: int = 0) -> float:
    """Return the probability that `budget` random keys reach the target."""
    if max(map(max, board)) >= target:
        return 1.0
    if budget == 0:
        return 0.0
    total = 0.0
    for key in KEYS:
        after = play(board, key, moves, spawn)
        total += luck(after, target, spawn, budget - 1, moves + (after != board))
    return total / len(KEYS)


def collect(state: State, goal: int, spawn: int, limit: int) -> Way | None:
    """Find a way to `goal` points in at most `limit` moves, by beam search over boards with their known new tiles.

    Returns None where the beam does not get there.
    """
    for beam in islice(_beams(state, spawn), limit + 1):
        for now, way in beam:
            if now.points >= goal:
                return _unwound(way)
    return None


def most_points(state: State, spawn: int, moves: int) -> int:
    """Return the most points that the beam search reaches in `moves` moves."""
    return max(now.points for beam in islice(_beams(state, spawn), moves + 1) for now, _ in beam)


def _beams(state: State, spawn: int) -> Iterator[list[tuple[State, tuple]]]:
    """Yield after 0, 1, 2 ... moves the most promising states, each with its way as nested (way before, key, state)."""
    beam: list[tuple[State, tuple]] = [(state, ())]
    while beam:
        yield beam
        after: dict[Board, tuple[State, tuple]] = {}
        for now, way in beam:
            for key in KEYS:
                then = step(now, key, spawn)
                if then is not None and (then.board not in after or then.points > after[then.board][0].points):
                    after[then.board] = (then, (way, key, then))
        beam = heapq.nlargest(_WIDTH, after.values(), key=lambda one: _promise(one[0]))


def random_points(state: State, spawn: int, budget: int, rng: random.Random) -> int:
    """Return the points of one play of `budget` random keys."""
    for _ in range(budget):
        state = step(state, rng.choice(KEYS), spawn) or state
    return state.points


def _promise(state: State) -> float:
    """Rate a state, higher is better: points, empty cells, neighbours that are equal or one the double of the other."""
    board = state.board
    room = sum(not value for row in board for value in row)
    pairs = 0
    for line in (*board, *zip(*board, strict=True)):
        for one, other in pairwise(line):
            if one and one == other:
                pairs += one
            elif one and other and (one == 2 * other or other == 2 * one):
                pairs += min(one, other) / 2
    return state.points + 6 * room + pairs


def _unwound(way: tuple) -> Way:
    made: Way = []
    while way:
        way, key, state = way
        made.append((key, state))
    return made[::-1]
