"""The rules of the sliding blocks, as `slide.js` has them, and all that can be reached from a level.

A state is one number: three bits for each block, the cell of its left or upper end along its own direction. Block 0,
the key, has the lowest bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from flywheel.envs.suites.search import Way, shortest

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
        # For each block and place the cell that has to be free for a step back, and on; all cells where there is none.
        self._back = [[-1, *(a & ~b for a, b in pairwise(masks))] for masks in self._masks]
        self._on = [[*(b & ~a for a, b in pairwise(masks)), -1] for masks in self._masks]

    def places(self, state: int) -> list[int]:
        """Return the place of each block."""
        return [state >> (_BITS * block) & _PLACE for block in range(len(self._masks))]

    def moves(self, state: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Each (block, its new place), any distance that is free, with the state after it."""
        for block, place, after, _ in self._slides(state, self._taken(state)):
            yield (block, place), after

    def _taken(self, state: int) -> int:
        return sum(masks[place] for masks, place in zip(self._masks, self.places(state), strict=True))

    def _slides(self, state: int, taken: int) -> list[tuple[int, int, int, int]]:
        """(block, its new place, the state after, the cells taken after) of each move."""
        found = []
        for block, masks in enumerate(self._masks):
            shift = _BITS * block
            at = state >> shift & _PLACE
            for cells, way in ((self._back[block], -1), (self._on[block], 1)):
                place = at
                while not taken & cells[place]:
                    place += way
                    after = taken ^ masks[at] ^ masks[place]
                    found.append((block, place, state + ((place - at) << shift), after))
        return found

    def out(self, state: int) -> bool:
        """Tell whether the key is at the gap, and so out."""
        return state & _PLACE == self.goal

    def solve(self, state: int | None = None) -> Way | None:
        """Return the fewest moves from `state` (the start where None) that free the key; None where none do."""
        return shortest(self.start if state is None else state, self.moves, self.out)

    def ranges(self) -> list[tuple[int, int]]:
        """For each block, bounds of the places that it may ever get to: never too narrow, found without a search.

        A block passes a cell unless another one covers it wherever in its own bounds that one lies.
        """
        bounds = [(place, place) for place in self.places(self.start)]
        always = [masks[low] for masks, (low, _) in zip(self._masks, bounds, strict=True)]
        covered, wider = sum(always), True
        while wider:
            wider = False
            for block, masks in enumerate(self._masks):
                low, high = bounds[block]
                others = covered ^ always[block]
                while low and not others & masks[low - 1]:
                    low -= 1
                while high + 1 < len(masks) and not others & masks[high + 1]:
                    high += 1
                if (low, high) != bounds[block]:
                    bounds[block], wider = (low, high), True
                    always[block] = masks[low] & masks[high]
                    covered = others | always[block]
        return bounds

    def far(self, limit: int) -> dict[int, int] | None:
        """Every state that the start leads to, with its fewest moves to an end; None where more than `limit`."""
        beside: dict[int, list[int]] = {self.start: []}  # each state's neighbours
        front = [(self.start, self._taken(self.start))]
        for state, taken in front:  # which grows meanwhile
            if self.out(state):
                continue
            for _, _, after, cells in self._slides(state, taken):
                if after not in beside:
                    beside[after] = []
                    front.append((after, cells))
                beside[state].append(after)
                if self.out(after):
                    beside[after].append(state)
            if len(beside) > limit:
                return None
        # Moves can be taken back, so the ways from the ends are the ways to them; a key that is out stays out.
        queue = [state for state in beside if self.out(state)]
        far = dict.fromkeys(queue, 0)
        for state in queue:
            for after in beside[state]:
                if after not in far:
                    far[after] = far[state] + 1
                    queue.append(after)
        return far
