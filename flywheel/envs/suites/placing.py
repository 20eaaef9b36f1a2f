"""Hold the rules and the solver of games where pieces from a tray of three go on a board and full lines clear.

`shared/placing.js` has the same rules. Each game (wood, hexes) says which cells its board has, which cells form a line,
and where on the screen a cell is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flywheel.agent.actions import Action, Drag
from flywheel.envs.base import Task
from flywheel.envs.suites.number_words import cardinal
from flywheel.envs.suites.search import Plans, Way, beam
from flywheel.envs.suites.steps import say, spot, where

Cell = tuple[int, int]
TRAY = 3
_WIDTHS = (6, 60, 300)  # of the beam search; the wider ones are for boards on which another player has moved
_COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "pink")
_COUNTS = ("no", "a", *map(cardinal, range(2, 7)))


class PlacingState(NamedTuple):
    """Hold a state: `filled` has a bit for each filled cell, `tray` the numbers of the pieces in it.

    dealt: pieces dealt so far. lines: lines cleared so far.
    """

    filled: int
    tray: tuple[int, ...]
    dealt: int
    lines: int


class Placement(NamedTuple):
    """Describe where a piece may be placed. mask: the cells that it fills, as bits."""

    cell: Cell  # of the piece's first square
    mask: int
    lines: tuple[int, ...]  # the lines that it touches, as masks


class Level:
    """Hold what a task fixes, a board and the pieces to come; list and search placements.

    cells: of the board. lines: the cells of each line. params: `filled` (cells filled at the start), `pieces` (each
    with `shape`, cell offsets, and `colour`), `target` (lines to clear).
    """

    def __init__(self, cells: Sequence[Cell], lines: Sequence[Sequence[Cell]], params: Mapping[str, Any]) -> None:
        self.cells = list(cells)
        self._bit = {cell: 1 << number for number, cell in enumerate(cells)}
        self._lines = [sum(self._bit[cell] for cell in line) for line in lines]
        self.target: int = params["target"]
        shapes = {str(piece["shape"]): piece["shape"] for piece in params["pieces"]}
        known = {name: self._placements(shape) for name, shape in shapes.items()}
        self._pieces = [known[str(piece["shape"])] for piece in params["pieces"]]
        tray = tuple(range(min(TRAY, len(self._pieces))))
        self.start = PlacingState(self.mask(map(tuple, params["filled"])), tray, len(tray), 0)

    def mask(self, cells: Any) -> int:
        """Return an integer in which the bits of `cells` are set."""
        return sum(self._bit[cell] for cell in cells)

    def _placements(self, shape: Sequence[Sequence[int]]) -> list[Placement]:
        found = []
        for x, y in self.cells:
            squares = [(x + dx, y + dy) for dx, dy in shape]
            if all(square in self._bit for square in squares):
                mask = self.mask(squares)
                found.append(Placement((x, y), mask, tuple(line for line in self._lines if line & mask)))
        return found

    def moves(self, state: PlacingState) -> Iterator[tuple[tuple[int, Cell], PlacingState]]:
        """Yield each move that fits, (piece, cell of its first square), with the state after it."""
        filled, dealt = state.filled, state.dealt
        for piece in state.tray:
            tray = tuple(number for number in state.tray if number != piece)
            if not tray:
                tray = tuple(range(dealt, min(dealt + TRAY, len(self._pieces))))
                dealt += len(tray)
            for cell, mask, touched in self._pieces[piece]:
                if filled & mask:
                    continue
                after, gone, lines = filled | mask, 0, state.lines
                for line in touched:
                    if after & line == line:
                        gone |= line
                        lines += 1
                yield (piece, cell), PlacingState(after & ~gone, tray, dealt, lines)

    def won(self, state: PlacingState) -> bool:
        """Tell whether at least the target's number of lines is cleared in `state`."""
        return state.lines >= self.target

    def value(self, state: PlacingState) -> float:
        """Rate a state, higher is better: lines cleared, lines nearly full, cells free."""
        near = 0.0
        for line in self._lines:
            near += ((state.filled & line).bit_count() / line.bit_count()) ** 4
        return 3 * state.lines + near - 0.12 * state.filled.bit_count()

    def solve(self, state: PlacingState | None = None, widths: Sequence[int] = _WIDTHS) -> Way | None:
        """Find placements that clear the target's lines from `state` (None: the start); None where no search finds any.

        widths: of the beam search, tried in order.
        """
        for width in widths:
            way = beam(self.start if state is None else state, self.moves, self.won, self.value, width)
            if way is not None:
                return way
        return None


