"""Mirror the rules of assembling a figure (`assemble.js`) in Python; find how pieces fill it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.envs.suites.search import Way

Cell = tuple[int, int]
Cells = frozenset[Cell]
Place = tuple[int, Cell]  # quarter turns, and the square that the piece's corner is on


def turned(cells: Cells, times: int) -> Cells:
    """Return the squares after `times` quarter turns clockwise, shifted to begin at (0, 0)."""
    for _ in range(times):
        height = 1 + max(y for _, y in cells)
        cells = frozenset((height - 1 - y, x) for x, y in cells)
    return cells


def size(cells: Cells) -> tuple[int, int]:
    return 1 + max(x for x, _ in cells), 1 + max(y for _, y in cells)


def moved(cells: Cells, corner: Cell) -> Cells:
    return frozenset((x + corner[0], y + corner[1]) for x, y in cells)


@dataclass(frozen=True)
class State:
    """Hold for each piece its quarter turns and its corner's square in the figure; None: it lies below the figure."""

    pieces: tuple[tuple[int, Cell | None], ...]


class Level:
    """Hold what a task fixes, the figure and its pieces; find fillings and moves."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.figure: Cells = frozenset((x, y) for x, y in params["figure"])
        self.pieces = [frozenset((x, y) for x, y in piece["cells"]) for piece in params["pieces"]]
        self.start = State(tuple((piece["turn"], None) for piece in params["pieces"]))
        self._bits = {cell: bit for bit, cell in enumerate(sorted(self.figure, key=lambda cell: cell[::-1]))}
        self._at = self._places()

    def fillings(self, state: State | None = None) -> Iterator[dict[int, Place]]:
        """Yield all ways to fill the figure, as piece -> place. Pieces that are placed in `state` stay there."""
        given = dict(enumerate((state or self.start).pieces))
        fixed = {number: (turn, at) for number, (turn, at) in given.items() if at is not None}
        empty = (1 << len(self.figure)) - 1
        for number, (turn, at) in fixed.items():
            empty &= ~self._mask(moved(turned(self.pieces[number], turn), at))
        yield from self._fill(empty, frozenset(given) - frozenset(fixed), fixed)

    def _fill(self, empty: int, unused: frozenset[int], chosen: dict[int, Place]) -> Iterator[dict[int, Place]]:
        if not empty:
            yield chosen
            return
        for number, mask, place in self._at[(empty & -empty).bit_length() - 1]:
            if number in unused and mask & empty == mask:
                yield from self._fill(empty & ~mask, unused - {number}, {**chosen, number: place})

    def _mask(self, cells: Cells) -> int:
        return sum(1 << self._bits[cell] for cell in cells)

    def _places(self) -> list[list[tuple[int, int, Place]]]:
        """List for each square the (piece, squares as bits, place) of which it is the first square in reading order."""
        found: list[list[tuple[int, int, Place]]] = [[] for _ in self._bits]
        for number, piece in enumerate(self.pieces):
            ways = {turned(piece, turn): turn for turn in reversed(range(4))}  # equal orientations count once
            for cells, turn in sorted(ways.items(), key=lambda way: way[1]):
                first = min(cells, key=lambda cell: cell[::-1])
                for square, bit in self._bits.items():
                    at = square[0] - first[0], square[1] - first[1]
                    if (there := moved(cells, at)) <= self.figure:
                        found[bit].append((number, self._mask(there), (turn, at)))
        return found

    def solve(self, state: State | None = None) -> Way | None:
        """Find turns and drags that lead to one filling; None where the figure cannot be filled.

        Placed pieces stay where a filling allows it; otherwise all is planned anew, and pieces in the way are removed
        first. Moves are ("turn", piece, None), ("place", piece, corner) and ("back", piece, None), each with the state
        after it.
        """
        state = state or self.start
        filling = next(self.fillings(state), None)
        if filling is None:
            filling = next(self.fillings(), None)
        if filling is None:
            return None
        way: Way = []

        def note(move: str, number: int, after: tuple[int, Cell | None]) -> None:
            nonlocal state
            pieces = list(state.pieces)
            pieces[number] = after
            state = State(tuple(pieces))
            way.append(((move, number, after[1]), state))

        for number, (turn, at) in enumerate(state.pieces):
            if at is not None and (turn, at) != filling[number]:
                note("back", number, (turn, None))
        for number, place in sorted(filling.items(), key=lambda item: item[1][1][::-1]):
            while state.pieces[number][1] is None and turned(self.pieces[number], state.pieces[number][0]) != turned(
                self.pieces[number], place[0]
            ):
                note("turn", number, ((state.pieces[number][0] + 1) % 4, None))
            if state.pieces[number][1] is None:
                note("place", number, (state.pieces[number][0], place[1]))
        return way
