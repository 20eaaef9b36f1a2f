"""The rules of the sliding blocks, as `slide.js` has them, and all that can be reached from a level.

A state is one number: three bits for each block, the cell of its left or upper end along its own direction. Block 0,
the key, has the lowest bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flywheel.worlds.search import Way, shortest

_BITS = 3
_PLACE = 2**_BITS - 1


def state_of(places: Sequence[int]) -> int:
    return sum(place << (_BITS * block) for block, place in enumerate(places))


class Level:
    """What does not change: the blocks' lengths, directions and lanes, and where the gap is."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        size, blocks = params["size"], params["blocks"]
        self.start = state_of([block["x"] if block["across"] else block["y"] for block in blocks])
        self.goal = 0 if params["gap"] in ("left", "up") else size - blocks[0]["length"]
        # For each block the cells that it covers, a bit each, by its place.
        self._masks = []
        for block in blocks:
            step, lane = (1, block["y"] * size) if block["across"] else (size, block["x"])
            body = sum(1 << (step * n) for n in range(block["length"]))
            self._masks.append([body << (lane + step * place) for place in range(size - block["length"] + 1)])

    def places(self, state: int) -> list[int]:
        """The place of each block."""
        return [state >> (_BITS * block) & _PLACE for block in range(len(self._masks))]

    def moves(self, state: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Each (block, its new place), any distance that is free, with the state after it."""
        for block, place, after, _ in self._slides(state, self._taken(state)):
            yield (block, place), after

    def _taken(self, state: int) -> int:
        return sum(masks[place] for masks, place in zip(self._masks, self.places(state), strict=True))

    def _slides(self, state: int, taken: int) -> Iterator[tuple[int, int, int, int]]:
        """(block, its new place, the state after, the cells taken after) of each move."""
        for block, masks in enumerate(self._masks):
            shift = _BITS * block
            at = state >> shift & _PLACE
            others, rest = taken ^ masks[at], state ^ (at << shift)
            for way in (-1, 1):
                place = at + way
                while 0 <= place < len(masks) and not others & masks[place]:
                    yield block, place, rest | (place << shift), others | masks[place]
                    place += way

    def out(self, state: int) -> bool:
        """Whether the key is at the gap, and so out."""
        return state & _PLACE == self.goal

    def solve(self, state: int | None = None) -> Way | None:
        """The fewest moves from `state` (the start where None) that free the key; None where none do."""
        return shortest(self.start if state is None else state, self.moves, self.out)

    def far(self, limit: int) -> dict[int, int] | None:
        """Every state that the start leads to, with its fewest moves to an end; None where more than `limit`."""
        seen, ends = {self.start}, []
        front = [(self.start, self._taken(self.start))]
        for state, taken in front:  # which grows meanwhile
            if self.out(state):
                ends.append((state, taken))
                continue
            for _, _, after, cells in self._slides(state, taken):
                if after not in seen:
                    seen.add(after)
                    front.append((after, cells))
            if len(seen) > limit:
                return None
        # Moves can be taken back, so the ways from the ends are the ways to them; a key that is out stays out.
        far = {state: 0 for state, _ in ends}
        front, moves = ends, 0
        while front:
            moves += 1
            behind = []
            for state, taken in front:
                for _, _, after, cells in self._slides(state, taken):
                    if after not in far and not self.out(after):
                        far[after] = moves
                        behind.append((after, cells))
            front = behind
        return far
