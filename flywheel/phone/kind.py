"""The kind `phone`: the browsers' sandbox with fingers for a mouse, and the emulated phone's pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from flywheel.environments.env import Task
from flywheel.environments.kind import KindSettings, Lender, Limits, block
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput
from flywheel.findings import Finding, guarded
from flywheel.phone.server import PhoneServer
from flywheel.phone.world import PHONE
from flywheel.reward.verifier import Verifier
from flywheel.sandbox import chromium
from flywheel.sandbox.pool import BrowserPool
from flywheel.settings import Sandbox, Settings

_NAME = "phone"
_COUNT = {"width", "height", "step_ms", "frames", "heap_mb", "download_mb"}  # settings that change what happens


class PhoneSettings(KindSettings):
    """Emulated phones. What is not said here is as `sandbox` has it for browsers."""

    width: int = Field(360, ge=240, le=640)
    """Of the screen, in pixels."""
    height: int = Field(640, ge=320, le=1400)
    """Of the screen, in pixels."""


class PhoneKind:
    def worlds(self) -> Iterable[str]:
        return [PHONE.name]

    def world(self, name: str) -> TaskWorld:
        return PHONE

    def verifier(self, task: Task) -> Verifier:
        found = PHONE.verifier(task.verifier)
        if found is None:
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix="draw the task again")
        return found

    def limits(self, settings: Settings) -> Limits:
        return block(settings, _NAME, PhoneSettings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return sandbox(settings).model_dump(include=_COUNT)

    def check(self, settings: Settings) -> None:
        block(settings, _NAME, PhoneSettings)
        chromium.find(settings.sandbox)

    def examine(self, settings: Settings) -> Iterable[Finding]:
        return (guarded(_NAME, lambda: f"phones are shown by {chromium.find(settings.sandbox)}"),)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[Lender]:
        async with PhoneServer() as source, BrowserPool(sandbox(settings), source, root, touch=True) as pool:
            yield pool


def sandbox(settings: Settings) -> Sandbox:
    """The settings of the browsers that the phones are shown by."""
    chosen = block(settings, _NAME, PhoneSettings)
    return settings.sandbox.model_copy(
        update={"width": chosen.width, "height": chosen.height, "pages": chosen.places, "timeout_s": chosen.timeout_s}
    )
