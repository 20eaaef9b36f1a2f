"""Outputs in the forms of other models, and what each means: the corpus that `flywheel bench parse` reads.

`foreign_forms.json` was written by hand from the models' own documentation (each group names it), in values of our
own. A group is parsed under its `template` and `space`; one marked `held_out` was written before the parser read these
forms, and not looked at until it did. What is meant is an action's name and its arguments, the numbers of points as the
output has them, or `fault` and words of the reason, where the output is to be refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import ACTION_NAMES, Action, ParseError, Point
from flywheel.agent.grammar import Grammar, grid_space, norm1_space, norm1000_space, pixel_space
from flywheel.agent.parsing.parser import parse_response

CORPUS = Path(__file__).with_suffix(".json")
_KINDS = {name: kind for kind, name in ACTION_NAMES.items()}
_SPACES = {"points": grid_space, "boxes": norm1000_space, "pixels": pixel_space, "fractions": norm1_space}


@dataclass(frozen=True)
class Output:
    """One output. meant: the action, or words of the fault's reason. held_out: see above."""

    family: str
    grammar: Grammar
    text: str
    meant: Action | str
    held_out: bool = False

    def read_as_meant(self) -> bool:
        return self.agrees(parse_response(self.text, self.grammar).action)

    def read_as_another(self) -> bool:
        """Whether an action was read that is not meant: worse than to read none."""
        action = parse_response(self.text, self.grammar).action
        return not isinstance(action, ParseError) and not self.agrees(action)

    def agrees(self, action: Action | ParseError) -> bool:
        if isinstance(action, ParseError):
            return isinstance(self.meant, str) and self.meant in action.reason
        return action == self.meant


def outputs() -> Iterator[Output]:
    """All that the actions of today can express: groups that need another wait for it."""
    for group in json.loads(CORPUS.read_text(encoding="utf-8")):
        if group.get("needs", "click") not in _KINDS:
            continue
        kind, *numbers = group["space"].split()
        grammar = Grammar(group["template"], _SPACES[kind](*map(int, numbers)), "browser")
        for text, meant in group["outputs"]:
            yield Output(group["family"], grammar, text, _meant(meant, grammar), group.get("held_out", False))


def _meant(words: list[Any], grammar: Grammar) -> Action | str:
    name, *values = words
    if name == "fault":
        return values[0]

    def points() -> list[Point]:
        return [
            Point(grammar.space.x.read(x), grammar.space.y.read(y))
            for x, y in zip(values[::2], values[1::2], strict=True)
        ]

    if name == "scroll":
        direction = values.pop()
        return act.Scroll(Point(0.5, 0.5) if values[0] is None else points()[0], direction)
    if name == "hotkey":
        return act.Hotkey(tuple(values))
    if name == "type_at":
        x, y, *text = values
        return act.TypeAt(Point(grammar.space.x.read(x), grammar.space.y.read(y)), *text)
    if values and not isinstance(values[0], str):
        return _KINDS[name](*points())
    return _KINDS[name](*values)
