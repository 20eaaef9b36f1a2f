"""browser: pages in Chromium, of the package's worlds and of third parties (`sandbox.manifests`); its settings are the
block `sandbox` itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from flywheel.environments.env import Task
from flywheel.environments.kind import KINDS, Lender, Limits
from flywheel.environments.world import TaskWorld
from flywheel.errors import BadInput
from flywheel.findings import Finding
from flywheel.reward.verifier import Verifier
from flywheel.sandbox import chromium, examine, manifests, pool
from flywheel.sandbox.reading import page_reward
from flywheel.settings import Settings
from flywheel.synthesis.tasks import make_task
from flywheel.worlds import catalogue, verifiers

# Settings that change how long an episode takes, and not what happens in it.
_FREE = {
    "browsers",
    "pages",
    "pages_min",
    "timeout_s",
    "wait_s",
    "lease_s",
    "silent_s",
    "idle_s",
    "recycle_after",
    "browser_mb",
    "page_mb",
    "executable",
    "record",
    "record_folder",
    "record_mb",
    "kinds",
    "backend",
    "manager",
    "user",
}


class Browser:
    def worlds(self) -> Iterable[str]:
        return catalogue.names()

    def world(self, name: str) -> TaskWorld:
        return catalogue.get(name)

    def verifier(self, task: Task) -> Verifier:
        return page_reward if task.verifier == manifests.VERIFIER else verifiers.find(task)

    def limits(self, settings: Settings) -> Limits:
        if settings.sandbox.kinds.get("browser"):
            raise BadInput(
                "a browser's settings are those of sandbox", where="sandbox.kinds.browser", fix="set them there"
            )
        chosen = settings.sandbox
        return Limits(chosen.pages, chosen.timeout_s, chosen.wait_s)

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return settings.sandbox.model_dump(exclude=_FREE)

    def check(self, settings: Settings) -> None:
        chromium.find(settings.sandbox)

    def examine(self, settings: Settings) -> Iterable[Finding]:
        return examine.examine(settings, make_task(catalogue.get("tiles"), "clear", 1, 0, "train"))

    def open(self, settings: Settings, root: Path | None) -> AbstractAsyncContextManager[Lender]:
        return pool.open_sandbox(settings, root)


KINDS["browser"] = Browser()
