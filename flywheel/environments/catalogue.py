"""The worlds of all kinds of environments, by name."""

from __future__ import annotations

from flywheel.environments import kind
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, known


def names() -> list[str]:
    """Raises BadInput where two kinds have a world of the same name."""
    return sorted(_kinds())


def get(name: str) -> TaskWorld:
    """Raises BadInput for an unknown one."""
    kinds = _kinds()
    if name not in kinds:
        raise BadInput(f"no world is called {name!r}", where="synthesis.domains", fix=known(name, kinds))
    return kind.find(kinds[name]).world(name)


def _kinds() -> dict[str, str]:
    """World -> its kind."""
    found: dict[str, str] = {}
    for one in kind.names():
        for world in kind.find(one).worlds():
            if found.setdefault(world, one) != one:
                raise BadInput(f"{found[world]} and {one} have a world {world}", where="environments", fix="rename one")
    return found
