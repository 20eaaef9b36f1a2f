"""Whether a solver's corrections on the newest model's own path teach more than as many steps of demonstrations.

    python benchmarks/annotate_claim.py --workspace DIR --out bench-claim

DIR holds a run whose first iteration is complete. Its model after SFT plays fresh tasks alone, and the worlds' solver
says of each screen what it would do; the same solver demonstrates the same tasks. Of these each arm takes --corrections
steps, and the model is trained on --samples, half of them these steps and half the iteration's recordings and general
data:

demonstrations: whole episodes of the solver.
first: the first mistakes of episodes that failed.
random: any steps of the model's own path, mistakes or not.
uncertain: those steps of its path whose answers had the lowest mean log-probability.
first_dpo, uncertain_dpo: the same, and the model's own wrong answers there as rejected ones (block `preference`).
dagger: first mistakes, and in place of recordings the model's own steps of episodes that it solved.

A seed chooses episodes, steps and their order. All arms are measured greedily on the same like tasks of other contents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import corrections
import flywheel_run
from bench_case import add_study_arguments, print_study, student_mean_interval
from corrections import Played

from flywheel.config import PreferenceSettings, Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.policy.encoding import Encoder
from flywheel.recordings.synthetic.sessions import recorded_tasks, task_content
from flywheel.store.versioning import stage_records
from flywheel.training.data import Example, PreferencePair, ShuffledDataset
from flywheel.utils.files import write_json

ARMS = ("demonstrations", "first", "first_dpo", "random", "uncertain", "uncertain_dpo", "dagger")
_PASSED, _MEASURED = 2000, 6000  # where in the stream of tasks those to learn from and those to measure on begin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser, "bench-claim")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--tasks", type=int, default=200, help="that are played (default: %(default)s)")
    parser.add_argument("--corrections", type=int, default=100, help="steps of an arm (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=640, help="to train on (default: %(default)s)")
    parser.add_argument("--weight", type=float, default=1.0, help="of the preference loss (default: %(default)s)")
    parser.add_argument("--eval-tasks", type=int, default=120, help="tasks to measure on (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make and measure all arms by all seeds, the seeds one after the other; what is there is not made again.

    args: as of `add_arguments`. Returns success of the start model and of each arm: by seed, the mean, and beside
    `demonstrations` with the same seeds the difference with its 95% intervals: over tasks (of the seeds' mean), and
    over seeds (t). What is done so far is printed.
    """
    ws, out = Workspace(args.workspace.resolve()), args.out.resolve()
    chosen, start = stage_records.load_iteration_params(ws, 1), ws.model(1, "sft")
    tasks = list(islice(recorded_tasks(chosen), _PASSED, _PASSED + args.tasks))
    known = {task_content(task) for task in tasks}
    others = (task for task in islice(recorded_tasks(chosen), _MEASURED, None) if task_content(task) not in known)
    measured = list(islice(others, args.eval_tasks))
    played = {way: corrections.played_set(ws, out, way, tasks, chosen, way) for way in ("labelled", "demonstrations")}
    outcomes: dict[str, dict[int, list[int]]] = defaultdict(dict)
    outcomes["start"] = {seed: _measure(out / "start", start, measured, chosen) for seed in args.seeds}
    for seed in args.seeds:
        for arm in args.arms:
            name = f"{arm}-{args.weight:g}" if arm.endswith("_dpo") else arm
            folder = out / f"{name}-{seed}-{args.corrections}-{args.samples}-{args.lr:g}"
            if not (folder / "outcomes.json").is_file():
                _train(ws, start, folder, arm, seed, played, chosen, args)
            outcomes[arm][seed] = _measure(folder, folder / "model", measured, chosen)
            print(json.dumps({"arm": arm, "seed": seed, "success": fmean(outcomes[arm][seed])}), flush=True)
    return {"tasks": len(measured), **{arm: summarize(arm, outcomes) for arm in outcomes}}


def summarize(arm: str, outcomes: dict[str, dict[int, list[int]]]) -> dict[str, Any]:
    """Summarize an arm. outcomes: by arm and seed, of each task in the same order."""
    own, beside = outcomes[arm], outcomes["demonstrations"]
    found = {"by_seed": [round(fmean(won), 4) for won in own.values()]}
    found["mean"] = round(fmean(found["by_seed"]), 4)
    seeds = [seed for seed in own if seed in beside]
    if arm == "demonstrations" or not seeds:
        return found
    apart = [[a - b for a, b in zip(own[seed], beside[seed], strict=True)] for seed in seeds]
    over_tasks, over_seeds = [fmean(column) for column in zip(*apart, strict=True)], [fmean(row) for row in apart]
    found["beside_demonstrations"] = round(fmean(over_tasks), 4)
    half = 1.96 * stdev(over_tasks) / len(over_tasks) ** 0.5
    found["over_tasks"] = [round(fmean(over_tasks) + sign * half, 4) for sign in (-1, 1)]
    if len(seeds) > 1:
        found["over_seeds"] = [round(end, 4) for end in student_mean_interval(over_seeds)]
    return found


