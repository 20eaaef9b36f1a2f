"""RL of the same questions by the screen, by functions, and half and half with one value model (the UI-TARS-2 report's
figure 15): all arms from one start, by batches of one size.

gain_ARM_INTERFACE: held-out success after --steps of PPO less that of the start, asked by that interface, the mean over
seeds with its 95% t interval; of what an arm did not train on too. explained_variance_ARM_INTERFACE: of the returns of
the batches' last half, by the value model before each update. Nothing here has a goal.

Each arm and seed is a process of its own; what is finished lies in --out and is not done again, and a run that was
killed goes on. With --table nothing is run: the table of what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import hybrid_run
import hybrid_start
from bench_case import BenchCase, emit_case, exit_code, student_mean_interval

from flywheel.ui.report.charts import Chart, ChartSeries, draw_chart_sheet, draw_lines
from flywheel.ui.report.pages import screenshot_page

CURVES = (("success", "Success of the batches"), ("reward", "Reward"), ("explained_variance", "Explained variance"))
TONES = {
    ("gui", "gui"): "tone-one",
    ("sdk", "sdk"): "tone-two",
    ("both", "gui"): "tone-three",
    ("both", "sdk"): "tone-four",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench hybrid", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("bench-hybrid"), help="results, states (default: %(default)s)")
    parser.add_argument(
        "--arms", nargs="+", choices=hybrid_run.ARMS, default=list(hybrid_run.ARMS), help="(default: all)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument("--steps", type=int, default=24, help="of training a run (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=60, help="held-out questions (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of a run (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small and short: that it works")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args(argv)
    if options.quick:
        options.steps, options.held_out, options.seeds = 1, 2, options.seeds[:1]
    hybrid_start.check_held_out(options.held_out)  # refused before anything runs
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.table:
        for seed in options.seeds:  # seed by seed, so that all arms are there early
            for arm in options.arms:
                command = hybrid_run.command(
                    options.out.resolve(), arm, seed, options.steps, options.held_out, options.quick
                )
                subprocess.run(command, env=hybrid_run.environment(options.threads), check=True)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(options.out.glob("runs/*/result.json"))]
    if not results:
        print(f"there are no results in {options.out}", file=sys.stderr)
        return 1
    (options.out / "table.md").write_text(table(results), encoding="utf-8")
    print(table(results), file=sys.stderr)
    _picture(options.out, results)
    return exit_code([emit_case(case) for case in cases(results)])


def cases(results: Sequence[dict[str, Any]]) -> Iterable[BenchCase]:
    for arm, ways in hybrid_run.ARMS.items():
        mine = [one for one in results if one["arm"] == arm]
        if not mine:
            continue
        about = {"seeds": [one["seed"] for one in mine], "steps": mine[0]["steps"], "batch": mine[0]["batch"]}
        for way in hybrid_start.WAYS:
            gains = [gain(one, way) for one in mine]
            said = {
                "interval": list(student_mean_interval(gains)),
                "by_seed": gains,
                "n": mine[0]["questions"],
                **about,
            }
            yield BenchCase("hybrid", f"gain_{arm}_{way}", "fraction", fmean(gains), None, "", None, None, True, said)
        for way in ways:
            found = [late(one, f"explained_variance_{way}") for one in mine]
            case = f"explained_variance_{arm}_{way}"
            said = {"by_seed": found, **about}
            yield BenchCase("hybrid", case, "fraction", fmean(found), None, "", None, None, True, said)


def gain(one: dict[str, Any], way: str) -> float:
    return one["after"]["success"][way] - one["before"]["success"][way]


def late(one: dict[str, Any], figure: str) -> float:
    """A figure's mean over the last half of a run's steps, where it has a meaning; NaN where it never has."""
    values = [point[figure] for point in one["curve"][len(one["curve"]) // 2 :] if figure in point]
    return fmean(values) if values else math.nan


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row an arm. Held-out success by interface before and after, mean over seeds; of `both`, the share of
    episodes that called a function; of what it trained on, the explained variance of the last half of its batches."""
    head = ["arm", "seeds", *(f"asked by {way}" for way in hybrid_start.WAYS), "of both, by functions"]
    head += ["explained variance, screen", "explained variance, functions"]
    rows = [head, ["---"] * len(head)]
    for arm, ways in hybrid_run.ARMS.items():
        mine = [one for one in results if one["arm"] == arm]
        if not mine:
            continue
        changes = [
            _change(mine, "success", way) + _interval([gain(one, way) for one in mine]) for way in hybrid_start.WAYS
        ]
        explained = [_explained(mine, way) if way in ways else "" for way in ("gui", "sdk")]
        rows.append([arm, str(len(mine)), *changes, _change(mine, "functions", "both"), *explained])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _change(mine: Sequence[dict[str, Any]], figure: str, way: str) -> str:
    return " → ".join(f"{fmean(one[side][figure][way] for one in mine):.2f}" for side in ("before", "after"))


def _interval(values: Sequence[float]) -> str:
    low, high = student_mean_interval(values)
    return f" ({low:+.2f} to {high:+.2f})" if math.isfinite(low) else ""


def _explained(mine: Sequence[dict[str, Any]], way: str) -> str:
    return ", ".join(f"{late(one, f'explained_variance_{way}'):.2f}" for one in mine)


def _picture(out: Path, results: Sequence[dict[str, Any]]) -> None:
    """The curves of all runs over training steps: a colour an arm and interface, each value the mean of three steps."""
    charts = []
    for figure, title in CURVES:
        series = []
        for one in results:
            for way in hybrid_run.ARMS[one["arm"]]:
                points = [(p["step"], p[f"{figure}_{way}"]) for p in one["curve"] if f"{figure}_{way}" in p]
                if points:
                    series.append(ChartSeries(_named(one["arm"], way), TONES[one["arm"], way], _smooth(points)))
        if series:
            there = dict.fromkeys((one.label, one.tone) for one in series)
            drawn = draw_lines(series, title=title, x_label="steps", percent=figure == "success")
            charts.append(Chart(title, "", drawn, tuple(there) if figure == "success" else ()))
    if charts:
        told = draw_chart_sheet(charts, [], "The same questions by the screen and by functions")
        page = f'<!doctype html><body style="margin:0">{told}</body>'
        (out / "curves.html").write_text(page, encoding="utf-8")
        screenshot_page(out / "curves.html", out / "curves.png", width=1260)


def _named(arm: str, way: str) -> str:
    told = {"gui": "by the screen", "sdk": "by functions"}[way]
    return f"{told}, of both" if arm == "both" else f"{told} alone"


def _smooth(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    near = (points[max(0, n - 1) : n + 2] for n in range(len(points)))
    return tuple((points[n][0], fmean(y for _, y in part)) for n, part in enumerate(near))


if __name__ == "__main__":
    raise SystemExit(main())
