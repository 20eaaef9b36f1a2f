"""Register the back-end `android`: real phones and emulators, by ADB; its settings are `sandbox.kinds.android`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Task, TaskSuite, Verifier
from flywheel.envs.phone import android_env
from flywheel.envs.phone.android_env import AndroidEnv, AndroidPhone, AndroidSuite
from flywheel.envs.registry import BACKENDS, BackendSettings, EnvLimits, EnvPool, parse_backend_settings
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout, Finding, run_diagnostic

_BACKEND_NAME, _INSTALL_COMMAND = "android", "pip install 'flywheel[phone]'"
ANDROID_SUITES: dict[str, AndroidSuite] = {}
"""By name; more of them by `synthesis.worlds`."""


class AndroidSettings(BackendSettings):
    """Hold the settings of phones behind an ADB server; each plays one episode at a time, whatever `places` says."""

    timeout_s: float = Field(60.0, gt=0)
    """Seconds until a reset or a step must be done."""
    host: str = Field("127.0.0.1", min_length=1)
    """Of the ADB server."""
    port: int = Field(5037, ge=1, le=65535)
    """Of the ADB server."""
    serials: list[str] = Field([])
    """Serial numbers of the phones to use. Empty: the one phone that is connected."""
    settle_ms: float = Field(1000.0, ge=0, le=60_000)
    """Milliseconds after an action until the screen is looked at."""


async def _find_phone(chosen: AndroidSettings, serial: str) -> AndroidPhone:
    return await AndroidPhone.find(chosen.host, chosen.port, serial, chosen.timeout_s / 2)


class AndroidPool:
    """Lend environments of the phones that the settings name (an `EnvPool`)."""

    def __init__(self, chosen: AndroidSettings) -> None:
        self._chosen = chosen
        self._free: asyncio.Queue[str] = asyncio.Queue()
        for serial in chosen.serials or [""]:
            self._free.put_nowait(serial)

    @asynccontextmanager
    async def env(self) -> AsyncIterator[AndroidEnv]:
        """Lend the phone that has been free longest, until the block ends; so, after a crash, another one is next.

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
            env = AndroidEnv(lambda: _find_phone(chosen, serial), chosen.timeout_s, chosen.settle_ms / 1000)
            yield env
            await env.close()
        finally:
            self._free.put_nowait(serial)


class AndroidBackend:
    """Implement the back-end of real phones and emulators."""

    def suites(self) -> Iterable[str]:
        return list(ANDROID_SUITES)

    def suite(self, name: str) -> TaskSuite:
        return ANDROID_SUITES[name]

    def load(self, path: Path) -> TaskSuite:
        return registry.register_external_suite(ANDROID_SUITES, android_env.load_android_suite(path), path)

    def verifier(self, task: Task) -> Verifier:
        if task.verifier != android_env.ANDROID_VERIFIER:
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix="draw the task again")
        return android_env.score_shown_state

    def limits(self, settings: Settings) -> EnvLimits:
        chosen = _chosen(settings)
        return EnvLimits(max(len(chosen.serials), 1), chosen.timeout_s, chosen.open_s)

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return {"settle_ms": _chosen(settings).settle_ms}

    def check(self, settings: Settings) -> None:
        _chosen(settings)
        if why := android_env.explain_missing_adb():
            raise BadInput(why, where=f"sandbox.kinds.{_BACKEND_NAME}", fix=_INSTALL_COMMAND)

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        yield run_diagnostic(_BACKEND_NAME, lambda: self._look(_chosen(settings)))

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[EnvPool]:
        yield AndroidPool(_chosen(settings))

    def _look(self, chosen: AndroidSettings) -> str:
        if why := android_env.explain_missing_adb():
            raise EnvError(why, fix=_INSTALL_COMMAND)
        found = [asyncio.run(_find_phone(chosen, serial)).serial for serial in chosen.serials or [""]]
        return f"{', '.join(found)} answer"


def _chosen(settings: Settings) -> AndroidSettings:
    return parse_backend_settings(settings, _BACKEND_NAME, AndroidSettings)


ANDROID_SUITES[_BACKEND_NAME] = android_env.load_android_suite(android_env.SHIPPED_ANDROID_MANIFEST)

BACKENDS["android"] = AndroidBackend()