def _measure(folder: Path, model: Path, tasks: Sequence[Task], chosen: Settings) -> list[int]:
    path = folder / "outcomes.json"
    if not path.is_file():
        judged = asyncio.run(flywheel_run.play_tasks(model, tasks, chosen))
        won = {one.task.task_id: one.result.v for one in judged}
        write_json(path, [int(won[task.task_id]) for task in tasks])
    return json.loads(path.read_text(encoding="utf-8"))


def choose_steps(arm: str, played: dict[str, list[Played]], count: int, seed: int) -> list[tuple[Played, int]]:
    """Choose the steps that an arm learns from: episodes with numbers of their steps."""
    rng = random.Random(seed)
    way = "demonstrations" if arm == "demonstrations" else "labelled"
    episodes = rng.sample(played[way], len(played[way]))
    if arm == "demonstrations":
        return [(one, number) for one in episodes for number in range(len(one.steps))][:count]
    failed = [one for one in episodes if not one.solved and _mistakes(one)]
    if arm in ("first", "first_dpo", "dagger"):
        return [(one, _mistakes(one)[0]) for one in failed][:count]
    # Of two thirds of the episodes, so that seeds differ.
    seen = [(one, number) for one in episodes[: 2 * len(episodes) // 3] for number in range(len(one.steps))]
    if arm == "random":
        return rng.sample(seen, count)
    return sorted(seen, key=lambda at: fmean(at[0].own[at[1]].logprobs))[:count]


def _mistakes(played: Played) -> list[int]:
    return [number for number, (*_, right) in enumerate(played.steps) if not right]


def _train(
    ws: Workspace,
    start: Path,
    folder: Path,
    arm: str,
    seed: int,
    played: dict[str, list[Played]],
    chosen: Settings,
    args: argparse.Namespace,
) -> None:
    from flywheel.training.preference import PairedDataset, PreferenceTrainer
    from flywheel.training.sft import train_supervised

    encoder, rng = Encoder.from_folder(start), random.Random(seed)
    taken = choose_steps(arm, played, args.corrections, seed)
    new = [_example(one, number, encoder) for one, number in taken]
    recorded, general = corrections.recorded_examples(ws, encoder, chosen, args.out.resolve() / "screens")
    if arm == "dagger":
        recorded = [
            _example(one, number, encoder, own=True)
            for one in played["labelled"]
            if one.solved
            for number in range(len(one.steps))
        ]
    shares = (args.samples // 2, args.samples // 4, args.samples // 4)
    samples = [
        one
        for source, count in zip((new, recorded, general), shares, strict=True)
        for one in islice(corrections.repeated(source, rng), count)
    ]
    ct = chosen.ct.model_copy(update={"num_examples": args.samples, "lr": args.lr})
    dataset = ShuffledDataset(samples, ct.batch, seed)
    more: dict[str, Any] = {}
    if arm.endswith("_dpo"):
        places = zip(new, taken, strict=True)
        pairs = [
            PreferencePair(example, one.own[number].token_ids)
            for example, (one, number) in places
            if number in _mistakes(one)
        ]
        preference = PreferenceSettings(weight=args.weight, nll=0.0)  # the batches have the kept responses already
        dataset = PairedDataset(dataset, pairs, preference, ct.max_repeats, seed)
        more = {"trainer": PreferenceTrainer}
    (folder / "state").mkdir(parents=True, exist_ok=True)
    seen: list[dict] = []
    losses = train_supervised(
        start, folder / "model", dataset, settings=ct, state_folder=folder / "state", on_metric=seen.append, **more
    )
    told = {"losses": [round(loss, 3) for loss in losses[:: max(1, len(losses) // 8)]]}
    told["preferred"] = [one["preferred"] for one in seen[:: max(1, len(seen) // 8)] if "preferred" in one]
    print(json.dumps({"arm": arm, "seed": seed, "steps": len(taken), "new": len(new), **told}), flush=True)


def _example(played: Played, number: int, encoder: Encoder, own: bool = False) -> Example:
    context, wanted, _ = played.steps[number]
    response = played.own[number].token_ids if own else tuple(encoder.encode_text(wanted))
    return Example(partial(encoder.encode, context), response, None, played.task.task_id, number, played.task.domain)


if __name__ == "__main__":
    sys.exit(print_study(__doc__, add_arguments, run))
