"""Parse the rules of a game file into a program of bit masks, which the page's script and `engine.py` both run.

A rule is `[late] [DIRECTION] LEFT -> RIGHT [when CONDITION and ...]`. A side is cells with `|` between them, or several
such rows in brackets; a cell names its objects, each with `>` or `<` before it for one that moves along the rule's
direction or against it, `>>` for one that is to move once more, or `no` for one that must be absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.utils.errors import BadInput, did_you_mean

MAX_OBJECTS = 28  # an object is a bit, and bits of JavaScript's integers are 32, one of them the sign
DIRECTIONS = ("up", "right", "down", "left")
_CHOICES = {**{name: [number] for number, name in enumerate(DIRECTIONS)}, "horizontal": [1, 3], "vertical": [0, 2]}
_MARKS = (">", "<", ">>", "no")
_SIGNS = (*_MARKS, "[", "]", "|")
_WORDS = re.compile(r"->|>>|[\[\]|<>]|[^\s\[\]|<>]+")
_CONDITION = re.compile(r"(all|some|no|count) (\w+)(?: on (\w+))?(?: (\d+))?")


class _Fault(Exception):
    """Signal what is wrong with a rule or condition."""


class RuleParser:
    """Parse the texts of one game. layers: layer of each object, in the order of their bits."""

    def __init__(self, layers: Mapping[str, str]) -> None:
        self._bits = {name: 1 << number for number, name in enumerate(layers)}
        self.rivals = {
            self._bits[name]: sum(self._bits[other] for other in layers if layers[other] == layer)
            for name, layer in layers.items()
        }

    def rule(self, text: str, field: str, where: str) -> dict[str, Any]:
        """Compile a rule. field, where: its place, for the error. Raises BadInput."""
        return self._told(self._rule, text, field, where)

    def condition(self, text: str, field: str, where: str) -> list[Any]:
        """Compile a condition to [kind, bit, bit of what it is on or 0, number]. Raises BadInput, as `rule`."""
        return self._told(self._condition, text, field, where)

    def _told(self, parse: Any, text: str, field: str, where: str) -> Any:
        try:
            return parse(text)
        except _Fault as error:
            raise BadInput(f"the manifest's {field}: {error}", where=where, fix=f"mend {text!r}") from None

    def _bit(self, name: str) -> int:
        if name not in self._bits:
            raise _Fault(f"no object is called {name!r}; {did_you_mean(name, self._bits)}")
        return self._bits[name]

    def _condition(self, text: str) -> list[Any]:
        found = _CONDITION.fullmatch(" ".join(text.split()))
        if not found or (found[1] == "all" and not found[3]) or (found[1] == "count") != bool(found[4]):
            raise _Fault("not `all A on B`, `some A [on B]`, `no A [on B]` or `count A [on B] NUMBER`")
        return [found[1], self._bit(found[2]), self._bit(found[3]) if found[3] else 0, int(found[4] or 0)]

    def _rule(self, text: str) -> dict[str, Any]:
        body, _, when = text.partition(" when ")
        words = _WORDS.findall(body)
        late = words[:1] == ["late"]
        words = words[late:]
        chosen = _CHOICES.get(words[0]) if words else None
        words = words[chosen is not None :]
        if words.count("->") != 1:
            raise _Fault("a rule has one `->`")
        cut = words.index("->")
        left, right = self._side(words[:cut]), self._side(words[cut + 1 :])
        if [len(row) for row in left] != [len(row) for row in right]:
            raise _Fault("both sides must have equally many cells")
        rows = [
            [self._cell(*pair, late) for pair in zip(*sides, strict=True)] for sides in zip(left, right, strict=True)
        ]
        if not all(any(cell[0] for cell in row) for row in rows):
            raise _Fault("each row of the left side must name an object that is there")
        turning = any(len(row) > 1 for row in rows) or any(
            cell[2] | cell[3] | cell[7] | cell[8] for row in rows for cell in row
        )
        return {
            "text": text,
            "late": late,
            "directions": chosen or (list(range(4)) if turning else [0]),
            "rows": rows,
            "when": [self._condition(one) for one in when.split(" and ")] if when else [],
        }

    def _side(self, words: Sequence[str]) -> list[list[dict[str, dict[str, None]]]]:
        """Return the rows of a side, each a list of cells: mark -> names of objects."""
        bare = "[" not in words
        rows: list[list[dict[str, dict[str, None]]]] = [[{}]] if bare else []
        opened, mark = bare, ""
        for word in words:
            if mark and word in _SIGNS:
                break
            if word == "[" and not opened:
                rows.append([{}])
                opened = True
            elif not opened or word == "[" or (bare and word == "]"):
                raise _Fault(f"{word!r} stands at a wrong place among the brackets")
            elif word == "]":
                opened = False
            elif word == "|":
                rows[-1].append({})
            elif word in _MARKS:
                mark = word
            else:
                rows[-1][-1].setdefault(mark, {})[word] = None
                mark = ""
        if mark:
            raise _Fault(f"{mark!r} stands before no object")
        if opened != bare:
            raise _Fault("a bracket is not closed")
        return rows

    def _cell(self, left: Mapping[str, Any], right: Mapping[str, Any], late: bool) -> list[int]:
        """Return [have, no, along, against, clear, add, unmark, mark along, mark against] of a cell, masks each."""

        def mask(side: Mapping[str, Any], *marks: str) -> int:
            return sum({self._bit(name) for mark in marks for name in side.get(mark, ())})

        have, there, absent = mask(left, "", ">", "<"), mask(right, "", ">", "<", ">>"), mask(left, "no")
        if mask(left, ">>") or mask(right, "no"):
            raise _Fault("`>>` stands on the right side alone, `no` on the left")
        along, against = mask(left, ">"), mask(left, "<")
        if late and (mask(right, ">") & ~along or mask(right, "<") & ~against):
            raise _Fault("in a late rule `>` says what has just moved: write `>>` for what is to move once more")
        if not late and mask(right, ">>"):
            raise _Fault("`>>` belongs to late rules")
        for side in (have, there):
            if any(bit & side and self.rivals[bit] & side & ~bit for bit in self.rivals):
                raise _Fault("two objects of one layer cannot be in one cell")
        if have & absent:
            raise _Fault("an object cannot be there and be absent")
        new = there & ~have
        clear = have & ~there | sum({self.rivals[bit] for bit in self.rivals if bit & new}) & ~there
        ahead, back = (mask(right, ">>"), 0) if late else (mask(right, ">"), mask(right, "<"))
        kept = mask(right, ">", "<", ">>")
        return [have, absent, along, against, clear, new, (along | against) & there & ~kept, ahead, back]
