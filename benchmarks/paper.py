"""The tables and figures of section 3 of the UI-TARS-2 report, theirs beside ours: one HTML page from kept results.

Nothing is run. What has no result here is marked with the command that makes it and its time. --results may be given
several times: of like figures the folder named last counts, so that runs of one's own replace those of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import flywheel_
import flywheel_run
import hybrid
import rl
import yaml
from bench_case import student_mean_interval
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flywheel.ui.report.charts import Chart, ChartSeries, draw_lines, tone_stylesheet
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
# Games of the report's table 2, in its order -> ours of the same kind.
GAMES_OF_REPORT = {
    "2048": "merge", "Emoji-sort-master": "pour", "Energy": "power", "Free-the-key": "slide", "Gem-11": "gems",
    "Hex-frvr": "hexes", "Infinity-Loop": "loops", "Laser-maze-puzzle": "lasers", "Maze: Path of Light": "maze",
    "Merge-and-double": "double", "Shapes": "shapes", "Snake-solver": "snake", "Tiles-master": "tiles",
    "Wood-blocks-3d": "wood", "Yarn-untangle": "untangle",
}  # fmt: skip
GAMES, SITES = ("merge", "shapes", "tiles"), ("settings", "shop")  # worlds of `flywheel bench rl`
REACH = 3  # points to either side that a curve's point is the mean of


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Ours:
    """What we have of one table or figure. run: which kept results. says: what they show, in a sentence."""

    run: str
    says: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


class Results:
    """Read kept results. folders: as --results; of like files, those of the last one that has any count."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders

    def read(self, pattern: str) -> tuple[str, list[dict[str, Any]]]:
        """Return the name of the folder and the content of its files of a glob `pattern`; JSON lines become a list
        under `lines`, beside the file's `name`. Raises BadInput for a damaged file."""
        for folder in reversed(self.folders):
            if paths := sorted(folder.glob(pattern)):
                shown = Path(os.path.relpath(folder, HERE.parent)) if folder.is_relative_to(HERE.parent) else folder
                return (shown / pattern).parent.as_posix(), [_read(path) for path in paths]
        return "", []


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    try:
        return (
            {"name": path.stem, "lines": [json.loads(line) for line in text.splitlines()]}
            if path.suffix == ".jsonl"
            else json.loads(text)
        )
    except ValueError as error:
        raise BadInput(f"it is damaged: {error}", where=path, fix="remove it, or run the benchmark again") from None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("paper.html"), help="(default: %(default)s)")
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="kept results, beside the repository's",
    )
    options = parser.parse_args(argv)
    for folder in options.results:
        if not folder.is_dir():
            raise BadInput("there is no such folder", where=folder, fix="name the --out of a benchmark's parent")
    entries = build_entries(Results([RESULTS, *options.results]))
    write_text(options.out, render(entries))
    missing = [entry["title"] for entry in entries if entry["ours"] is None]
    print(f"{options.out}: {len(entries) - len(missing)} of {len(entries)} tables and figures have a result of ours")
    for entry in entries:
        if entry["ours"] is None:
            print(f"missing: {entry['title']}: `{entry['command']}` makes it, in {entry['time']}")
    return 0


def build_entries(results: Results) -> list[dict[str, Any]]:
    """Return the entries of `paper.yaml` in order, each with `ours`: an `Ours`, or None where there is none."""
    entries = yaml.safe_load((HERE / "paper.yaml").read_text(encoding="utf-8"))
    return [{**entry, "ours": READERS[entry["ours"]](results)} for entry in entries]


def render(entries: Sequence[Mapping[str, Any]]) -> str:
    """Render the page, without other files. Data are escaped."""
    folders = [HERE, HERE.parent / "flywheel" / "ui" / "report" / "templates"]
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=lambda name: name != "style.css",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("paper.html").render(entries=entries, palette=tone_stylesheet())


