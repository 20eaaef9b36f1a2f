"""Define how a model writes its actions: the text form, and the coordinate space of its points."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from flywheel import config
from flywheel.agent.actions import Point
from flywheel.utils.errors import BadInput

# Coordinate spaces translate between a model's numbers and fractions of the screen.
#
# - grid: cells 0..n-1 of the width and the height (the embedded model: n = 100; UI-TARS's `<point>`, Qwen3-VL: 1000).
#   A point is the middle of its cell.
# - norm1000: thousandths 0..1000 of the width and the height (UI-TARS 1.0).
# - pixels: of the image as the model is shown it, after `smart_resize` (UI-TARS 1.5, Qwen2.5-VL).
# - norm1: 0..1 of the width and the height (ShowUI, Aguvis, OpenCUA's first checkpoints).

SpaceKind = Literal["grid", "norm1000", "pixels", "norm1"]

MAX_RATIO = 200  # of an image's longer side to the shorter: the Qwen-VL processors refuse more
_PLACES = 4  # decimals of a fraction that is written
_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True)
class Axis:
    """Convert between fractions of the screen and a model's numbers, along the width or the height.

    size: the number that stands for the whole width (or height). last: largest number written. middle: what is added to
    a number before it is divided by `size`: 0.5 for cells, whose middle counts, else 0.
    """

    size: int
    last: float
    middle: float

    def read(self, number: float) -> float:
        """Return the fraction, in [0, 1), of a number in [0, size]. The far edge, which models write, means `last`."""
        return min(((self.last if number > self.last else number) + self.middle) / self.size, _BELOW_ONE)

    def write(self, fraction: float) -> float:
        """Return the number of a fraction: a float in the space of fractions, else an integer."""
        if self.size == 1:
            return min(self.last, max(0.0, round(fraction, _PLACES)))
        return min(self.last, max(0, math.floor(fraction * self.size + (0.5 - self.middle))))


@dataclass(frozen=True)
class CoordinateSpace:
    """Hold what a model's coordinates mean. kind: name of the space. x, y: its axes."""

    kind: SpaceKind
    x: Axis
    y: Axis

    @property
    def size(self) -> tuple[int, int]:
        """Return the numbers that stand for the whole width and the whole height."""
        return self.x.size, self.y.size

    def snap(self, point: Point) -> Point:
        """Return the point that is read back after `point` was written: in most spaces the middle of a cell."""
        return Point(self.x.read(self.x.write(point.x)), self.y.read(self.y.write(point.y)))


def grid_space(coordinates: int) -> CoordinateSpace:
    """Make the space of grid cells, with `coordinates` cells on each axis."""
    axis = Axis(coordinates, coordinates - 1, 0.5)
    return CoordinateSpace("grid", axis, axis)


def norm1000_space() -> CoordinateSpace:
    """Make the space of thousandths, 0 to 1000, of the width and the height."""
    axis = Axis(1000, 1000, 0.0)
    return CoordinateSpace("norm1000", axis, axis)


def pixel_space(width: int, height: int) -> CoordinateSpace:
    """Make the space of pixels of the resized image, which is `width` x `height` pixels large.

    A pixel's number is its distance from the edge, as in UI-TARS's code.
    """
    return CoordinateSpace("pixels", Axis(width, width - 1, 0.0), Axis(height, height - 1, 0.0))


