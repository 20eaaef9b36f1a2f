"""Draw charts as SVG for the report: curves, intervals, sheets of charts and the curves of RL; define their colours."""

from __future__ import annotations

import math
import textwrap
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import Any

import duckdb

from flywheel.store.catalog import database

# Colours by name: a CSS class `tone-<name>` sets `--tone`, on light and on dark pages.

_PACKAGE = resources.files("flywheel.ui.report")
_SPARE_TONES = 4  # colours for domains that have none of their own


@cache
def _declared() -> dict[str, Any]:
    """Load `charts.yaml`; its `tones` map a name to the colours on light and dark pages."""
    import yaml  # imported here, as `flywheel status` loads this module and does not need it

    return yaml.safe_load((_PACKAGE / "charts.yaml").read_text("utf-8"))


def tone_class(name: str) -> str:
    """Return the CSS class for the colour of `name`: a domain, a store, a stage or `all`.

    A domain has the same colour in all reports.
    """
    return f"tone-{name}" if name in _declared()["tones"] else f"tone-domain-{zlib.crc32(name.encode()) % _SPARE_TONES}"


def tone_stylesheet(*, dark: bool = True) -> str:
    """Return the style sheet of the charts' colour classes.

    dark: include dark pages' colours, for a page that follows the browser's colour scheme.
    """
    light = "".join(f".tone-{name}{{--tone:{colour}}}" for name, (colour, _) in _declared()["tones"].items())
    if not dark:
        return light
    night = "".join(f".tone-{name}{{--tone:{colour}}}" for name, (_, colour) in _declared()["tones"].items())
    return f"{light}@media (prefers-color-scheme:dark){{{night}}}"


# Charts are inline SVG. Colours are CSS classes of the page, so that light and dark pages share one drawing. Each
# function returns an `<svg>` as text, with data escaped. Sizes are units of the viewBox: a chart of about 360 units is
# readable without scaling on a phone and in a column of a wide page.

CHART_WIDTH, CHART_HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 14, 26


@dataclass(frozen=True)
class ChartMark:
    """Hold a measured value with its interval; low and high are None without one. title: tooltip."""

    value: float
    low: float | None = None
    high: float | None = None
    title: str = ""


