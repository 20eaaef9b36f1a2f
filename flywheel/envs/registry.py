"""Find environment back-ends and their task suites by name, lend their environments, load suites from manifests.

A back-end is a module of `backends/`, named after it, which registers an `EnvBackend` in BACKENDS; other code may
register one too, before the run. Its settings are `sandbox.kinds.<name>` (`parse_backend_settings`).
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError

from flywheel.config import Settings, params_file
from flywheel.config.settings import SettingsBlock
from flywheel.envs.base import Env, Task, TaskSuite, Verifier
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout, Finding, did_you_mean

_SETTINGS_KEY = "sandbox.kinds"
_PLUGIN_PACKAGE = f"{__package__}.backends"  # imported by name: back-ends import this module


@dataclass(frozen=True)
class EnvLimits:
    """Hold the limits of a back-end, from its settings.

    places: environments at once, at most. call_s: deadline of a reset or a step in seconds; a call that does not keep
    it is ended after twice that. open_s: deadline, in seconds, of opening what the environments need, and of closing.
    """

    places: int
    call_s: float
    open_s: float


class EnvPool(Protocol):
    """Lend environments of one back-end; it may count `events` (`flywheel.envs.browser.fleet`)."""

    def env(self) -> AbstractAsyncContextManager[Env]:
        """Lend one environment until the block ends. Raises EnvError where none can be had."""


class EnvBackend(Protocol):
    """Implement one kind of environment: its task suites, their verifiers, its settings, and how it is opened.

    One that reads task suites from manifests also has `load(path) -> TaskSuite`, which raises BadInput for a wrong one.
    """

    def suites(self) -> Iterable[str]:
        """List the names of the back-end's task suites; no other back-end has one of the same name."""

    def suite(self, name: str) -> TaskSuite:
        """Load the suite called `name`, which is one of `suites`. Raises BadInput where it is damaged."""

    def verifier(self, task: Task) -> Verifier:
        """Find the task's verifier: a pure function (params, final state) -> score in [0, 1].

        Raises BadInput where there is none.
        """

    def limits(self, settings: Settings) -> EnvLimits:
        """Read the back-end's limits from its settings. Raises BadInput where these are wrong."""

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        """Return the settings, JSON values by name, that change what happens in an episode, not only how long it takes.

        Raises BadInput where its settings are wrong.
        """

    def check(self, settings: Settings) -> None:
        """Check that a run can use the back-end. Raises BadInput naming what is wrong or missing."""

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        """Try for real what the back-end needs, and yield a finding for each thing tried, for `flywheel doctor`.

        What fails is a finding; raises BadInput where its settings are wrong.
        """

    def open(self, settings: Settings, root: Path | None) -> AbstractAsyncContextManager[EnvPool]:
        """Open what the back-end's environments need, until the block ends; yields the pool that lends them.

        root: the workspace, from which relative paths in the settings count; None: the current folder. Raises BadInput
        where its settings are wrong or something is missing, EnvError where it cannot be opened.
        """


BACKENDS: dict[str, EnvBackend] = {}  # by name, as in `Task.environment`


def list_backends() -> list[str]:
    """List the names of the back-ends, without importing any."""
    plugins = pkgutil.iter_modules(importlib.import_module(_PLUGIN_PACKAGE).__path__)
    return sorted({*BACKENDS, *(module.name for module in plugins)})


def find_backend(name: str, where: str = "environment") -> EnvBackend:
    """Find an environment back-end by its name, the same object each time; the first call imports its module.

    name: as in `Task.environment`. where: what named it, such as a parameter, for the error. Raises BadInput where
    there is none, or where its module registers none that has all methods of `EnvBackend`; and what the import of its
    module raises.
    """
    if name not in BACKENDS:
        if name not in list_backends():
            fix = did_you_mean(name, list_backends())
            raise BadInput(f"no kind of environment is called {name!r}", where=where, fix=fix)
        module = importlib.import_module(f"{_PLUGIN_PACKAGE}.{name}")
        if name not in BACKENDS:
            fix = f'end it with BACKENDS["{name}"] = ...; a module that is no back-end lies in another folder'
            raise BadInput("it registers no back-end", where=module.__file__, fix=fix)
        methods = [one for one in vars(EnvBackend) if not one.startswith("_")]
        if missing := [one for one in methods if not callable(getattr(BACKENDS[name], one, None))]:
            del BACKENDS[name]
            raise BadInput(f"its back-end has no method {', '.join(missing)}", where=module.__file__, fix="add it")
    return BACKENDS[name]


def check_backends(settings: Settings, used: Iterable[str]) -> None:
    """Check that the back-ends `used` can run here, and that the settings of all in `sandbox.kinds` can be read.

    used: names, as for `find_backend`. Raises BadInput for the first fault: a back-end that does not exist, a wrong
    setting, or something that a used one needs and that is missing here.
    """
    for name in settings.sandbox.kinds:
        # This reads its settings only, and checks nothing that a run with it needs.
        find_backend(name, where=_SETTINGS_KEY).limits(settings)
    for name in sorted(used):
        find_backend(name).check(settings)


