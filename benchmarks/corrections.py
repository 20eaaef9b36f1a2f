"""Whether people's corrections of the newest model teach more than demonstrations: as many tasks, one run each.

    flywheel bench corrections --workspace DIR --out bench-corrections

DIR holds a run whose first iteration is complete. Its model plays fresh tasks, with the worlds' expert as annotator:
demonstrations: the expert plays alone. corrected: the model proposes each step, and what is wrong is overridden.
taken_over: the model plays up to its first wrong step, which counts, and the expert goes on from there. labelled: the
model plays alone, and the expert says of each screen what should have been done. With `_failed` the tasks are those
that the model did not solve.

`annotate_claim.py` measures which of the model's steps are worth correcting, and what its own answers there add.

Each set joins the iteration's recordings and general data; the base is trained on them as CT is, for --samples, and
measured as `flywheel bench flywheel` measures. Sets and models lie in --out and are not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import flywheel_run
from bench_case import BenchCase, emit_case, exit_code

from flywheel.agent.actions import Finished, ParseError, Wait
from flywheel.agent.grammar import Grammar, format_response
from flywheel.agent.parsing.parser import action_fields, parse_response
from flywheel.agent.prompt import Context
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Env, Task
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.oracle import next_expert_step
from flywheel.policy import open_policy
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion, PolicyBackend, SamplingParams
from flywheel.recordings.synthetic.sessions import recorded_tasks
from flywheel.rollout.corrections import does_the_same
from flywheel.rollout.episode import PromptHistory, derive_seed
from flywheel.store import manifest
from flywheel.store.schema import Step
from flywheel.store.versioning import stage_records
from flywheel.training.data import Example, ShuffledDataset
from flywheel.utils.confidence_intervals import wilson_interval
from flywheel.utils.errors import BadInput

WAYS = ("demonstrations", "corrected", "taken_over", "labelled")
ARMS = (*WAYS, *(f"{way}_failed" for way in WAYS))
_PASSED = 2000  # tasks of the stream that the shipped recordings may be of: they are left out
_TRIED = 4  # tasks that the model tries for each that is wanted of those it does not solve


@dataclass
class Played:
    """One episode. steps: what was shown, what should be answered, whether the model's own answer was right. own: what
    the model answered, of each step, but of demonstrations."""

    task: Task
    solved: bool = False
    steps: list[tuple[Context, str, bool]] = field(default_factory=list)
    own: list[Completion] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench corrections", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("bench-corrections"), help="(default: %(default)s)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--tasks", type=int, default=142, help="of each set (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=5000, help="to train on (default: %(default)s)")
    parser.add_argument("--eval-tasks", type=int, default=390, help="tasks to measure on (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of training (default: %(default)s)")
    options = parser.parse_args(argv)
    ws, out = Workspace(options.workspace.resolve()), options.out.resolve()
    if not (ws.model(1, "sft") / "model.safetensors").is_file():
        raise BadInput(
            "there is no model of a first iteration", where=ws.root, fix="`flywheel run --iteration 1` there"
        )
    return exit_code([_arm(ws, out, arm, options) for arm in options.arms])


def _arm(ws: Workspace, out: Path, arm: str, options: argparse.Namespace) -> BenchCase:
    chosen = stage_records.load_iteration_params(ws, 1)
    way = arm.removesuffix("_failed")
    stream = islice(recorded_tasks(chosen), _PASSED, None)
    tasks = list(islice(stream, options.tasks))
    if arm != way:
        tried = played_set(ws, out, "labelled", list(islice(stream, _TRIED * options.tasks)), chosen, "tried")
        tasks = [one.task for one in tried if not one.solved][: options.tasks]
    played = played_set(ws, out, way, tasks, chosen, arm)
    model = _trained(ws, out, arm, played, chosen, options)
    drawn = flywheel_run.measured_tasks(options.eval_tasks, "evening")
    result = flywheel_run.measured(out / "measured", model, drawn, "evening")
    places = flywheel_run.groups(drawn, "evening")
    share = flywheel_run.success(result, places["all"])
    about = {
        "n": len(drawn),
        "interval": list(wilson_interval(round(share * len(drawn)), len(drawn))),
        "seed": options.seed,
        "episodes": len(played),
        "steps": sum(len(one.steps) for one in played),
        "wrong": sum(not right for one in played for *_, right in one.steps),
        "by_group": {group: flywheel_run.success(result, own) for group, own in places.items()},
    }
    return emit_case(BenchCase("corrections", arm, "success", share, None, "none", None, None, True, about))


def played_set(ws: Workspace, out: Path, way: str, tasks: Sequence[Task], chosen: Settings, name: str) -> list[Played]:
    path = out / f"{name}.pickle"
    if path.is_file():
        return pickle.loads(path.read_bytes())
    found = asyncio.run(_play_all(ws.model(1, "sft"), way, tasks, chosen))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(found))
    return found


async def _play_all(model: Path, way: str, tasks: Sequence[Task], chosen: Settings) -> list[Played]:
    policy = open_policy(model, chosen.policy)
    found: dict[str, Played | None] = {}
    waiting = iter(tasks)
    try:
        async with open_environments(chosen, tasks) as environments:

            async def work() -> None:
                for task in waiting:
                    async with environments.env(task) as env:
                        found[task.task_id] = await play(env, policy, task, way, chosen)

            await asyncio.gather(*(work() for _ in range(4)))
    finally:
        await policy.close()
    return [one for task in tasks if (one := found[task.task_id])]


async def play(env: Env, policy: PolicyBackend, task: Task, way: str, chosen: Settings) -> Played | None:
    """One episode of a way; None where the expert would wait, which no recording shows."""
    images: dict[str, bytes] = {}
    history = PromptHistory(task.instruction, images, chosen.policy, count=policy.encoder.count)
    played, alone = Played(task), way in ("taken_over", "labelled")
    result = await env.reset(task, task.seed)
    while not (result.terminated or result.truncated) and len(played.steps) < task.max_steps:
        seen, state, number = result.observation, result.info["state"], len(played.steps)
        sha256 = hashlib.sha256(seen.screenshot).hexdigest()
        images[sha256] = seen.screenshot
        context = history.context(seen.screenshot)
        grammar = Grammar.of(chosen.policy, (seen.width, seen.height))
        thought, action = next_expert_step(task, state) or ("I am done.", Finished())
        if isinstance(action, Wait):
            return None
        text, right = format_response(thought, action_fields(action, grammar)["action"]), False
        wanted = text
        if way != "demonstrations":
            limit, seed = chosen.policy.max_new_tokens, derive_seed(task.task_id, number)
            sampling = SamplingParams(chosen.rollout.temperature, limit, seed, action=True, session=task.task_id)
            completion = await policy.complete(context, sampling)
            played.own.append(completion)
            parsed = parse_response(completion.text, grammar)
            right = does_the_same(parsed.action, action, state["elements"])
            if right and way == "corrected":
                wanted = completion.text
            if right or alone:
                thought, action, text = parsed.thought, parsed.action, completion.text
            alone = alone and (right or way == "labelled")
        played.steps.append((context, wanted, right))
        broken = isinstance(action, ParseError)
        result = result if broken else await env.step(action)
        done = {"parse_error": action.reason} if broken else action_fields(action, grammar)
        history.add(Step(task.task_id, number, "model", thought, raw_text=text, image_sha256=sha256, **done))
    played.solved = result.reward > 0
    return played


def _trained(
    ws: Workspace, out: Path, arm: str, played: Sequence[Played], chosen: Settings, options: argparse.Namespace
) -> Path:
    """The base, trained on the set, the recordings, and as many general samples as both."""
    from flywheel.training.sft import train_supervised

    model = out / "models" / f"{arm}-{options.seed}"
    if (model / "model.safetensors").is_file():
        return model
    base = ws.resolve(chosen.policy.base)
    encoder, state, rng = (
        Encoder.from_folder(base),
        out / "state" / f"{arm}-{options.seed}",
        random.Random(options.seed),
    )
    state.mkdir(parents=True, exist_ok=True)
    recorded, general = recorded_examples(ws, encoder, chosen, out / "screens")
    half = options.samples // 2
    agent = [*recorded, *_samples(played, encoder)]
    samples = [*islice(repeated(agent, rng), half), *islice(repeated(general, rng), options.samples - half)]
    rng.shuffle(samples)
    ct = chosen.ct.model_copy(update={"num_examples": options.samples})
    dataset = ShuffledDataset(samples, ct.batch, options.seed)
    train_supervised(base, model, dataset, settings=ct, state_folder=state)
    return model


def _samples(played: Sequence[Played], encoder: Encoder) -> Iterator[Example]:
    for one in played:
        for number, (context, wanted, _) in enumerate(one.steps):
            prompt: Callable = partial(encoder.encode, context)
            response = tuple(encoder.encode_text(wanted))
            yield Example(prompt, response, None, one.task.task_id, number, one.task.domain)


def recorded_examples(
    ws: Workspace, encoder: Encoder, chosen: Settings, screens: Path
) -> tuple[list[Example], list[Example]]:
    """All steps of the first iteration's recordings, and its general samples."""
    from flywheel.training import data as dataset
    from flywheel.training.data import ExampleRef

    screens.mkdir(parents=True, exist_ok=True)
    cumulative = manifest.read_manifest(ws, 1)
    people = dataset.load_weighted_steps(ws, cumulative, "ct", {"recording": 1.0}, other=0.0)
    drawn = [ExampleRef(name, k, False) for name, n in zip(people.names, people.steps, strict=True) for k in range(n)]
    general = [ExampleRef(name, 0, True) for name in dataset.load_general_examples(ws, cumulative).names]
    found = dataset.load_examples(ws, cumulative, [*drawn, *general], encoder, chosen, screens)
    return found[: len(drawn)], found[len(drawn) :]


def repeated(samples: Sequence[Example], rng: random.Random) -> Iterator[Example]:
    """Each as often as any other, in an order of its own each time."""
    while samples:
        yield from rng.sample(samples, len(samples))


if __name__ == "__main__":
    sys.exit(main())
