"""Mirror the rules of the game tile triples (`tiles.js`) in Python; search for an order that never fills the tray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.envs.suites.search import Way, best_first


@dataclass(frozen=True)
class State:
    """Hold a state. left: numbers of the tiles that are left. tray: the kinds in it, in order."""

    left: frozenset[int]
    tray: tuple[str, ...] = ()


class Level:
    """Hold what a task fixes, the tiles and the slots of the tray; list and search picks."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        tiles, side = params["tiles"], params["side"]
        self.kinds = [tile["kind"] for tile in tiles]
        self.slots = params["slots"]
        self.start = State(frozenset(range(len(tiles))))
        # For each tile, the tiles that lie on it.
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
        """Yield each tile that can be picked without filling the tray, with the state after it.

        Of tiles of a kind that lie on nothing, only the first is tried.
        """
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
        """Find an order that clears the board from `state` (None: the start); None where there is none.

        limit: states expanded at most. Raises SearchLimit beyond it.
        """
        state = state or self.start
        state = State(state.left, tuple(sorted(state.tray)))
        return best_first(state, self.moves, lambda now: not now.left, self._left, limit, weight=8.0)

    def _left(self, state: State) -> float:
        """Estimate what is left to do: tiles, kinds in the tray, and tiles missing to complete these kinds."""
        tray, free = Counter(state.tray), Counter(self.kinds[number] for number in self.free(state))
        missing = sum(max(0, 3 - count - free[kind]) for kind, count in tray.items())
        return len(state.left) + 0.5 * len(state.tray) + 0.7 * missing

    def is_won_greedily(self) -> bool:
        """Tell whether a greedy rule, to pick of the kind with most tiles in the tray, clears the board."""
        state = self.start
        while state.left:
            after = dict(self.moves(state))
            if not after:
                return False
            tray = Counter(state.tray)
            free = Counter(self.kinds[number] for number in self.free(state))
            state = after[max(after, key=lambda n: (tray[self.kinds[n]], free[self.kinds[n]], self.kinds[n]))]
        return True
