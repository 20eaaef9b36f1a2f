"""What can be known of `synthesis` before an iteration begins: the names in it, and that its tasks can be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flywheel.environments import catalogue, foreign
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, known, of_parameter
from flywheel.sandbox import manifests, packages
from flywheel.settings import Settings
from flywheel.synthesis import pages
from flywheel.synthesis.tasks import SPLITS, make_tasks, placed


def check(settings: Settings, iteration: int, root: Path) -> frozenset[str]:
    """Draw the iteration's tasks, less the instructions that pages tell. Returns the kinds of their environments.

    Raises BadInput naming the parameter.
    """
    chosen = settings.synthesis
    with of_parameter("synthesis.worlds"):
        foreign.register_all(settings, root)
    with of_parameter("synthesis.manifests"):
        found = manifests.load_all(chosen.manifests, root)
    for one in found.values():
        if not packages.ready(one):
            fix = f"type `flywheel page fetch {one.name}`"
            raise BadInput(f"the page {one.name} is not fetched", where="synthesis.manifests", fix=fix)
    places = placed(settings, found)
    for domain, (worlds, own) in places.items():
        if not worlds and not pages.turns(own, "train"):
            listed = [name for name in catalogue.names() if catalogue.get(name).domain == domain]
            raise BadInput(
                f"the domain {domain} has no world to train on",
                where=f"synthesis.domains.{domain}",
                fix=known("", listed or catalogue.names()),
            )
    _levels(settings, [world for worlds, _ in places.values() for world in worlds])
    played: set[str] = set()
    for split in SPLITS:
        with of_parameter("synthesis"):
            tasks = make_tasks(settings, iteration, split, root)
        played |= {task.environment for task in tasks}
        for domain in set(chosen.domains) - {task.domain for task in tasks} if split == "train" else ():
            raise BadInput(
                f"no task of the domain {domain} would be drawn",
                where=f"synthesis.{split}_tasks",
                fix=f"set it to {len(chosen.domains)} or more",
            )
    return frozenset(played)


def _levels(settings: Settings, worlds: Sequence[TaskWorld]) -> None:
    """Each level is one that a world of these has: another would only seem to be asked for."""
    levels = sorted({level for world in worlds for level in world.levels})
    for level in settings.synthesis.levels:
        if worlds and level not in levels:
            raise BadInput(
                f"no world of synthesis.domains has a level {level}",
                where="synthesis.levels",
                fix=f"known are {', '.join(map(str, levels))}",
            )
