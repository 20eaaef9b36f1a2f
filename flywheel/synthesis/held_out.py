"""Which templates of a world are asked (`synthesis.left_out`), and of which of them no training task is drawn
(`synthesis.held_out`), so that what a model has learnt can be told from what it has learnt by heart."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping

from flywheel.environments import catalogue
from flywheel.environments.env import Task
from flywheel.environments.world import TaskWorld, Template
from flywheel.errors import BadInput, known
from flywheel.settings import Settings

_FEWEST = 4  # templates that a world must have before a share of them is held out


def asked(settings: Settings, world: TaskWorld) -> Mapping[str, Template]:
    """The templates of a world that tasks are made of. Raises BadInput for a name that no world has."""
    out = _of_world(settings.synthesis.left_out, world, "left_out")
    return {name: spec for name, spec in world.templates.items() if name not in out}


def templates(settings: Settings, world: TaskWorld) -> frozenset[str]:
    """The templates of a world that evaluation alone draws: those named, or a share of those that have one of the
    levels asked for, which is the same for all seeds.

    Raises BadInput for a name that no world has.
    """
    chosen = settings.synthesis.held_out
    if not isinstance(chosen, float | int):
        return _of_world(chosen, world, "held_out")
    there = [
        name
        for name, spec in asked(settings, world).items()
        if not spec.max_steps.keys().isdisjoint(settings.synthesis.levels)
    ]
    if len(there) < _FEWEST or not chosen:
        return frozenset()
    ranked = sorted(there, key=lambda template: hashlib.sha256(f"{world.name}/{template}".encode()).digest())
    return frozenset(ranked[: max(1, round(chosen * len(ranked)))])


def is_held_out(settings: Settings, task: Task) -> bool:
    """Whether the task's template is one that no training task has. A third-party page's template is its own."""
    return task.world in catalogue.names() and task.template in templates(settings, catalogue.get(task.world))


def _of_world(names: Iterable[str], world: TaskWorld, parameter: str) -> frozenset[str]:
    named = [_named(name, parameter) for name in names]
    return frozenset(template for name, template in named if name == world.name)


@functools.cache  # asked for each task and recording; a name that was found stays
def _named(name: str, parameter: str) -> tuple[str, str]:
    world, _, template = name.partition("/")
    there = catalogue.get(world).templates if world in catalogue.names() else {}
    if template not in there:
        raise BadInput(
            f"no template is called {name!r}",
            where=f"synthesis.{parameter}",
            fix=f"of world {world}, {known(template, there)}"
            if there
            else f"write world/template, such as settings/size; of worlds, {known(world, catalogue.names())}",
        )
    return world, template
