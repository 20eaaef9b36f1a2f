"""What `benchmarks/hybrid.py` begins from: the same questions by the screen, by functions, by either; and a model that
demonstrations of both ways have started.

A question is to write three colours of twelve into a text. By the screen they are typed into an editor, and the text is
saved; by functions the file is written, with no screen; by either there are both. The start is kept on disk under a
name that is a digest of all that it depends on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flywheel.config import Settings, SupervisedSettings
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.chores.world import ERRANDS
from flywheel.envs.tasks.drawing import make_task, task_content
from flywheel.evaluation.evaluator import JudgedEpisode, evaluate_policy
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.recordings.rows import IngestedSession, demonstration_rows
from flywheel.recordings.synthetic.demonstrations import DATASET, record_demonstration
from flywheel.store.interop.demonstration import demonstration_folder_name, save_demonstration
from flywheel.training.data import Example, ShuffledDataset, build_agent_examples
from flywheel.training.sft import train_supervised
from flywheel.utils.errors import BadInput

WAYS = ("gui", "sdk", "both")
HELD_OUT = 100  # questions that evaluation may have and nothing else
LEVEL = 1
# First seeds: questions of evaluation, training, demonstrations and the start's rounds (envs/tasks/drawing.py).
_FIRST = {"eval": 0, "train": 2**30, "demonstration": 2**31, "tuning": 2**31 + 2**20}
# The smallest desktop there is: the model sees it in 256 x 192 pixels, at which its letters can be read.
KINDS: dict[str, Any] = {"terminal": {"places": 8}, "computer": {"width": 320, "height": 240, "places": 4}}


@dataclass(frozen=True)
class Recipe:
    """demonstrations: of each way. a_round: so many of them, in turn, are what a round shows; passes: times that it
    shows each step. A round is of the ways that solve less than the share `enough` of `tried` questions, so that RL has
    something left to teach of each; where none does, it was the last. rounds: at most.

    Rounds are small because it is learnt at once: of all 96 demonstrations the third round made 0.05 and 0.15, the
    fourth 0.95 and 0.95."""

    demonstrations: int = 96
    a_round: int = 24
    passes: int = 2
    rounds: int = 32
    enough: float = 0.2
    tried: int = 20
    batch: int = 16
    lr: float = 1e-3
    freeze_vision: bool = True
    seed: int = 11


def check_held_out(count: int) -> None:
    """Raises BadInput for a number of evaluation questions that is not from 1 to HELD_OUT."""
    if not 1 <= count <= HELD_OUT:
        raise BadInput(f"--held-out {count}", where="flywheel bench hybrid", fix=f"1 to {HELD_OUT} held-out questions")


def tasks(split: str, count: int, ways: Sequence[str]) -> list[Task]:
    """The first `count` questions of a split, each in all `ways`. None of training or demonstrations has the content of
    one that is held out. Raises BadInput as `check_held_out` does, for evaluation."""
    if split == "eval":
        check_held_out(count)
    taken = set() if split == "eval" else {task_content(task) for task in tasks("eval", HELD_OUT, WAYS)}
    made: list[Task] = []
    seed = _FIRST[split]
    while len(made) < count * len(ways):
        asked = [_task(way, seed, "eval" if split == "eval" else "train") for way in ways]
        seed += 1
        if not taken & {task_content(task) for task in asked}:
            taken |= {task_content(task) for task in asked}
            made += asked
    return made


def _task(way: str, seed: int, split: str) -> Task:
    made = make_task(ERRANDS, f"colours-{way}", LEVEL, seed, split)
    # By functions alone there is nothing to see, on a desktop either: without one it is the same, and begins sooner.
    return replace(made, environment="terminal") if way == "sdk" else made


def make(folder: Path, settings: Settings, base: Path, recipe: Recipe, note=print) -> Path:
    """The start's checkpoint, made now or taken from `folder`."""
    chosen = tasks("demonstration", recipe.demonstrations, ("gui", "sdk"))
    named = {
        "base": checkpoint_digest(base),
        "recipe": asdict(recipe),
        "tasks": [task.task_id for task in chosen],
        "world": ERRANDS.checksum,
        "policy": settings.policy.model_dump(),
        "kinds": settings.sandbox.kinds,
    }
    name = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:12]
    out = folder / f"start-{name}"
    if (out / "made.json").is_file():
        return out
    note(f"making the start {name}: {len(chosen)} demonstrations, then imitation")
    samples = asyncio.run(_demonstrations(chosen, settings, Encoder.from_folder(base), folder / "demonstrations"))
    block = SupervisedSettings(batch=recipe.batch, lr=recipe.lr, save_every=50, freeze_vision=recipe.freeze_vision)
    tried, model, rounds = tasks("tuning", recipe.tried, ("gui", "sdk")), base, []
    for number in range(recipe.rounds):
        model, begin = folder / f"{name}.round{number}", model
        taught = [way for way in ("gui", "sdk") if not rounds or rounds[-1][way] < recipe.enough]
        shown = [
            samples[way][(number * recipe.a_round + n) % recipe.demonstrations]
            for way in taught
            for n in range(recipe.a_round)
        ]
        train_supervised(
            begin,
            model,
            ShuffledDataset([s for one in shown for s in one] * recipe.passes, block.batch, recipe.seed + number),
            settings=block,
            state_folder=folder / f"{name}.state{number}",
        )
        rounds.append(play(model, tried, settings)["success"])
        note(f"  round {number + 1}: success {rounds[-1]}")
        if min(rounds[-1].values()) >= recipe.enough:
            break
    shutil.copytree(model, out, dirs_exist_ok=True)
    steps = sum(len(one) for way in samples.values() for one in way)
    facts = named | {"steps": steps, "rounds": rounds}
    (out / "made.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return out


def play(model: Path, tasks: Sequence[Task], s: Settings) -> dict[str, Any]:
    """Success at the temperature of rollouts, and the share of episodes that wrote by a function, by interface; of each
    task whether it was solved."""
    played = asyncio.run(_played(model, tasks, s))
    won, called = defaultdict(list), defaultdict(list)
    for one in played:
        won[one.task.interface].append(bool(one.result.v))
        called[one.task.interface].append(any(step.action_type == "write_file" for step in one.episode.steps))
    return {
        "success": {way: sum(each) / len(each) for way, each in won.items()},
        "functions": {way: sum(each) / len(each) for way, each in called.items()},
        "tasks": {one.task.task_id: bool(one.result.v) for one in played},
    }


async def _played(model: Path, tasks: Sequence[Task], s: Settings) -> list[JudgedEpisode]:
    policy = open_policy(model, s.policy)
    try:
        async with open_environments(s, tasks) as environments:
            # Iteration: a number that no training has, so that no seed of sampling is one of training.
            return await evaluate_policy(policy, tasks, environments, iteration=1000 + s.seed, settings=s)
    finally:
        await policy.close()


async def _demonstrations(
    chosen: Sequence[Task], settings: Settings, encoder: Encoder, folder: Path
) -> dict[str, list[list[Example]]]:
    """Samples by way and demonstration."""
    async with open_environments(settings, chosen) as environments:
        at_once = asyncio.Semaphore(2)

        async def one(task: Task) -> IngestedSession:
            kept = folder / demonstration_folder_name(DATASET, task.task_id)
            if not kept.exists():
                async with at_once, environments.env(task) as env:
                    save_demonstration(await record_demonstration(env, task, ERRANDS), folder)
            return demonstration_rows(kept, settings, 0)

        played = await asyncio.gather(*map(one, chosen))
    found: dict[str, list[list[Example]]] = defaultdict(list)
    for task, session in zip(chosen, played, strict=True):
        images = {row["sha256"]: row["bytes"] for row in session.image_rows}
        found[task.interface].append(
            build_agent_examples([session.trajectory], session.steps, images, encoder, settings.policy)
        )
    return found
