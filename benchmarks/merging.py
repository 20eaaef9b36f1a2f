"""Ways to merge a run's specialists, played on held-out tasks; speed and memory of merging; what mergekit makes of it.

The specialists are those of a run's newest iteration (--workspace; without it one is made by the profile `small`), the
base of the task vectors is the SFT checkpoint that their RL began from. Each of these and each merge plays the same
held-out tasks, greedily: --tasks of each of --seeds seeds, of all domains in turn.

success_NAME: share of all tasks; by_domain: of each domain. difference: to `uniform`, the mean that the flywheel takes
by default, over the same tasks, with its 95% interval by a bootstrap over tasks. recovered: share of the mean of what
each specialist solves in its own domain.

`learned` fits a coefficient for each specialist, `learned_layers` one for each specialist and tensor (layer-wise
AdaMerging, Yang et al. 2024, arXiv:2310.02575, which minimises entropy), by the SFT loss on steps that the specialists
solved tasks of their own domains with; these tasks are no others'.

merge_speed_METHOD: bytes a second read and written, beside the disk's own. merge_memory_METHOD: the process's peak.

    flywheel bench merging --workspace DIR > benchmarks/results/merging/study.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import flywheel_run
import inference
import merging_learned
import merging_speed
from bench_case import BenchCase, emit_case, exit_code

from flywheel.config import load_settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.training.merge_methods import MergeMethod
from flywheel.training.model_merging import merge_checkpoints
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json

UNIFORM = "uniform"
DENSITY = 0.2  # of ties, as in its paper, and of dare
VALIDATION_SEED = 90_000  # of the tasks whose solved steps `learned` is fitted on


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench merging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workspace", type=Path, help="of a run (default: one is made in --out)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-merging"), help="merges and what was played (default: %(default)s)"
    )
    parser.add_argument("--tasks", type=int, default=60, help="of a seed; 0: no play (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of the tasks, and of dare (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=24, help="tasks a domain of `learned` (default: %(default)s)")
    parser.add_argument("--fit-steps", type=int, default=20, help="of `learned`; 0: without it (default: %(default)s)")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="a checkpoint; 0: no speed (default: %(default)s)")
    parser.add_argument("--disk", type=Path, help="folder on the disk that is measured (default: --out)")
    parser.add_argument("--rounds", type=int, default=3, help="of the speed, by turns (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.tasks < 0 or options.seeds < 1 or options.rounds < 1:
        raise BadInput("tasks are 0 or more, seeds and rounds 1 or more", where="--tasks, --seeds, --rounds")
    options.out.mkdir(parents=True, exist_ok=True)
    cases: list[BenchCase] = []
    if options.gigabytes:
        place = options.disk or options.out
        for method in merging_speed.METHODS:
            cases += map(emit_case, merging_speed.measure(place, options.gigabytes, options.rounds, method))
    if options.tasks:
        cases += map(emit_case, study(options))
    return exit_code(cases)


def find_specialists(workspace: Path) -> tuple[Path, dict[str, Path]]:
    """Return the SFT checkpoint, and the specialists by domain, of the newest iteration that has them. Raises BadInput
    for a run without."""
    ws = Workspace(workspace)
    settings = load_settings(ws.params)
    for folder in sorted((ws.root / "models").glob("iteration=*"), reverse=True):
        found = {domain: folder / f"rl-{domain}" for domain in settings.synthesis.domains}
        if (folder / "sft").is_dir() and all(one.is_dir() for one in found.values()):
            return folder / "sft", found
    raise BadInput("no iteration has all specialists", where=workspace, fix="let `flywheel run` end its RL first")


def make_run(folder: Path) -> Path:
    """Run an iteration of the profile `small` with some more RL, unless it is there; return its workspace."""
    ws = folder / "run"
    if not (ws / "params.yaml").is_file():
        flywheel_run._flywheel("init", str(ws), "--profile", "small")
    more = {"rl.steps": 5, "rl.group_size": 4, "rl.value_pretraining_steps": 20}
    flywheel_run._flywheel(
        "run", "-w", str(ws), *(word for name, value in more.items() for word in ("--set", f"{name}={value}"))
    )
    return ws


Models = dict[str, list[tuple[int, Path]]]  # by name, with the seed of the tasks that each plays


def make_merges(base: Path, specialists: Mapping[str, Path], out: Path, seeds: range) -> Models:
    """Return the base, the specialists and their merges, which are made in `out` where they are not there."""
    folders = [*specialists.values()]
    ways = {
        UNIFORM: MergeMethod(),
        "task_arithmetic_sum": MergeMethod("task_arithmetic", base, float(len(folders))),
        "ties": MergeMethod("ties", base, 1.0, DENSITY),
        "dare_ties": MergeMethod("dare_ties", base, 1.0, DENSITY),
    }
    made = {"sft": [(seed, base) for seed in seeds]}
    made |= {f"rl_{domain}": [(seed, folder) for seed in seeds] for domain, folder in specialists.items()}
    for name, way in ways.items():
        made[name] = []
        for seed in seeds:
            place = out / (f"{name}-{seed}" if way.drops else name)
            if not place.is_dir():
                equal = [1 / len(folders)] * len(folders)
                merge_checkpoints(folders, equal, place, method=replace(way, seed=seed))
            made[name].append((seed, place))
    return made


def make_learned(base: Path, specialists: Mapping[str, Path], options: argparse.Namespace) -> Models:
    """Return the merges by fitted coefficients, which are made where they are not there."""
    out, names = options.out / "merges", {"learned": False, "learned_layers": True}
    if not all((out / name).is_dir() for name in names):
        solved = merging_learned.solved_examples(specialists, base, options.validation, VALIDATION_SEED)
        for name, by_tensor in names.items():
            told = merging_learned.fit(base, specialists, solved, options.fit_steps, by_tensor, out / name)
            write_json(out / f"{name}.json", told)
    return {name: [(seed, out / name) for seed in range(options.seeds)] for name in names}


def tasks_of(seed: int, count: int) -> list[Task]:
    """Return held-out tasks of one seed: like those of `flywheel bench flywheel`, of other contents."""
    chosen = flywheel_run.settings_of("laptop")
    promotion = chosen.promotion.model_copy(update={"tasks": count})
    settings = chosen.model_copy(update={"promotion": promotion, "seed": flywheel_run.SEED + seed})
    return make_tasks(settings, 1, "gate")


def study(options: argparse.Namespace) -> list[BenchCase]:
    base, specialists = find_specialists(options.workspace or make_run(options.out))
    drawn = {seed: tasks_of(seed, options.tasks) for seed in range(options.seeds)}

    def play(models: Models) -> dict[str, dict[int, list[float | None]]]:
        return {
            name: {seed: _outcomes(options.out, folder, seed, drawn[seed]) for seed, folder in places}
            for name, places in models.items()
        }

    played = play(make_merges(base, specialists, options.out / "merges", range(options.seeds)))
    if options.fit_steps:
        played |= play(make_learned(base, specialists, options))
    about = {"base": checkpoint_digest(base)[:16], "tasks": options.tasks, "seeds": options.seeds}
    return study_cases(played, drawn, about)


def _outcomes(out: Path, model: Path, seed: int, tasks: Sequence[Task]) -> list[float | None]:
    """Return 1 or 0 for each task, None where its environment crashed; kept by the model's
    digest and the tasks, so that a run that ended goes on."""
    path = out / "played" / f"{checkpoint_digest(model)[:16]}-{seed}-{len(tasks)}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    judged = asyncio.run(flywheel_run.play_tasks(model, tasks, flywheel_run.settings_of("laptop")))
    won = {
        one.task.task_id: None if one.episode.trajectory.status == "crashed" else float(one.result.v) for one in judged
    }
    found = [won[task.task_id] for task in tasks]
    write_json(path, found)
    return found


def study_cases(
    played: Mapping[str, Mapping[int, Sequence[float | None]]],
    drawn: Mapping[int, Sequence[Task]],
    about: dict[str, Any],
) -> list[BenchCase]:
    """Return a case for each model, of the tasks on which no model's environment crashed.

    played: outcomes by model and seed. drawn: the tasks of each seed. Raises BadInput where no task is left.
    """
    slots = [(seed, place) for seed in drawn for place in range(len(drawn[seed]))]
    whole = [
        (seed, place) for seed, place in slots if all(by_seed[seed][place] is not None for by_seed in played.values())
    ]
    if not whole:
        raise BadInput("on each task some environment crashed", where="bench merging", fix="free the machine")
    domains = [drawn[seed][place].domain for seed, place in whole]
    pooled = {name: [by_seed[seed][place] for seed, place in whole] for name, by_seed in played.items()}
    seeds = sorted({seed for seed, _ in whole})

    def share(name: str, domain: str) -> float:
        own = [won for won, at in zip(pooled[name], domains, strict=True) if at == domain]
        return fmean(own) if own else math.nan

    names = sorted(set(domains))
    own = fmean(share(f"rl_{domain}", domain) for domain in names)
    cases = []
    for name, won in pooled.items():
        differences = [one - other for one, other in zip(won, pooled[UNIFORM], strict=True)]
        by_domain = {domain: share(name, domain) for domain in names}
        extra = about | {
            "n": len(won),
            "by_domain": by_domain,
            "difference": fmean(differences),
            "interval": inference.bootstrap(differences, fmean),
            "by_seed": [fmean(one for one, (at, _) in zip(won, whole, strict=True) if at == seed) for seed in seeds],
            "crashed": len(slots) - len(whole),
            "recovered": fmean(by_domain.values()) / own if own else math.nan,
        }
        cases.append(
            BenchCase(
                "merging",
                f"success_{name}",
                "fraction",
                fmean(won),
                fmean(pooled[UNIFORM]),
                UNIFORM,
                None,
                None,
                True,
                extra,
            )
        )
    return cases


if __name__ == "__main__":
    sys.exit(main())
