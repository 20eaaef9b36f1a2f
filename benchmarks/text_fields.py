"""Whether demonstrations of text fields in trained templates teach templates with text fields that no run trains on.

    python benchmarks/text_fields.py --workspace DIR --out bench-text-fields

DIR holds a run whose first iteration has a model after SFT. The worlds' solvers demonstrate fresh tasks: `even`, of all
trained templates in turn, or `fields`, of those in which the solver clicks a text field and types into it. From that
model each arm trains as `annotate_claim.py` does, with as many steps of the solver. Both are measured greedily on tasks
of held-out templates, with a text field (shop/search, control/type_number) and without (settings/size).
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

import annotate_claim
import corrections
from bench_case import add_study_arguments, print_study

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_task
from flywheel.recordings.synthetic.sessions import recorded_tasks
from flywheel.store.versioning import stage_records

ARMS = ("even", "fields")
FIELDS = ("control/type_word", "control/search", "control/form", "settings/name", "shop/buy")
MEASURED = {"text fields": ("shop/search", "control/type_number"), "without": ("settings/size",)}
_PASSED, _SEEDS = 4000, 7_000_000  # where fresh tasks begin: in the stream of recordings, and the seeds of others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser, "bench-text-fields")
    parser.add_argument("--demonstrations", type=int, default=60, help="tasks of an arm (default: %(default)s)")
    parser.add_argument("--corrections", type=int, default=100, help="steps of an arm (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=640, help="to train on (default: %(default)s)")
    parser.add_argument("--eval-tasks", type=int, default=30, help="of each template (default: %(default)s)")


def draw_tasks(templates: Sequence[str], levels: Sequence[int], seed: int) -> Iterator[Task]:
    """Yield tasks of `templates` (world/template), at each of the `levels` that it has, in turn, without end."""
    split = [name.split("/") for name in templates]
    slots = [
        (catalogue.get_world(world), template, level)
        for world, template in split
        for level in levels
        if level in catalogue.get_world(world).templates[template].max_steps
    ]
    for number, (world, template, level) in enumerate(itertools.cycle(slots)):
        yield make_task(world, template, level, seed + number, "train")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make and measure all arms by all seeds; return success by arm, seed and group. args: as of `add_arguments`."""
    ws, out = Workspace(args.workspace.resolve()), args.out.resolve()
    chosen, start = stage_records.load_iteration_params(ws, 1), ws.model(1, "sft")
    tasks = {
        "even": list(islice(recorded_tasks(chosen), _PASSED, _PASSED + args.demonstrations)),
        "fields": list(islice(draw_tasks(FIELDS, chosen.synthesis.levels, _SEEDS), args.demonstrations)),
    }
    shown = {arm: corrections.played_set(ws, out, "demonstrations", tasks[arm], chosen, arm) for arm in ARMS}
    measured, places = _measured_tasks(args.eval_tasks, chosen)
    outcomes: dict[str, dict[int, list[int]]] = {"start": {}, **{arm: {} for arm in ARMS}}
    for seed in args.seeds:
        outcomes["start"][seed] = annotate_claim._measure(out / "start", start, measured, chosen)
        for arm in ARMS:
            folder = out / f"{arm}-{seed}-{args.corrections}-{args.samples}-{args.lr:g}"
            if not (folder / "model" / "model.safetensors").is_file():
                played = {"demonstrations": shown[arm], "labelled": []}
                annotate_claim._train(ws, start, folder, "demonstrations", seed, played, chosen, args)
            outcomes[arm][seed] = annotate_claim._measure(folder, folder / "model", measured, chosen)
            print(json.dumps({"arm": arm, "seed": seed, **_shares(outcomes[arm][seed], places)}), flush=True)
    return {"tasks": len(measured), "arms": {arm: _summary(arm, outcomes, places) for arm in outcomes}}


def _measured_tasks(count: int, chosen: Settings) -> tuple[list[Task], dict[str, list[int]]]:
    tasks: list[Task] = []
    places: dict[str, list[int]] = {}
    for group, templates in MEASURED.items():
        for template in templates:
            own = list(islice(draw_tasks([template], chosen.synthesis.levels, _SEEDS + 1_000_000), count))
            at = range(len(tasks), len(tasks) + len(own))
            places.setdefault(group, []).extend(at)
            places[template] = [*at]
            tasks += own
    return tasks, places


def _shares(won: Sequence[int], places: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {group: round(fmean(won[place] for place in own), 4) for group, own in places.items()}


def _summary(
    arm: str, outcomes: Mapping[str, Mapping[int, list[int]]], places: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """By group, as `annotate_claim.summarize` tells it, beside `even`."""
    found = {}
    for group, own in places.items():
        part = {name: {seed: [won[n] for n in own] for seed, won in by.items()} for name, by in outcomes.items()}
        part["demonstrations"] = part["even"]
        told = annotate_claim.summarize("demonstrations" if arm == "even" else arm, part)
        if "beside_demonstrations" in told:
            told["beside_even"] = told.pop("beside_demonstrations")
        found[group] = told
    return found


if __name__ == "__main__":
    sys.exit(print_study(__doc__, add_arguments, run))
