"""Mirror the rules of the game light maze (`maze.js`) in Python; search for a way to the star."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from flywheel.envs.suites.search import Way, shortest
from flywheel.envs.suites.turning import DOWN, LEFT, OPPOSITE, RIGHT, STEPS, UP, Cell

SIDES = {"left": LEFT, "right": RIGHT, "up": UP, "down": DOWN}
Edge = tuple[int, int, int]  # column and row of a cell, and which of its sides: RIGHT or DOWN


def edge(cell: Cell, side: int) -> Edge:
    """Return the same name for a side from both of the cells that share it."""
    if side in (RIGHT, DOWN):
        return *cell, side
    dx, dy = STEPS[side]
    return cell[0] + dx, cell[1] + dy, OPPOSITE[side]


class State(NamedTuple):
    """Hold a state. cell: where the light is. taken: numbers of keys. flipped: whether the gates are flipped."""

    cell: Cell
    taken: frozenset[int] = frozenset()
    flipped: bool = False


class Level:
    """Hold what a task fixes, the maze with its doors, keys, gates and switches; list and search moves."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.passages: tuple[tuple[int, ...], ...] = tuple(map(tuple, params["passages"]))
        self.rows, self.cols = len(self.passages), len(self.passages[0])
        self.keys: list[Cell] = [(x, y) for x, y in params["keys"]]
        self.doors: list[Edge] = [(x, y, side) for x, y, side in params["doors"]]
        self.gates: dict[Edge, bool] = {(x, y, side): bool(shut) for x, y, side, shut in params["gates"]}
        self.switches: list[Cell] = [(x, y) for x, y in params["switches"]]
        self.star: Cell = tuple(params["star"])
        self.start = State(tuple(params["light"]))

    def passes(self, state: State, side: int) -> bool:
        """Tell whether the light can leave its cell over a side."""
        x, y = state.cell
        if not self.passages[y][x] & side:
            return False
        way = edge(state.cell, side)
        if way in self.doors and self.doors.index(way) not in state.taken:
            return False
        return self.gates.get(way, False) == state.flipped if way in self.gates else True

    def run(self, state: State, side: int) -> State:
        """Return the state after a run to one side: up to a wall, a bend, a crossing, a key, a switch or the star."""
        while self.passes(state, side):
            cell = state.cell[0] + STEPS[side][0], state.cell[1] + STEPS[side][1]
            taken, flipped = state.taken, state.flipped
            found = cell in self.keys and self.keys.index(cell) not in taken
            if found:
                taken = taken | {self.keys.index(cell)}
            if cell in self.switches:
                flipped = not flipped
            state = State(cell, taken, flipped)
            if found or cell in self.switches or cell == self.star:
                break
            if self.passages[cell[1]][cell[0]] & ~(side | OPPOSITE[side]):
                break  # a crossing or a bend
        return state

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for key, side in SIDES.items():
            after = self.run(state, side)
            if after != state:
                yield key, after

    def won(self, state: State) -> bool:
        return state.cell == self.star

    def solve(self, state: State | None = None) -> Way | None:
        """Find a way of fewest keys to the star from `state` (None: the start); None where there is none."""
        return shortest(state or self.start, self.moves, self.won)

    def never_stuck(self) -> bool:
        """Tell whether the star can be reached from every state that can be reached from the start."""
        befores: dict[State, list[State]] = {self.start: []}
        queue = [self.start]
        for state in queue:
            for _, after in () if self.won(state) else self.moves(state):
                if after not in befores:
                    befores[after] = []
                    queue.append(after)
                befores[after].append(state)
        winning = {state for state in queue if self.won(state)}
        stack = list(winning)
        while stack:
            for before in befores[stack.pop()]:
                if before not in winning:
                    winning.add(before)
                    stack.append(before)
        return len(winning) == len(queue)
