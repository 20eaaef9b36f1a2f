"""The rules of assembling a figure, as `assemble.js` has them, and how pieces fill it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.envs.suites.search import Way

Cell = tuple[int, int]
Cells = frozenset[Cell]
Place = tuple[int, Cell]  # quarter turns, and the square of the piece's corner


def turned(cells: Cells, times: int) -> Cells:
    """Return the squares after so many quarter turns to the right, from (0, 0) on."""
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
    """Of each piece its quarter turns and the square of its corner in the figure, None where it lies below."""

    pieces: tuple[tuple[int, Cell | None], ...]


class Level:
    """What does not change: the params of a task."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.figure: Cells = frozenset((x, y) for x, y in params["figure"])
        self.pieces = [frozenset((x, y) for x, y in piece["cells"]) for piece in params["pieces"]]
        self.start = State(tuple((piece["turn"], None) for piece in params["pieces"]))
        self._bits = {cell: bit for bit, cell in enumerate(sorted(self.figure, key=lambda cell: cell[::-1]))}
        self._at = self._places()

    def fillings(self, state: State | None = None) -> Iterator[dict[int, Place]]:
        """All ways to fill the figure: piece -> place. Placed pieces of `state`, if one is given, stay."""
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
        """For each square all (piece, squares as bits, place) whose first square in reading order it is."""
        found: list[list[tuple[int, int, Place]]] = [[] for _ in self._bits]
        for number, piece in enumerate(self.pieces):
            ways = {turned(piece, turn): turn for turn in reversed(range(4))}  # equal ones count once
            for cells, turn in sorted(ways.items(), key=lambda way: way[1]):
                first = min(cells, key=lambda cell: cell[::-1])
                for square, bit in self._bits.items():
                    at = square[0] - first[0], square[1] - first[1]
                    if (there := moved(cells, at)) <= self.figure:
                        found[bit].append((number, self._mask(there), (turn, at)))
        return found

    def solve(self, state: State | None = None) -> Way | None:
        """Fewest turns and drags to one filling; None where the figure cannot be filled.

        Placed pieces stay where they can; else the whole is planned anew, and what is in the way goes first. Moves are
        ("turn", piece, None), ("place", piece, corner) and ("back", piece, None).
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
