"""Load task suites that others wrote as manifests (`synthesis.worlds`)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import yaml
from pydantic import BaseModel, ValidationError

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import TaskSuite
from flywheel.utils.errors import BadInput, did_you_mean

PlaceholderChoices = Mapping[str, Sequence[Mapping[str, str] | str]]  # of each `{name}` in a manifest's texts


def draw_placeholders(choices: PlaceholderChoices, rng: random.Random) -> dict[str, str]:
    """Draw a text for each placeholder. choices: texts, or mappings of placeholders of their own to texts. rng: of
    the draw."""
    values: dict[str, str] = {}
    for name, of in choices.items():
        one = rng.choice(of)
        values |= {name: one} if isinstance(one, str) else one
    return values


def fill_placeholders(value: Any, values: Mapping[str, str]) -> Any:
    """Replace `{name}` by its text in all texts of the JSON value `value`, keys included. values: texts by name."""
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, Mapping):
        return {fill_placeholders(name, values): fill_placeholders(one, values) for name, one in value.items()}
    return [fill_placeholders(one, values) for one in value] if isinstance(value, list) else value


ManifestForm = TypeVar("M", bound=BaseModel)


@runtime_checkable
class ManifestLoader(Protocol):
    """A back-end that takes task suites by manifests."""

    def load(self, path: Path) -> TaskSuite:
        """Load the manifest's suite into the back-end. Raises BadInput that names what is wrong."""


def load_external_suites(settings: Settings, root: Path) -> None:
    """Load the task suites of `synthesis.worlds` into their back-ends, again where a manifest has changed.

    They stay there for the process. root: the folder that relative paths count from. Raises BadInput for a manifest
    that is missing or cannot be used; those before it are loaded by then.
    """
    for entry in settings.synthesis.worlds:
        path = root / entry
        name = _read_yaml_mapping(path).get("kind")
        loading = [
            backend
            for backend in registry.list_backends()
            if isinstance(registry.find_backend(backend), ManifestLoader)
        ]
        if name not in loading:
            raise BadInput(f"kind is {name!r}", where=path, fix=did_you_mean(str(name), loading))
        registry.find_backend(name).load(path)


def register_external_suite(own: dict[str, TaskSuite], world: TaskSuite, path: Path) -> TaskSuite:
    """Add a suite to those that a back-end has loaded from manifests, and return it.

    own: the back-end's, by name. world: the suite. path: its manifest. Raises BadInput where its name is taken.
    """
    if world.name not in own and world.name in registry.list_task_suites():
        raise BadInput(f"a world is called {world.name} already", where=path, fix="rename this one")
    own[world.name] = world
    return world


def validate_suite_manifest(path: Path, form: type[ManifestForm]) -> ManifestForm:
    """Parse the manifest in the file `path` as the model class `form`. Raises BadInput that names the field."""
    try:
        return form.model_validate({name: value for name, value in _read_yaml_mapping(path).items() if name != "kind"})
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "whole"
        raise BadInput(f"the manifest's {field}: {fault['msg']}", where=path, fix="mend that field") from None


def _read_yaml_mapping(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the manifest cannot be read: {error}", where=path, fix="check the path") from None
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise BadInput(f"the manifest is not YAML: {reason}", where=path, fix="mend that place") from None
    if not isinstance(found, dict):
        raise BadInput("the manifest is no mapping", where=path, fix="begin with kind, world and tasks")
    return found
