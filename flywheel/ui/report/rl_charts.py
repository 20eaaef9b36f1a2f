"""Draw the training curves of RL from rows of the table `metrics`, in the report (from the catalog) and in a run in
Prefect (from what its stage has just measured) alike."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from flywheel.store.catalog import database
from flywheel.ui.report import charts
from flywheel.ui.report.charts import Chart, ChartSeries, tone_class

Row = Mapping[str, Any]
_SMOOTH_OVER = 24  # points; a longer curve is drawn as a mean of its neighbours, the curve itself faint behind it
_SHOWN = 14  # tasks named of those sampled less


@dataclass(frozen=True)
class ChartPanel:
    """One chart of RL. names: a figure, and another one drawn dashed beside it; called: both, in the legend."""

    title: str
    note: str
    names: tuple[str, ...]
    called: tuple[str, ...] = ()
    percent: bool = False
    zero: bool = False
    smooth: bool = True
    begins: str = ""  # a figure of step 0 that the curve begins from


RL_PANELS = (
    ChartPanel("Success", "Share of the batch's episodes that the verifier accepts.", ("success",), percent=True),
    ChartPanel("Reward", "Mean shaped reward of an episode.", ("reward",)),
    ChartPanel("Entropy", "Nats a token. Falling to 0: the policy has stopped exploring.", ("entropy",)),
    ChartPanel("KL", "Nats a token, of the policy that sampled from the one after the step.", ("kl",), zero=True),
    ChartPanel("Mismatch", "Mean |log-probability recomputed - sampled|: both must agree.", ("mismatch",), zero=True),
    ChartPanel(
        "Clip fraction",
        "Tokens whose gradient the clipping removed; and of older weights, whose weight was held.",
        ("clip_fraction", "truncated_fraction"),
        ("clipped", "held"),
        zero=True,
    ),
    ChartPanel(
        "Explained variance",
        "Of the returns, by the value model; it begins with what pretraining reached.",
        ("explained_variance",),
        begins="value_pretraining_explained_variance",
    ),
    ChartPanel(
        "Think length",
        "Tokens a step: of the thought, and of all that is said.",
        ("think_length", "response_length"),
        ("thought", "whole step"),
        zero=True,
    ),
    ChartPanel("Rounds a task", "Mean steps of an episode.", ("rounds",), zero=True),
    ChartPanel(
        "Lengths: consumed and in flight",
        "Steps an episode. Those that finish first are short; where dashed lies far above, long ones wait.",
        ("length_consumed", "length_in_flight"),
        ("consumed", "in flight"),
        zero=True,
    ),
    ChartPanel(
        "Staleness",
        "Versions between the weights that sampled a token and those trained.",
        ("staleness_mean", "staleness_max"),
        ("mean", "most"),
        zero=True,
        smooth=False,
    ),
    ChartPanel("Environments at work", "Share of their time.", ("utilisation",), percent=True),
    ChartPanel(
        "Groups that teach",
        "Share of the groups whose episodes do not all end alike.",
        ("curriculum_informative",),
        percent=True,
    ),
    ChartPanel(
        "Always or never solved",
        "Share of the tasks: always, and never.",
        ("curriculum_always", "curriculum_never"),
        ("always", "never"),
        percent=True,
    ),
    ChartPanel("Level", "The level that is open, mean over worlds.", ("curriculum_level",), smooth=False),
)


def load_rl_charts(connection: duckdb.DuckDBPyConnection, since: int = 0) -> tuple[list[Chart], list[Chart]]:
    """Return the panels, and a small chart a world; the newest iteration strong, those between it and `since` faint."""
    rows = database.query_rows(
        connection,
        "FROM metrics WHERE iteration > $since AND stage LIKE 'rl-%' AND value IS NOT NULL",
        {"since": since},
    )
    return draw_rl_panels(rows), draw_world_success(rows)


def draw_rl_panels(rows: Iterable[Row]) -> list[Chart]:
    """Draw one chart a figure that was measured. rows: domain, name, step, value; iteration where there are several."""
    found = _group_curves(row for row in rows if "/" not in row["domain"])
    newest = max((k for k, _, _ in found), default=0)
    result = []
    for panel in RL_PANELS:
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
            drawing = charts.draw_lines(
                series, title=panel.title, x_label="PPO step", percent=panel.percent, zero=panel.zero
            )
            result.append(Chart(panel.title, panel.note, drawing, tuple(legend)))
    return result


def draw_world_success(rows: Iterable[Row]) -> list[Chart]:
    """Return a small chart of success a world: where the mean hides that one game rises and another falls."""
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
            Chart(
                world, said, charts.draw_lines(series, title=f"Success in {world}", percent=True, width=240, height=110)
            )
        )
    return result


def query_downsampled_tasks(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Query, for each specialist of the newest iteration that has one, how many tasks come less and why, and which."""
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
    """Draw all training curves of RL as one SVG that needs no style sheet. rows: of `metrics`, of RL's stages."""
    return charts.draw_chart_sheet(draw_rl_panels(rows), draw_world_success(rows), title)


def _group_curves(rows: Iterable[Row]) -> dict[tuple[int, str, str], list[tuple[float, float]]]:
    found: dict[tuple[int, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["value"] is not None and math.isfinite(row["value"]):
            found[row.get("iteration", 0), row["domain"], row["name"]].append((row["step"], row["value"]))
    return {key: sorted(points) for key, points in found.items()}


def _single(points: Sequence[tuple[float, float]]) -> bool:
    """A figure of the whole run, such as its seconds, is no curve."""
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
