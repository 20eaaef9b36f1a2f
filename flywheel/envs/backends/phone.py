"""Register the back-end `phone`: an emulated phone with a touch screen, whose applications are the shipped sites.

Its settings are `sandbox.kinds.phone`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.base import Task, TaskSuite, Verifier
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.registry import BACKENDS, BackendSettings, EnvLimits, EnvPool, parse_backend_settings
from flywheel.envs.suites.phone.world import PHONE
from flywheel.utils.errors import BadInput, Finding, run_diagnostic

_BACKEND_NAME = "phone"
_IN_IDENTITY = {"width", "height", "step_ms", "frames", "heap_mb", "download_mb"}  # settings that change episodes


class PhoneSettings(BackendSettings):
    """Hold the settings of emulated phones; all others are those of `sandbox`."""

    width: int = Field(360, ge=240, le=640)
    """Of the screen, in pixels."""
    height: int = Field(640, ge=320, le=1400)
    """Of the screen, in pixels."""


class PhoneBackend:
    """Implement the back-end of the emulated phone."""

    def suites(self) -> Iterable[str]:
        return [PHONE.name]

    def suite(self, name: str) -> TaskSuite:
        return PHONE

    def verifier(self, task: Task) -> Verifier:
        found = PHONE.verifier(task.verifier)
        if found is None:
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix="draw the task again")
        return found

    def limits(self, settings: Settings) -> EnvLimits:
        return parse_backend_settings(settings, _BACKEND_NAME, PhoneSettings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return phone_browser_settings(settings).model_dump(include=_IN_IDENTITY)

    def check(self, settings: Settings) -> None:
        parse_backend_settings(settings, _BACKEND_NAME, PhoneSettings)
        chromium.find_chromium(settings.sandbox)

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        yield run_diagnostic(_BACKEND_NAME, lambda: f"phones are shown by {chromium.find_chromium(settings.sandbox)}")

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[EnvPool]:
        from flywheel.envs.phone.emulated_phone import PhoneServer  # imports a web server

        async with (
            PhoneServer() as source,
            BrowserPool(phone_browser_settings(settings), source, root, touch=True) as pool,
        ):
            yield pool


def phone_browser_settings(settings: Settings) -> SandboxSettings:
    """Return the settings of the browsers that show the phones. Raises BadInput as `parse_backend_settings`."""
    chosen = parse_backend_settings(settings, _BACKEND_NAME, PhoneSettings)
    return settings.sandbox.model_copy(
        update={"width": chosen.width, "height": chosen.height, "pages": chosen.places, "timeout_s": chosen.timeout_s}
    )


BACKENDS["phone"] = PhoneBackend()
