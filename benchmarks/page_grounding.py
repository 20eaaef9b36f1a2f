"""Whether grounding examples of the trained sites' own pages teach templates that no run trains on.

    python benchmarks/page_grounding.py --workspace DIR --out bench-page-grounding

DIR holds a run whose first iteration has a model after SFT. From it each arm trains on --samples: half grounding
examples, a quarter steps of the solver's demonstrations, a quarter the iteration's recordings. Arms of one kind of
demonstrations differ in the grounding examples alone:

general: demonstrations of all trained templates; all examples of general screens.
page: --share of the examples of pages: to click, name and read elements.
ways: the same share of pages, of all kinds of questions: also to type into fields, and the way to other pages.
worded: as `ways`; where a text is to be typed into the search field, half say "Search for", as the held-out tasks do.
fields, fields_page, fields_ways: the same with demonstrations of text fields (`text_fields.py`).

Measured greedily: tasks of three held-out templates, the tasks of `flywheel bench flywheel`, the first action in
shop/search and settings/size, and page questions of other contents. What is there is not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import annotate_claim
import corrections
import flywheel_run
import text_fields
from bench_case import add_study_arguments, make_once, print_study, student_mean_interval

from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.parser import parse_response
from flywheel.agent.prompt import build_context
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import draw_training_tasks
from flywheel.envs.tasks.grounding import GroundingExample, make_grounding_examples
from flywheel.policy import open_policy
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import SamplingParams
from flywheel.recordings.synthetic.sessions import recorded_tasks
from flywheel.rollout.corrections import does_the_same
from flywheel.store.versioning import stage_records
from flywheel.synthesis.page_grounding import KINDS, make_page_examples
from flywheel.training.data import Example, ShuffledDataset, build_general_examples
from flywheel.utils.files import write_json

EVEN = ("general", "page", "ways", "worded")
FIELDS = ("fields", "fields_page", "fields_ways")
ARMS = dict.fromkeys(EVEN, "even") | dict.fromkeys(FIELDS, "fields")  # -> demonstrations
BESIDE = dict.fromkeys(EVEN[1:], "general") | dict.fromkeys(FIELDS[1:], "fields")
PLAIN = ("click", "name", "read")  # kinds of questions
TEMPLATES = ("shop/search", "settings/size", "control/type_number")
FIRST = {"shop/search": "search", "settings/size": "page look"}  # the element that the first click should hit
_PASSED, _SEEDS = 4000, 7_000_000  # as in `text_fields.py`
_ASKED = 120  # page questions that a model is measured on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_arguments(parser, "bench-page-grounding")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--share", type=float, default=0.5, help="of pages among grounding examples (default: 0.5)")
    parser.add_argument("--samples", type=int, default=1280, help="to train on (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of demonstrations (default: %(default)s)")
    parser.add_argument("--eval-tasks", type=int, default=156, help="of all templates (default: %(default)s)")
    parser.add_argument("--template-tasks", type=int, default=24, help="of each template (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make and measure the arms by all seeds; return what `summarize` tells of each. args: as of `add_arguments`."""
    ws, out = Workspace(args.workspace.resolve()), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen, start = stage_records.load_iteration_params(ws, 1), ws.model(1, "sft")
    drawn = flywheel_run.measured_tasks(args.eval_tasks)
    levels, first = chosen.synthesis.levels, _SEEDS + 1_000_000
    apart = {
        name: list(islice(text_fields.draw_tasks([name], levels, first), args.template_tasks)) for name in TEMPLATES
    }
    asked = make_once(out / "asked.pickle", partial(_page_examples, ws, chosen, 3, _ASKED, PLAIN))
    measure = partial(_measure, out=out, drawn=drawn, apart=apart, asked=asked, chosen=chosen)
    found: dict[str, dict[int, dict[str, Any]]] = {"start": dict.fromkeys(args.seeds, measure(start))}
    print(json.dumps({"arm": "start", **_told(found["start"][args.seeds[0]])}), flush=True)
    for seed in args.seeds:
        for arm in args.arms:
            folder = out / f"{arm}-{seed}-{args.share:g}-{args.samples}-{args.steps}-{args.lr:g}"
            if not (folder / "model" / "model.safetensors").is_file():
                _train(ws, start, folder, arm, seed, chosen, args)
            found.setdefault(arm, {})[seed] = measure(folder / "model")
            print(json.dumps({"arm": arm, "seed": seed, **_told(found[arm][seed])}), flush=True)
    return {"tasks": len(drawn), "groups": _sizes(drawn), "arms": {arm: summarize(arm, found, drawn) for arm in found}}


