"""Register the back-end `browser`: pages of shipped suites and of third parties (`synthesis.manifests`) in Chromium.

Its settings are the block `sandbox`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from flywheel.config import SandboxSettings, Settings
from flywheel.envs import isolation, registry
from flywheel.envs.base import Task, TaskSuite, Verifier
from flywheel.envs.browser import pool
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.pages import manifest
from flywheel.envs.browser.pages.session import score_page_answer, score_page_reward
from flywheel.envs.registry import BACKENDS, EnvLimits, EnvPool
from flywheel.envs.suites import catalogue, verifiers
from flywheel.envs.suites.rules.game import load_rule_game
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils import child_processes
from flywheel.utils.errors import BadInput, Finding, FlywheelError, run_diagnostic


async def _time_first_page(settings: Settings) -> str:
    task = make_task(catalogue.get_world("tiles"), "clear", 1, 0, "train")
    left = len(child_processes.list_abandoned_folders())
    began = time.monotonic()
    async with pool.open_browser_pool(settings) as opened, opened.env() as env:
        await env.reset(task, 0)
        seconds = time.monotonic() - began
        status = await opened.status()
    removed = f"; folders of killed runs removed: {left}" if left else ""
    return f"a page in {seconds:.1f} s, {status.memory_mb:.0f} MB{removed}"


def _examine_chromium_sandbox(settings: SandboxSettings) -> Finding:
    """Report whether Chromium's own sandbox worked for the page that `_time_first_page` opened."""
    name = "Chromium's own sandbox"
    try:
        why = chromium.explain_missing_chromium_sandbox(chromium.find_chromium(settings), settings)
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)
    if not why:
        return Finding(name, "ok", "on")
    detail = f"off: {why}. A page that breaks out of Chromium is on this machine"
    return Finding(name, "optional", detail, chromium.suggest_chromium_sandbox_fix(why))


def _examine_bwrap() -> Finding:
    """Report whether the servers of third-party pages, in which a policy may run code, are isolated."""
    why = isolation.explain_missing_bwrap()
    if not why:
        return Finding("bubblewrap", "ok", "servers of third-party pages are kept apart from this machine")
    fix = "apt-get install bubblewrap" if "not installed" in why else "allow user namespaces"
    return Finding("bubblewrap", "optional", f"{why}: servers of third-party pages can reach this machine", fix)


# Settings that change only how long an episode takes, not what happens in it.
_NOT_IN_IDENTITY = """
    browsers pages pages_min timeout_s acquire_timeout_s lease_s heartbeat_timeout_s idle_s recycle_after browser_mb
    page_mb executable record record_folder record_mb kinds backend manager user
"""


_PAGE_VERIFIERS = {manifest.PAGE_VERIFIER: score_page_reward, manifest.ANSWER_VERIFIER: score_page_answer}


class BrowserBackend:
    """Implement the back-end of pages in Chromium."""

    def suites(self) -> Iterable[str]:
        return catalogue.list_worlds()

    def suite(self, name: str) -> TaskSuite:
        return catalogue.get_world(name)

    def load(self, path: Path) -> TaskSuite:
        """Load and register the game of rules in the file at `path`. Raises BadInput for a wrong one, a taken name."""
        return registry.register_external_suite(catalogue.LOADED_GAMES, load_rule_game(path), path)

    def verifier(self, task: Task) -> Verifier:
        return _PAGE_VERIFIERS.get(task.verifier) or verifiers.find_verifier(task)

    def limits(self, settings: Settings) -> EnvLimits:
        if settings.sandbox.kinds.get("browser"):
            what = "a browser's settings are those of sandbox"
            raise BadInput(what, where="sandbox.kinds.browser", fix="set them there")
        chosen = settings.sandbox
        return EnvLimits(chosen.pages, chosen.timeout_s, chosen.acquire_timeout_s)

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return settings.sandbox.model_dump(exclude=set(_NOT_IN_IDENTITY.split()))

    def check(self, settings: Settings) -> None:
        chromium.find_chromium(settings.sandbox)

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        yield run_diagnostic("sandbox", lambda: asyncio.run(_time_first_page(settings)))
        yield _examine_chromium_sandbox(settings.sandbox)
        yield _examine_bwrap()

    def open(self, settings: Settings, root: Path | None) -> AbstractAsyncContextManager[EnvPool]:
        return pool.open_browser_pool(settings, root)


BACKENDS["browser"] = BrowserBackend()
