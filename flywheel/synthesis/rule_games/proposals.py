"""Let a language model invent a mechanic for a game, which then has to pass the gates of `generator.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.envs.suites import catalogue
from flywheel.policy.client.language_model import LanguageModelError, OpenAIChatModel
from flywheel.synthesis.rule_games.generator import LIBRARY, GameDeclaration, Refused, declare_game
from flywheel.utils import yaml_text

_GOALS = ("exit", "gems", "crates", "twins")
_EXAMPLE = "hole"
_SYSTEM = """\
You invent a mechanic of a small puzzle game on a grid and write it as YAML, nothing else. A rule is LEFT -> RIGHT;
cells are separated by |, `> x` is an x that moves along the rule's direction, `no x` an x that is absent. Rules that
begin with `late` run after the movements; there `> x` has just moved, and `>> x` on the right moves on. Objects: name:
[[layer, shape, colour, icon, label]], layer one of ground, floor, body (one of each fits a cell), shape one of block,
thing, mark. place: how many, at five levels. words: the rules in plain words, objects in braces."""


class MechanicAnswer(BaseModel):
    """Hold a mechanic that the language model answered, in the form of mechanics.yaml, with a look for each object."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str = Field(min_length=1, max_length=20)
    objects: dict[str, Annotated[list[Annotated[list[str], Field(min_length=5, max_length=5)]], Field(min_length=1)]]
    rules: list[str] = Field(min_length=1, max_length=6)
    place: dict[str, Annotated[list[Annotated[int, Field(ge=0, le=12)]], Field(min_length=5, max_length=5)]]
    words: str = Field(min_length=10, max_length=400)
    line: str = "wall"


def propose_by_model(model: OpenAIChatModel) -> Callable[[random.Random], GameDeclaration]:
    """Return a function that composes a goal of the library with a mechanic that the model invents, for `make_games`.

    model: asked once a proposal. The function takes the generator that draws goal, icon and looks, and returns the
    game. It raises Refused where the model fails, or its answer is no mechanic that a game can be made of.
    """

    def propose(rng: random.Random) -> GameDeclaration:
        goal, icon = rng.choice(_GOALS), rng.choice(sorted(catalogue.load_look()["icons"]))
        colours = ", ".join(catalogue.load_look()["colours"])
        known = ", ".join(["player", "wall", *LIBRARY["goals"][goal]["objects"]])
        example = {"name": _EXAMPLE, **LIBRARY["mechanics"][_EXAMPLE]}
        example["objects"] = {"hole": [["floor", "mark", "black", "circle", "hole"]]}
        example["place"] = {"hole": [1, 2, 2, 3, 3]}
        form = yaml.safe_dump(
            {key: example[key] for key in ("name", "objects", "rules", "place", "words")}, sort_keys=False
        )
        question = f"Example:\n{form}\nThere are: {known}. Colours: {colours}. Invent one with the icon {icon}."
        try:
            text = model.complete(_SYSTEM, question)
        except LanguageModelError as error:
            raise Refused(f"the language model failed: {error.what}") from None
        part = parse_mechanic(text).model_dump()
        name = "".join(letter for letter in part["name"].lower() if letter.isascii() and letter.isalnum()) or "new"
        return declare_game({goal: LIBRARY["goals"][goal], f"lm{name}": part}, rng)

    return propose


def parse_mechanic(text: str) -> MechanicAnswer:
    """Parse the language model's answer, with or without a code fence. Raises Refused where it is no mechanic."""
    lines = [line for line in text.splitlines() if not line.startswith("```")]
    try:
        return MechanicAnswer.model_validate(yaml_text.parse_yaml("\n".join(lines)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is not YAML"
        raise Refused(f"the language model's answer is no mechanic: {told}") from None
