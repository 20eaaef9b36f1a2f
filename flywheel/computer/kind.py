"""What the kinds of environments on computers have in common: their worlds, what they need, how they are lent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flywheel.computer import desktop, manifest, worlds
from flywheel.computer.computer import Computer
from flywheel.computer.env import ComputerEnv
from flywheel.computer.manifest import ManifestWorld
from flywheel.computer.osworld.world import OsworldWorld
from flywheel.computer.settings import ComputerSettings, TerminalSettings
from flywheel.computer.warm import Warm
from flywheel.environments.env import Task
from flywheel.environments.foreign import register
from flywheel.environments.kind import Lender, Limits, block
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, EnvError, known
from flywheel.findings import Finding, guarded
from flywheel.reward.verifier import Verifier
from flywheel.sandbox import isolation
from flywheel.settings import Settings

# Settings that change how long an episode takes, and not what happens in it.
_FREE = {"places", "timeout_s", "open_s", "warm"}
_SLACK_S = 5.0  # of a step, beyond what it waits for a command


class ComputerLender:
    def __init__(self, kind: ComputerKind, warm: Warm[Computer], limit_s: float) -> None:
        self._kind, self._warm, self._limit_s = kind, warm, limit_s

    @asynccontextmanager
    async def env(self) -> AsyncIterator[ComputerEnv]:
        env = ComputerEnv(self._warm, self._kind.verifier, self._limit_s)
        try:
            yield env
        finally:
            await env.close()


class ComputerKind:
    """name: as it is registered. form: its settings. apps: Debian's packages of applications of its tasks, by their
    programs. own: worlds by manifests, by name."""

    def __init__(self, name: str, form: type[TerminalSettings], apps: Mapping[str, str]) -> None:
        self._name, self._form, self._apps = name, form, apps
        self.own: dict[str, OsworldWorld | ManifestWorld] = {}

    def worlds(self) -> Iterable[str]:
        shipped = [world.name for world in worlds.WORLDS.values() if world.environment == self._name]
        return [*shipped, *self.own]

    def world(self, name: str) -> TaskWorld:
        return self.own.get(name) or worlds.WORLDS[name]

    def load(self, path: Path) -> TaskWorld:
        return register(self.own, manifest.load(path, self._name), path)

    def verifier(self, task: Task) -> Verifier:
        found = worlds.VERIFIERS.get(task.verifier)
        if found is None:
            fix = known(task.verifier, worlds.VERIFIERS)
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix=fix)
        return found

    def limits(self, settings: Settings) -> Limits:
        return self._chosen(settings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return self._chosen(settings).model_dump(exclude=_FREE)

    def check(self, settings: Settings) -> None:
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

    def examine(self, settings: Settings) -> Iterable[Finding]:
        yield guarded(self._name, lambda: self._look(self._chosen(settings)))
        for world in self.own.values():
            if isinstance(world, OsworldWorld):
                yield Finding(world.name, "ok" if not world.left_out else "optional", world.told)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[Lender]:
        chosen = self._chosen(settings)
        async with Warm(lambda: Computer.start(chosen), chosen.warm) as warm:
            yield ComputerLender(self, warm, chosen.timeout_s)

    # -- inside -------------------------------------------------------------------------------------------------------
    def _chosen(self, settings: Settings) -> TerminalSettings:
        chosen = block(settings, self._name, self._form)
        if chosen.run_s + _SLACK_S > chosen.timeout_s:
            raise BadInput(
                f"run_s is {chosen.run_s:g}, and a step must be done in {chosen.timeout_s:g} s",
                where=f"sandbox.kinds.{self._name}",
                fix=f"raise timeout_s to {chosen.run_s + _SLACK_S:g}, or lower run_s",
            )
        return chosen

    def _look(self, chosen: TerminalSettings) -> str:
        """What it needs is there, in words. Raises EnvError that says how to get what is not."""
        screen, machine = issubclass(self._form, ComputerSettings), chosen.machine
        if screen and not machine.image and (lacking := desktop.missing(self._apps)):
            raise EnvError(f"desktops lack {', '.join(lacking)}", fix=f"apt-get install {' '.join(lacking)}")
        why, fix = machine.missing()
        if not why and isolation.missing() and any(world.judging_s for world in self.own.values()):
            why, fix = f"no checker without bubblewrap: {isolation.missing()}", "apt-get install bubblewrap"
        if why:
            raise EnvError(why, fix=fix)
        works = f"{machine.walls} works" + (f", and has the image {machine.image}" if machine.image else "")
        return f"Xvnc, openbox and the applications are there, and {works}" if screen and not machine.image else works
