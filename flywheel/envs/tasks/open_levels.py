"""Keep which levels of each suite are open to training tasks, and how the rollouts of the last iterations ended."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json

# Levels (`synthesis.level_unlock_success`): a suite's next level opens once the model solves the current one often
# enough. `iterations/NNN/levels.json` holds {"open": {suite: level}} for the tasks of the next iteration, and how the
# rollouts of the last iterations ended, {"outcomes": {iteration: {world/template/level: "verified/scored"}}}: what
# `synthesis.refresh` draws follows from these, without a look at older partitions.

Kind = tuple[str, str, int]  # world, template, level
Outcomes = Mapping[int, Mapping[Kind, tuple[int, int]]]  # by iteration: (verified, scored) rollouts of each kind
_OUTCOMES = 3  # iterations whose outcomes a record holds
_FEWEST = 4  # trajectories of a level that must be judged before the next level opens


def read_open_levels(ws: Workspace, iteration: int) -> dict[str, int]:
    """Read, by suite, the highest level that training tasks may have after `iteration`.

    A suite that is absent begins with its lowest level. Raises DataError for a file that is missing or damaged.
    """
    with _levels_errors(ws, iteration) as record:
        return {str(world): int(level) for world, level in record["open"].items()}


def read_outcomes(ws: Workspace, iteration: int) -> dict[int, dict[Kind, tuple[int, int]]]:
    """Read how many rollouts of `iteration` and the two before it were verified, and how many were scored.

    Returns by iteration, then by (world, template, level): (verified, scored); {} where the record of `iteration`,
    `levels.json`, has no outcomes. Raises DataError where that file is missing or damaged.
    """
    found: dict[int, dict[Kind, tuple[int, int]]] = {}
    with _levels_errors(ws, iteration) as record:
        for number, ended in record.get("outcomes", {}).items():
            found[int(number)] = {}
            for name, counts in ended.items():
                (world, _, rest), (verified, scored) = name.partition("/"), map(int, counts.split("/"))
                template, _, level = rest.rpartition("/")
                found[int(number)][world, template, int(level)] = verified, scored
    return found


@contextmanager
def _levels_errors(ws: Workspace, iteration: int) -> Iterator[dict[str, Any]]:
    """Yield the record of `iteration`; a fault of it in the block, or in reading it, is a DataError that names it."""
    path = ws.levels(iteration)
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        what = f"not the open levels of worlds: {error!r}"
        raise DataError(what, where=ws.relative(path), fix="restore it from git") from error


def write_open_levels(
    ws: Workspace, iteration: int, found: Mapping[str, int], outcomes: Outcomes | None = None
) -> None:
    """Write the highest open level of each suite after `iteration` to the iteration's `levels.json`, which is replaced.

    ws: the workspace. found: level by suite. outcomes: of this and earlier iterations, as `read_outcomes` returns them;
    the newest three are kept. Raises DiskFull, OSError where the file cannot be written.
    """
    kept = sorted((outcomes or {}).items())[-_OUTCOMES:]
    told = {
        str(k): {
            f"{world}/{template}/{level}": f"{won:.0f}/{n:.0f}" for (world, template, level), (won, n) in ended.items()
        }
        for k, ended in kept
    }
    write_json(ws.levels(iteration), {"open": dict(found)} | ({"outcomes": told} if told else {}))


def lowest_level(settings: Settings, world: str) -> int:
    """Return the lowest level of a suite that `synthesis.levels` names; where that names none, its lowest of all.

    Raises BadInput where there is no suite `world`, or it is not loaded (`registry.get_task_suite`).
    """
    own = set(registry.get_task_suite(world).levels)
    return min(own & set(settings.synthesis.levels) or own)


def is_above_open_level(settings: Settings, opened: Mapping[str, int], task: Task) -> bool:
    """Tell whether a task is of a level that is not open yet in its suite.

    False where all are open (`synthesis.level_unlock_success` is 0), and for a task of no suite, such as a third-party
    page's. opened: highest open level by suite; absent: its lowest of synthesis.levels. Raises BadInput where two
    back-ends have a suite of the same name, or the task's suite is damaged.
    """
    if not settings.synthesis.level_unlock_success or task.world not in registry.list_task_suites():
        return False
    return task.level > opened.get(task.world, lowest_level(settings, task.world))


def raise_open_levels(
    settings: Settings, before: Mapping[str, int], outcomes: Iterable[tuple[Task, bool]]
) -> dict[str, int]:
    """Return, by suite, the highest level that training tasks may have after an iteration.

    before: the levels with which the iteration's tasks were made, by suite; suites without outcomes keep theirs.
    outcomes: (task, whether it was solved) of each judged trajectory of the iteration. The next of synthesis.levels,
    one at most, opens where four or more trajectories of the highest open one were judged, and at least the share
    synthesis.level_unlock_success of them solved their task; where that is 0, a suite with outcomes has all open.
    Raises BadInput where two back-ends have a suite of the same name, or a suite is damaged.
    """
    judged: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for task, solved in outcomes:
        judged[task.world, task.level].append(solved)
    found, wanted = dict(before), settings.synthesis.level_unlock_success
    for world in {world for world, _ in judged} & set(registry.list_task_suites()):
        levels = sorted(set(registry.get_task_suite(world).levels) & set(settings.synthesis.levels))
        level = before.get(world, lowest_level(settings, world)) if wanted or not levels else levels[-1]
        verdicts = judged[world, level]
        enough = len(verdicts) >= _FEWEST and sum(verdicts) >= wanted * len(verdicts)
        found[world] = dict(pairwise(levels)).get(level, level) if enough else level
    return found