class BackendSettings(SettingsBlock):
    """Hold the settings that several back-ends share; a back-end's own settings class may extend it."""

    places: int = Field(8, ge=1, le=4096)
    """Environments at once, at most."""
    timeout_s: float = Field(10.0, gt=0)
    """Seconds until a reset or a step must be done."""
    open_s: float = Field(60.0, gt=0)
    """Seconds until what the environments need must be opened, and closed."""

    @property
    def limits(self) -> EnvLimits:
        """Return these limits in the form of `EnvBackend.limits`."""
        return EnvLimits(self.places, self.timeout_s, self.open_s)


B = TypeVar("B", bound=SettingsBlock)


def parse_backend_settings(settings: Settings, name: str, form: type[B]) -> B:
    """Parse a back-end's own settings, `sandbox.kinds.<name>`, as the class `form`; its defaults where there are none.

    Raises BadInput that names each wrong parameter.
    """
    try:
        return form.model_validate(settings.sandbox.kinds.get(name, {}))
    except ValidationError as error:
        where = f"{_SETTINGS_KEY}.{name}"
        faults = " | ".join(f"{where}.{fault.line}" for fault in params_file.list_settings_faults(error, form))
        raise BadInput(f"wrong parameter: {faults}", where=where, fix="change it and run again") from None


@asynccontextmanager
async def open_env_pools(
    settings: Settings, names: Iterable[str], root: Path | None = None
) -> AsyncIterator[dict[str, EnvPool]]:
    """Open the pools of the back-ends `names` on this machine; yields them by name.

    root: the folder from which relative paths in the settings count; None: the current one. Raises BadInput for a
    back-end that does not exist, whose settings are wrong, or that lacks something it needs; EnvTimeout where one does
    not open or close within its deadline; EnvError where one cannot be opened.
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


class EnvProvider(Protocol):
    """Lend environments to tasks of any back-end; it may have `counts` of events by the name of their class."""

    def env(self, task: Task) -> AbstractAsyncContextManager[Env]:
        """Lend an environment of the task's back-end until the block ends.

        Raises EnvError where there is none, EnvTimeout where none comes free in time; a manager's also BadInput where
        none ever would.
        """


OpenEnvProvider = Callable[[Settings, Iterable[Task]], AbstractAsyncContextManager[EnvProvider]]


class EnvRouter:
    """Lend each task an environment from its back-end's pool on this machine. pools: by the name of the back-end."""

    def __init__(self, pools: Mapping[str, EnvPool]) -> None:
        self._pools = pools

    def env(self, task: Task) -> AbstractAsyncContextManager[Env]:
        """Lend an environment of the task's back-end until the block ends. Raises EnvError where it is not open."""
        pool = self._pools.get(task.environment)
        if pool is None:
            fix = f"open it with this task; open are {', '.join(self._pools) or 'none'}"
            what = f"no environment of the kind {task.environment} is open"
            raise EnvError(what, where=f"task {task.task_id}", fix=fix)
        return pool.env()

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of events so far, of all pools that count them, by the name of the event's class."""
        events = (getattr(pool, "events", None) for pool in self._pools.values())
        return sum((Counter(event.counts) for event in events if event is not None), Counter())


@asynccontextmanager
async def open_environments(
    settings: Settings, tasks: Iterable[Task], root: Path | None = None
) -> AsyncIterator[EnvProvider]:
    """Open the environments that `tasks` need, here or leased from `sandbox.manager`; yields what lends them.

    tasks: only their back-ends count; with a manager none does, since it leases environments of any. root: the folder
    from which relative paths in the settings count; None: the current one. Raises BadInput for a back-end that does not
    exist, wrong settings, something missing that a back-end needs (a Chromium, a page's package), a manager without an
    address or a token, or `cluster` as the manager where no cluster runs; EnvTimeout where a back-end does not open or
    close within its deadline, EnvError where it cannot be opened.
    """
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote.client import open_remote_envs  # its HTTP client takes a sixth of a second to load

        async with open_remote_envs(settings) as leased:
            yield leased
        return
    async with open_env_pools(settings, {task.environment for task in tasks}, root) as pools:
        yield EnvRouter(pools)


def list_task_suites() -> list[str]:
    """List the names of all back-ends' task suites, sorted, those of `synthesis.worlds` only once they are loaded.

    Raises BadInput where two back-ends have a suite of the same name, or a back-end cannot be used (`find_backend`).
    """
    return sorted(_backend_by_suite())


