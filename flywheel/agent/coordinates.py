"""Convert between a model's coordinates and fractions of the screen.

- grid: cells 0..n-1 of the width and the height (the embedded model: n = 100; UI-TARS's `<point>`, Qwen3-VL: 1000).
  A point is the middle of its cell.
- norm1000: thousandths 0..1000 of the width and the height (UI-TARS 1.0).
- pixels: of the image as the model is shown it, after `smart_resize` (UI-TARS 1.5, Qwen2.5-VL).
- norm1: 0..1 of the width and the height (ShowUI, Aguvis, OpenCUA's first checkpoints).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flywheel.agent.actions import Point
from flywheel.utils.errors import BadInput

SpaceKind = Literal["grid", "norm1000", "pixels", "norm1"]

MAX_RATIO = 200  # of an image's sides, as Qwen2-VL's processor has it
_PLACES = 4  # of a fraction that is written
_BELOW_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True)
class Axis:
    """Count places along the width or the height.

    size: what the whole width (or height) counts. last: the largest number written. middle: 0.5 for cells.
    """

    size: int
    last: float
    middle: float

    def read(self, number: float) -> float:
        """Return the fraction that 0 <= number <= size names. The far edge, which models write, is the last place."""
        return min(((self.last if number > self.last else number) + self.middle) / self.size, _BELOW_ONE)

    def write(self, fraction: float) -> float:
        """Return the number for a fraction, a whole one where the axis counts by such."""
        if self.size == 1:
            return min(self.last, max(0.0, round(fraction, _PLACES)))
        return min(self.last, max(0, math.floor(fraction * self.size + (0.5 - self.middle))))


@dataclass(frozen=True)
class CoordinateSpace:
    kind: SpaceKind
    x: Axis
    y: Axis

    @property
    def size(self) -> tuple[int, int]:
        """What the width and the height count."""
        return self.x.size, self.y.size

    def snap(self, point: Point) -> Point:
        """Return the point that is read back after `point` was written: in most spaces the middle of a cell."""
        return Point(self.x.read(self.x.write(point.x)), self.y.read(self.y.write(point.y)))


def grid_space(coordinates: int) -> CoordinateSpace:
    """Make the space of grid cells: `coordinates` cells an axis."""
    axis = Axis(coordinates, coordinates - 1, 0.5)
    return CoordinateSpace("grid", axis, axis)


def norm1000_space() -> CoordinateSpace:
    """Make the space of thousandths."""
    axis = Axis(1000, 1000, 0.0)
    return CoordinateSpace("norm1000", axis, axis)


def pixel_space(width: int, height: int) -> CoordinateSpace:
    """Make the space of pixels of the resized image. A pixel's number is its distance from the edge, as in UI-TARS's
    code.

    width, height: of the resized image, in pixels.
    """
    return CoordinateSpace("pixels", Axis(width, width - 1, 0.0), Axis(height, height - 1, 0.0))


def norm1_space() -> CoordinateSpace:
    """Make the space of fractions, 0 to 1."""
    axis = Axis(1, 1 - 10**-_PLACES, 0.0)
    return CoordinateSpace("norm1", axis, axis)


def smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Compute width and height of the image that Qwen2-VL's processor makes of a screen.

    Both are multiples of `factor`, their product lies in min_pixels..max_pixels as nearly as that allows, and their
    ratio is kept. Raises BadInput for an empty screen and for sides that differ by more than 200 times, which the
    processor refuses.
    """
    if min(width, height) < 1 or max(width, height) > MAX_RATIO * min(width, height):
        raise BadInput(
            f"no image processor takes a screen of {width} x {height}",
            where="sandbox.width, sandbox.height",
            fix=f"keep their ratio within {MAX_RATIO}",
        )

    sides = tuple(round(side / factor) * factor for side in (width, height))
    area = sides[0] * sides[1]
    if area > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        sides = tuple(max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height))
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        sides = tuple(math.ceil(side * grow / factor) * factor for side in (width, height))
    return sides
