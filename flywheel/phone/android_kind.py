"""The kind `android`: real phones, and emulators, behind an ADB server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from flywheel.environments import foreign
from flywheel.environments.env import Task
from flywheel.environments.kind import KindSettings, Lender, Limits, block
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput, EnvError, EnvTimeout
from flywheel.findings import Finding, guarded
from flywheel.phone import adb, android_tasks
from flywheel.phone.adb import Phone
from flywheel.phone.android import AndroidEnv
from flywheel.phone.android_tasks import AndroidWorld
from flywheel.reward.verifier import Verifier
from flywheel.settings import Settings

_NAME, _INSTALL = "android", "pip install 'flywheel[phone]'"
WORLDS: dict[str, AndroidWorld] = {}
"""By name; more of them by `synthesis.worlds`."""


class AndroidSettings(KindSettings):
    """Phones behind an ADB server; one episode a phone at once, whatever `places` says."""

    timeout_s: float = Field(60.0, gt=0)
    """Seconds until a reset or a step must be done."""
    host: str = Field("127.0.0.1", min_length=1)
    """Of the ADB server."""
    port: int = Field(5037, ge=1, le=65535)
    """Of the ADB server."""
    serials: list[str] = Field([])
    """Serial numbers of the phones to use. None: the only one that is connected."""
    settle_ms: float = Field(1000.0, ge=0, le=60_000)
    """Milliseconds after an action until the screen is looked at."""


class AndroidLender:
    def __init__(self, chosen: AndroidSettings) -> None:
        self._chosen = chosen
        self._free: asyncio.Queue[str] = asyncio.Queue()
        for serial in chosen.serials or [""]:
            self._free.put_nowait(serial)

    @asynccontextmanager
    async def env(self) -> AsyncIterator[AndroidEnv]:
        """On the phone that was free for longest: after a crash, another one where there is another.

        Raises EnvTimeout where none becomes free within `open_s`.
        """
        chosen = self._chosen
        try:
            async with asyncio.timeout(chosen.open_s):
                serial = await self._free.get()
        except TimeoutError:
            fix = "name more of them in sandbox.kinds.android.serials"
            raise EnvTimeout(f"no phone became free within {chosen.open_s:g} s", where="phones", fix=fix) from None
        try:
            env = AndroidEnv(
                lambda: Phone.find(chosen.host, chosen.port, serial, chosen.timeout_s / 2),
                chosen.timeout_s,
                chosen.settle_ms / 1000,
            )
            yield env
            await env.close()
        finally:
            self._free.put_nowait(serial)


class AndroidKind:
    def worlds(self) -> Iterable[str]:
        return list(WORLDS)

    def world(self, name: str) -> TaskWorld:
        return WORLDS[name]

    def load(self, path: Path) -> TaskWorld:
        return foreign.register(WORLDS, android_tasks.load(path), path)

    def verifier(self, task: Task) -> Verifier:
        if task.verifier != android_tasks.VERIFIER:
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix="draw the task again")
        return android_tasks.as_wanted

    def limits(self, settings: Settings) -> Limits:
        chosen = block(settings, _NAME, AndroidSettings)
        return Limits(max(len(chosen.serials), 1), chosen.timeout_s, chosen.open_s)

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return {"settle_ms": block(settings, _NAME, AndroidSettings).settle_ms}

    def check(self, settings: Settings) -> None:
        block(settings, _NAME, AndroidSettings)
        if why := adb.missing():
            raise BadInput(why, where=f"sandbox.kinds.{_NAME}", fix=_INSTALL)

    def examine(self, settings: Settings) -> Iterable[Finding]:
        return (guarded(_NAME, lambda: self._look(block(settings, _NAME, AndroidSettings))),)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[Lender]:
        yield AndroidLender(block(settings, _NAME, AndroidSettings))

    def _look(self, chosen: AndroidSettings) -> str:
        if why := adb.missing():
            raise EnvError(why, fix=_INSTALL)
        found = [
            asyncio.run(Phone.find(chosen.host, chosen.port, serial, chosen.timeout_s / 2)).serial
            for serial in chosen.serials or [""]
        ]
        return f"{', '.join(found)} answer"


WORLDS[_NAME] = android_tasks.load(android_tasks.SHIPPED)
