"""Tasks drawn from the templates of the worlds (section 2.5.1): seeded, spread evenly, never shared between splits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import BadInput
from flywheel.sandbox.env import Task
from flywheel.sandbox.manifests import Manifest, load_all
from flywheel.settings import Settings
from flywheel.synthesis import pages
from flywheel.worlds import catalogue, levels
from flywheel.worlds.catalogue import World

SPLITS = ("train", "eval")
_SEEDS = {"eval": range(0, 2**30), "train": range(2**30, 2**31)}  # disjoint: no training seed is an evaluation seed
_ATTEMPTS = 200


def make_tasks(settings: Settings, iteration: int, split: str, root: Path | None = None) -> list[Task]:
    """The tasks of an iteration's split, each with its own content.

    Train tasks are new in each iteration; eval tasks are the same in all, and no train task has the content of one
    (of third-party pages, the seed of one). root: the workspace, for synthesis.manifests. Raises BadInput for an
    unknown split, a world of another domain, levels that no world has, or a wrong manifest.
    """
    if split not in SPLITS:
        raise BadInput(f"no split is called {split!r}", where="make_tasks", fix="use train or eval")
    if split == "eval":
        return _draw(settings, "eval", "eval", settings.synthesis.eval_tasks, set(), root)
    held_out = {content(task) for task in make_tasks(settings, 0, "eval", root)}
    return _draw(settings, split, f"train {iteration}", settings.synthesis.train_tasks, held_out, root)


def _draw(settings: Settings, split: str, stream: str, count: int, taken: set[str], root: Path | None) -> list[Task]:
    """`count` tasks of contents not in `taken`, turn by turn over domains, their worlds, and the worlds' slots."""
    turns = _turns(settings, split, root)
    drawn: list[Task] = []
    for index in range(count):
        per_domain, rest = turns[index % len(turns)], index // len(turns)
        world, slots = per_domain[rest % len(per_domain)]
        template, level = slots[rest // len(per_domain) % len(slots)]
        for attempt in range(_ATTEMPTS):
            seed = _seed(split, f"{settings.seed} {stream} {index} {attempt}")
            task = make_task(world, template, level, seed, split)
            if content(task) not in taken:
                break
        else:
            raise BadInput(
                f"world {world.name}, template {template}, level {level} has too few different tasks",
                where="synthesis", fix="ask for fewer train_tasks or eval_tasks",
            )  # fmt: skip
        taken = taken | {content(task)}
        drawn.append(task)
    return drawn


def _turns(
    settings: Settings, split: str, root: Path | None
) -> list[list[tuple[World | Manifest, list[tuple[str, int]]]]]:
    """For each domain its worlds and pages, for each of them its (template, level) slots, levels alternating."""
    turns = []
    manifests = load_all(settings.synthesis.manifests, root or Path())
    for domain, names in settings.synthesis.domains.items():
        worlds = []
        for name in names:
            world = catalogue.get(name)
            if world.domain != domain:
                raise BadInput(f"world {name} is of domain {world.domain}", where=f"synthesis.domains.{domain}")
            slots = [
                (template, level)
                for template, spec in world.templates.items()
                for level in sorted(spec.max_steps)
                if level in settings.synthesis.levels
            ]
            if not slots:
                raise BadInput(
                    f"world {name} has no level of {settings.synthesis.levels}", where="synthesis.levels",
                    fix=f"its levels are {world.levels}",
                )  # fmt: skip
            worlds.append((world, _alternate(slots)))
        worlds += pages.turns(manifests, domain, split)
        if worlds:
            turns.append(worlds)
    if not turns:
        raise BadInput("no world is named", where="synthesis.domains", fix=f"known are {', '.join(catalogue.names())}")
    return turns


def _alternate(slots: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Order slots so that any prefix holds each level about equally; levels with fewer templates repeat theirs."""
    by_level: dict[int, list[tuple[str, int]]] = {}
    for slot in slots:
        by_level.setdefault(slot[1], []).append(slot)
    longest = max(map(len, by_level.values()))
    return [group[turn % len(group)] for turn in range(longest) for _, group in sorted(by_level.items())]


def make_task(world: World | Manifest, template: str, level: int, seed: int, split: str) -> Task:
    """One task. Its id is its content: world, template, level, seed, params.

    seed: any integer. Raises BadInput for a template or a level that the world has not.
    """
    if isinstance(world, Manifest):
        return pages.make_task(world, template, seed, split)
    budget = world.budget(template, level)
    params = levels.draw(world, template, level, seed)
    spec = world.templates[template]
    identity = json.dumps([world.name, template, level, seed, params], sort_keys=True)
    return Task(
        task_id="k" + hashlib.sha256(identity.encode()).hexdigest()[:15], domain=world.domain, world=world.name,
        template=template, level=level, seed=seed, instruction=spec.instruction.format(**params), params=params,
        max_steps=budget, split=split, verifier=spec.verifier, threshold=spec.threshold,
        checksum=world.checksum,
    )  # fmt: skip


def content(task: Task) -> str:
    """What the agent meets, without the seed: two tasks of equal content are the same task."""
    return json.dumps([task.world, task.template, task.level, task.params], sort_keys=True)


def to_row(task: Task) -> dict[str, Any]:
    """A row of the table `tasks`."""
    return {**vars(task), "params": json.dumps(task.params, sort_keys=True)}


def from_row(row: Mapping[str, Any]) -> Task:
    """Back from a row of the table `tasks` (further columns, such as iteration, are ignored)."""
    fields = {name: row[name] for name in Task.__dataclass_fields__}
    return Task(**{**fields, "params": json.loads(row["params"])})


def _seed(split: str, key: str) -> int:
    span = _SEEDS[split]
    return span.start + int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % len(span)
