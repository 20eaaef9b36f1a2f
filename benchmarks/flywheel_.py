"""Whether each iteration is better than the last: whole runs, their models on like tasks, and runs without a part.

Of the default run, over seeds, with 95% t intervals: main_job_rise_N, what iteration N adds to success on tasks that no
run trains on, and main_job_rise in all; stages_keep, the worst mean step from one stage's model to the next; no_action,
the worst domain's share of steps without an action, in the merged model of the first iteration; and for each other arm
its gain beside the whole flywheel's (flywheel_vs_one_round: the ratio). Runs and measurements lie in --out and are not
done again; a run that was killed goes on. Each run takes about ten minutes, its measurements as long.

Of each run of a long profile, `evening` or `overnight`: p_v1_rise, what P(V = 1) on like tasks gains from the first
iteration to the last; held_out_rise_3 and held_out_rise, what success on templates that are trained on gains over
three iterations and over all; games_normalised, the mean score of the games as a share of their experts'.

Of the arms that go on without new recordings: by_itself, what success gains on the whole run's last model.

With --table nothing is run: the figures of what --out holds, such as benchmarks/results/flywheel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import flywheel_picture
import flywheel_run
from bench_case import BenchCase, emit_case, exit_code, student_mean_interval

from flywheel.utils.errors import BadInput

RISE, RISE_IN_ALL, KEEP, NO_ACTION, RATIO = 0.05, 0.15, -0.02, 0.02, 1.5
LIKE_TASKS, RISING_STEPS, THREE, LONG = 0.30, 0.8, 0.20, 0.35
BY_ITSELF, UNSEEN = 0.12, 0.05
LONG_RUNS = ("evening", "overnight")
Result = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench flywheel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("bench-flywheel"), help="(default: %(default)s)")
    parser.add_argument("--arms", nargs="+", choices=flywheel_run.ARMS, default=["whole"], help="(default: whole)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[7, 101, 1, 2, 3], help="(default: 7 101 1 2 3)")
    parser.add_argument("--profile", default="laptop", help="(default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=312, help="to measure on (default: %(default)s)")
    parser.add_argument("--merged", action="store_true", help="measure the base and the merged models alone")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="in all runs, to look for a recipe")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--picture", type=Path, metavar="PNG", help="draw the whole flywheel's curves of the profile")
    options = parser.parse_args(argv)
    if not options.table:
        for seed in options.seeds:
            for arm in options.arms:
                _run(options, arm, seed)
    results = read(options.out)
    if not results:
        print(f"there are no results in {options.out}", file=sys.stderr)
        return 1
    print(table(results), file=sys.stderr)
    if options.picture:
        whole = [run for run in results if run["arm"] == "whole" and profile_of(run) == options.profile]
        if not whole:
            raise BadInput(
                f"no whole run of the profile {options.profile}", where=options.out, fix="name its --profile"
            )
        flywheel_picture.write(options.picture, {run["seed"]: merged(run) for run in whole}, groups_of(whole[0]))
    return exit_code([emit_case(case) for case in cases(results)])


def _run(options: argparse.Namespace, arm: str, seed: int) -> None:
    """In a process of its own: a run ends with all that it holds."""
    given = ["--out", options.out, "--arm", arm, "--seed", seed, "--profile", options.profile, "--tasks", options.tasks]
    command = [sys.executable, flywheel_run.__file__, *map(str, given), "--set", *options.set]
    command += ["--merged"] * options.merged
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")})


def read(folder: Path) -> list[dict[str, Any]]:
    """Results of all runs in the folder, or in its folder `results`."""
    here = folder / "results" if (folder / "results").is_dir() else folder
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(here.glob("*-*.json"))]


def cases(results: Sequence[Result]) -> Iterator[BenchCase]:
    for profile in sorted({profile_of(run) for run in results}):
        mine = [run for run in results if profile_of(run) == profile]
        whole = [run for run in mine if run["arm"] == "whole"]
        places = groups_of(mine[0])
        if profile in LONG_RUNS:
            for run in whole:
                yield from _long_run(run)
        elif whole:
            yield from _default_runs(whole, places)
        for arm in flywheel_run.BY_ITSELF:
            if own := [run for run in mine if run["arm"] == arm]:
                yield _by_itself(arm, own, places)
        for arm in (arm for arm in flywheel_run.ARMS if arm not in ("whole", *flywheel_run.BY_ITSELF)):
            pairs = [
                (one, other) for one in whole for other in mine if (other["arm"], other["seed"]) == (arm, one["seed"])
            ]
            if pairs:
                yield _beside(arm, pairs, places["all"])


def _default_runs(whole: Sequence[Result], places: Mapping[str, list[int]]) -> Iterator[BenchCase]:
    yield from _rises(whole, places)
    if apart := [run for run in whole if any(model["name"].endswith(": sft") for model in run["models"])]:
        yield _stages_keep(apart, places)  # of those whose stages were measured too
    yield _no_action(whole)
    yield from _no_merge(whole, places)


def _rises(runs: Sequence[Result], places: Mapping[str, list[int]]) -> Iterator[BenchCase]:
    def rise(run: Result, after: int, before: int, where: str) -> float:
        found = merged(run)
        return flywheel_run.success(found[after], places[where]) - flywheel_run.success(found[before], places[where])

    last = min(len(merged(run)) for run in runs) - 1
    for name, after, before, goal in [
        *((f"main_job_rise_{n}", n, n - 1, RISE) for n in range(1, last + 1)),
        ("main_job_rise", last, 0, RISE_IN_ALL),
    ]:
        rises = [rise(run, after, before, "all") for run in runs]
        about = {
            "interval": list(student_mean_interval(rises)),
            "by_seed": {run["seed"]: value for run, value in zip(runs, rises, strict=True)},
            "by_group": {where: fmean(rise(run, after, before, where) for run in runs) for where in places},
            "n": len(places["all"]),
            "minutes": [run["minutes"] for run in runs],
        }
        mean = fmean(rises)
        peer = fmean(flywheel_run.success(merged(run)[before], places["all"]) for run in runs)
        yield _case(name, mean, peer, "success of the model before", goal, mean >= goal, about)


def _stages_keep(runs: Sequence[Result], places: Mapping[str, list[int]]) -> BenchCase:
    """A specialist is compared with SFT's model in its own domain, the merged model with SFT's in all."""
    steps: dict[str, list[float]] = {}
    for run in runs:
        models = {model["name"]: model for model in run["models"]}
        before = "base"
        for name, model in models.items():
            number, _, stage = name.partition(": ")
            if not stage:
                continue
            begins = before if stage == "ct" else f"{number}: ct" if stage == "sft" else f"{number}: sft"
            where = places[stage.removeprefix("rl-") if stage.startswith("rl-") else "all"]
            steps.setdefault(name, []).append(
                flywheel_run.success(model, where) - flywheel_run.success(models[begins], where)
            )
            before = name if stage == "merged" else before
    means = {name: fmean(found) for name, found in steps.items()}
    worst = min(means, key=lambda name: means[name])
    about = {"stage": worst, "interval": list(student_mean_interval(steps[worst])), "means": means, "n": len(runs)}
    return _case("stages_keep", means[worst], None, "none", KEEP, means[worst] >= KEEP, about)


def _no_action(runs: Sequence[Result]) -> BenchCase:
    shares: dict[str, list[float]] = {}
    for run in runs:
        for domain, share in merged(run)[1]["no_action"].items():
            shares.setdefault(domain, []).append(share)
    means = {domain: fmean(found) for domain, found in shares.items()}
    base = max(runs[0]["models"][0]["no_action"].values())
    about = {"goal_is": "at most", "by_domain": means, "seeds": len(runs)}
    worst = max(means.values())
    return _case("no_action", worst, base, "the base", NO_ACTION, worst <= NO_ACTION, about)


def _no_merge(runs: Sequence[Result], places: Mapping[str, list[int]]) -> Iterator[BenchCase]:
    """The gain where the last iteration keeps its specialists, each for its own domain."""

    def apart(run: Result) -> float:
        number = len(merged(run)) - 1
        own = {model["name"].removeprefix(f"{number}: rl-"): model for model in run["models"]}
        right = sum(
            own[domain]["outcomes"][place] == "1" for domain in places if domain in own for place in places[domain]
        )
        return right / len(places["all"])

    def base(run: Result) -> float:
        return flywheel_run.success(merged(run)[0], places["all"])

    runs = [run for run in runs if any(": rl-" in model["name"] for model in run["models"])]
    if not runs:
        return
    ours = fmean(apart(run) - base(run) for run in runs)
    peers = [flywheel_run.success(merged(run)[-1], places["all"]) - base(run) for run in runs]
    less = [peer - apart(run) + base(run) for run, peer in zip(runs, peers, strict=True)]
    about = {"seeds": len(runs), "less": fmean(less), "interval": list(student_mean_interval(less))}
    whole = flywheel_run.ARMS["whole"]
    yield BenchCase("flywheel", "gain_no_merge", "gain", ours, fmean(peers), whole, None, None, True, about)


def _beside(arm: str, pairs: Sequence[tuple[Result, Result]], places: list[int]) -> BenchCase:
    def gain(run: Result) -> float:
        found = merged(run)
        return flywheel_run.success(found[-1], places) - flywheel_run.success(found[0], places)

    gains = [(gain(one), gain(other)) for one, other in pairs]
    whole, mine = fmean(one for one, _ in gains), fmean(other for _, other in gains)
    differences = [one - other for one, other in gains]
    ratio = whole / mine if mine else None
    about = {
        "profile": profile_of(pairs[0][0]),
        "seeds": [one["seed"] for one, _ in pairs],
        "less": fmean(differences),
        "interval": list(student_mean_interval(differences)) if len(pairs) > 1 else [],
    }
    if arm == "one-round":
        met = whole > 0 and (mine <= 0 or whole / mine >= RATIO)
        return BenchCase(
            "flywheel", "flywheel_vs_one_round", "gain", whole, mine, flywheel_run.ARMS[arm], ratio, RATIO, met, about
        )
    case = f"gain_{arm.replace('-', '_')}"
    return BenchCase("flywheel", case, "gain", mine, whole, flywheel_run.ARMS["whole"], None, None, True, about)


def _by_itself(arm: str, runs: Sequence[Result], places: Mapping[str, list[int]]) -> BenchCase:
    """What the iterations without new recordings add to the whole run's last model."""

    def rise(run: Result, where: list[int]) -> float:
        found = merged(run)
        before = found[run["iterations_before"]]
        return flywheel_run.success(found[-1], where) - flywheel_run.success(before, where)

    rises = [rise(run, places["all"]) for run in runs]
    by_group = {where: fmean(rise(run, own) for run in runs) for where, own in places.items()}
    if len(runs) > 1:
        low, high = student_mean_interval(rises)
    else:
        found = merged(runs[0])
        low, high = _paired(found[runs[0]["iterations_before"]], found[-1], places["all"])
    about = {
        "interval": [low, high],
        "interval_is": "over seeds" if len(runs) > 1 else "over tasks",
        "by_seed": {run["seed"]: value for run, value in zip(runs, rises, strict=True)},
        "by_group": by_group,
        "unseen_goal": UNSEEN,
        "n": len(places["all"]),
        "minutes": [run["minutes"] for run in runs],
    }
    fell = any(by_group[where] < 0 for where in by_group if where not in ("all", "unseen templates"))
    met = fmean(rises) >= BY_ITSELF and low > 0 and not fell and by_group.get("unseen templates", 0) >= UNSEEN
    peer = fmean(flywheel_run.success(merged(run)[run["iterations_before"]], places["all"]) for run in runs)
    return _case(arm.replace("-", "_"), fmean(rises), peer, "the whole run's last model", BY_ITSELF, met, about)


