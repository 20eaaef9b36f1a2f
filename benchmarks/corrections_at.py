"""Whether solvers teach more where they take over at the first mistake, or where the model was least sure.

    python benchmarks/corrections_at.py --workspace DIR --out bench-corrections-at

DIR holds a run whose first iteration has a model after SFT. That model plays fresh tasks as the stage `rollout` does,
and its failed episodes are corrected with each value of `rollout.corrections_at`. Of the failed episodes that every
value gives a solved correction of, a seed takes --corrections; the model is trained on --samples, half of them the
solver's steps of these corrections, and half the iteration's recordings and general data. `both` takes half of each.

All models are measured greedily on the tasks of `flywheel bench flywheel`. What is there is not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import annotate_claim
import corrections
import flywheel_run
from bench_case import add_study_arguments, make_once, print_study

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.policy import open_policy
from flywheel.policy.encoding import Encoder
from flywheel.recordings.synthetic.sessions import recorded_tasks
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.corrections import choose_failures, correct_failures, find_least_sure_step
from flywheel.rollout.episode import Episode, PromptHistory, run_rollout
from flywheel.rollout.solvers import TaskSolvers
from flywheel.store.versioning import stage_records
from flywheel.training.data import Example, ShuffledDataset

KINDS = ("first_mistake", "least_sure")
ARMS = (*KINDS, "both")
_PASSED = 2000  # tasks of the stream that the shipped recordings may be of: they are left out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser, "bench-corrections-at")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=KINDS, metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--tasks", type=int, default=120, help="that are played, twice each (default: %(default)s)")
    parser.add_argument("--corrections", type=int, default=60, help="of an arm (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=640, help="to train on (default: %(default)s)")
    parser.add_argument("--eval-tasks", type=int, default=312, help="tasks to measure on (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make and measure all arms by all seeds, the seeds one after the other.

    args: as of `add_arguments`. Returns what the corrections of each kind took, and success of the start model and of
    each arm by seed, with its difference to `first_mistake` (`annotate_claim.summarize`). What is done is printed.
    """
    ws, out = Workspace(args.workspace.resolve()), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen, start = stage_records.load_iteration_params(ws, 1), ws.model(1, "sft")
    tasks = list(islice(recorded_tasks(chosen), _PASSED, _PASSED + args.tasks))
    failed = make_once(out / "failed.pickle", lambda: asyncio.run(_play(start, tasks, chosen)))
    made = {kind: make_once(out / f"{kind}.pickle", partial(_correct, tasks, failed, chosen, kind)) for kind in KINDS}
    solved = {kind: _solved(tasks, made[kind][0], chosen) for kind in KINDS}
    told = {kind: {**made[kind][1], "solved": len(solved[kind])} | _places(failed, solved[kind]) for kind in KINDS}
    print(json.dumps({"failed": len(failed), **told}), flush=True)
    parents = {one.id: one for one in failed if all(one.id in solved[kind] for kind in KINDS)}
    drawn = flywheel_run.measured_tasks(args.eval_tasks)
    groups = flywheel_run.groups(drawn)
    outcomes: dict[str, dict[int, list[int]]] = {arm: {} for arm in ("start", *args.arms)}
    for seed in args.seeds:
        outcomes["start"][seed] = _measure(out, start, drawn)
        for arm in args.arms:
            folder = out / f"{arm}-{seed}-{args.corrections}-{args.samples}-{args.lr:g}"
            if not (folder / "model" / "model.safetensors").is_file():
                _train(ws, start, folder, arm, seed, parents, solved, chosen, args)
            outcomes[arm][seed] = _measure(out, folder / "model", drawn)
            shares = {name: round(fmean(outcomes[arm][seed][n] for n in own), 4) for name, own in groups.items()}
            print(json.dumps({"arm": arm, "seed": seed, **shares}), flush=True)
    beside = {**outcomes, "demonstrations": outcomes["first_mistake"]} if "first_mistake" in outcomes else outcomes
    return {
        "tasks": len(drawn),
        "corrected_by_all": len(parents),
        "corrections": told,
        "arms": {arm: _summary(arm, beside, groups) for arm in outcomes},
    }


async def _play(model: Path, tasks: Sequence[Task], chosen: Settings) -> list[Episode]:
    """The failed ones, as the stage `rollout` chooses them."""
    policy = open_policy(model, chosen.policy)
    try:
        async with open_environments(chosen, tasks) as environments:
            temperature = chosen.rollout.temperature
            playing = {"iteration": 2, "settings": chosen, "temperature": temperature}
            episodes = await run_rollout(tasks, 2, policy, environments, **playing)
    finally:
        await policy.close()
    return choose_failures({task.task_id: task for task in tasks}, episodes, 2, TaskSolvers())


