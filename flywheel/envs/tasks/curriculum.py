"""Open the next level of a suite where the model solves the current one often enough.

`iterations/NNN/levels.json` is {"open": {world: level}}, for the tasks of the iteration after it. A world that it does
not name begins with its lowest level; a level that is open stays so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json

_FEWEST = 4  # trajectories of a level that must have been judged before it opens the next


def read_open_levels(ws: Workspace, iteration: int) -> dict[str, int]:
    """Read the highest open level of each suite after an iteration; a suite that is absent begins with its lowest.

    Raises DataError for a file that is missing or damaged.
    """
    path = ws.levels(iteration)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["open"]
        return {str(world): int(level) for world, level in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"not the open levels of worlds: {error!r}", where=ws.relative(path), fix="restore it from git"
        ) from error


def write_open_levels(ws: Workspace, iteration: int, found: Mapping[str, int]) -> None:
    """Write the highest open level of each suite after `iteration` to its `levels.json`, which is replaced.

    found: level by suite. Raises DiskFull.
    """
    write_json(ws.levels(iteration), {"open": dict(sorted(found.items()))})


def lowest_level(settings: Settings, world: str) -> int:
    """Return the lowest of the levels asked for that a suite has; of all of its levels, where it has none of those."""
    own = set(registry.get_task_suite(world).levels)
    return min(own & set(settings.synthesis.levels) or own)


def is_above_open_level(settings: Settings, opened: Mapping[str, int], task: Task) -> bool:
    """Tell whether a task is of a level that is not open yet in its suite.

    False where all are open (`synthesis.level_unlock_success` is 0), and for a task of no suite, which has no levels.
    opened: highest open level by suite; absent: its lowest.
    """
    if not settings.synthesis.level_unlock_success or task.world not in registry.list_task_suites():
        return False
    return task.level > opened.get(task.world, lowest_level(settings, task.world))


def raise_open_levels(
    settings: Settings, before: Mapping[str, int], outcomes: Iterable[tuple[Task, bool]]
) -> dict[str, int]:
    """Return the open levels after an iteration: by suite the highest one, which rises by one at most.

    before: those that its tasks were made of; suites without outcomes keep theirs. outcomes: of each of its judged
    trajectories, the task and V. The next level opens where four or more trajectories of the highest open one were
    judged, and at least synthesis.level_unlock_success of them solved their task; where that is 0 all are open.
    """
    judged: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for task, solved in outcomes:
        judged[task.world, task.level].append(solved)
    found = {}
    for world in sorted({world for world, _ in judged} & set(registry.list_task_suites())):
        levels = sorted(set(registry.get_task_suite(world).levels) & set(settings.synthesis.levels))
        found[world] = (
            before.get(world, lowest_level(settings, world)) if settings.synthesis.level_unlock_success else levels[-1]
        )
        verdicts = judged[world, found[world]]
        enough = len(verdicts) >= _FEWEST and sum(verdicts) >= settings.synthesis.level_unlock_success * len(verdicts)
        if enough:
            found[world] = dict(pairwise(levels)).get(found[world], found[world])
    return {**before, **found}
