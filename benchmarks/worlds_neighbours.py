"""Neighbouring tasks for `benchmarks/worlds.py`: the same session, something else asked for."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import suppress

from flywheel.sandbox.env import Task
from flywheel.synthesis.tasks import make_task
from flywheel.worlds.catalogue import World
from flywheel.worlds.site_tasks import Redraw

_TRIES = 12


def neighbour(world: World, task: Task) -> Task | None:
    """A task whose end must not count as this one's; None where none is found.

    Of a site's records the same template with other values, else another template; of a world without such records
    the same template of another seed.
    """
    if "task" not in task.params:
        others = (make_task(world, task.template, task.level, task.seed + n, "eval") for n in range(1, _TRIES))
        return next((other for other in others if other.instruction != task.instruction), None)
    return next((other for other in _on_its_records(world, task) if _differs(world, task, other)), None)


def _on_its_records(world: World, task: Task) -> Iterator[Task]:
    rng = random.Random(f"neighbour of {task.task_id}")
    site = world.play
    others = [name for name in site.tasks if name != task.template]
    for template in [task.template] * _TRIES + rng.sample(others, min(_TRIES, len(others))):
        levels = site.tasks[template].levels
        level = task.level if task.level in levels else min(levels)
        with suppress(Redraw):
            params = site.draw_on(task.params["seed"], template, level, rng)
            yield dataclasses.replace(
                task, task_id=f"{task.task_id}-{rng.randrange(10**9)}", template=template, level=level, params=params,
                instruction=params["instruction"], max_steps=levels[level],
            )  # fmt: skip


def _differs(world: World, task: Task, other: Task) -> bool:
    """Whether they ask for different things, none of which lies on the way to the other."""
    site = world.play
    one, two = site.tasks[task.template], site.tasks[other.template]
    if one.change is None and one.answer is None and two.change is None:
        return False  # a page may lie on the way to an answer or to another page
    return one.wanted(site.records(task.params), task.params) != two.wanted(site.records(task.params), other.params)