# -- what we have of each ---------------------------------------------------------------------------------------------
def held_out(results: Results) -> Ours | None:
    """Success by group of tasks of the base and after each iteration, mean over the seeds of the default run."""
    run, runs = results.read("flywheel/samples-2000/whole-*.json")
    if not runs:
        return None
    places = flywheel_.groups_of(runs[0])
    last = min(len(flywheel_.merged(one)) for one in runs)
    rows = []
    for number in range(last):
        found = [
            [flywheel_run.success(flywheel_.merged(one)[number], where) for one in runs] for where in places.values()
        ]
        rows.append(["the base" if number == 0 else f"after iteration {number}", *map(_percent, map(fmean, found))])
    rises = [
        flywheel_run.success(flywheel_.merged(one)[last - 1], places["all"])
        - flywheel_run.success(flywheel_.merged(one)[0], places["all"])
        for one in runs
    ]
    low, high = student_mean_interval(rises)
    says = (
        f"{last - 1} iterations add {fmean(rises):+.3f} ({low:+.3f} to {high:+.3f}, 95%, {len(runs)} seeds) to success."
    )
    return Ours(run, says, [Table(["model", *places], rows)])


def games(results: Results) -> Ours | None:
    run, runs = results.read("flywheel/broad/whole-*.json")
    if not runs:
        return None
    models = [flywheel_.merged(one) for one in runs]
    before, after = ([found[place]["games"] for found in models] for place in (0, -1))
    rows = [
        [f"{mine}, like {theirs}", *(f"{100 * fmean(one[mine] for one in side):.1f}" for side in (before, after))]
        for theirs, mine in GAMES_OF_REPORT.items()
    ]
    means = [fmean(fmean(one.values()) for one in side) for side in (before, after)]
    rows.append(["mean, of the expert's", *(f"{100 * mean:.1f}" for mean in means)])
    head = ["game", "the base", f"after {len(models[0]) - 1} iterations"]
    says = f"Of an expert's score the mean goes from {100 * means[0]:.1f} to {100 * means[1]:.1f} ({len(runs)} seed)."
    return Ours(run, says, [Table(head, rows)])


def reward_by_domain(results: Results) -> Ours | None:
    def of(worlds: Sequence[str]) -> Callable[[Mapping[str, float]], float]:
        return lambda point: fmean(point[f"success_{world}"] for world in worlds if f"success_{world}" in point)

    return _curves(
        results, "rl/runs", "full", {"games": of(GAMES), "sites": of(SITES)}, "Success of the batches", percent=True
    )


def entropy(results: Results) -> Ours | None:
    return _curves(results, "rl/runs", "full", {"entropy": _named("entropy")}, "Entropy of a token, in nats")


def think_length(results: Results) -> Ours | None:
    return _curves(results, "rl/runs", "full", {"tokens": _named("think_length")}, "Tokens of a thought")


def rounds(results: Results) -> Ours | None:
    return _curves(
        results, "rl/runs-long", "full", {"steps": _named("rounds")}, "Steps of an episode",
        more=[("Mean score", {"score": _named("score")})],
    )  # fmt: skip


def reward_by_game(results: Results) -> Ours | None:
    wanted = {world: _named(f"success_{world}") for world in GAMES}
    return _curves(results, "rl/runs", "full", wanted, "Success of the batches", percent=True)


def value_pretraining(results: Results) -> Ours | None:
    return _variants(results, {"full": "with", "no-value-pretraining": "without"})


def ppo_grpo(results: Results) -> Ours | None:
    return _variants(results, {"full": "PPO", "grpo": "GRPO"})


def _variants(results: Results, names: Mapping[str, str]) -> Ours | None:
    """Compare variants of `flywheel bench rl`: gains on held-out tasks, short and long episodes, and reward curves."""
    rows, runs, series = [], [], []
    for folder, what in (("rl/runs", "short"), ("rl/runs-long", "long")):
        for place, (variant, name) in enumerate(names.items()):
            run, found = results.read(f"{folder}/{variant}-*/result.json")
            if not found:
                return None
            gains = [one["gain"] for one in found]
            low, high = student_mean_interval(gains)
            rows.append([what, name, str(len(gains)), f"{fmean(gains):+.3f}", f"{low:+.2f} to {high:+.2f}"])
            runs.append(run)
            if what == "short":
                curves = _read_curves(results, folder, variant)
                points = _mean_curve(curves, _named("reward"))
                series.append(ChartSeries(name, f"tone-{('one', 'two')[place]}", points))
    head = ["episodes", "variant", "seeds", "gain in held-out success", "95%"]
    chart = _chart("Reward of the batches, short episodes, mean over seeds", series)
    return Ours(", ".join(sorted({Path(one).parent.as_posix() for one in runs})), "", [Table(head, rows)], [chart])


