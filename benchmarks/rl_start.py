"""What `benchmarks/rl.py` begins from: its tasks, and a model that a few demonstrations of the experts have started.

The start is made from models/base by imitation, small and seeded, and kept on disk under a name that is a digest of all
that it depends on. Two sets of tasks: `short`, of two or three steps, and `long`, of 10 and more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flywheel.agent.grammar import Grammar, format_response
from flywheel.agent.parsing.parser import action_fields
from flywheel.config import Settings, SupervisedSettings
from flywheel.envs.base import Env, StepResult, Task
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue, oracle
from flywheel.envs.tasks.drawing import make_task, task_content
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.store.schema import Step, Trajectory
from flywheel.training.data import Example, ShuffledDataset, build_agent_examples
from flywheel.training.sft import train_supervised
from flywheel.utils.errors import BadInput

Kind = tuple[str, str, int]  # world, template, level
HELD_OUT = 100  # tasks of a kind, that evaluation may have and nothing else
# First seeds: those of evaluation, of training and of demonstrations never meet (envs/tasks/drawing.py).
_FIRST = {"eval": 0, "train": 2**30, "demonstration": 2**31}


@dataclass(frozen=True)
class Recipe:
    """Kinds of tasks, and how their start is made. demonstrations: of each kind. passes: times that each step is
    seen."""

    kinds: tuple[Kind, ...]
    demonstrations: int = 6
    passes: int = 6
    batch: int = 16
    lr: float = 3e-4
    seed: int = 11


RECIPES = {
    "short": Recipe(
        (
            ("tiles", "clear", 1),
            ("shapes", "fit", 1),
            ("merge", "reach", 1),
            ("settings", "turn_on", 1),
            ("shop", "add", 1),
        )
    ),
    # Of 20 kinds looked at, those of ten steps and more that demonstrations bring the base to solve at times.
    "long": Recipe((("tiles", "clear", 4), ("tiles", "clear", 5), ("loops", "close", 3)), demonstrations=24, passes=4),
}


def check_held_out(each: int) -> None:
    """Raises BadInput for a number of evaluation tasks of a kind that is not from 1 to HELD_OUT."""
    if not 1 <= each <= HELD_OUT:
        raise BadInput(f"--held-out {each}", where="flywheel bench rl", fix=f"1 to {HELD_OUT} held-out tasks of a kind")


def tasks(split: str, each: int, kinds: Sequence[Kind]) -> list[Task]:
    """`each` tasks of every kind, no content twice, and none of training or demonstration that of a held-out one.

    Raises BadInput as `check_held_out` does, for evaluation tasks.
    """
    if split == "eval":
        check_held_out(each)
    taken = set() if split == "eval" else {task_content(task) for task in tasks("eval", HELD_OUT, kinds)}
    made: list[Task] = []
    for name, template, level in kinds:
        world, seed, enough = catalogue.get_world(name), _FIRST[split], len(made) + each
        while len(made) < enough:
            task = make_task(world, template, level, seed, "eval" if split == "eval" else "train")
            seed += 1
            if task_content(task) not in taken:
                taken.add(task_content(task))
                made.append(task)
    return made


def make(folder: Path, settings: Settings, base: Path, recipe: Recipe, note=print) -> Path:
    """The start's checkpoint, made now or taken from `folder`."""
    chosen = tasks("demonstration", recipe.demonstrations, recipe.kinds)
    named = {
        "base": checkpoint_digest(base),
        "recipe": asdict(recipe),
        "tasks": [task.task_id for task in chosen],
        "worlds": [catalogue.get_world(name).checksum for name, _, _ in recipe.kinds],
        "policy": settings.policy.model_dump(),
        "screen": [settings.sandbox.width, settings.sandbox.height],
    }
    name = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:12]
    out = folder / f"start-{name}"
    if (out / "made.json").is_file():
        return out
    note(f"making the start {name}: {len(chosen)} demonstrations in real Chromium, then imitation")
    samples = asyncio.run(_demonstrations(chosen, settings, Encoder.from_folder(base)))
    block = SupervisedSettings(batch=recipe.batch, lr=recipe.lr, save_every=50, freeze_vision=False)
    losses = train_supervised(
        base,
        out,
        ShuffledDataset(list(samples) * recipe.passes, block.batch, recipe.seed),
        settings=block,
        state_folder=folder / f"{name}.state",
    )
    facts = named | {"steps": len(samples), "loss": [losses[0], losses[-1]]}
    (out / "made.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return out


async def _demonstrations(chosen: Sequence[Task], settings: Settings, encoder: Encoder) -> list[Example]:
    async with open_browser_pool(settings) as pool:

        async def one(task: Task) -> tuple[Trajectory, list[Step], dict[str, bytes]]:
            async with pool.env() as env:
                return await _demonstration(env, task, Grammar.of_settings(settings))

        played = await asyncio.gather(*map(one, chosen))
    every = [step for _, steps, _ in played for step in steps]
    images = {name: png for _, _, screens in played for name, png in screens.items()}
    return build_agent_examples([trajectory for trajectory, _, _ in played], every, images, encoder, settings.policy)


async def _demonstration(env: Env, task: Task, grammar: Grammar) -> tuple[Trajectory, list[Step], dict[str, bytes]]:
    """The fields that samples are made from."""
    seen: StepResult = await env.reset(task, task.seed)
    steps, images = [], {}
    while not (seen.terminated or seen.truncated):
        advice = oracle.next_expert_step(task, seen.info["state"], task.seed)
        if advice is None:
            break
        thought, action = advice
        png = seen.observation.screenshot
        name = hashlib.sha256(png).hexdigest()
        images[name] = png
        done, url = action_fields(action, grammar), seen.observation.url
        seen = await env.step(action)
        steps.append(
            Step(
                task.task_id,
                len(steps),
                "human",
                thought,
                raw_text=format_response(thought, done["action"]),
                image_sha256=name,
                url=url,
                tool_result=seen.info.get("note") or seen.observation.text or None,
                **done,
            )
        )
    return Trajectory(task.task_id, task.task_id, task.domain, instruction=task.instruction), steps, images
