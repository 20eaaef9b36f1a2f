"""Choose the templates of a suite that are excluded from all tasks, or held out of training for evaluation alone."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Task, TaskSuite, TaskTemplate
from flywheel.utils.errors import BadInput, did_you_mean

# Some templates are held out of training (`synthesis.held_out`), so that generalisation can be distinguished from
# memorisation.

_MIN_TEMPLATES = 4  # templates that a suite must have before a share of them is held out


def list_templates(settings: Settings, world: TaskSuite) -> Mapping[str, TaskTemplate]:
    """Return the templates, by name, of which tasks of a suite are made: all but synthesis.excluded_templates.

    Raises BadInput for a name in that setting that no suite has, and where two back-ends have a suite of the same name.
    """
    out = _templates_of_world(settings.synthesis.excluded_templates, world, "excluded_templates")
    return {name: spec for name, spec in world.templates.items() if name not in out}


def held_out_templates(settings: Settings, world: TaskSuite) -> frozenset[str]:
    """Return the names of the templates of the suite `world` of which only evaluation draws tasks.

    They are those that `synthesis.held_out` names. Where that is a share, they are that share (one at least) of the
    templates that have one of `synthesis.levels`, the same for all seeds; none where the share is 0 or there are fewer
    than 4 such templates. Raises BadInput for a name in `synthesis.held_out`, or where that is a share in
    `synthesis.excluded_templates`, that no suite has, and as `registry.list_task_suites` does.
    """
    chosen = settings.synthesis.held_out
    if not isinstance(chosen, float | int):
        return _templates_of_world(chosen, world, "held_out")
    levels = set(settings.synthesis.levels)
    there = [name for name, spec in list_templates(settings, world).items() if levels & spec.max_steps.keys()]
    if len(there) < _MIN_TEMPLATES or not chosen:
        return frozenset()
    ranked = sorted(there, key=lambda template: hashlib.sha256(f"{world.name}/{template}".encode()).digest())
    return frozenset(ranked[: max(1, round(chosen * len(ranked)))])


def is_held_out(settings: Settings, task: Task) -> bool:
    """Tell whether a task's template is held out, so that no training task has it.

    False for third-party pages, and for suites of `synthesis.worlds` that are not loaded. Raises BadInput as
    `held_out_templates`.
    """
    if task.world not in registry.list_task_suites():
        return False
    return task.template in held_out_templates(settings, registry.get_task_suite(task.world))


def _templates_of_world(names: Iterable[str], world: TaskSuite, parameter: str) -> frozenset[str]:
    named = [_split_template_name(name, parameter) for name in names]
    return frozenset(template for name, template in named if name == world.name)


@functools.cache  # called for each task and recording; a suite, once found, stays
def _split_template_name(name: str, parameter: str) -> tuple[str, str]:
    world, _, template = name.partition("/")
    worlds = registry.list_task_suites()
    there = registry.get_task_suite(world).templates if world in worlds else {}
    if template not in there:
        fix = f"write world/template, such as settings/size; of worlds, {did_you_mean(world, worlds)}"
        if there:
            fix = f"of world {world}, {did_you_mean(template, there)}"
        raise BadInput(f"no template is called {name!r}", where=f"synthesis.{parameter}", fix=fix)
    return world, template