def get_task_suite(name: str) -> TaskSuite:
    """Find a task suite by its name; those of `synthesis.worlds` must be loaded first (`load_external_suites`).

    name: as in `Task.world`. Raises BadInput where there is none or it is damaged, and as `list_task_suites`.
    """
    of_world = _backend_by_suite()
    if name not in of_world:
        raise BadInput(f"no world is called {name!r}", where="synthesis.domains", fix=did_you_mean(name, of_world))
    return find_backend(of_world[name]).suite(name)


def find_used_backends(settings: Settings) -> set[str]:
    """Find the names of the back-ends for the suites of `synthesis.domains` and the pages of `synthesis.manifests`.

    Suites of `synthesis.worlds` count once they are loaded (`load_external_suites`). A name that no loaded suite has is
    ignored. Raises BadInput as `list_task_suites`.
    """
    of_world = _backend_by_suite()
    named = {world for worlds in settings.synthesis.domains.values() for world in worlds}
    found = {of_world[world] for world in named & of_world.keys()}
    return found | {"browser"} if settings.synthesis.manifests else found


def _backend_by_suite() -> dict[str, str]:
    """Map the name of each suite to that of its back-end."""
    found: dict[str, str] = {}
    for backend in list_backends():
        for world in find_backend(backend).suites():
            if found.setdefault(world, backend) != backend:
                what = f"{found[world]} and {backend} have a world {world}"
                raise BadInput(what, where="environments", fix="rename one")
    return found


# Task suites that others wrote as manifests (`synthesis.worlds`).

PlaceholderChoices = Mapping[str, Sequence[Mapping[str, str] | str]]  # by the name of a placeholder `{name}`


def draw_placeholders(choices: PlaceholderChoices, rng: random.Random) -> dict[str, str]:
    """Draw a text for each placeholder `{name}` of a manifest by `rng`; returns texts by name.

    choices: by placeholder, its possible texts, at least one; a choice may also map several placeholders to texts that
    go together.
    """
    values: dict[str, str] = {}
    for name, of in choices.items():
        one = rng.choice(of)
        values |= {name: one} if isinstance(one, str) else one
    return values


def fill_placeholders(value: Any, values: Mapping[str, str]) -> Any:
    """Replace each `{name}` by its text in all texts of the JSON value `value`, keys included; returns the new value.

    values: texts by name, filled in one after the other: the names of later ones in an earlier one's text are replaced
    too.
    """
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, Mapping):
        return {fill_placeholders(name, values): fill_placeholders(one, values) for name, one in value.items()}
    return [fill_placeholders(one, values) for one in value] if isinstance(value, list) else value


ManifestForm = TypeVar("ManifestForm", bound=BaseModel)


def load_external_suites(settings: Settings, root: Path) -> None:
    """Load the task suites of `synthesis.worlds` into their back-ends; a later call loads changed manifests again.

    They stay there until the process ends. root: the folder from which relative paths count. Raises BadInput for a
    manifest that is missing or wrong, or whose suite's name is taken, by another entry too; those before it are loaded
    by then.
    """
    loaded: dict[str, Path] = {}
    for entry in settings.synthesis.worlds:
        path = root / entry
        name = _read_yaml_mapping(path).get("kind")
        loading = [backend for backend in list_backends() if hasattr(find_backend(backend), "load")]
        if name not in loading:
            raise BadInput(f"kind is {name!r}", where=path, fix=did_you_mean(str(name), loading))
        world = find_backend(name).load(path).name
        if loaded.setdefault(world, path) != path:
            raise BadInput(f"the world {world} is that of {loaded[world]} too", where=path, fix="rename one")


def register_external_suite(own: dict[str, TaskSuite], world: TaskSuite, path: Path) -> TaskSuite:
    """Add a suite to those that a back-end has loaded from manifests, and return it.

    own: the loaded suites of the back-end, by name. world: the suite. path: its manifest, for the error. Raises
    BadInput where a suite outside of `own` has the same name.
    """
    if world.name not in own and world.name in list_task_suites():
        raise BadInput(f"a world is called {world.name} already", where=path, fix="rename this one")
    own[world.name] = world
    return world


def validate_suite_manifest(path: Path, form: type[ManifestForm]) -> ManifestForm:
    """Parse the YAML manifest in the file `path` as the pydantic class `form`, its field `kind` left out.

    Raises BadInput where the file cannot be read, or for the first wrong field, which it names.
    """
    try:
        return form.model_validate({name: value for name, value in _read_yaml_mapping(path).items() if name != "kind"})
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "whole"
        raise BadInput(f"the manifest's {field}: {fault['msg']}", where=path, fix="mend that field") from None


def _read_yaml_mapping(path: Path) -> dict[str, Any]:
    try:
        found = yaml_text.load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the manifest cannot be read: {error}", where=path, fix="check the path") from None
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise BadInput(f"the manifest is not YAML: {reason}", where=path, fix="mend that place") from None
    if not isinstance(found, dict):
        raise BadInput("the manifest is no mapping", where=path, fix="begin with kind, world and tasks")
    return found
