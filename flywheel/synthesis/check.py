"""What can be known of `synthesis` before an iteration begins: the names in it, and that its tasks can be drawn."""

from __future__ import annotations

from pathlib import Path

from flywheel.errors import BadInput, known, of_parameter
from flywheel.sandbox import manifests, packages
from flywheel.settings import Settings
from flywheel.synthesis import pages
from flywheel.synthesis.tasks import SPLITS, make_tasks
from flywheel.worlds import catalogue


def check(settings: Settings, iteration: int, root: Path) -> None:
    """Draw the iteration's tasks, less the instructions that pages tell. Raises BadInput naming the parameter."""
    chosen = settings.synthesis
    with of_parameter("synthesis.manifests"):
        found = manifests.load_all(chosen.manifests, root)
    for one in found.values():
        if not packages.ready(one):
            fix = f"type `flywheel page fetch {one.name}`"
            raise BadInput(f"the page {one.name} is not fetched", where="synthesis.manifests", fix=fix)
    for domain, names in chosen.domains.items():
        if not names and not pages.turns(found, domain, "train"):
            raise BadInput(
                f"the domain {domain} has no world to train on", where=f"synthesis.domains.{domain}",
                fix=known("", (name for name in catalogue.names() if catalogue.get(name).domain == domain)),
            )  # fmt: skip
    _levels(settings)
    for split in SPLITS:
        with of_parameter("synthesis"):
            drawn = {task.domain for task in make_tasks(settings, iteration, split, root)}
        for domain in set(chosen.domains) - drawn if split == "train" else ():
            raise BadInput(
                f"no task of the domain {domain} would be drawn", where=f"synthesis.{split}_tasks",
                fix=f"set it to {len(chosen.domains)} or more",
            )  # fmt: skip


def _levels(settings: Settings) -> None:
    """Each level is one that a world of these has: another would only seem to be asked for."""
    worlds = [catalogue.get(name) for names in settings.synthesis.domains.values() for name in names]
    levels = sorted({level for world in worlds for level in world.levels})
    for level in settings.synthesis.levels:
        if worlds and level not in levels:
            raise BadInput(
                f"no world of synthesis.domains has a level {level}", where="synthesis.levels",
                fix=f"known are {', '.join(map(str, levels))}",
            )  # fmt: skip
