"""Adapters of public benchmarks: task files that load, actions there and back, official scores, faults that score.

--sources FOLDER (or FLYWHEEL_BENCHMARKS) has a folder for each benchmark by its name, with its own code, and its public
task files in it or in its folder `tasks`. loaded: share of the task files that are read. round_trips: share of random
actions that come back unchanged, theirs by ours and ours by theirs; an action that ours cannot express is held as it
is, and `expressed` is the share of the others. official_scores: share of scores of seeded recorded results that equal
those of the benchmark's own functions, run on the same files. faults_scored: broken episodes, read in the benchmark's
form and mixed into results, that have a score or change a mean or a baseline; must be 0. A benchmark whose files are
not given does not meet its goals.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from adapters_actions import SCREEN, SCREENS, THEIRS, draw_ours
from adapters_official import OFFICIAL, write_broken
from bench_case import BenchCase, emit_case, exit_code

from flywheel.agent.actions import split_action
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    BenchmarkAdapter,
    RefusedTask,
    TaskResult,
    compute_advantages,
    mask_faults,
)
from flywheel.evaluation.benchmarks.catalogue import BENCHMARKS
from flywheel.evaluation.benchmarks.container_recipe import list_installed_packages
from flywheel.evaluation.benchmarks.terminal_bench import TerminalBench
from flywheel.utils.errors import BadInput

_TASK_FOLDERS = {"windows-agent-arena": "evaluation_examples_windows"}
_TOLERANCE = 1e-9


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench adapters", description=__doc__)
    parser.add_argument("--sources", type=Path, default=os.environ.get("FLYWHEEL_BENCHMARKS"))
    parser.add_argument("--actions", type=int, default=2000, help="random actions of each form, and of ours")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--python", type=Path, help="Python that Terminal-Bench's tasks get; default: this one")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="this benchmark; may be repeated")
    options = parser.parse_args(argv)
    cases = []
    for name in options.only or BENCHMARKS:
        adapter = BENCHMARKS[name]
        if options.python and name == TerminalBench.name:
            adapter = TerminalBench(list_installed_packages(options.python))
        root = Path(options.sources) / name if options.sources else None
        rng = random.Random(f"{name} {options.seed}")
        cases.append(_loaded(adapter, root))
        cases.append(_round_trips(adapter, rng, options.actions, options.seed))
        cases.append(_official(adapter, root, rng, options.seed))
        cases.append(_faults(adapter, rng, options.seed))
    return exit_code(cases)


def _case(adapter: BenchmarkAdapter, case: str, value: float, goal: float, met: bool, **extra: object) -> BenchCase:
    return emit_case(
        BenchCase("adapters", f"{adapter.name} {case}", "fraction", value, None, "", None, goal, met, extra)
    )


def _loaded(adapter: BenchmarkAdapter, root: Path | None) -> BenchCase:
    inner = _TASK_FOLDERS.get(adapter.name)
    try:
        if root is None or not root.is_dir():
            raise BadInput("its files are not given")
        folder = next(root.rglob(inner)) if inner else root / "tasks" if (root / "tasks").is_dir() else root
        tasks = list(adapter.load_tasks(folder))
    except BadInput as error:
        return _case(adapter, "loaded", 0.0, 1.0, False, n=0, missing=error.what)
    refused = [task for task in tasks if isinstance(task, RefusedTask)]
    playable = sum(not isinstance(task, RefusedTask) and not task.unplayable for task in tasks)
    share = 1 - len(refused) / len(tasks)
    first = {"refused": f"{refused[0].path}: {refused[0].why}"} if refused else {}
    return _case(adapter, "loaded", share, 1.0, share == 1.0, n=len(tasks), playable=playable, **first)


def _round_trips(adapter: BenchmarkAdapter, rng: random.Random, count: int, seed: int) -> BenchCase:
    screen = SCREENS.get(adapter.name)
    total = same = expressed = ours = 0
    wrong = ""
    for draw in THEIRS[adapter.name]:
        for _ in range(count):
            written = draw(rng)
            adapted = adapter.parse_action(written, screen)
            back = adapter.format_action(adapted, screen)
            total += 1
            same += back == written
            expressed += bool(adapted.actions)
            wrong = wrong or ("" if back == written else f"{written!r} became {back!r}")
    for _ in range(count):
        action = draw_ours(rng, screen or SCREEN)
        try:
            written = adapter.format_action(AdaptedActions((action,)), screen)
        except ValueError:
            continue
        ours += 1
        read = adapter.parse_action(written, screen).actions
        equal = read in ((action,), split_action(action))
        same, total = same + equal, total + 1
        wrong = wrong or ("" if equal else f"{action!r} became {read!r}")
    share = same / total
    told = {"n": total, "seed": seed, "expressed": expressed / (count * len(THEIRS[adapter.name])), "ours_drawn": ours}
    return _case(adapter, "round_trips", share, 1.0, share == 1.0, **told, **({"wrong": wrong[:300]} if wrong else {}))


def _official(adapter: BenchmarkAdapter, root: Path | None, rng: random.Random, seed: int) -> BenchCase:
    if root is None or not root.is_dir():
        return _case(adapter, "official_scores", 0.0, 1.0, False, n=0, missing="its files are not given")
    with tempfile.TemporaryDirectory() as folder:
        compared = OFFICIAL[adapter.name](root, Path(folder), rng)
    apart = [one for one in compared if not math.isclose(one[1], one[2], rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)]
    share = 1 - len(apart) / len(compared)
    first = {"apart": f"{apart[0][0]}: {apart[0][1]} for {apart[0][2]}"} if apart else {}
    return _case(adapter, "official_scores", share, 1.0, not apart, n=len(compared), seed=seed, **first)


def _faults(adapter: BenchmarkAdapter, rng: random.Random, seed: int) -> BenchCase:
    """Read broken episodes in the benchmark's form, and mix them into scored ones: none may have a score, and neither
    mean nor baseline change."""
    with tempfile.TemporaryDirectory() as folder:
        count = write_broken(adapter.name, Path(folder))
        read = adapter.read_results(Path(folder))
    sound = [
        TaskResult(f"t{task}", run, score=float(rng.random() < 0.5), category="c")
        for task in range(40)
        for run in range(4)
    ]
    broken = [TaskResult(f"t{task}", run, fault="gone", category="c") for task in range(40) for run in range(4, 6)]
    broken += [dataclasses.replace(one, task="t0", seed=10 + number) for number, one in enumerate(read) if one.fault]
    mixed = sound + broken
    rng.shuffle(mixed)
    clean = dict(zip((one.key for one in sound), compute_advantages(sound), strict=True))
    advantages = dict(zip((one.key for one in mixed), compute_advantages(mixed), strict=True))
    scored = sum(one.score is not None for one in broken) + sum(advantages[one.key] is not None for one in broken)
    moved = sum(advantages[key] != value for key, value in clean.items())
    before, after = mask_faults(sound), mask_faults(mixed)
    moved += before.mean != after.mean
    moved += mask_faults(read).mean is not None
    wrong = scored + moved + sum(one.score is not None for one in read) + abs(len(read) - count)
    return _case(
        adapter,
        "faults_scored",
        float(wrong),
        0.0,
        wrong == 0 and after.faults == len(broken),
        n=len(broken),
        seed=seed,
    )


if __name__ == "__main__":
    raise SystemExit(main())
