"""Templates of which no training task is drawn (`synthesis.held_out`), so that what a model has learnt can be told from
what it has learnt by heart."""

from __future__ import annotations

import hashlib

from flywheel.environments import catalogue
from flywheel.environments.env import Task
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, known
from flywheel.settings import Settings

_FEWEST = 4  # templates that a world must have before a share of them is held out


def templates(settings: Settings, world: TaskWorld) -> frozenset[str]:
    """The templates of a world that evaluation alone draws: those named, or a share of those that have one of the
    levels asked for, which is the same for all seeds.

    Raises BadInput for a name that no world has.
    """
    chosen = settings.synthesis.held_out
    if not isinstance(chosen, float | int):
        return frozenset(template for name, template in map(_named, chosen) if name == world.name)
    asked = [
        name
        for name, spec in world.templates.items()
        if not spec.max_steps.keys().isdisjoint(settings.synthesis.levels)
    ]
    if len(asked) < _FEWEST or not chosen:
        return frozenset()
    ranked = sorted(asked, key=lambda template: hashlib.sha256(f"{world.name}/{template}".encode()).digest())
    return frozenset(ranked[: max(1, round(chosen * len(ranked)))])


def is_held_out(settings: Settings, task: Task) -> bool:
    """Whether the task's template is one that no training task has. A third-party page's template is its own."""
    return task.world in catalogue.names() and task.template in templates(settings, catalogue.get(task.world))


def _named(name: str) -> tuple[str, str]:
    world, _, template = name.partition("/")
    there = catalogue.get(world).templates if world in catalogue.names() else {}
    if template not in there:
        raise BadInput(
            f"no template is called {name!r}",
            where="synthesis.held_out",
            fix=f"of world {world}, {known(template, there)}"
            if there
            else f"write world/template, such as settings/size; of worlds, {known(world, catalogue.names())}",
        )
    return world, template