@dataclass(frozen=True)
class ChartSeries:
    """Hold one curve of a chart.

    label: name of the curve. tone: CSS class of its colour. points: (x, y). faint: for an older iteration. dashed: for
    a second metric in the same chart.
    """

    label: str
    tone: str
    points: tuple[tuple[float, float], ...]
    faint: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Hold a drawn chart. note: explanation. svg: the drawing. legend: (label, tone) pairs."""

    title: str
    note: str
    svg: str
    legend: tuple[tuple[str, str], ...] = ()


def draw_lines(
    series: Sequence[ChartSeries],
    *,
    title: str,
    x_label: str = "step",
    percent: bool = False,
    zero: bool = False,
    width: int = CHART_WIDTH,
    height: int = CHART_HEIGHT,
) -> str:
    """Draw the curves `series` over a common x axis as SVG; "" without points.

    title: for screen readers. x_label: below the axis. percent: y axis from 0% to 100%. zero: y axis begins at 0
    (values must be 0 or more). width, height: in CSS pixels.
    """
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    if not xs:
        return ""
    low, high, ticks = _scale(0.0 if zero else min(ys), max(ys) or float(zero), percent=percent)
    x0, x1 = min(xs), max(xs)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        return _LEFT + across * (width - _LEFT - _RIGHT), _y_position(y, low, high, height)

    body = [_grid(ticks, low, high, percent, width, height)]
    if x1 > x0:
        for x, anchor in ((x0, "start"), (x1, "end")):
            body.append(_svg_text(at(x, low)[0], height - 9, f"{round(x, 1):g}", anchor))
    only = "" if x1 > x0 else f" {round(x0, 1):g}"
    body.append(_svg_text((_LEFT + width - _RIGHT) / 2, height - 9, x_label + only, "middle"))
    for one in sorted(series, key=lambda one: not one.faint):  # faint curves first, behind the others
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (at(x, y) for x, y in one.points))
        looks = f"line {one.tone}{' faint' if one.faint else ''}{' dashed' if one.dashed else ''}"
        body.append(f'<polyline class="{looks}" points="{path}"/>')
        if not one.faint:
            px, py = at(*one.points[-1])
            body.append(f'<circle class="dot {one.tone}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>')
    return _svg(title, body, width, height)


def draw_intervals(groups: Sequence[tuple[str, Sequence[tuple[str, ChartMark | None]]]], *, title: str) -> str:
    """Draw fractions with intervals as SVG, in groups along the x axis.

    groups: (x label, marks), with the marks (tone, mark) next to one another; a mark of None leaves its place free. A
    line joins the marks of a tone, unless the tone contains `before`: these are drawn hollow. title: for screen
    readers.
    """
    low, high, ticks = 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0)
    body = [_grid(ticks, low, high, True)]
    room = (CHART_WIDTH - _LEFT - _RIGHT) / max(len(groups), 1)
    paths: dict[str, list[tuple[float, float]]] = {}
    drawn = []
    for number, (name, marks) in enumerate(groups):
        centre = _LEFT + room * (number + 0.5)
        body.append(_svg_text(centre, CHART_HEIGHT - 9, name, "middle"))
        for place, (tone, mark) in enumerate(marks):
            if mark is None:
                continue
            x = centre + (place - (len(marks) - 1) / 2) * min(22, room / (len(marks) + 1))
            y = _y_position(mark.value, low, high)
            paths.setdefault(tone, []).append((x, y))
            if mark.low is not None and mark.high is not None:
                top, foot = _y_position(mark.high, low, high), _y_position(mark.low, low, high)
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
    """Return round limits around the data (low, high), and about five ticks."""
    if percent:
        return 0.0, 1.0, (0.0, 0.5, 1.0)
    if 0 < low < 0.5 * high:
        low = 0.0  # from 0 on, heights can be compared
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 4
    unit = 10 ** math.floor(math.log10(rough))
    size = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return first * size, last * size, tuple(n * size for n in range(first, last + 1))


def _y_position(value: float, low: float, high: float, height: int = CHART_HEIGHT) -> float:
    inside = min(max((value - low) / (high - low), 0.0), 1.0)
    return height - _BOTTOM - inside * (height - _TOP - _BOTTOM)


def _grid(
    ticks: Sequence[float], low: float, high: float, percent: bool, width: int = CHART_WIDTH, height: int = CHART_HEIGHT
) -> str:
    parts = []
    for tick in ticks:
        y = _y_position(tick, low, high, height)
        label = f"{100 * tick:.0f}%" if percent else f"{tick:.4g}".replace("e-0", "e-")
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{width - _RIGHT}"/>')
        parts.append(_svg_text(_LEFT - 6, y + 3.5, label, "end"))
    return "".join(parts)


def _svg_text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, body: Sequence[str], width: int = CHART_WIDTH, height: int = CHART_HEIGHT) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(body)}</svg>"
    )


_GAP, _PAD, _HEAD = 18, 16, 64  # between cards, inside them, above a chart
_STYLE = "".join((_PACKAGE / "templates" / "chart_sheet.css").read_text("utf-8").splitlines())


def draw_chart_sheet(charts: Sequence[Chart], small: Sequence[Chart], title: str, columns: int = 3) -> str:
    """Draw charts under the `title` as one SVG with its own style sheet, in light colours.

    charts: in rows of `columns` each. small: below them, in rows of one more.
    """
    wide = columns * (CHART_WIDTH + 2 * _PAD) + (columns - 1) * _GAP
    body, y = [f'<text class="h" x="{_GAP}" y="38">{escape(title)}</text>'], 58
    cell = CHART_HEIGHT + _HEAD + 42
    for number, chart in enumerate(charts):
        x = _GAP + number % columns * (CHART_WIDTH + 2 * _PAD + _GAP)
        body.append(_draw_card(chart, x, y + number // columns * (cell + _GAP), CHART_WIDTH, CHART_HEIGHT, cell))
    y += -(-len(charts) // columns) * (cell + _GAP)
    count = columns + 1
    width = (wide - (count - 1) * _GAP) / count - 2 * _PAD
    high = width * 110 / 240  # the shape of a small chart
    for number, chart in enumerate(small):
        x = _GAP + number % count * (width + 2 * _PAD + _GAP)
        body.append(_draw_small_card(chart, x, y + number // count * (high + 46 + _GAP), width, high))
    y += -(-len(small) // count) * (high + 46 + _GAP)
    size = f'width="{wide + 2 * _GAP:.0f}" height="{y:.0f}" viewBox="0 0 {wide + 2 * _GAP:.0f} {y:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}{tone_stylesheet(dark=False)}</style>'
        f'<rect class="page" width="100%" height="100%"/>{"".join(body)}</svg>'
    )


def _draw_card(chart: Chart, x: float, y: float, width: float, height: float, cell: float) -> str:
    parts = [
        f'<rect class="card" x="{x:.1f}" y="{y:.1f}" width="{width + 2 * _PAD:.1f}" height="{cell}" rx="12"/>',
        f'<text class="t" x="{x + _PAD:.1f}" y="{y + 25:.1f}">{escape(chart.title)}</text>',
    ]
    for number, line in enumerate(textwrap.wrap(chart.note, 60)[:2]):
        parts.append(f'<text class="n" x="{x + _PAD:.1f}" y="{y + 43 + 15 * number:.1f}">{escape(line)}</text>')
    parts.append(_place_chart(chart, x + _PAD, y + _HEAD, width, height))
    at, foot = x + _PAD, y + _HEAD + height + 22
    for label, tone in chart.legend:
        room = 30 + 6.4 * len(label)
        if at + room > x + _PAD + width + 15:  # the gap after the last entry may exceed the card
            at, foot = x + _PAD, foot + 15
        if "plain" in tone:
            dash = ' stroke-dasharray="5 4"' if "dashed" in tone else ""
            parts.append(f'<path class="key"{dash} d="M{at:.1f} {foot - 4:.1f}h18"/>')
            at += 10
        else:
            parts.append(f'<circle class="dot {tone}" cx="{at + 5:.1f}" cy="{foot - 4:.1f}" r="5"/>')
        parts.append(f'<text class="n" x="{at + 15:.1f}" y="{foot:.1f}">{escape(label)}</text>')
        at += room
    return "".join(parts)


def _draw_small_card(chart: Chart, x: float, y: float, width: float, height: float) -> str:
    right, wide, high = x + width + _PAD, width + 2 * _PAD, height + 46
    return (
        f'<rect class="card" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="12"/>'
        f'<text class="t" x="{x + _PAD:.1f}" y="{y + 24:.1f}">{escape(chart.title)}</text>'
        f'<text class="n" x="{right:.1f}" y="{y + 24:.1f}" text-anchor="end">{escape(chart.note)}</text>'
        + _place_chart(chart, x + _PAD, y + 34, width, height)
    )


def _place_chart(chart: Chart, x: float, y: float, width: float, height: float) -> str:
    at = f'<svg x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
    return chart.svg.replace("<svg ", at, 1)


# RL's curves are drawn from rows of `metrics`: in the report from the catalogue's, during a run from its own.

Row = Mapping[str, Any]
_SMOOTH_OVER = 24  # a curve with more points is drawn as a moving average, with the curve itself faint behind it
_SHOWN = 14  # most tasks that are listed of those drawn less


@dataclass(frozen=True)
class ChartPanel:
    """Hold the declaration of one chart of RL.

    note: explanation below the title. names: a metric, and optionally a second one, drawn dashed. called: their names
    in the legend. percent, zero: as in `draw_lines`. smooth: whether long curves are drawn as moving averages.
    """

    title: str
    note: str
    names: tuple[str, ...]
    called: tuple[str, ...] = ()
    percent: bool = False
    zero: bool = False
    smooth: bool = True
    begins: str = ""  # name of a metric of step 0, the first point of the curve


@cache
def rl_panels() -> tuple[ChartPanel, ...]:
    """Return the declared charts of RL, in the order of `charts.yaml`."""
    return tuple(
        ChartPanel(**{name: tuple(value) if isinstance(value, list) else value for name, value in panel.items()})
        for panel in _declared()["rl_panels"]
    )


def load_rl_charts(connection: duckdb.DuckDBPyConnection, since: int = 0) -> tuple[list[Chart], list[Chart]]:
    """Draw the charts of RL, and a small chart per world, of iterations after `since`, all but the newest one faint.

    connection: to the catalogue. Returns both lists. Raises as `run_query`.
    """
    rows = database.query_rows(
        connection,
        "FROM metrics WHERE iteration > $since AND stage LIKE 'rl-%' AND value IS NOT NULL",
        {"since": since},
    )
    return draw_rl_panels(rows), draw_world_success(rows)


def draw_rl_panels(rows: Iterable[Row]) -> list[Chart]:
    """Draw the declared charts of RL that have data.

    rows: `domain`, `name`, `step` and `value` of metrics, and `iteration` where they are of several.
    """
    found = _group_curves(row for row in rows if "/" not in row["domain"])
    newest = max((k for k, _, _ in found), default=0)
    result = []
    for panel in rl_panels():
        series, shown = [], set()
        for place, name in enumerate(panel.names):
            for (k, domain, other), points in sorted(found.items()):
                if other != name or _single(points):
                    continue
                first = found.get((k, domain, panel.begins), [])
                series += _smoothed_series(
                    domain, [*first, *points], faint=k < newest, dashed=place > 0, smooth=panel.smooth
                )
                shown.add(domain)
        if series:
            legend = [(domain, tone_class(domain)) for domain in sorted(shown)]
            legend += [(said, "plain dashed" if n else "plain") for n, said in enumerate(panel.called)]
            drawing = draw_lines(series, title=panel.title, x_label="RL step", percent=panel.percent, zero=panel.zero)
            result.append(Chart(panel.title, panel.note, drawing, tuple(legend)))
    return result


def draw_world_success(rows: Iterable[Row]) -> list[Chart]:
    """Draw a small chart of success per world, as the mean may hide that one game rises and another falls.

    rows: as for `draw_rl_panels`.
    """
    found = _group_curves(row for row in rows if "/" in row["domain"] and row["name"] == "success")
    newest = max((k for k, _, _ in found), default=0)
    result = []
    for place in sorted({place for _, place, _ in found}):
        domain, _, world = place.partition("/")
        series, last = [], None
        for (k, other, _), points in sorted(found.items()):
            if other == place:
                series += _smoothed_series(domain, points, faint=k < newest)
                last = (points[0][1], series[-1].points[-1][1]) if k == newest else last
        said = f"{100 * last[0]:.0f}% → {100 * last[1]:.0f}%" if last else ""
        result.append(
            Chart(world, said, draw_lines(series, title=f"Success in {world}", percent=True, width=240, height=110))
        )
    return result


def query_downsampled_tasks(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Query the tasks that RL's curriculum of the newest iteration draws less often.

    connection: to the catalogue. Returns for each specialist `stage`, `tasks` (number of all), `less` (number of those
    drawn less), `why` (their numbers by reason) and `rows` (the first 14). Raises as `run_query`.
    """
    newest = "iteration = (SELECT max(iteration) FROM curriculum)"
    reasons: dict[str, dict[str, int]] = defaultdict(dict)
    for row in database.query_rows(
        connection, f"SELECT stage, reason, count(*) AS n FROM curriculum WHERE {newest} GROUP BY ALL"
    ):
        reasons[row["stage"]][row["reason"]] = row["n"]
    rows = database.query_rows(connection, f"FROM downsampled_tasks WHERE {newest}")
    return [
        {
            "stage": stage,
            "tasks": sum(counts.values()),
            "less": sum(n for why, n in counts.items() if why),
            "why": sorted((why, n) for why, n in counts.items() if why),
            "rows": [row for row in rows if row["stage"] == stage][:_SHOWN],
        }
        for stage, counts in sorted(reasons.items())
    ]


