"""Charts as inline SVG. Colours are CSS classes of the page, so that light and dark need one drawing.

Each function returns an `<svg>` as text (escaped where it holds data). Sizes are units of the viewBox: at about 360
wide a chart is read at its own size on a phone and in a column of a wide page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 14, 26


@dataclass(frozen=True)
class ChartMark:
    """A measured value with its interval; low and high None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Series:
    """label: in the legend. tone: a CSS class that gives the colour. points: (x, y). faint: an older iteration's.

    dashed: another figure than the one whose curve is drawn whole.
    """

    label: str
    tone: str
    points: tuple[tuple[float, float], ...]
    faint: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """svg: the drawing. legend: (label, tone)."""

    title: str
    note: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


def lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str = "step",
    percent: bool = False,
    zero: bool = False,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """Curves over a common x axis. zero: the y axis begins at 0 (values are 0 or more)."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    if not xs:
        return ""
    low, high, ticks = _scale(0.0 if zero else min(ys), max(ys) or float(zero), percent=percent)
    x0, x1 = min(xs), max(xs)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        return _LEFT + across * (width - _LEFT - _RIGHT), _y(y, low, high, height)

    body = [_grid(ticks, low, high, percent, width, height)]
    if x1 > x0:
        for x, anchor in ((x0, "start"), (x1, "end")):
            body.append(_text(at(x, low)[0], height - 9, f"{round(x, 1):g}", anchor))
    only = "" if x1 > x0 else f" {round(x0, 1):g}"
    body.append(_text((_LEFT + width - _RIGHT) / 2, height - 9, x_label + only, "middle"))
    for one in sorted(series, key=lambda one: not one.faint):  # what is faint lies behind
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in one.points))
        looks = f"line {one.tone}{' faint' if one.faint else ''}{' dashed' if one.dashed else ''}"
        body.append(f'<polyline class="{looks}" points="{path}"/>')
        if not one.faint:
            px, py = at(*one.points[-1])
            body.append(f'<circle class="dot {one.tone}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>')
    return _svg(title, body, width, height)


def intervals(groups: Sequence[tuple[str, Sequence[tuple[str, ChartMark | None]]]], *, title: str) -> str:
    """Fractions with intervals: for each x label, marks of (tone, mark) side by side; marks of a tone are joined.

    A tone that holds `before` is drawn hollow.
    """
    low, high, ticks = 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0)
    body = [_grid(ticks, low, high, True)]
    room = (WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    paths: dict[str, list[tuple[float, float]]] = {}
    drawn = []
    for number, (name, marks) in enumerate(groups):
        centre = _LEFT + room * (number + 0.5)
        body.append(_text(centre, HEIGHT - 9, name, "middle"))
        for place, (tone, mark) in enumerate(marks):
            if mark is None:
                continue
            x = centre + (place - (len(marks) - 1) / 2) * min(22, room / (len(marks) + 1))
            y = _y(mark.value, low, high)
            paths.setdefault(tone, []).append((x, y))
            if mark.low is not None and mark.high is not None:
                top, foot = _y(mark.high, low, high), _y(mark.low, low, high)
                drawn.append(
                    f'<path class="whisker {tone}" d="M{x:.1f} {top:.1f}V{foot:.1f}'
                    f'M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {foot:.1f}h8"/>'
                )
            drawn.append(
                f'<circle class="dot {tone}" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
                f"<title>{escape(mark.title)}</title></circle>"
            )
    for tone, points in paths.items():
        if len(points) > 1 and "before" not in tone:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            body.append(f'<polyline class="line thin {tone}" points="{joined}"/>')
    return _svg(title, [*body, *drawn])


def _scale(low: float, high: float, *, percent: bool) -> tuple[float, float, tuple[float, ...]]:
    """Round limits around the data and four or so ticks in between."""
    if percent:
        return 0.0, 1.0, (0.0, 0.5, 1.0)
    if 0 < low < 0.5 * high:
        low = 0.0  # near enough: heights can be compared
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    size = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return first * size, last * size, tuple(n * size for n in range(first, last + 1))


def _y(value: float, low: float, high: float, height: int = HEIGHT) -> float:
    inside = min(max((value - low) / (high - low), 0.0), 1.0)
    return height - _BOTTOM - inside * (height - _TOP - _BOTTOM)


def _grid(
    ticks: Sequence[float], low: float, high: float, percent: bool, width: int = WIDTH, height: int = HEIGHT
) -> str:
    parts = []
    for tick in ticks:
        y = _y(tick, low, high, height)
        label = f"{100 * tick:.0f}%" if percent else f"{tick:.4g}".replace("e-0", "e-")
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{width - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, y + 3.5, label, "end"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, body: Sequence[str], width: int = WIDTH, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(body)}</svg>"
    )