def norm1_space() -> CoordinateSpace:
    """Make the space of fractions, 0 to 1, of the width and the height."""
    axis = Axis(1, 1 - 10**-_PLACES, 0.0)
    return CoordinateSpace("norm1", axis, axis)


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Compute the size to which Qwen2-VL's processor resizes a screen: (width, height), in pixels.

    width, height: of the screen, in pixels. Both results are multiples of `factor` pixels, one or more, their product
    lies in min_pixels..max_pixels (but for a very narrow screen, or where these are so near that no multiples lie
    between), and their ratio is about that of the screen, as nearly as the multiples allow. Raises BadInput for an
    empty screen and for sides that differ by more than 200 times, which the processor refuses.
    """
    if min(width, height) < 1 or max(width, height) > MAX_RATIO * min(width, height):
        what, fix = f"no image processor takes a screen of {width} x {height}", f"keep their ratio within {MAX_RATIO}"
        raise BadInput(what, where="sandbox.width, sandbox.height", fix=fix)
    sides = tuple(round(side / factor) * factor for side in (width, height))
    area = sides[0] * sides[1]
    if area > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        sides = tuple(max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        sides = tuple(math.ceil(side * grow / factor) * factor for side in (width, height))
    return sides


NO_SCREEN = (1000, 1000)  # for the grammar of a step that shows only text, where points mean nothing
Form = Literal["minimal", "point", "ui_tars_1_5", "ui_tars_1_0", "tool_call"]


@dataclass(frozen=True)
class Grammar:
    """Hold how a model writes its actions.

    form: as `policy.template`; actions of minimal are written as in point. space: what its coordinates mean. actions:
    name of the action space that its prompt lists. functions: whether the prompt also lists the SDK functions (shell,
    Python, files, tools). Any grammar parses every action. thinks: whether the prompt opens the thinking, so that the
    model's text is thought until `</think>`.
    """

    form: Form
    space: CoordinateSpace
    actions: Literal["computer", "browser", "mobile", "game"] = "browser"
    functions: bool = False
    thinks: bool = False

    @classmethod
    def of(cls, policy: config.PolicySettings, screen: tuple[int, int] | None = None) -> Grammar:
        """Make the grammar that the block `policy` names.

        screen: width and height, in pixels, of the screens that the model sees. Only the space of pixels depends on it.
        Raises BadInput where that space is set and `screen` is None or cannot be resized.
        """
        return cls(policy.template, _space(policy, screen), policy.actions, policy.functions, policy.thinks)

    @classmethod
    def of_settings(cls, settings: config.Settings) -> Grammar:
        """Make the grammar of a workspace, whose screens have the sandbox's size. Raises as `Grammar.of`."""
        return cls.of(settings.policy, (settings.sandbox.width, settings.sandbox.height))


def _space(policy: config.PolicySettings, screen: tuple[int, int] | None) -> CoordinateSpace:
    if policy.coordinate_format == "grid":
        return grid_space(policy.coordinates)
    if policy.coordinate_format == "norm1000":
        return norm1000_space()
    if policy.coordinate_format == "norm1":
        return norm1_space()
    if screen is None:
        what = "a point in pixels has no meaning without the size of the screen"
        raise BadInput(what, where="policy.coordinate_format")
    resized = smart_resize(*screen, policy.resize_factor, policy.min_pixels, policy.max_pixels)
    return pixel_space(*resized)


def as_grammar(grammar: Grammar | int) -> Grammar:
    """Return `grammar`; for a number n the embedded model's: the point form on a grid of n cells along each axis."""
    return grammar if isinstance(grammar, Grammar) else _cells(grammar)


def grammar_without_thinking(grammar: Grammar | int) -> Grammar:
    """Return `grammar` with `thinks` False, for a person's steps, whose text does not begin within an open thinking.

    grammar: a Grammar, or a plain number as for `as_grammar`.
    """
    return replace(as_grammar(grammar), thinks=False)


@lru_cache(maxsize=64)
def _cells(number: int) -> Grammar:
    return Grammar("point", grid_space(number))


def format_response(thought: str, action: str) -> str:
    """Write a step as the model writes it: `Thought: ` and the thought, then the action.

    thought: where it is "", its label stays. action: as `serialise_action` writes it; `Action: ` stands before it, but
    not before a tool call, which has a tag of its own.
    """
    label = "" if action.startswith("<tool_call>") else "Action: "
    return f"Thought: {thought}\n{label}{action}"
