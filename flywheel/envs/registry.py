"""Find environment back-ends and their task suites by name."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import Field, ValidationError

from flywheel.config import Settings, params_file
from flywheel.config.settings import SettingsBlock
from flywheel.envs.base import Env, Task, TaskSuite
from flywheel.envs.verdict import Verifier
from flywheel.utils.diagnostics import Finding
from flywheel.utils.errors import BadInput, EnvTimeout, did_you_mean

# What one kind of environment decides, and where it is found by its name, which stands in the table `tasks`.
#
# Tasks, rollouts, scores, stores and training are the same for all kinds, and none of them asks which one it is. A
# module of `backends/` that is named as its kind and registers it is all that one more takes; so is `BACKENDS[name] =
# ...` anywhere before the run. Its settings are `sandbox.kinds.<name>`, by the class that it gives to `block`.

_SETTINGS_KEY = "sandbox.kinds"
_PLUGIN_PACKAGE = f"{__package__}.backends"  # by name: a kind is made of parts that know this file


@dataclass(frozen=True)
class EnvLimits:
    """places: environments at once, at most. call_s: deadline of a reset or a step, in seconds; a call that does not
    keep it by itself is ended after twice that. open_s: of whatever the environments need to be opened, and closed."""

    places: int
    call_s: float
    open_s: float


class EnvPool(Protocol):
    """Lends environments of one kind. One with `events` (`flywheel.envs.browser.events`) is asked how they fared."""

    def env(self) -> AbstractAsyncContextManager[Env]:
        """One environment until the block ends. Raises EnvError where there is none to be had."""


class EnvBackend(Protocol):
    """One kind of environment, named as it is registered."""

    def suites(self) -> Iterable[str]:
        """Names of the worlds that its tasks may be of; no other kind has a world of the same name."""

    def suite(self, name: str) -> TaskSuite: ...

    def verifier(self, task: Task) -> Verifier:
        """A pure function of params and final state. Raises BadInput where the task's verifier is not there."""

    def limits(self, settings: Settings) -> EnvLimits: ...

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        """JSON values of the settings that change what happens in an episode, and not how long it takes."""

    def check(self, settings: Settings) -> None:
        """What can be known to fail before a run. Raises BadInput."""

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        """For `flywheel doctor`: what it needs, tried for real."""

    def open(self, settings: Settings, root: Path | None) -> AbstractAsyncContextManager[EnvPool]:
        """What its environments need, for as long as the block. root: the folder that relative paths in the settings
        count from, which is the workspace; None: the current one."""


BACKENDS: dict[str, EnvBackend] = {}  # by the name that tasks call it by


def list_backends() -> list[str]:
    """The kinds there are, without importing any."""
    return sorted(
        {
            *BACKENDS,
            *(module.name for module in pkgutil.iter_modules(importlib.import_module(_PLUGIN_PACKAGE).__path__)),
        }
    )


def find_backend(name: str) -> EnvBackend:
    """Raises BadInput where there is none of this name."""
    if name not in BACKENDS:
        if name not in list_backends():
            raise BadInput(
                f"no kind of environment is called {name!r}",
                where="environment",
                fix=did_you_mean(name, list_backends()),
            )
        importlib.import_module(f"{_PLUGIN_PACKAGE}.{name}")
    return BACKENDS[name]


def check_backends(settings: Settings, used: Iterable[str]) -> None:
    """Look at the kinds that are used, and at the settings of all that have some, used or not. Raises BadInput."""
    for name in settings.sandbox.kinds:
        if name not in list_backends():
            raise BadInput(
                f"no kind of environment is called {name!r}",
                where=_SETTINGS_KEY,
                fix=did_you_mean(name, list_backends()),
            )
        find_backend(name).limits(settings)  # reads its settings, and looks at nothing that only a run with it needs
    for name in sorted(used):
        find_backend(name).check(settings)


class BackendSettings(SettingsBlock):
    """Settings that any kind may begin its own with."""

    places: int = Field(8, ge=1, le=4096)
    """Environments at once, at most."""
    timeout_s: float = Field(10.0, gt=0)
    """Seconds until a reset or a step must be done."""
    open_s: float = Field(60.0, gt=0)
    """Seconds until what the environments need must be opened, and closed."""

    @property
    def limits(self) -> EnvLimits:
        return EnvLimits(self.places, self.timeout_s, self.open_s)


B = TypeVar("B", bound=SettingsBlock)


def parse_backend_settings(settings: Settings, name: str, form: type[B]) -> B:
    """A kind's own settings, `sandbox.kinds.<name>`, its defaults where there are none.

    Raises BadInput that names each wrong parameter.
    """
    try:
        return form.model_validate(settings.sandbox.kinds.get(name, {}))
    except ValidationError as error:
        said = " | ".join(
            f"{_SETTINGS_KEY}.{name}.{fault.line}" for fault in params_file.list_settings_faults(error, form)
        )
        raise BadInput(
            f"wrong parameter: {said}", where=f"{_SETTINGS_KEY}.{name}", fix="change it and run again"
        ) from None


@asynccontextmanager
async def open_env_pools(
    settings: Settings, names: Iterable[str], root: Path | None = None
) -> AsyncIterator[dict[str, EnvPool]]:
    """Open the pools of these back-ends on this machine, by name.

    Raises EnvTimeout where one does not open within its deadline, or does not close.
    """
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(_open_env_pool(name, settings, root)) for name in sorted(names)}


@asynccontextmanager
async def _open_env_pool(name: str, settings: Settings, root: Path | None) -> AsyncIterator[EnvPool]:
    one = find_backend(name)
    limit_s = one.limits(settings).open_s
    async with AsyncExitStack() as stack:
        async with _limit_time(limit_s, f"the environments of the kind {name} did not open"):
            lender = await stack.enter_async_context(one.open(settings, root))
        try:
            yield lender
        finally:
            async with _limit_time(limit_s, f"the environments of the kind {name} did not close"):
                await stack.aclose()


@asynccontextmanager
async def _limit_time(limit_s: float, otherwise: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise EnvTimeout(f"{otherwise} in {limit_s:g} s", where="environments") from None


# The worlds of all kinds of environments, by name.


def list_task_suites() -> list[str]:
    """Raises BadInput where two kinds have a world of the same name."""
    return sorted(_backend_by_suite())


def get_task_suite(name: str) -> TaskSuite:
    """Raises BadInput for an unknown one."""
    of_world = _backend_by_suite()
    if name not in of_world:
        raise BadInput(f"no world is called {name!r}", where="synthesis.domains", fix=did_you_mean(name, of_world))
    return find_backend(of_world[name]).suite(name)


def find_used_backends(settings: Settings) -> set[str]:
    """The kinds that the tasks of these settings are played in; third-party pages in browsers."""
    of_world = _backend_by_suite()
    named = {world for worlds in settings.synthesis.domains.values() for world in worlds}
    found = {of_world[world] for world in named & of_world.keys()}
    return found | {"browser"} if settings.synthesis.manifests else found


def _backend_by_suite() -> dict[str, str]:
    """World -> its kind."""
    found: dict[str, str] = {}
    for one in list_backends():
        for world in find_backend(one).suites():
            if found.setdefault(world, one) != one:
                raise BadInput(f"{found[world]} and {one} have a world {world}", where="environments", fix="rename one")
    return found
