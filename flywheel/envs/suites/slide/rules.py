"""Mirror the rules of the game sliding blocks (`slide.js`) in Python; search all that can be reached from a level.

A state is one number: three bits for each block, its place, which is the cell of its left or upper end along its own
direction. Block 0, the key, has the lowest bits.
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
    """Hold what a task fixes, the blocks' lengths, directions and lanes, and the gap; list and search moves."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        size, blocks = params["size"], params["blocks"]
        self.start = state_of([block["x"] if block["across"] else block["y"] for block in blocks])
        self.goal = 0 if params["gap"] in ("left", "up") else size - blocks[0]["length"]
        # For each block and place the cells that it covers, a bit each.
        self._masks = []
        for block in blocks:
            step, lane = (1, block["y"] * size) if block["across"] else (size, block["x"])
            body = sum(1 << (step * n) for n in range(block["length"]))
            self._masks.append([body << (lane + step * place) for place in range(size - block["length"] + 1)])
        # For each block and place the bit of the cell that has to be free for a step back, or on; -1, all bits, at the
        # end of the lane.
        self._back = [[-1, *(a & ~b for a, b in pairwise(masks))] for masks in self._masks]
        self._on = [[*(b & ~a for a, b in pairwise(masks)), -1] for masks in self._masks]

    def places(self, state: int) -> list[int]:
        """Return the place of each block."""
        return [state >> (_BITS * block) & _PLACE for block in range(len(self._masks))]

    def moves(self, state: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield each move over any free distance, (block, its new place), with the state after it."""
        for block, place, after, _ in self._slides(state, self._taken(state)):
            yield (block, place), after

    def _taken(self, state: int) -> int:
        return sum(masks[place] for masks, place in zip(self._masks, self.places(state), strict=True))

    def _slides(self, state: int, taken: int) -> list[tuple[int, int, int, int]]:
        """List the moves as (block, its new place, the state after, the cells taken after, as bits)."""
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
        """Tell whether the key is at the gap, which frees it."""
        return state & _PLACE == self.goal

    def solve(self, state: int | None = None) -> Way | None:
        """Find the fewest moves from `state` (None: the start) that free the key; None where none do."""
        return shortest(self.start if state is None else state, self.moves, self.out)

    def ranges(self) -> list[tuple[int, int]]:
        """Return, for each block, bounds (lowest, highest) of the places that it can ever reach; never too narrow.

        Needs no search. A cell stops a block only where another block covers that cell at all places within its own
        bounds.
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

    def map_distances(self, limit: int) -> dict[int, int] | None:
        """Map every reachable state to its fewest moves until the key is free; None for more than `limit` states."""
        beside: dict[int, list[int]] = {self.start: []}  # each state's neighbours
        front = [(self.start, self._taken(self.start))]
        for state, taken in front:  # the loop appends to `front`
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
        # Moves can be reversed, so ways from the end states are also ways to them; a key that is out stays out.
        queue = [state for state in beside if self.out(state)]
        far = dict.fromkeys(queue, 0)
        for state in queue:
            for after in beside[state]:
                if after not in far:
                    far[after] = far[state] + 1
                    queue.append(after)
        return far
