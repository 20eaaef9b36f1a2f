"""RL on games and site tasks in real Chromium: what it adds to its SFT start on held-out tasks, of two or three steps
(three games, two sites) or, with --episodes long, of ten and more (games at higher levels).

success_gain: held-out success after --minutes of PPO less that of the start, at the rollout temperature (greedy beside
it), the mean over seeds with its 95% t interval. gain_VARIANT: the same without one part of PPO, and with GRPO; the
peer is PPO with all its parts. start: the start's success, which is to lie between 0.2 and 0.5 (long: 0.1 and 0.3).

Each variant and seed is a process of its own with --threads threads, --parallel of them side by side; what is finished
lies in --out and is not done again, and a run that was killed goes on. With --table nothing is run: the table of what
is there.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import rl_run
import rl_start
from bench_case import BenchCase, emit_case, exit_code, student_mean_interval

from flywheel.ui.report.charts import Chart, ChartSeries, draw_chart_sheet, draw_lines
from flywheel.ui.report.pages import screenshot_page
from flywheel.utils.errors import BadInput

GOAL = 0.10
START = {"short": (0.2, 0.5), "long": (0.1, 0.3)}  # success of the start, by episodes
TONES = dict(zip(rl_run.VARIANTS, (f"tone-{n}" for n in ("one", "two", "three", "four", "six", "five")), strict=True))
CURVES = (
    ("success", "Success of the batches"),
    ("reward", "Reward"),
    ("entropy", "Entropy"),
    ("kl", "KL"),
    ("clip_fraction", "Clip fraction"),
    ("explained_variance", "Explained variance"),
    ("think_length", "Thought length, tokens"),
    ("rounds", "Steps an episode"),
    ("curriculum_informative", "Live groups"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench rl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("bench-rl"), help="results, states (default: %(default)s)")
    parser.add_argument(
        "--variants", nargs="+", choices=rl_run.VARIANTS, default=list(rl_run.VARIANTS), help="(default: all)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="(default: 1 2 3)")
    parser.add_argument("--minutes", type=float, default=20.0, help="of training a run (default: %(default)g)")
    parser.add_argument("--held-out", type=int, default=40, help="held-out tasks of a kind (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of a run (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side (default: %(default)s)")
    parser.add_argument(
        "--episodes", choices=rl_start.RECIPES, default="short", help="which tasks (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="small and short: that it works")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the block rl, in all runs, to look for a recipe"
    )
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args(argv)
    if options.parallel < 1:
        raise BadInput(f"--parallel {options.parallel}", where="flywheel bench rl", fix="1 or more")
    if options.quick:
        options.minutes, options.held_out, options.seeds = min(options.minutes, 0.05), 2, options.seeds[:1]
    rl_run.read_other(options.set)  # refused before anything runs, as is what follows
    rl_start.check_held_out(options.held_out)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.table:
        _run(options)
    runs = rl_run.runs(options.out, options.episodes)
    results = [found for one in rl_run.VARIANTS for found in _results(runs, one)]
    if not results:
        print(f"there are no results in {options.out}", file=sys.stderr)
        return 1
    last = "" if options.episodes == "short" else f"-{options.episodes}"
    (options.out / f"table{last}.md").write_text(table(results), encoding="utf-8")
    print(table(results), file=sys.stderr)
    code = exit_code([emit_case(case) for case in cases(results)])
    _picture(options.out / f"curves{last}", runs)
    return code


def _run(options: argparse.Namespace) -> None:
    """Seed by seed, so that the first rows of all variants are there early. Exits where a run fails, once those beside
    it have ended: the next call goes on with it."""
    rl_run.start(options.out.resolve(), options.episodes)  # made by one, for all

    def one(seed: int, variant: str) -> None:
        command = rl_run.command(
            options.out.resolve(),
            variant,
            seed,
            options.minutes,
            options.held_out,
            at_once=options.parallel,
            episodes=options.episodes,
            quick=options.quick,
            other=options.set,
        )
        subprocess.run([*_tied(), *command], env=rl_run.environment(options.threads), check=True)

    with ThreadPoolExecutor(options.parallel) as side_by_side:
        runs = [side_by_side.submit(one, seed, variant) for seed in options.seeds for variant in options.variants]
        try:
            for run in runs:
                run.result()
        except BaseException:
            side_by_side.shutdown(wait=False, cancel_futures=True)
            raise


def _tied() -> list[str]:
    """Runs end with this process, by whatever it ends, where the machine has the command for it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _results(runs: Path, variant: str) -> list[dict[str, Any]]:
    files = sorted(runs.glob(f"{variant}-*/result.json"))
    return [
        json.loads(path.read_text(encoding="utf-8")) for path in files if path.parent.name[len(variant) + 1 :].isdigit()
    ]


def cases(results: Sequence[dict[str, Any]]) -> list[BenchCase]:
    """success_gain, one case for every other variant that has a result, and the start."""
    by = {name: [one for one in results if one["variant"] == name] for name in rl_run.VARIANTS}
    full = fmean(one["gain"] for one in by["full"]) if by["full"] else None
    found = []
    for name, mine in by.items():
        if not mine:
            continue
        gain, about = fmean(one["gain"] for one in mine), _about(mine)
        if name == "full":
            found.append(BenchCase("rl", "success_gain", "fraction", gain, None, "", None, GOAL, gain >= GOAL, about))
        else:
            case = f"gain_{name.replace('-', '_')}"
            peer_name = rl_run.VARIANTS["full"][0]
            found.append(BenchCase("rl", case, "fraction", gain, full, peer_name, None, None, True, about))
    start = fmean(one["before"]["sampled"]["success"] for one in results)
    episodes = results[0].get("episodes", "short")
    low, high = START[episodes]
    about = {
        "goal_is": f"between {low} and {high}",
        "greedy": results[0]["before"]["greedy"]["success"],
        "n": results[0]["n"],
        "kinds": [f"{world} {template}, level {level}" for world, template, level in rl_start.RECIPES[episodes].kinds],
    }
    return [*found, BenchCase("rl", "start", "fraction", start, None, "", None, None, low <= start <= high, about)]


