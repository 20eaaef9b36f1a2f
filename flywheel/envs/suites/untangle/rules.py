"""Mirror the rules of the game untangle (`untangle.js`) in Python; search for moves that undo every crossing."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from flywheel.envs.suites.search import SearchLimit, Way, best_first

Places = tuple[int, ...]  # where each knot is: dots by number, line by line
_TRIED = 16  # moves that the search tries from a state


@functools.cache
def compute_conflicts(side: int) -> np.ndarray:
    """Compute for all pairs of lines between dots of a `side` x `side` board whether they conflict.

    Returns booleans of shape (side^4, side^4); the line between dots a and b is number a x side^2 + b. Lines that share
    an end conflict where they lie on each other, all others where they cross or touch.
    """
    count = side * side
    dot = np.stack([np.arange(count) % side, np.arange(count) // side], -1).astype(np.int16)
    first, last = np.triu_indices(count, 1)
    a, b = dot[first], dot[last]

    def turn(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        """Return which way the path from p over q to r turns: 1, 0 (on a line), -1."""
        across = (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0])
        return np.sign(across).astype(np.int8)

    def between(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        """Tell whether r, on the line through p and q, lies between them or on one of them."""
        low, high = np.minimum(p, q), np.maximum(p, q)
        return ((low <= r) & (r <= high)).all(-1)

    one, other = (slice(None), None), (None, slice(None))
    ends = [turn(a[one], b[one], a[other]), turn(a[one], b[one], b[other])]
    ends += [turn(a[other], b[other], a[one]), turn(a[other], b[other], b[one])]
    on = [
        (ends[0] == 0) & between(a[one], b[one], a[other]),
        (ends[1] == 0) & between(a[one], b[one], b[other]),
        (ends[2] == 0) & between(a[other], b[other], a[one]),
        (ends[3] == 0) & between(a[other], b[other], b[one]),
    ]
    meet = (ends[0] * ends[1] < 0) & (ends[2] * ends[3] < 0) | np.logical_or.reduce(on)
    shared = np.zeros_like(meet)
    for p in (first, last):
        for q in (first, last):
            shared |= p[one] == q[other]
    meet = np.where(shared, sum(each.astype(np.int8) for each in on) > 2, meet)
    np.fill_diagonal(meet, False)
    number = np.zeros((count, count), np.int32)
    number[first, last] = number[last, first] = np.arange(len(first))
    full = meet[number.ravel()][:, number.ravel()]
    full.flags.writeable = False
    return full


class Level:
    """Hold what a task fixes, the lines and the knots' places at the start; count crossings, search moves."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.side = params["side"]
        self.edges = [(a, b) for a, b in params["edges"]]
        self.start: Places = tuple(y * self.side + x for x, y in params["knots"])
        self._ends = np.array(self.edges)
        self._own = []  # for each knot: its lines by number, and the knots at their other ends
        for knot in range(len(self.start)):
            own = [number for number, edge in enumerate(self.edges) if knot in edge]
            self._own.append((own, [sum(self.edges[number]) - knot for number in own]))

    def crossings(self, places: Places) -> int:
        """Count the pairs of lines that conflict."""
        lines = self._lines(places)
        return int(compute_conflicts(self.side)[np.ix_(lines, lines)].sum()) // 2

    def solve(self, start: Places | None = None, limit: int = 100) -> Way | None:
        """Find moves (knot, dot) that undo every crossing, with the places after each; None where none are found.

        limit: states expanded at most.
        """
        counted: dict[Places, int] = {}

        def moves(places: Places) -> Iterator[tuple[tuple[int, int], Places]]:
            for count, knot, dot in self._best(places):
                after = moved(places, knot, dot)
                counted[after] = count
                yield (knot, dot), after

        def left(places: Places) -> int:
            if places not in counted:
                counted[places] = self.crossings(places)
            return counted[places]

        try:
            return best_first(start or self.start, moves, lambda places: not left(places), left, limit, weight=1.5)
        except SearchLimit:
            return None

    def towards(self, places: Places, wanted: Places) -> Way:
        """Return moves that bring each knot to its place in `wanted`; a knot in another's way is moved aside first."""
        way: Way = []
        while places != wanted:
            wrong = [knot for knot, dot in enumerate(places) if dot != wanted[knot]]
            free = set(range(self.side**2)) - set(places)
            knot = next((knot for knot in wrong if wanted[knot] in free), wrong[0])
            dot = wanted[knot] if wanted[knot] in free else min(free - set(wanted))
            places = moved(places, knot, dot)
            way.append(((knot, dot), places))
        return way

    def _best(self, places: Places) -> list[tuple[int, int, int]]:
        """List the moves that leave the fewest crossings, as (crossings, knot, dot)."""
        table = compute_conflicts(self.side)
        free = np.setdiff1d(np.arange(self.side**2), places)
        now = self._lines(places)
        all_of = table[now].sum(0, dtype=np.int16)  # for each possible line: how many present lines it conflicts with
        total = int(all_of[now].sum()) // 2
        found: list[tuple[int, int, int]] = []
        for knot, (own, beside) in enumerate(self._own):
            mine = table[now[own]].sum(0, dtype=np.int16)
            before = int(all_of[now[own]].sum()) - int(mine[now[own]].sum()) // 2
            if not before:
                continue  # its lines have no conflict
            lines = np.array(places)[beside][:, None] * self.side**2 + free  # (lines of the knot, free dots)
            after = (all_of - mine)[lines].sum(0)
            for last in range(1, len(own)):
                after = after + table[lines[last], lines[:last]].sum(0)
            found += zip((total - before + after).tolist(), [knot] * len(free), free.tolist(), strict=True)
        found.sort()
        return found[:_TRIED]

    def _lines(self, places: Places) -> np.ndarray:
        ends = np.array(places)[self._ends]
        return ends[:, 0] * self.side**2 + ends[:, 1]


def moved(places: Places, knot: int, dot: int) -> Places:
    return (*places[:knot], dot, *places[knot + 1 :])