def _long_run(run: Result) -> Iterator[BenchCase]:
    places, found = groups_of(run), merged(run)
    unseen = set(places.get("unseen templates", ()))
    seen = {name: [place for place in where if place not in unseen] for name, where in places.items()}
    last = len(found) - 1
    for name, after, goal in (("held_out_rise_3", 3, THREE), ("held_out_rise", last, LONG)):
        if after > last:
            continue
        low, high = _paired(found[0], found[after], seen["all"])
        rises = {
            where: flywheel_run.success(found[after], group) - flywheel_run.success(found[0], group)
            for where, group in {**seen, "unseen templates": sorted(unseen)}.items()
            if group
        }
        about = {"interval": [low, high], "n": len(seen["all"]), "by_group": rises, **_of(run)}
        fell = any(rise < 0 for where, rise in rises.items() if where not in ("all", "unseen templates"))
        peer = flywheel_run.success(found[0], seen["all"])
        met = rises["all"] >= goal and low > 0 and not fell
        yield _case(name, rises["all"], peer, "success of the base", goal, met, about)
    (whole,) = run["p_v1_in_all"]
    rising = [step["rise"] > 0 for step in run["p_v1_rise"]]
    about = {"steps_that_rise": [sum(rising), len(rising)], **whole, **_of(run)}
    met = whole["rise"] >= LIKE_TASKS and whole["low"] > 0 and sum(rising) >= RISING_STEPS * len(rising)
    yield _case("p_v1_rise", whole["rise"], whole["before"], "P(V=1) of the first", LIKE_TASKS, met, about)
    before, after = found[0]["games"], found[last]["games"]
    about = {"games": len(after), "by_game": {name: [before[name], after[name]] for name in after}, **_of(run)}
    ours, peer = fmean(after.values()), fmean(before.values())
    yield BenchCase("flywheel", "games_normalised", "of expert", ours, peer, "the base", None, None, ours > peer, about)