def _about(mine: Sequence[dict[str, Any]]) -> dict[str, Any]:
    score = [_gain(one, "score") for one in mine] if _scored(mine) else None
    return {
        "interval": list(student_mean_interval([one["gain"] for one in mine])),
        "by_seed": [one["gain"] for one in mine],
        "seeds": [one["seed"] for one in mine],
        "temperature": mine[0]["rl"]["temperature"],
        "greedy": fmean(one["gain_greedy"] for one in mine),
        "score_by_seed": score,
        "minutes": mine[0]["minutes"],
        "steps": [one["steps"] for one in mine],
        "n": mine[0]["n"],
        "threads": mine[0]["threads"],
        "at_once": mine[0]["at_once"],
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown: a row a variant. Before and after: held-out success at the rollout temperature, mean over seeds; their
    mean score too, which says more where few tasks are solved (older results lack it). Against all parts: its gain less
    that of `full` with the same seed."""
    worlds = list(results[0]["before"]["sampled"]["worlds"])
    scored = _scored(results)
    head = ["variant", "seeds", "before", "after", "gain (95%)", "against all parts", "greedy gain", "steps", *worlds]
    head += ["score", "score gain (95%)", "score against all parts"] if scored else []
    rows = [head, ["---"] * len(head)]
    whole = {one["seed"]: one for one in results if one["variant"] == "full"}
    for name, (said, _) in rl_run.VARIANTS.items():
        mine = [one for one in results if one["variant"] == name]
        if not mine:
            continue
        paired = [(one, whole[one["seed"]]) for one in mine if name != "full" and one["seed"] in whole]
        before, after = ([one[side]["sampled"] for one in mine] for side in ("before", "after"))
        row = [
            said,
            str(len(mine)),
            f"{_mean(before, 'success'):.2f}",
            f"{_mean(after, 'success'):.2f}",
            *_gains(mine, paired, "success"),
            f"{fmean(one['gain_greedy'] for one in mine):+.3f}",
            f"{fmean(one['steps'] for one in mine):.0f}",
            *(" → ".join(f"{fmean(one['worlds'][w] for one in part):.2f}" for part in (before, after)) for w in worlds),
        ]
        if scored:
            row += [f"{_mean(before, 'score'):.2f} → {_mean(after, 'score'):.2f}", *_gains(mine, paired, "score")]
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _gains(
    mine: Sequence[dict[str, Any]], paired: Sequence[tuple[dict[str, Any], dict[str, Any]]], figure: str
) -> tuple[str, str]:
    """Of a figure of held-out tasks: what a variant gains, and that less what its pairs gain."""
    apart = [_gain(one, figure) - _gain(all_parts, figure) for one, all_parts in paired]
    return _with_interval([_gain(one, figure) for one in mine]), _with_interval(apart) if apart else ""


def _gain(one: dict[str, Any], figure: str) -> float:
    return one["after"]["sampled"][figure] - one["before"]["sampled"][figure]


def _scored(results: Sequence[dict[str, Any]]) -> bool:
    return all("score" in one["before"]["sampled"] for one in results)


def _with_interval(values: Sequence[float]) -> str:
    low, high = student_mean_interval(values)
    return f"{fmean(values):+.3f}" + (f" ({low:+.2f} to {high:+.2f})" if math.isfinite(low) else "")


def _mean(part: Iterable[dict[str, Any]], name: str) -> float:
    return fmean(one[name] for one in part)


def _picture(out: Path, folder: Path) -> None:
    """The curves of all runs as data (.json) and as one picture (.png): over minutes, a colour a variant."""
    runs: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in rl_run.VARIANTS}
    for path in sorted(folder.glob("*/curve.jsonl")):
        name = path.parent.name.rpartition("-")[0]
        # A step that a kill cut off between curve and state comes twice: the later one counts.
        points = {point["step"]: point for point in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
        runs[name].append([points[step] for step in sorted(points)])
    out.with_suffix(".json").write_text(json.dumps(runs), encoding="utf-8")
    charts = []
    for figure, title in CURVES:
        series = []
        for name, mine in runs.items():
            for curve in mine:
                points = [(point["minute"], point[figure]) for point in curve if figure in point]
                if points:
                    series.append(ChartSeries(name, TONES[name], smooth(points)))
        if series:
            legend = tuple((name, TONES[name]) for name, mine in runs.items() if mine)
            share = figure in ("success", "curriculum_informative")
            drawn = draw_lines(series, title=title, x_label="minutes", percent=share)
            charts.append(Chart(title, "", drawn, legend if figure == "success" else ()))
    if charts:
        sheet = draw_chart_sheet(charts, [], "RL of a small model in real Chromium")
        page = f'<!doctype html><body style="margin:0">{sheet}</body>'
        out.with_suffix(".html").write_text(page, encoding="utf-8")
        screenshot_page(out.with_suffix(".html"), out.with_suffix(".png"), width=1260)


def smooth(points: Sequence[tuple[float, float]], reach: int = 4) -> tuple[tuple[float, float], ...]:
    """Each value the mean of its neighbours, `reach` to each side; a line a run, so single batches are too rough."""
    reach = min(reach, len(points) // 4)
    near = (points[max(0, n - reach) : n + reach + 1] for n in range(len(points)))
    return tuple((points[n][0], fmean(y for _, y in part)) for n, part in enumerate(near))


if __name__ == "__main__":
    raise SystemExit(main())
