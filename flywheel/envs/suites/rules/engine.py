"""Run a compiled program of rules on a board, and search it; `rules.js` has the same semantics.

A turn gives each `player` a movement. Then, until nothing is to move any more: the rules in their order, movements (one
cell, where nothing of the same layer is in the way), the late rules, which see what has just moved. A rule is applied
in each of its directions, to all places where it matched, as long as that changes anything.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flywheel.envs.suites import search
from flywheel.envs.suites.search import Way
from flywheel.utils.errors import DataError

KEYS = ("up", "right", "down", "left")  # by direction
_STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))
_PASSES = 100  # of a turn
_SWEEPS = 100  # of a rule in one direction
_NOT_WON = 0.999  # the most that a state scores before it is won

Cells = tuple[int, ...]  # the objects of each cell, a bit each, row by row
Marks = list[dict[int, int]]  # by direction: cell -> objects


class EndlessRules(DataError):
    """Signal a turn whose rules never end."""


@functools.lru_cache(maxsize=64)
def _runs(cols: int, rows: int, length: int) -> tuple[tuple[tuple[int, ...] | None, ...], ...]:
    """Return, by direction and first cell, the cells of a run of `length`; None where it leaves the board."""
    found = []
    for dx, dy in _STEPS:
        runs = []
        for y, x in itertools.product(range(rows), range(cols)):
            run = [(x + dx * step, y + dy * step) for step in range(length)]
            inside = all(0 <= at < cols and 0 <= row < rows for at, row in run)
            runs.append(tuple(row * cols + at for at, row in run) if inside else None)
        found.append(tuple(runs))
    return tuple(found)


class RuleLevel:
    """Hold a program and a board. params: `program` (of `game.RuleGame`), `cols`, `rows`, `cells`.

    without: the mechanic (a group of rules) that is left out. fired: counts how often each rule, by its text, changed
    something. searched: boards that the last search found. endless: what a turn said whose rules never ended, or "".
    """

    def __init__(self, params: Mapping[str, Any], without: str = "") -> None:
        program = params["program"]
        self.cols, self.rows = params["cols"], params["rows"]
        self.start: Cells = tuple(params["cells"])
        self._player: int = program["player"]
        self._rivals = {1 << number: mask for number, mask in enumerate(program["rivals"])}
        rules = [
            {**rule, "cells": list({(cell[0], cell[1]) for row in rule["rows"] for cell in row})}
            for rule in program["rules"]
            if not without or rule["mechanic"] != without
        ]
        self._early = [rule for rule in rules if not rule["late"]]
        self._late = [rule for rule in rules if rule["late"]]
        self._win, self._lose = program["win"], program["lose"]
        self._next = _runs(self.cols, self.rows, 2)
        self.fired: dict[str, int] = {}
        self.searched = 0
        self.endless = ""

    # -- states -------------------------------------------------------------------------------------------------------
    def won(self, cells: Sequence[int]) -> bool:
        """Tell whether all conditions to win hold and none to lose."""
        return all(_holds(one, cells) for one in self._win) and not self.lost(cells)

    def lost(self, cells: Sequence[int]) -> bool:
        return any(_holds(one, cells) for one in self._lose)

    def score(self, cells: Sequence[int]) -> float:
        """Return how far the conditions to win are met, 1 exactly where the game is won."""
        if self.won(cells):
            return 1.0
        shares = 0.0
        for one in self._win:
            shares += _share(one, cells, self.start)
        return min(shares / len(self._win), _NOT_WON)

    def play(self, keys: Iterator[str] | Sequence[str]) -> Cells:
        """Return the board after `keys`: first letters of KEYS, and x, which begins again."""
        cells = self.start
        for key in keys:
            cells = self.start if key == "x" else self.after(cells, "urdl".index(key))
        return cells

    def after(self, cells: Cells, direction: int) -> Cells:
        """Return the board after a key; unchanged where its rules never end."""
        try:
            return self.turn(cells, direction)
        except EndlessRules as error:
            self.endless = f"{error.what}: {error.where}"
            return cells

    def moves(self, cells: Cells) -> Iterator[tuple[int, Cells]]:
        """Yield (direction, board after it) of each key that changes something."""
        if not self.lost(cells):
            for direction in range(4):
                if (after := self.after(cells, direction)) != cells:
                    yield direction, after

    def explore(self, limit: int, most: int) -> Iterator[tuple[int, Cells]]:
        """Yield (keys, board) of up to `limit` boards that `most` keys or fewer lead to, the nearest first."""
        depths = {self.start: 0}
        queue = [self.start]
        for cells in queue:
            yield depths[cells], cells
            for _, after in self.moves(cells) if depths[cells] < most else ():
                if after not in depths and len(depths) < limit:
                    depths[after] = depths[cells] + 1
                    queue.append(after)

    def solve(self, cells: Cells | None = None, limit: int = 20_000, most: int = 10_000) -> Way | None:
        """Find a shortest way to win from `cells` (None: the start) by `most` keys; None where there is none.

        limit: boards found at most. Raises SearchLimit beyond it.
        """
        start = self.start if cells is None else cells
        depths = {start: 0}

        def moves(now: Cells) -> Iterator[tuple[int, Cells]]:
            if depths[now] < most:
                for direction, after in self.moves(now):
                    depths.setdefault(after, depths[now] + 1)
                    self.searched = len(depths)
                    yield direction, after

        return search.shortest(start, moves, self.won, limit)

    # -- a turn -------------------------------------------------------------------------------------------------------
    def turn(self, cells: Cells, direction: int) -> Cells:
        """Return the board after a key. Raises EndlessRules, which names the rule."""
        board, player = list(cells), self._player
        moving: Marks = [{}, {}, {}, {}]
        moving[direction] = {cell: player for cell, there in enumerate(board) if there & player}
        for _ in range(_PASSES):
            moved: Marks = [{}, {}, {}, {}]
            self._apply(self._early, board, moving, moving)
            self._move(board, moving, moved)
            moving = [{}, {}, {}, {}]
            self._apply(self._late, board, moved, moving)
            if not any(bits for marks in moving for bits in marks.values()):
                return tuple(board)
        raise EndlessRules("a turn's movements never end", where="its rules with `>>`", fix="let them come to a stop")

    def _move(self, board: list[int], moving: Marks, moved: Marks) -> None:
        going = True
        while going:
            going = False
            for direction, marks in enumerate(moving):
                for cell in sorted(marks):
                    run = self._next[direction][cell]
                    left = marks[cell] if run else 0
                    while left:
                        bit = left & -left
                        left ^= bit
                        there = run[1]
                        if not board[there] & self._rivals[bit]:
                            board[cell] ^= bit
                            board[there] |= bit
                            marks[cell] ^= bit
                            moved[direction][there] = moved[direction].get(there, 0) | bit
                            going = True

    def _apply(self, rules: Sequence[Mapping[str, Any]], board: list[int], seen: Marks, ahead: Marks) -> None:
        """Apply rules. seen: movements that left sides ask for. ahead: where right sides write them."""
        kinds = set(board)  # few, so that most rules are passed over without a look at each cell
        for rule in rules:
            for have, no in rule["cells"]:
                if not any(there & have == have and not there & no for there in kinds):
                    break
            else:
                if all(_holds(one, board) for one in rule["when"]) and self._apply_rule(rule, board, seen, ahead):
                    kinds = set(board)

    def _apply_rule(self, rule: Mapping[str, Any], board: list[int], seen: Marks, ahead: Marks) -> bool:
        rows, before = rule["rows"], self.fired.get(rule["text"], 0)
        for direction in rule["directions"]:
            fits = functools.partial(_fits, board, seen, direction)
            for _ in range(_SWEEPS):
                changed = False
                for places in self._matches(rows, direction, board, seen):
                    if not changed or all(map(fits, rows, places)):
                        for row, run in zip(rows, places, strict=True):
                            changed |= _rewrite(row, run, direction, board, seen, ahead)
                if not changed:
                    break
                self.fired[rule["text"]] = self.fired.get(rule["text"], 0) + 1
            else:
                raise EndlessRules("a rule never ends", where=rule["text"], fix="let it change what it asks for")
        return self.fired.get(rule["text"], 0) > before

    def _matches(
        self, rows: Sequence[Sequence[Sequence[int]]], direction: int, board: list[int], seen: Marks
    ) -> list[tuple[tuple[int, ...], ...]]:
        """List where the rows of a rule match: a run of cells for each, in the order of their first cells."""
        every = []
        for row in rows:
            runs = _runs(self.cols, self.rows, len(row))[direction]
            for number, (_, _, along, against, *_) in enumerate(row):
                if along | against:  # few cells have a movement
                    back = _runs(self.cols, self.rows, number + 1)[direction ^ 2]
                    marks = seen[direction if along else direction ^ 2]
                    firsts = sorted(back[cell][-1] for cell in marks if back[cell])
                    break
            else:
                have, no = row[0][:2]
                firsts = [cell for cell, there in enumerate(board) if there & have == have and not there & no]
            found = [runs[cell] for cell in firsts if runs[cell] and _fits(board, seen, direction, row, runs[cell])]
            if not found:
                return []
            every.append(found)
        return list(itertools.product(*every))


def _fits(board: list[int], seen: Marks, direction: int, row: Sequence[Sequence[int]], run: tuple[int, ...]) -> bool:
    for (have, no, along, against, *_), cell in zip(row, run, strict=True):
        there = board[cell]
        if there & have != have or there & no:
            return False
        if along and seen[direction].get(cell, 0) & along != along:
            return False
        if against and seen[direction ^ 2].get(cell, 0) & against != against:
            return False
    return True


def _rewrite(
    row: Sequence[Sequence[int]], run: tuple[int, ...], direction: int, board: list[int], seen: Marks, ahead: Marks
) -> bool:
    changed = False
    for (_, _, _, _, clear, add, unmark, along, against), cell in zip(row, run, strict=True):
        old = board[cell]
        board[cell] = new = old & ~clear | add
        changed |= new != old
        for way in range(4):
            if seen[way].get(cell, 0) & (unmark | old & ~new):
                seen[way][cell] &= ~(unmark | old & ~new)
                changed = True
            if along | against or old & ~new:
                before = ahead[way].get(cell, 0)
                mark = along if way == direction else against if way == direction ^ 2 else 0
                after = before & ~(along | against | old & ~new) | mark
                if after != before:
                    ahead[way][cell] = after
                    changed = True
    return changed


def _holds(condition: Sequence[Any], cells: Sequence[int]) -> bool:
    kind, bit, ground, number = condition
    both = bit | ground
    if kind == "no":
        return not any(there & both == both for there in cells)
    if kind == "some":
        return any(there & both == both for there in cells)
    if kind == "all":
        return not any(there & bit and not there & ground for there in cells)
    return sum(there & both == both for there in cells) >= number


def _share(condition: Sequence[Any], cells: Sequence[int], start: Sequence[int]) -> float:
    """Return how far a condition is met, 0 to 1; of `no` by how many there were at the start."""
    kind, bit, ground, number = condition
    both = bit | ground
    count = sum(there & both == both for there in cells)
    if kind == "no":
        return 1 - count / max(count, sum(there & both == both for there in start), 1)
    if kind == "all":
        total = sum(there & bit != 0 for there in cells)
        return count / total if total else 1.0
    return min(count / max(number, 1), 1.0)
