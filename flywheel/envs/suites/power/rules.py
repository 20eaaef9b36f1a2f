"""Mirror the rules of the game power grid (`power.js`) in Python, and solve its boards: light every lamp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.envs.suites.search import Way
from flywheel.envs.suites.turning import OPPOSITE, STEPS, Board, Cell, connected_layouts, replaced, turned


class Level:
    """Hold the level of a task: start board, power station and lamps; check and solve boards. params: the task's."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.start: Board = tuple(map(tuple, params["pieces"]))
        self.rows, self.cols = len(self.start), len(self.start[0])
        self.source: Cell = tuple(params["source"])
        self.lamps = [cell for cell in self._cells() if self._one_end(cell) and cell != self.source]
        self._solution: Board | None = None

    def lit(self, board: Board) -> list[Cell]:
        """List the cells that wires connect to the power station: the station itself, then the nearest first."""
        order = [self.source]
        for x, y in order:
            for side, (dx, dy) in STEPS.items():
                there = x + dx, y + dy
                inside = 0 <= there[0] < self.cols and 0 <= there[1] < self.rows
                if inside and board[y][x] & side and board[there[1]][there[0]] & OPPOSITE[side] and there not in order:
                    order.append(there)
        return order

    def won(self, board: Board) -> bool:
        return set(self.lamps) <= set(self.lit(board))

    def solution(self) -> Board | None:
        """Return the one layout that connects all pieces; None if there is none or several. Raises SearchLimit."""
        if self._solution is None:
            layouts = connected_layouts(self.start)
            found = next(layouts, None)
            if found is None or next(layouts, None) is not None:
                return None
            self._solution = found
        return self._solution

    def solve(self, board: Board) -> Way | None:
        """Return the clicks that light all lamps, each as (cell, board after it), from the power station outward.

        [] where the board is won already; None where `solution` finds none. Raises SearchLimit.
        """
        wanted = self.solution()
        if wanted is None:
            return None
        way: Way = []
        for x, y in self.lit(wanted):
            while board[y][x] != wanted[y][x] and not self.won(board):
                board = replaced(board, (x, y), turned(board[y][x]))
                way.append(((x, y), board))
        return way

    def _cells(self) -> list[Cell]:
        return [(x, y) for y in range(self.rows) for x in range(self.cols)]

    def _one_end(self, cell: Cell) -> bool:
        return self.start[cell[1]][cell[0]] in STEPS