def functions_rl(results: Results) -> Ours | None:
    run, runs = results.read("hybrid/runs/sdk-*/result.json")
    if not runs:
        return None
    charts = [
        _chart(title, [ChartSeries("functions", "tone-two", _mean_curve([one["curve"] for one in runs], _named(name)))])
        for name, title in (("success", "Success of the batches"), ("entropy", "Entropy of a token, in nats"))
    ]
    return Ours(Path(run).parent.as_posix(), f"{len(runs)} seeds, mean.", (), charts)


def hybrid_training(results: Results) -> Ours | None:
    run, runs = results.read("hybrid/runs/*/result.json")
    if not runs:
        return None
    lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in hybrid.table(runs).splitlines()]
    return Ours(Path(run).parent.as_posix(), "", [Table(lines[0], lines[2:])])


def outcome_reward_model(results: Results) -> Ours | None:
    """Precision and the like on new tasks; of RL by its reward, the true success beside that by the verifier's."""
    ours = _case_table(results, "orm/*.jsonl")
    _, found = results.read("orm/rl_by_orm.json")
    if ours is None or not found:
        return ours
    (rl_by_orm,) = found
    low, high = rl_by_orm["gap_interval"]
    says = (
        f"RL by an earlier one, without the final screen, ends at a true success of {rl_by_orm['orm']:.3f}, by the "
        f"verifier's reward at "
        f"{rl_by_orm['verifier']:.3f}: {rl_by_orm['gap']:+.3f} ({low:+.3f} to {high:+.3f}). It pays for "
        f"{rl_by_orm['paid_last']['paid_of_failed']:.2f} of the failures by then, for "
        f"{rl_by_orm['paid_first']['paid_of_failed']:.2f} at first: it is hacked."
    )
    return replace(ours, says=says)


def inference(results: Results) -> Ours | None:
    return _case_table(results, "inference/*.jsonl")


def quantized(results: Results) -> Ours | None:
    return _case_table(results, "quantized/*.jsonl")


# Titles of LMGame-Bench in the report's order -> case of `flywheel bench lmgame`, or why there is none.
TITLES_OF_LMGAME = {
    "Sokoban": "sokoban",
    "Super Mario Bros.": None,
    "Tetris": "hexes, like Tetris",
    "2048": "2048",
    "Candy Crush": "gems, like Candy Crush",
    "Ace Attorney": None,
}


def lmgame(results: Results) -> Ours | None:
    """A row for each title: theirs beside ours where the unit is the same, and random keys."""
    run, files = results.read("lmgame/*.jsonl")
    found: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        for case in file["lines"]:
            found.setdefault(case["case"], []).append(case | {"name": file["name"].replace("-", " ")})
    rows = []
    for title, name in TITLES_OF_LMGAME.items():
        if name is None:
            rows.append([title, "", "", "not played", "", "", ""])
        for case in found.get(name or "", ()):
            theirs = "another unit" if case["peer"] is None else f"{case['peer']:g}"
            between = "{:.3g} to {:.3g}".format(*case["interval"])
            ours = [f"{case[side]:.3g}" for side in ("ours", "random")]
            rows.append([title, case["name"], theirs, *ours, between, f"{case['n']}, {case['unit']}"])
    head = ["title", "our model", "theirs", "ours", "random keys", "95% of ours", "n, unit of ours"]
    return Ours(run, "", [Table(head, rows)]) if found else None


def merging(results: Results) -> Ours | None:
    return _case_table(results, "merging/*.jsonl")


