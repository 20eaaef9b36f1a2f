"""desktop: applications on an X desktop, seen in pictures; its settings are `sandbox.kinds.desktop`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from flywheel.computer import desk, desktop
from flywheel.computer.desktop import Desktop
from flywheel.computer.desktop_env import DesktopEnv
from flywheel.computer.machine import MachineSettings
from flywheel.computer.warm import Warm
from flywheel.environments.env import Task
from flywheel.environments.kind import KINDS, KindSettings, Lender, Limits, block
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, EnvError, known
from flywheel.findings import Finding, guarded
from flywheel.reward.verifier import Verifier
from flywheel.sandbox import isolation
from flywheel.settings import Settings

_NAME = "desktop"
# Debian's packages of what the tasks' applications are, by their programs.
_APPS = {"mousepad": "mousepad", "pcmanfm": "pcmanfm", "xterm": "xterm"}


class DesktopSettings(KindSettings):
    """Desktops: an X server, a window manager and a task's applications each, apart from this machine."""

    timeout_s: float = Field(20.0, gt=0)
    """Seconds until a reset or a step must be done."""
    width: int = Field(800, ge=320, le=4096)
    """Of the screen, in pixels."""
    height: int = Field(600, ge=240, le=4096)
    """Of the screen, in pixels."""
    machine: MachineSettings = MachineSettings()
    """What each desktop may use."""
    warm: int = Field(1, ge=0, le=64)
    """Desktops that have started and wait for a task; about 30 MB each."""
    after_ms: float = Field(30.0, ge=0, le=10_000)
    """Milliseconds that a step waits at least, until its programs are at rest and the picture is taken."""
    within_ms: float = Field(2000.0, ge=0, le=60_000)
    """Milliseconds after which the picture is taken of a screen that goes on moving."""
    wait_ms: float = Field(300.0, ge=0, le=60_000)
    """Milliseconds that the action `wait` waits."""


class DesktopLender:
    def __init__(self, warm: Warm, limit_s: float) -> None:
        self._warm, self._limit_s = warm, limit_s

    @asynccontextmanager
    async def env(self) -> AsyncIterator[DesktopEnv]:
        env = DesktopEnv(self._warm, KINDS[_NAME].verifier, self._limit_s)
        try:
            yield env
        finally:
            await env.close()


class DesktopKind:
    def worlds(self) -> Iterable[str]:
        return (desk.DESK.name,)

    def world(self, name: str) -> TaskWorld:
        return desk.DESK

    def verifier(self, task: Task) -> Verifier:
        found = desk.VERIFIERS.get(task.verifier)
        if found is None:
            fix = known(task.verifier, desk.VERIFIERS)
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix=fix)
        return found

    def limits(self, settings: Settings) -> Limits:
        return _chosen(settings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return _chosen(settings).model_dump(include={"width", "height", "after_ms", "within_ms", "wait_ms"})

    def check(self, settings: Settings) -> None:
        _chosen(settings)
        try:
            _look()
        except EnvError as error:
            raise BadInput(error.what, where="sandbox.kinds.desktop", fix=error.fix) from None

    def examine(self, settings: Settings) -> Iterable[Finding]:
        return (guarded(_NAME, _look),)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[Lender]:
        chosen = _chosen(settings)

        async def start() -> Desktop:
            made = await Desktop.start(chosen.width, chosen.height, chosen.machine)
            made.after_ms, made.within_ms, made.wait_ms = chosen.after_ms, chosen.within_ms, chosen.wait_ms
            return made

        async with Warm(start, chosen.warm) as warm:
            yield DesktopLender(warm, chosen.timeout_s)


def _chosen(settings: Settings) -> DesktopSettings:
    return block(settings, _NAME, DesktopSettings)


def _look() -> str:
    """What a desktop needs is there, in words. Raises EnvError that says how to get what is not."""
    if lacking := desktop.missing(_APPS):
        raise EnvError(f"desktops lack {', '.join(lacking)}", fix=f"apt-get install {' '.join(lacking)}")
    if why := isolation.missing():
        raise EnvError(why, fix="apt-get install bubblewrap")
    return "Xvnc, openbox and the applications are there, and bubblewrap works"


KINDS[_NAME] = DesktopKind()
