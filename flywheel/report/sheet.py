"""Charts side by side as one SVG that needs nothing else: for Prefect's pages and for files."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from flywheel.report import palette
from flywheel.report.charts import HEIGHT, WIDTH, Chart

_GAP, _PAD, _HEAD = 18, 16, 64  # between cards, inside them, above a chart
_STYLE = (
    "svg{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    ".page{fill:#f6f6f3}.card{fill:#fff;stroke:#e3e4df}.h{font-size:19px;font-weight:650;fill:#1c2129}"
    ".t{font-size:14.5px;font-weight:620;fill:#1c2129}.n{font-size:11.5px;fill:#5b6472}"
    ".chart text{font-size:11px;fill:#8b93a0}.chart .grid{stroke:#e3e4df;fill:none}"
    ".line{fill:none;stroke:var(--tone);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".faint{opacity:.3;stroke-width:1.4}.dashed{stroke-dasharray:5 4}.dashed:not(.faint){opacity:.8}"
    ".dot{fill:var(--tone);stroke:#fff;stroke-width:1.5}.whisker{stroke:var(--tone);stroke-width:1.5;fill:none}"
    ".thin{stroke-width:1.25;opacity:.45}.key{stroke:#5b6472;stroke-width:2}.plain{--tone:#5b6472}"
    + palette.css(dark=False)
)


def sheet(charts: Sequence[Chart], small: Sequence[Chart], title: str, columns: int = 3) -> str:
    """Charts in rows of `columns`, below them the small ones, one column more to a row. Light, whatever the page is."""
    wide = columns * (WIDTH + 2 * _PAD) + (columns - 1) * _GAP
    body, y = [f'<text class="h" x="{_GAP}" y="38">{escape(title)}</text>'], 58
    cell = HEIGHT + _HEAD + 42
    for number, chart in enumerate(charts):
        x = _GAP + number % columns * (WIDTH + 2 * _PAD + _GAP)
        body.append(_card(chart, x, y + number // columns * (cell + _GAP), WIDTH, HEIGHT, cell))
    y += -(-len(charts) // columns) * (cell + _GAP)
    count = columns + 1
    width = (wide - (count - 1) * _GAP) / count - 2 * _PAD
    high = width * 110 / 240  # the shape of a small chart
    for number, chart in enumerate(small):
        x = _GAP + number % count * (width + 2 * _PAD + _GAP)
        body.append(_small(chart, x, y + number // count * (high + 46 + _GAP), width, high))
    y += -(-len(small) // count) * (high + 46 + _GAP)
    size = f'width="{wide + 2 * _GAP:.0f}" height="{y:.0f}" viewBox="0 0 {wide + 2 * _GAP:.0f} {y:.0f}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
        f'<rect class="page" width="100%" height="100%"/>{"".join(body)}</svg>'
    )


def _card(chart: Chart, x: float, y: float, width: float, height: float, cell: float) -> str:
    parts = [
        f'<rect class="card" x="{x:.1f}" y="{y:.1f}" width="{width + 2 * _PAD:.1f}" height="{cell}" rx="12"/>',
        f'<text class="t" x="{x + _PAD:.1f}" y="{y + 25:.1f}">{escape(chart.title)}</text>',
    ]
    for number, line in enumerate(textwrap.wrap(chart.note, 60)[:2]):
        parts.append(f'<text class="n" x="{x + _PAD:.1f}" y="{y + 43 + 15 * number:.1f}">{escape(line)}</text>')
    parts.append(_placed(chart, x + _PAD, y + _HEAD, width, height))
    at, foot = x + _PAD, y + _HEAD + height + 22
    for label, tone in chart.legend:
        room = 30 + 6.4 * len(label)
        if at + room > x + _PAD + width + 15:  # the gap behind the last one needs no room
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


def _small(chart: Chart, x: float, y: float, width: float, height: float) -> str:
    right, wide, high = x + width + _PAD, width + 2 * _PAD, height + 46
    return (
        f'<rect class="card" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="12"/>'
        f'<text class="t" x="{x + _PAD:.1f}" y="{y + 24:.1f}">{escape(chart.title)}</text>'
        f'<text class="n" x="{right:.1f}" y="{y + 24:.1f}" text-anchor="end">{escape(chart.note)}</text>'
        + _placed(chart, x + _PAD, y + 34, width, height)
    )


def _placed(chart: Chart, x: float, y: float, width: float, height: float) -> str:
    at = f'<svg x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
    return chart.svg.replace("<svg ", at, 1)