def _case_table(results: Results, pattern: str) -> Ours | None:
    """A row for each case of a benchmark whose lines were kept as they were printed."""
    run, files = results.read(pattern)
    cases, rows = [case for found in files for case in found["lines"]], []
    differ = any("difference" in case for case in cases)
    for case in cases:
        low, high = case.get("interval") or (None, None)
        between = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        unit = "" if case.get("unit", "fraction") == "fraction" else f" {case['unit']}"
        ours, peer = ("" if case.get(side) is None else f"{case[side]:.4g}{unit}" for side in ("ours", "peer"))
        beside = f"{peer} ({case['peer_name']})" if peer else ""
        difference = [f"{case['difference']:+.3f}" if "difference" in case else ""] if differ else []
        rows.append([case["case"].replace("_", " "), ours, beside, *difference, between, str(case.get("n", ""))])
    head = ["figure", "ours", "beside", *(["difference"] if differ else []), "95%", "n"]  # 95%: of the difference
    return Ours(run, "", [Table(head, rows)]) if rows else None


# -- curves -----------------------------------------------------------------------------------------------------------
def _named(name: str) -> Callable[[Mapping[str, float]], float | None]:
    return lambda point: point.get(name)


def _read_curves(results: Results, folder: str, variant: str) -> list[list[Mapping[str, float]]]:
    return [one["lines"] for one in results.read(f"{folder}/{variant}-*/curve.jsonl")[1]]


def _curves(
    results: Results,
    folder: str,
    variant: str,
    wanted: Mapping[str, Callable],
    title: str,
    *,
    percent: bool = False,
    more: Iterable[tuple[str, Mapping[str, Callable]]] = (),
) -> Ours | None:
    """Draw curves of a variant of `flywheel bench rl` over its steps, the mean over seeds, and say how each moves."""
    curves = _read_curves(results, folder, variant)
    if not curves:
        return None
    charts, moves = [], []
    for heading, names in [(title, wanted), *more]:
        series = []
        for place, (name, figure) in enumerate(names.items()):
            points = _mean_curve(curves, figure)
            series.append(ChartSeries(name, f"tone-{('one', 'two', 'three', 'four')[place]}", points))
            fifth = max(1, len(points) // 5)
            first, last = fmean(y for _, y in points[:fifth]), fmean(y for _, y in points[-fifth:])
            moves.append(f"{name} {first:.2f} to {last:.2f}")
        charts.append(_chart(heading, series, percent=percent))
    says = f"From the first fifth of the steps to the last: {', '.join(moves)} ({len(curves)} seeds)."
    return Ours(results.read(f"{folder}/{variant}-*/curve.jsonl")[0].rpartition("/")[0], says, (), charts)


def _mean_curve(curves: Sequence[Sequence[Mapping[str, float]]], figure: Callable) -> tuple[tuple[float, float], ...]:
    """Return (step, mean over runs) as far as the shortest run goes, smoothed, without steps that lack it."""
    points = []
    for place in range(min(len(curve) for curve in curves)):
        values = [value for curve in curves if (value := figure(curve[place])) is not None]
        if values:
            points.append((float(place + 1), fmean(values)))
    return rl.smooth(points, REACH)


def _chart(title: str, series: Sequence[ChartSeries], *, percent: bool = False) -> Chart:
    legend = tuple((one.label, one.tone) for one in series)
    return Chart(title, "", draw_lines(series, title=title, percent=percent), legend)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


READERS: dict[str, Callable[[Results], Ours | None]] = {
    "held_out": held_out,
    "games": games,
    "reward_by_domain": reward_by_domain,
    "entropy": entropy,
    "think_length": think_length,
    "rounds": rounds,
    "value_pretraining": value_pretraining,
    "outcome_reward_model": outcome_reward_model,
    "inference": inference,
    "quantized": quantized,
    "lmgame": lmgame,
    "merging": merging,
    "ppo_grpo": ppo_grpo,
    "reward_by_game": reward_by_game,
    "functions_rl": functions_rl,
    "hybrid_training": hybrid_training,
}

if __name__ == "__main__":
    sys.exit(main())
