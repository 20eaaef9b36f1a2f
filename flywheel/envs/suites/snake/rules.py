"""Mirror the rules of the game snake puzzle (`snake.js`) in Python; search for a way out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flywheel.envs.suites.search import Way, best_first

Cell = tuple[int, int]
STEPS: dict[str, Cell] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


class State(NamedTuple):
    """Hold a state. snake: its cells, head first. eaten: numbers of apples. taken: of keys; each opens one door."""

    snake: tuple[Cell, ...]
    eaten: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()


class Level:
    """Hold what a task fixes, the board with its walls, doors, keys, apples and exit; list and search moves."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        def cells(name: str) -> tuple[Cell, ...]:
            return tuple((x, y) for x, y in params[name])

        self.cols, self.rows = params["cols"], params["rows"]
        self.walls = frozenset(cells("walls"))
        self.doors, self.keys, self.apples = cells("doors"), cells("keys"), cells("apples")
        self.exit: Cell = tuple(params["exit"])
        self.start = State(cells("snake"))
        # Steps to each target with all doors open and no body in the way: a lower bound.
        self._far = {target: self._distances(target) for target in (*self.apples, self.exit)}

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for key, (dx, dy) in STEPS.items():
            cell = state.snake[0][0] + dx, state.snake[0][1] + dy
            if self._blocked(state, cell):
                continue
            eaten, taken = state.eaten, state.taken
            body = state.snake[:-1]
            if cell in self.apples and (apple := self.apples.index(cell)) not in eaten:
                eaten, body = eaten | {apple}, state.snake
            if cell in self.keys:
                taken = taken | {self.keys.index(cell)}
            yield key, State((cell, *body), eaten, taken)

    def _blocked(self, state: State, cell: Cell) -> bool:
        if not (0 <= cell[0] < self.cols and 0 <= cell[1] < self.rows) or cell in self.walls:
            return True
        if cell in self.doors and self.doors.index(cell) not in state.taken:
            return True
        if cell in state.snake[:-1]:
            return True
        return cell == self.exit and len(state.eaten) < len(self.apples)

    def solve(self, state: State | None = None, limit: int = 20_000) -> Way | None:
        """Find a way out from `state` (None: the start), as (key, state after it) each; None where there is none.

        limit: states expanded at most. Raises SearchLimit beyond it.
        """
        return best_first(state or self.start, self.moves, self.out, self._left, limit, weight=1.5)

    def connected(self) -> bool:
        """Tell whether every apple, every key and the snake can reach the exit with all doors open."""
        return all(cell in self._far[self.exit] for cell in (*self.apples, *self.keys, *self.start.snake))

    def out(self, state: State) -> bool:
        return state.snake[0] == self.exit

    def _left(self, state: State) -> float:
        head, out = state.snake[0], self._far[self.exit]
        wanted = [apple for number, apple in enumerate(self.apples) if number not in state.eaten]
        if not wanted:
            return out.get(head, 1000)
        return max(self._far[apple].get(head, 1000) + out.get(apple, 1000) for apple in wanted) + len(wanted)

    def _distances(self, target: Cell) -> dict[Cell, int]:
        far, queue = {target: 0}, deque([target])
        while queue:
            x, y = queue.popleft()
            for dx, dy in STEPS.values():
                cell = x + dx, y + dy
                inside = 0 <= cell[0] < self.cols and 0 <= cell[1] < self.rows
                if inside and cell not in self.walls and cell not in far:
                    far[cell] = far[x, y] + 1
                    queue.append(cell)
        return far