def deal(shapes: Sequence[Sequence[Cell]], count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Draw `count` pieces with shapes out of `shapes`; the three of a tray differ in colour."""
    pieces: list[dict[str, Any]] = []
    while len(pieces) < count:
        for colour in rng.sample(_COLOURS, TRAY):
            pieces.append({"shape": [list(square) for square in rng.choice(shapes)], "colour": colour})
    return pieces[:count]


def attempt(
    make: Callable[[Mapping[str, Any]], Level], params: dict[str, Any], fewest: int, most: int, thought: bool
) -> dict[str, Any] | None:
    """Return `params` if the level can be won in `fewest` to `most` placements, else None.

    make: builds the level from the params. thought: True also requires that greedy play, the best placement each time,
    does not win within `most`.
    """
    level = make(params)
    if thought:
        greedy = level.solve(widths=(1,))
        if greedy is not None and len(greedy) <= most:
            return None
    way = level.solve(widths=_WIDTHS[:1])
    return params if way and fewest <= len(way) <= most else None


def read(level: Level, state: Mapping[str, Any]) -> PlacingState:
    """Convert the state of the page to that of the search."""
    filled = level.mask(cell for cell, colour in zip(level.cells, state["cells"], strict=True) if colour)
    tray = tuple(piece for piece in state["tray"] if piece is not None)
    return PlacingState(filled, tray, state["dealt"], state["lines"])


def step(
    task: Task,
    state: Mapping[str, Any],
    rng: random.Random,
    level: Level,
    plans: Plans,
    centre: Callable[[Cell], tuple[float, float]],
) -> tuple[str, Action] | None:
    """Return thought and action for the next placement, a drag from the tray; None at the end or where none is found.

    task, state: being played. rng: of the wording. level: of the task. plans: cached ways. centre: returns the centre
    of a cell in units of the board. Raises DataError where `state` does not show the piece.
    """
    if state["terminated"]:
        return None
    now = read(level, state)
    move = plans.move(task.task_id, now, level.solve)
    if move is None:
        return None
    number, (x, y) = move
    piece = task.params["pieces"][number]
    places = [centre((x + dx, y + dy)) for dx, dy in piece["shape"]]
    goal = tuple((min(axis) + max(axis)) / 2 for axis in zip(*places, strict=True))
    action = Drag(where(state, f"piece {number % TRAY}"), spot(state, *goal))
    after = dict(level.moves(now))[move]
    name = f"the {piece['colour']} piece"
    if full := after.lines - now.lines:
        return _filling(name, full, rng), action
    side = _side(goal, [centre(cell) for cell in level.cells])
    return say(rng, f"I put {name} {side}.", f"Now {name} {side}.", f"Room for {name} {side}."), action


def _filling(name: str, full: int, rng: random.Random) -> str:
    lines = "a line" if full == 1 else f"{_COUNTS[min(full, 6)]} lines"
    return say(rng, f"{name.capitalize()} fills {lines}.", f"With {name} I clear {lines}.")


def _side(at: Sequence[float], cells: Sequence[tuple[float, float]]) -> str:
    """Say where on the board the point `at` is, such as "at the top left" or "in the middle"."""
    words = []
    for axis, (low, high) in ((1, ("top", "bottom")), (0, ("left", "right"))):
        values = [cell[axis] for cell in cells]
        share = (at[axis] - min(values)) / (max(values) - min(values))
        if share < 0.36:
            words.append(low)
        elif share > 0.64:
            words.append(high)
    return f"at the {' '.join(words)}" if words else "in the middle"
