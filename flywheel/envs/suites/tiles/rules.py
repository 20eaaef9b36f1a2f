"""The rules of tile triples, as `tiles.js` has them, and a search for an order that never fills the tray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.envs.suites.search import Way, best_first


@dataclass(frozen=True)
class State:
    """left: the numbers of the tiles that are left. tray: kinds in it, in order."""

    left: frozenset[int]
    tray: tuple[str, ...] = ()


class Level:
    """What does not change: the params of a task, ready to be searched."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        tiles, side = params["tiles"], params["side"]
        self.kinds = [tile["kind"] for tile in tiles]
        self.slots = params["slots"]
        self.start = State(frozenset(range(len(tiles))))
        # For each tile those that lie on it.
        self._above = [
            frozenset(
                number
                for number, other in enumerate(tiles)
                if other["layer"] > tile["layer"]
                and abs(other["x"] - tile["x"]) < side - 0.01
                and abs(other["y"] - tile["y"]) < side - 0.01
            )
            for tile in tiles
        ]

    def free(self, state: State) -> list[int]:
        return [number for number in sorted(state.left) if not self._above[number] & state.left]

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        """Tiles that may be picked without filling the tray. Of equal ones that lie on nothing, only the first."""
        plain: set[str] = set()
        for number in self.free(state):
            kind = self.kinds[number]
            if not any(number in self._above[other] for other in state.left):
                if kind in plain:
                    continue
                plain.add(kind)
            tray = (*state.tray, kind)
            if tray.count(kind) == 3:
                tray = tuple(other for other in tray if other != kind)
            if len(tray) < self.slots:
                yield number, State(state.left - {number}, tuple(sorted(tray)))

    def solve(self, state: State | None = None, limit: int = 4000) -> Way | None:
        """Return an order that clears the board from `state` (the start where None); None where there is none."""
        state = state or self.start
        state = State(state.left, tuple(sorted(state.tray)))
        return best_first(state, self.moves, lambda now: not now.left, self._left, limit, weight=8.0)

    def _left(self, state: State) -> float:
        """Fewer kinds in the tray and more pairs of them are better; the tiles left count for all ways alike."""
        tray, free = Counter(state.tray), Counter(self.kinds[number] for number in self.free(state))
        missing = sum(max(0, 3 - count - free[kind]) for kind, count in tray.items())
        return len(state.left) + 0.5 * len(state.tray) + 0.7 * missing

    def careless(self) -> bool:
        """Tell whether the plain rule, to finish the kind that is furthest in the tray, clears the board."""
        state = self.start
        while state.left:
            after = dict(self.moves(state))
            if not after:
                return False
            tray = Counter(state.tray)
            free = Counter(self.kinds[number] for number in self.free(state))
            state = after[max(after, key=lambda n: (tray[self.kinds[n]], free[self.kinds[n]], self.kinds[n]))]
        return True
