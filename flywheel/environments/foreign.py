"""Worlds that others wrote, by manifests alone: `synthesis.worlds` names them, and each is made known to its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import yaml
from pydantic import BaseModel, ValidationError

from flywheel.environments import catalogue, kind
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, known
from flywheel.settings import Settings

M = TypeVar("M", bound=BaseModel)


@runtime_checkable
class Loads(Protocol):
    """An environment kind that takes worlds by manifests."""

    def load(self, path: Path) -> TaskWorld:
        """The manifest's world, which the kind knows from then on. Raises BadInput that names what is wrong in it."""


def register_all(settings: Settings, root: Path) -> None:
    """Make the worlds known that the settings name. root: the folder that relative paths count from. It may be called
    again, also after a manifest has changed.

    Raises BadInput for a manifest that cannot be used.
    """
    for entry in settings.synthesis.worlds:
        path = root / entry
        name = _read(path).get("kind")
        loading = [one for one in kind.names() if isinstance(kind.find(one), Loads)]
        if name not in loading:
            raise BadInput(f"kind is {name!r}", where=path, fix=known(str(name), loading))
        kind.find(name).load(path)


def register(own: dict[str, TaskWorld], world: TaskWorld, path: Path) -> TaskWorld:
    """For a kind: put a world among those that it has by manifests. Raises BadInput where its name is taken."""
    if world.name not in own and world.name in catalogue.names():
        raise BadInput(f"a world is called {world.name} already", where=path, fix="rename this one")
    own[world.name] = world
    return world


def manifest(path: Path, form: type[M]) -> M:
    """A manifest in a kind's form. Raises BadInput that names the field."""
    try:
        return form.model_validate({name: value for name, value in _read(path).items() if name != "kind"})
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "whole"
        raise BadInput(f"the manifest's {field}: {fault['msg']}", where=path, fix="mend that field") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the manifest cannot be read: {error}", where=path, fix="check the path") from None
    except yaml.YAMLError as error:
        said = str(error).replace("\n", " ")
        raise BadInput(f"the manifest is not YAML: {said}", where=path, fix="mend that place") from None
    if not isinstance(found, dict):
        raise BadInput("the manifest is no mapping", where=path, fix="begin with kind, world and tasks")
    return found