def draw_rl_sheet(rows: Sequence[Row], title: str) -> str:
    """Draw all training curves of RL as one SVG with its own style sheet; return its text.

    rows: of the table `metrics`, of one or more stages of RL; metrics without a chart are left out. title: above the
    charts.
    """
    return draw_chart_sheet(draw_rl_panels(rows), draw_world_success(rows), title)


def _group_curves(rows: Iterable[Row]) -> dict[tuple[int, str, str], list[tuple[float, float]]]:
    found: dict[tuple[int, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["value"] is not None and math.isfinite(row["value"]):
            found[row.get("iteration", 0), row["domain"], row["name"]].append((row["step"], row["value"]))
    return {key: sorted(points) for key, points in found.items()}


def _single(points: Sequence[tuple[float, float]]) -> bool:
    """Tell whether `points` are a metric of the whole run, such as its seconds, and no curve."""
    return len(points) == 1 and points[0][0] == 0


def _smoothed_series(
    domain: str, points: Sequence[tuple[float, float]], *, faint: bool, dashed: bool = False, smooth: bool = True
) -> list[ChartSeries]:
    whole = ChartSeries(f"{domain}", tone_class(domain), tuple(points), faint=faint, dashed=dashed)
    if faint or not smooth or len(points) <= _SMOOTH_OVER:
        return [whole]
    reach = max(1, len(points) // 16)
    near = [points[max(0, n - reach) : n + reach + 1] for n in range(len(points))]
    mean = tuple((x, sum(y for _, y in part) / len(part)) for (x, _), part in zip(points, near, strict=True))
    behind = ChartSeries(domain, tone_class(domain), tuple(points), faint=True)
    return ([] if dashed else [behind]) + [ChartSeries(domain, tone_class(domain), mean, dashed=dashed)]