def _of(run: Result) -> dict[str, Any]:
    return {"profile": profile_of(run), "seed": run["seed"]}


def _paired(before: Result, after: Result, places: Sequence[int]) -> tuple[float, float]:
    """95% of the mean difference on the same tasks."""
    outcomes = [(before["outcomes"][place], after["outcomes"][place]) for place in places]
    return student_mean_interval([float(second) - float(first) for first, second in outcomes])


def profile_of(run: Result) -> str:
    return run.get("profile", "laptop")


def groups_of(run: Result) -> dict[str, list[int]]:
    """Places of the run's measured tasks."""
    return _groups(len(run["models"][0]["outcomes"]), profile_of(run))


@cache
def _groups(count: int, profile: str) -> dict[str, list[int]]:
    return flywheel_run.groups(flywheel_run.measured_tasks(count, profile), profile)


def _case(
    name: str, ours: float, peer: float | None, peer_name: str, goal: float, met: bool, about: dict[str, Any]
) -> BenchCase:
    return BenchCase("flywheel", name, "fraction", ours, peer, peer_name, None, goal, met, about)


def merged(run: Result) -> list[Result]:
    """The base, then the merged model of each iteration."""
    return [model for model in run["models"] if model["name"] == "base" or model["name"].endswith(": merged")]


def table(results: Sequence[Result]) -> str:
    """Success of each model of each run, by group."""
    lines: list[str] = []
    for run in results:
        places = groups_of(run)
        if not lines:
            lines = ["| run | model | " + " | ".join(places) + " | no action |", "|---" * (len(places) + 3) + "|"]
        for model in run["models"]:
            shares = [f"{flywheel_run.success(model, where):.3f}".replace("nan", "") for where in places.values()]
            worst = max(model["no_action"].values())
            lines.append(f"| {run['arm']} {run['seed']} | {model['name']} | {' | '.join(shares)} | {worst:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
