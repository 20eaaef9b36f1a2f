"""The picture of `flywheel bench flywheel --picture`: success of the base and of each iteration's merged model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import flywheel_run

from flywheel.ui.report.charts import Chart, ChartSeries, draw_chart_sheet, draw_lines, tone_class
from flywheel.ui.report.pages import screenshot_page

Curve = tuple[tuple[float, float], ...]  # iteration, percent of the tasks
_UNSEEN = "unseen templates"


def write(path: Path, models: Mapping[int, Sequence[Mapping[str, Any]]], places: Mapping[str, list[int]]) -> None:
    """models: by seed, the base and the merged ones. places: by group of tasks, those of it."""

    def curves(group: str) -> list[Curve]:
        return [
            tuple((float(n), 100 * flywheel_run.success(model, places[group])) for n, model in enumerate(mine))
            for mine in models.values()
        ]

    seeds = zip(models, curves("all"), strict=True)
    each = [ChartSeries(f"seed {seed}", tone_class("all"), curve, faint=True) for seed, curve in seeds]
    whole = [*each, ChartSeries("mean", tone_class("all"), mean(curves("all")))]
    apart = [
        ChartSeries(
            group, tone_class("other" if group == _UNSEEN else group), mean(curves(group)), dashed=group == _UNSEEN
        )
        for group in places
        if group != "all"
    ]
    what = f"{len(places['all'])} tasks whose contents no run trains on, greedy"
    seeds_of = (
        f"a faint line for each of {len(models)} seeds, and their mean" if len(models) > 1 else f"seed {min(models)}"
    )
    charts = [
        Chart("Success, %", f"{what}; {seeds_of}", _drawn(whole)),
        Chart(
            "Success by domain, %",
            "mean over seeds" if len(models) > 1 else "the same run",
            _drawn(apart),
            tuple((one.label, one.tone) for one in apart),
        ),
    ]
    svg = draw_chart_sheet(charts, [], "Is each iteration better than the last?", columns=2)
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f'<!doctype html><body style="margin:0">{svg}</body>', encoding="utf-8")
        width, height = (
            math.ceil(float(size)) for size in re.search(r'width="([\d.]+)" height="([\d.]+)"', svg).groups()
        )
        screenshot_page(page, path, width=width, height=height)


def _drawn(series: Sequence[ChartSeries]) -> str:
    return draw_lines(series, title="success by iteration", x_label="iteration", zero=True)


def mean(curves: Sequence[Curve]) -> Curve:
    """At each iteration that all have."""
    return tuple((points[0][0], fmean(y for _, y in points)) for points in zip(*curves, strict=False))