def _page_examples(
    ws: Workspace, chosen: Settings, iteration: int, count: int, kinds: Sequence[str]
) -> list[GroundingExample]:
    """Of the pages of an iteration's training tasks."""
    tasks = [task for task, _ in draw_training_tasks(chosen, iteration, ws.root)]
    return asyncio.run(make_page_examples(count, iteration, chosen, tasks, ws.root, kinds))


def _worded(made: Sequence[GroundingExample]) -> list[GroundingExample]:
    def reword(one: GroundingExample) -> GroundingExample:
        said = re.sub(r"^Type (.*) in the search field\.$", r"Search for \1.", one.instruction)
        return replace(one, instruction=said) if int(one.sample_id[-1], 16) % 2 else one

    return [reword(one) for one in made]


def _train(
    ws: Workspace, start: Path, folder: Path, arm: str, seed: int, chosen: Settings, args: argparse.Namespace
) -> None:
    from flywheel.training.sft import train_supervised

    out, encoder, rng = args.out.resolve(), Encoder.from_folder(start), random.Random(seed)
    way, grounding = ARMS[arm], args.samples // 2
    tasks = list(
        islice(recorded_tasks(chosen), _PASSED, _PASSED + 60)
        if way == "even"
        else islice(text_fields.draw_tasks(text_fields.FIELDS, chosen.synthesis.levels, _SEEDS), 60)
    )
    played = {"demonstrations": corrections.played_set(ws, out, "demonstrations", tasks, chosen, way)}
    shown = annotate_claim.choose_steps("demonstrations", played, args.steps, seed)
    new = [annotate_claim._example(one, number, encoder) for one, number in shown]
    recorded, _ = corrections.recorded_examples(ws, encoder, chosen, out / "screens")
    pages = round(grounding * args.share) if arm in BESIDE else 0
    kinds = PLAIN if arm.endswith("page") else KINDS
    path = out / f"pages-{len(kinds)}-{grounding}.pickle"
    seen = _draw(path, partial(_page_examples, ws, chosen, 2, grounding, kinds), pages, rng)
    general = out / f"general-{grounding}.pickle"
    made = [
        *_draw(general, partial(make_grounding_examples, 2 * grounding, 47, chosen), grounding - pages, rng),
        *(_worded(seen) if arm == "worded" else seen),
    ]
    samples = [
        *islice(corrections.repeated(new, rng), args.samples // 4),
        *islice(corrections.repeated(recorded, rng), args.samples - grounding - args.samples // 4),
        *_examples(made, encoder, chosen),
    ]
    ct = chosen.ct.model_copy(update={"num_examples": args.samples, "lr": args.lr})
    (folder / "state").mkdir(parents=True, exist_ok=True)
    dataset = ShuffledDataset(samples, ct.batch, seed)
    losses = train_supervised(start, folder / "model", dataset, settings=ct, state_folder=folder / "state")
    told = {"steps": len(new), "pages": pages, "tokens": sum(len(one.response) for one in samples)}
    print(json.dumps({"arm": arm, "seed": seed, **told, "loss": round(fmean(losses[-8:]), 3)}), flush=True)


def _draw(
    path: Path, make: Callable[[], list[GroundingExample]], count: int, rng: random.Random
) -> list[GroundingExample]:
    return rng.sample(make_once(path, make), count) if count else []


def _examples(made: Sequence[GroundingExample], encoder: Encoder, chosen: Settings) -> list[Example]:
    """As the stages `ct` and `sft` read them of their table."""
    digests = {one.sample_id: hashlib.sha256(one.png).hexdigest() for one in made}
    rows = [
        {"sample_id": one.sample_id, "image_sha256": digests[one.sample_id], "instruction": one.instruction}
        | {"response": one.response}
        for one in made
    ]
    images = {digests[one.sample_id]: one.png for one in made}
    return build_general_examples(rows, images, encoder, chosen.policy)


# What a model can do.


def _measure(
    model: Path,
    *,
    out: Path,
    drawn: Sequence[Task],
    apart: Mapping[str, Sequence[Task]],
    asked: Sequence[GroundingExample],
    chosen: Settings,
) -> dict[str, Any]:
    """Outcomes of the tasks of `drawn`, and of each template in `apart`; whether the first action clicks what `FIRST`
    names; whether page questions are answered right. Each a digit, by the model's path."""
    path = out / "found" / f"{hashlib.sha256(str(model).encode()).hexdigest()[:12]}.json"
    if not path.is_file():
        won = flywheel_run.measured(out / "measured", model, drawn)["outcomes"]
        found = {"all": won, **asyncio.run(_play_templates(model, apart, chosen))}
        write_json(path, found | {"named": asyncio.run(_answer(model, asked, chosen))})
    return json.loads(path.read_text(encoding="utf-8"))


async def _play_templates(model: Path, apart: Mapping[str, Sequence[Task]], chosen: Settings) -> dict[str, str]:
    found = {}
    for template, tasks in apart.items():
        judged = {one.task.task_id: one for one in await flywheel_run.play_tasks(model, tasks, chosen)}
        mine = [judged[task.task_id] for task in tasks]
        found[template] = _digits(one.result.v for one in mine)
        if template in FIRST:
            async with open_environments(chosen, tasks) as environments, environments.env(tasks[0]) as env:
                state = (await env.reset(tasks[0], tasks[0].seed)).info["state"]
            box = next(one for one in state["elements"] if one["name"] == FIRST[template])
            found[f"{template}: first"] = _digits(_hits(one.episode.steps[0], box) for one in mine)
    return found


def _hits(step: Any, box: Mapping[str, float]) -> bool:
    """Whether a step clicks into an element, which is at the same place on all screens of its site."""
    inside = step.action_type == "click" and 0 <= step.x - box["x"] <= box["w"] and 0 <= step.y - box["y"] <= box["h"]
    return bool(inside)


async def _answer(model: Path, asked: Sequence[GroundingExample], chosen: Settings) -> str:
    """Of questions that ask for a click: whether it is near the right one."""
    policy, grammar = open_policy(model, chosen.policy), Grammar.of(chosen.policy, (224, 224))
    sampling = SamplingParams(0.0, chosen.policy.max_new_tokens, 0, action=True)

    async def one(example: GroundingExample) -> bool:
        context = build_context(example.instruction, (), example.png, chosen.policy, policy.encoder.count)
        answer = parse_response((await policy.complete(context, sampling)).text, grammar).action
        return does_the_same(answer, parse_response(example.response, grammar).action, [])

    try:
        return _digits([await one(example) for example in asked if "Action:" in example.response])
    finally:
        await policy.close()


def _digits(found: Any) -> str:
    return "".join(str(int(one)) for one in found)


# What is told.


def _share(digits: str) -> float:
    return round(fmean(map(int, digits)), 4)


def _told(measured: Mapping[str, str]) -> dict[str, float]:
    return {name: _share(digits) for name, digits in measured.items()}


def _sizes(drawn: Sequence[Task]) -> dict[str, int]:
    return {name: len(own) for name, own in flywheel_run.groups(drawn).items()}


def summarize(
    arm: str, found: Mapping[str, Mapping[int, Mapping[str, str]]], drawn: Sequence[Task]
) -> dict[str, dict[str, Any]]:
    """Summarize an arm: of each group its share by seed and the mean, and beside the arm of the same demonstrations
    (BESIDE; of these arms, beside the start) the difference with its 95% intervals over tasks (of the seeds' mean) and
    over seeds (t). found: by arm and seed, digits by group. drawn: the tasks of the group `all`."""
    other = found.get(BESIDE.get(arm, "start"), {})
    groups = flywheel_run.groups(drawn)
    told = {}
    for name in found[arm][next(iter(found[arm]))]:
        parts = groups if name == "all" else {name: None}
        for part, places in parts.items():
            own, beside = (
                {seed: [int(one[name][n]) for n in (places or range(len(one[name])))] for seed, one in by.items()}
                for by in (found[arm], other)
            )
            told[part] = _beside(own, beside if arm != "start" else {})
    return told


def _beside(own: Mapping[int, list[int]], other: Mapping[int, list[int]]) -> dict[str, Any]:
    told: dict[str, Any] = {"by_seed": [round(fmean(won), 4) for won in own.values()]}
    told["mean"] = round(fmean(told["by_seed"]), 4)
    seeds = [seed for seed in own if seed in other]
    if not seeds:
        return told
    apart = [[a - b for a, b in zip(own[seed], other[seed], strict=True)] for seed in seeds]
    over_tasks, over_seeds = [fmean(column) for column in zip(*apart, strict=True)], [fmean(row) for row in apart]
    half = 1.96 * stdev(over_tasks) / len(over_tasks) ** 0.5
    told["beside"] = round(fmean(over_tasks), 4)
    told["over_tasks"] = [round(told["beside"] + sign * half, 4) for sign in (-1, 1)]
    if len(seeds) > 1:
        told["over_seeds"] = [round(end, 4) for end in student_mean_interval(over_seeds)]
    return told


if __name__ == "__main__":
    sys.exit(print_study(__doc__, add_arguments, run))
