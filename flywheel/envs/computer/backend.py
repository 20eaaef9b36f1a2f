"""Implement the back-ends `terminal` and `computer`: their suites, requirements and pools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.envs import isolation
from flywheel.envs.base import Task, TaskSuite
from flywheel.envs.computer import desktop, task_suites
from flywheel.envs.computer.computer import Computer, WarmPool
from flywheel.envs.computer.env import ComputerEnv
from flywheel.envs.computer.osworld.suite import OsworldSuite
from flywheel.envs.computer.settings import ComputerSettings, TerminalSettings
from flywheel.envs.computer.task_suites import ManifestSuite
from flywheel.envs.registry import EnvLimits, EnvPool, parse_backend_settings, register_external_suite
from flywheel.envs.verdict import Verifier
from flywheel.utils.errors import BadInput, EnvError, Finding, did_you_mean, run_diagnostic

# Settings that change how long an episode takes, and not what happens in it.
_NOT_IN_IDENTITY = {"places", "timeout_s", "open_s", "warm"}
_STEP_MARGIN_S = 5.0  # of a step, beyond what it waits for a command


class ComputerPool:
    def __init__(self, kind: ComputerBackend, warm: WarmPool[Computer], limit_s: float) -> None:
        self._kind, self._warm, self._limit_s = kind, warm, limit_s

    @asynccontextmanager
    async def env(self) -> AsyncIterator[ComputerEnv]:
        """Lend a fresh computer until the block ends."""
        env = ComputerEnv(self._warm, self._kind.verifier, self._limit_s)
        try:
            yield env
        finally:
            await env.close()


class ComputerBackend:
    """Implement the back-end of computers.

    name: as it is registered. form: class of its settings. apps: Debian packages of its tasks' applications, by
    program. own: suites loaded from manifests, by name.
    """

    def __init__(self, name: str, form: type[TerminalSettings], apps: Mapping[str, str]) -> None:
        self._name, self._form, self._apps = name, form, apps
        self.own: dict[str, OsworldSuite | ManifestSuite] = {}

    def suites(self) -> Iterable[str]:
        """Name the suites that ship for this back-end, and those loaded from manifests."""
        shipped = [
            world.name for world in task_suites.SHIPPED_COMPUTER_SUITES.values() if world.environment == self._name
        ]
        return [*shipped, *self.own]

    def suite(self, name: str) -> TaskSuite:
        """Return the task suite called `name`."""
        return self.own.get(name) or task_suites.SHIPPED_COMPUTER_SUITES[name]

    def load(self, path: Path) -> TaskSuite:
        """Load the manifest at `path` as a task suite of this back-end, and return it. Raises BadInput for a wrong
        one."""
        return register_external_suite(self.own, task_suites.load_computer_suite(path, self._name), path)

    def verifier(self, task: Task) -> Verifier:
        """Return the verifier that `task` names. Raises BadInput where there is none of that name."""
        found = task_suites.COMPUTER_VERIFIERS.get(task.verifier)
        if found is None:
            fix = did_you_mean(task.verifier, task_suites.COMPUTER_VERIFIERS)
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix=fix)
        return found

    def limits(self, settings: Settings) -> EnvLimits:
        """Return how many environments may be open at once, and their deadlines, by the settings."""
        return self._chosen(settings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        """Return those of its settings that an episode's course depends on."""
        return self._chosen(settings).model_dump(exclude=_NOT_IN_IDENTITY)

    def check(self, settings: Settings) -> None:
        """Check its settings and what this machine needs for them. Raises BadInput."""
        chosen = self._chosen(settings)
        for world in self.own.values():
            if world.judging_s > chosen.timeout_s:
                raise BadInput(
                    f"judging a task of {world.name} may take {world.judging_s:g} s, and timeout_s is less",
                    where=f"sandbox.kinds.{self._name}",
                    fix=f"raise timeout_s to {world.judging_s:g}",
                )
        try:
            self._look(chosen)
        except EnvError as error:
            raise BadInput(error.what, where=f"sandbox.kinds.{self._name}", fix=error.fix) from None

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        """Say, for `flywheel doctor`, whether this machine has what it needs."""
        yield run_diagnostic(self._name, lambda: self._look(self._chosen(settings)))
        for world in self.own.values():
            if isinstance(world, OsworldSuite):
                yield Finding(world.name, "ok" if not world.left_out else "optional", world.told)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[EnvPool]:
        """Open a pool of its environments until the block ends.

        root: the folder that relative paths in the settings count from; None: the current one. Raises EnvError where
        none can be opened.
        """
        chosen = self._chosen(settings)
        async with WarmPool(lambda: Computer.start(chosen), chosen.warm) as warm:
            yield ComputerPool(self, warm, chosen.timeout_s)

    # -- inside -------------------------------------------------------------------------------------------------------
    def _chosen(self, settings: Settings) -> TerminalSettings:
        chosen = parse_backend_settings(settings, self._name, self._form)
        if chosen.run_s + _STEP_MARGIN_S > chosen.timeout_s:
            raise BadInput(
                f"run_s is {chosen.run_s:g}, and a step must be done in {chosen.timeout_s:g} s",
                where=f"sandbox.kinds.{self._name}",
                fix=f"raise timeout_s to {chosen.run_s + _STEP_MARGIN_S:g}, or lower run_s",
            )
        return chosen

    def _look(self, chosen: TerminalSettings) -> str:
        """What it needs is there, in words. Raises EnvError that says how to get what is not."""
        screen, machine = issubclass(self._form, ComputerSettings), chosen.machine
        if screen and not machine.image and (lacking := desktop.list_missing_packages(self._apps)):
            raise EnvError(f"desktops lack {', '.join(lacking)}", fix=f"apt-get install {' '.join(lacking)}")
        why, fix = machine.missing()
        if not why and isolation.explain_missing_bwrap() and any(world.judging_s for world in self.own.values()):
            why, fix = (
                f"no checker without bubblewrap: {isolation.explain_missing_bwrap()}",
                "apt-get install bubblewrap",
            )
        if why:
            raise EnvError(why, fix=fix)
        works = f"{machine.walls} works" + (f", and has the image {machine.image}" if machine.image else "")
        return f"Xvnc, openbox and the applications are there, and {works}" if screen and not machine.image else works
