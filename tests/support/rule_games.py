"""Small games of rules for tests: one row or a map of letters, and what keys make of it."""

from __future__ import annotations

import yaml

from flywheel.envs.suites.rules.engine import RuleLevel
from flywheel.envs.suites.rules.game import RuleGame, RuleGameFile, make_rule_game

LETTERS = {"p": ["player"], "c": ["crate"], "#": ["wall"], "o": ["pad"], "i": ["ice"], "C": ["crate", "ice"],
           "P": ["player", "ice"], "*": ["crate", "pad"], "O": ["player", "pad"], ".": []}  # fmt: skip
CRATES = """
world: rows
title: Rows
instruction: Push every crate onto a pad.
objects:
  ice: {layer: ground, draw: ground, colour: blue}
  pad: {layer: floor, draw: mark, colour: green, icon: circle, label: pad}
  wall: {layer: body, draw: wall, colour: gray, label: wall}
  crate: {layer: body, draw: block, colour: orange, icon: square, label: crate}
  player: {layer: body, draw: piece, colour: red, icon: star, label: you}
rules:
  push: ["> player | crate -> > player | > crate"]
win: [all crate on pad]
"""


def declare(rules: dict | None = None, board: str = "pco", **changes) -> dict:
    """The declaration of the game CRATES with other rules, and with `board` as each level's map."""
    declared = {**yaml.safe_load(CRATES), "legend": LETTERS}
    declared["levels"] = {level: {"max_steps": 40, "maps": [board]} for level in range(1, 6)}
    return {**declared, **({"rules": rules} if rules is not None else {}), **changes}


def make(rules: dict | None = None, board: str = "pco", **changes) -> RuleGame:
    return make_rule_game(RuleGameFile.model_validate(declare(rules, board, **changes)), "here", b"")


def board_of(rules: dict | list | None, board: str, **changes) -> dict:
    """The first level's board of a game. rules: those of one mechanic, or of several."""
    return make({"own": rules} if isinstance(rules, list) else rules, board, **changes).maps[1][0]


def level_of(rules: dict | list | None, board: str, **changes) -> RuleLevel:
    return RuleLevel(board_of(rules, board, **changes))


def after(rules: dict | list | None, board: str, keys: str, **changes) -> str:
    """The board after keys of `urdl`, as letters of `LETTERS`, lines joined by "/"."""
    made = make({"own": rules} if isinstance(rules, list) else rules, board, **changes)
    level, bits = RuleLevel(made.maps[1][0]), made.program["bits"]
    letters = {sum(bits[name] for name in names): letter for letter, names in made_letters(changes).items()}
    cells = [letters[cell] for cell in level.play(keys)]
    return "/".join("".join(cells[row * level.cols : (row + 1) * level.cols]) for row in range(level.rows))


def made_letters(changes: dict) -> dict[str, list[str]]:
    return changes.get("legend", LETTERS)
