"""The worlds of all kinds of environments, by name."""

from __future__ import annotations

from flywheel.environments import kind
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, known
from flywheel.settings import Settings


def names() -> list[str]:
    """Raises BadInput where two kinds have a world of the same name."""
    return sorted(_kinds())


def get(name: str) -> TaskWorld:
    """Raises BadInput for an unknown one."""
    of_world = _kinds()
    if name not in of_world:
        raise BadInput(f"no world is called {name!r}", where="synthesis.domains", fix=known(name, of_world))
    return kind.find(of_world[name]).world(name)


def kinds(settings: Settings) -> set[str]:
    """The kinds that the tasks of these settings are played in; third-party pages in browsers."""
    of_world = _kinds()
    named = {world for worlds in settings.synthesis.domains.values() for world in worlds}
    found = {of_world[world] for world in named & of_world.keys()}
    return found | {"browser"} if settings.synthesis.manifests else found


def _kinds() -> dict[str, str]:
    """World -> its kind."""
    found: dict[str, str] = {}
    for one in kind.names():
        for world in kind.find(one).worlds():
            if found.setdefault(world, one) != one:
                raise BadInput(f"{found[world]} and {one} have a world {world}", where="environments", fix="rename one")
    return found