def _correct(tasks: Sequence[Task], failed: Sequence[Episode], chosen: Settings, kind: str) -> Any:
    async def correct() -> Any:
        settings = chosen.model_copy(
            update={"rollout": chosen.rollout.model_copy(update={"corrections_at": kind, "corrections_per_task": 2})}
        )
        by_id = {task.task_id: task for task in tasks}
        async with open_environments(chosen, tasks) as environments:
            made, stats = await correct_failures(
                by_id, failed, environments, settings, TaskSolvers(), iteration=2, seed=3
            )
        return made, vars(stats)

    return asyncio.run(correct())


def _solved(tasks: Sequence[Task], made: Sequence[Episode], chosen: Settings) -> dict[str, Episode]:
    """Corrections that solve their task, by the failed episode's id."""
    from flywheel.evaluation.evaluator import judge_episode

    panel, by_id = ScorerSet(chosen), {task.task_id: task for task in tasks}
    return {
        one.trajectory.parent_id: one
        for one in made
        if judge_episode(by_id[one.trajectory.task_id], one, panel).result.v
    }


def _places(failed: Sequence[Episode], solved: Mapping[str, Episode]) -> dict[str, Any]:
    starts = [one.trajectory.start_step for one in solved.values()]
    sure = [find_least_sure_step(one) for one in failed]
    return {
        "at_first_step": sum(start == 0 for start in starts),
        "mean_start": round(fmean(starts), 2),
        "solver_steps": sum(len(one.own_steps) for one in solved.values()),
        "least_sure_at_first_step": sum(step == 0 for step in sure),
    }


def _train(
    ws: Workspace,
    start: Path,
    folder: Path,
    arm: str,
    seed: int,
    parents: Mapping[str, Episode],
    solved: Mapping[str, Mapping[str, Episode]],
    chosen: Settings,
    args: argparse.Namespace,
) -> None:
    from flywheel.training.sft import train_supervised

    encoder, rng = Encoder.from_folder(start), random.Random(seed)
    names = rng.sample(sorted(parents), args.corrections)
    kinds = {name: KINDS[place % 2] if arm == "both" else arm for place, name in enumerate(names)}
    new = [one for name, kind in kinds.items() for one in _examples(parents[name], solved[kind][name], encoder, chosen)]
    recorded, general = corrections.recorded_examples(ws, encoder, chosen, args.out.resolve() / "screens")
    shares = (args.samples // 2, args.samples // 4, args.samples // 4)
    samples = [
        one
        for source, count in zip((new, recorded, general), shares, strict=True)
        for one in islice(corrections.repeated(source, rng), count)
    ]
    ct = chosen.ct.model_copy(update={"num_examples": args.samples, "lr": args.lr})
    (folder / "state").mkdir(parents=True, exist_ok=True)
    dataset = ShuffledDataset(samples, ct.batch, seed)
    losses = train_supervised(start, folder / "model", dataset, settings=ct, state_folder=folder / "state")
    print(json.dumps({"arm": arm, "seed": seed, "steps": len(new), "loss": round(fmean(losses[-8:]), 3)}), flush=True)


def _examples(parent: Episode, corrected: Episode, encoder: Encoder, chosen: Settings) -> list[Example]:
    """The solver's steps, on the prompts that the pipeline gives them."""
    images, trajectory = {**parent.images, **corrected.images}, corrected.trajectory
    history = PromptHistory(trajectory.instruction, images, chosen.policy, count=encoder.count)
    found = []
    for step in corrected.steps:
        context = history.context(images[step.image_sha256], observation=step.observation)
        if step.step >= trajectory.start_step:
            response = tuple(encoder.encode_text(step.raw_text))
            prompt = partial(encoder.encode, context)
            found.append(Example(prompt, response, None, trajectory.task_id, step.step, trajectory.domain))
        history.add(step)
    return found


def _measure(out: Path, model: Path, tasks: Sequence[Task]) -> list[int]:
    return [int(digit) for digit in flywheel_run.measured(out / "measured", model, tasks)["outcomes"]]


def _summary(
    arm: str, outcomes: dict[str, dict[int, list[int]]], groups: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    found = annotate_claim.summarize("demonstrations" if arm == "first_mistake" else arm, outcomes)
    if "beside_demonstrations" in found:
        found["beside_first_mistake"] = found.pop("beside_demonstrations")
    by_group = {name: fmean(won[n] for won in outcomes[arm].values() for n in own) for name, own in groups.items()}
    return {**found, "by_group": {name: round(share, 4) for name, share in by_group.items()}}


if __name__ == "__main__":
    sys.exit(print_study(__doc__, add_arguments, run))
