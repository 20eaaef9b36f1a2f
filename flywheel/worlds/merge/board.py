"""The rules of number merge, as `merge.js` has them, and a search for the shortest way to a target."""

from __future__ import annotations

from collections import deque

Board = tuple[tuple[int, ...], ...]
KEYS = ("left", "right", "up", "down")
SIZE = 4


def _slide_left(row: tuple[int, ...]) -> tuple[int, ...]:
    merged: list[int] = []
    mergeable = False
    for value in filter(None, row):
        if mergeable and merged[-1] == value:
            merged[-1] += value
            mergeable = False
        else:
            merged.append(value)
            mergeable = True
    return tuple(merged + [0] * (SIZE - len(merged)))


def slide(board: Board, key: str) -> Board:
    """All tiles to one side; two equal ones that meet become their sum, once a move."""
    turned = tuple(zip(*board, strict=True)) if key in ("up", "down") else board
    if key in ("right", "down"):
        turned = tuple(_slide_left(row[::-1])[::-1] for row in turned)
    else:
        turned = tuple(_slide_left(row) for row in turned)
    return tuple(zip(*turned, strict=True)) if key in ("up", "down") else turned


def play(board: Board, key: str, moves: int, spawn: int | None) -> Board:
    """`slide`, then a new 2 on an empty cell where the game spawns. moves: how many were made before this one."""
    after = slide(board, key)
    if after == board or spawn is None:
        return after
    empty = [(y, x) for y in range(SIZE) for x in range(SIZE) if not after[y][x]]
    if not empty:
        return after
    y, x = empty[int(first_random(spawn + moves + 1) * len(empty))]
    rows = [list(row) for row in after]
    rows[y][x] = 2
    return tuple(tuple(row) for row in rows)


def first_random(seed: int) -> float:
    """The first number of `prng(seed)` in `shared/game.js` (mulberry32)."""
    mask = 0xFFFFFFFF
    a = (seed + 0x6D2B79F5) & mask
    t = ((a ^ (a >> 15)) * (a | 1)) & mask
    t = ((t + (((t ^ (t >> 7)) * (t | 61)) & mask)) & mask) ^ t
    return (t ^ (t >> 14)) / 2**32


def solve(board: Board, target: int, moves: int, spawn: int | None, limit: int) -> list[str] | None:
    """A shortest list of keys that brings a tile of `target`; None where none of `limit` keys does."""
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
    """How likely `budget` random keys reach the target."""
    if max(map(max, board)) >= target:
        return 1.0
    if budget == 0:
        return 0.0
    total = 0.0
    for key in KEYS:
        after = play(board, key, moves, spawn)
        total += luck(after, target, spawn, budget - 1, moves + (after != board))
    return total / len(KEYS)
