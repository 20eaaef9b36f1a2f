"""What one kind of environment decides, and where it is found by its name, which stands in the table `tasks`.

Tasks, rollouts, scores, stores and training are the same for all kinds, and none of them asks which one it is. A module
of `kinds/` that is named as its kind and registers it is all that one more takes; so is `KINDS[name] = ...` anywhere
before the run. Its settings are `sandbox.kinds.<name>`, by the class that it gives to `block`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import Field, ValidationError

from flywheel.environments.env import Env, Task
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, known
from flywheel.findings import Finding
from flywheel.reward.verifier import Verifier
from flywheel.settings import Settings, faults
from flywheel.settings.block import Block

_BLOCK = "sandbox.kinds"
_KINDS = f"{__package__}.kinds"  # by name: a kind is made of parts that know this file


@dataclass(frozen=True)
class Limits:
    """places: environments at once, at most. call_s: deadline of a reset or a step, in seconds; a call that does not
    keep it by itself is ended after twice that. open_s: of whatever the environments need to be opened, and closed."""

    places: int
    call_s: float
    open_s: float


class Lender(Protocol):
    """Lends environments of one kind. One with `events` (`flywheel.sandbox.events`) is asked how they fared."""

    def env(self) -> AbstractAsyncContextManager[Env]:
        """One environment until the block ends. Raises EnvError where there is none to be had."""


class EnvironmentKind(Protocol):
    """One kind of environment, named as it is registered."""

    def worlds(self) -> Iterable[str]:
        """Names of the worlds that its tasks may be of; no other kind has a world of the same name."""

    def world(self, name: str) -> TaskWorld: ...

    def verifier(self, task: Task) -> Verifier:
        """A pure function of params and final state. Raises BadInput where the task's verifier is not there."""

    def limits(self, settings: Settings) -> Limits: ...

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        """JSON values of the settings that change what happens in an episode, and not how long it takes."""

    def check(self, settings: Settings) -> None:
        """What can be known to fail before a run. Raises BadInput."""

    def examine(self, settings: Settings) -> Iterable[Finding]:
        """For `flywheel doctor`: what it needs, tried for real."""

    def open(self, settings: Settings, root: Path | None) -> AbstractAsyncContextManager[Lender]:
        """What its environments need, for as long as the block. root: the folder that relative paths in the settings
        count from, which is the workspace; None: the current one."""


KINDS: dict[str, EnvironmentKind] = {}  # by the name that tasks call it by


def names() -> list[str]:
    """The kinds there are, without importing any."""
    return sorted({*KINDS, *(module.name for module in pkgutil.iter_modules(importlib.import_module(_KINDS).__path__))})


def find(name: str) -> EnvironmentKind:
    """Raises BadInput where there is none of this name."""
    if name not in KINDS:
        if name not in names():
            raise BadInput(f"no kind of environment is called {name!r}", where="environment", fix=known(name, names()))
        importlib.import_module(f"{_KINDS}.{name}")
    return KINDS[name]


def check(settings: Settings, used: Iterable[str]) -> None:
    """Look at the kinds that are used, and at the settings of all that have some, used or not. Raises BadInput."""
    for name in settings.sandbox.kinds:
        if name not in names():
            raise BadInput(f"no kind of environment is called {name!r}", where=_BLOCK, fix=known(name, names()))
        find(name).limits(settings)  # reads its settings, and looks at nothing that only a run with it needs
    for name in sorted(used):
        find(name).check(settings)


class KindSettings(Block):
    """Settings that any kind may begin its own with."""

    places: int = Field(8, ge=1, le=4096)
    """Environments at once, at most."""
    timeout_s: float = Field(10.0, gt=0)
    """Seconds until a reset or a step must be done."""
    open_s: float = Field(60.0, gt=0)
    """Seconds until what the environments need must be opened, and closed."""

    @property
    def limits(self) -> Limits:
        return Limits(self.places, self.timeout_s, self.open_s)


B = TypeVar("B", bound=Block)


def block(settings: Settings, name: str, form: type[B]) -> B:
    """A kind's own settings, `sandbox.kinds.<name>`, its defaults where there are none.

    Raises BadInput that names each wrong parameter.
    """
    try:
        return form.model_validate(settings.sandbox.kinds.get(name, {}))
    except ValidationError as error:
        said = " | ".join(f"{_BLOCK}.{name}.{fault.line}" for fault in faults.told(error, form))
        raise BadInput(f"wrong parameter: {said}", where=f"{_BLOCK}.{name}", fix="change it and run again") from None
