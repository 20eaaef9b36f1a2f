"""Define how a model writes its actions: the text form, and the coordinate space of its points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from flywheel import config
from flywheel.agent import coordinates
from flywheel.agent.coordinates import CoordinateSpace
from flywheel.utils.errors import BadInput

NO_SCREEN = (1000, 1000)  # for the grammar where nothing is seen but text: a point of it means nothing there
Form = Literal["minimal", "point", "ui_tars_1_5", "ui_tars_1_0", "tool_call"]


@dataclass(frozen=True)
class Grammar:
    """Say how a model writes its actions.

    form: as `policy.template`; minimal is written as point. space: what its numbers mean. actions: the action space
    that its prompt lists. functions: whether that holds the SDK functions; any grammar reads every action. thinks: the
    prompt itself opens the thinking, so that a model's text is thought until `</think>`.
    """

    form: Form
    space: CoordinateSpace
    actions: Literal["computer", "browser", "mobile", "game"] = "browser"
    functions: bool = False
    thinks: bool = False

    @classmethod
    def of(cls, policy: config.PolicySettings, screen: tuple[int, int] | None = None) -> Grammar:
        """Make the grammar that the settings name.

        policy: block `policy`. screen: width and height of the screens that the model is shown, in pixels. Only the
        pixels space depends on it; raises BadInput where that space is set and there is no screen, or one that cannot
        be resized.
        """
        return cls(policy.template, _space(policy, screen), policy.actions, policy.functions, policy.thinks)

    @classmethod
    def of_settings(cls, settings: config.Settings) -> Grammar:
        """Make the grammar of a workspace, whose screens have the sandbox's size."""
        return cls.of(settings.policy, (settings.sandbox.width, settings.sandbox.height))


def _space(policy: config.PolicySettings, screen: tuple[int, int] | None) -> CoordinateSpace:
    if policy.coordinate_format == "grid":
        return coordinates.grid_space(policy.coordinates)
    if policy.coordinate_format == "norm1000":
        return coordinates.norm1000_space()
    if policy.coordinate_format == "norm1":
        return coordinates.norm1_space()
    if screen is None:
        raise BadInput(
            "a point in pixels has no meaning without the size of the screen", where="policy.coordinate_format"
        )
    resized = coordinates.smart_resize(*screen, policy.resize_factor, policy.min_pixels, policy.max_pixels)
    return coordinates.pixel_space(*resized)


def as_grammar(grammar: Grammar | int) -> Grammar:
    """Return `grammar`; a plain number n stands for the embedded model's: the point form with n cells an axis."""
    return grammar if isinstance(grammar, Grammar) else _cells(grammar)


def grammar_without_thinking(grammar: Grammar | int) -> Grammar:
    """Return the grammar of steps that a person did: no prompt opened a thinking, so `thinks` is False.

    grammar: or a plain number, as `as_grammar` takes it.
    """
    return replace(as_grammar(grammar), thinks=False)


@lru_cache(maxsize=64)
def _cells(number: int) -> Grammar:
    return Grammar("point", coordinates.grid_space(number))


def format_response(thought: str, action: str) -> str:
    """Write a step as the model writes it: `Thought: ` and the thought, then the action.

    thought: may be "", its label stays. action: as `serialise_action` writes it; a tool call carries a mark of its own
    and gets no `Action: ` before it.
    """
    label = "" if action.startswith("<tool_call>") else "Action: "
    return f"Thought: {thought}\n{label}{action}"
