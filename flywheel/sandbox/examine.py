"""What `flywheel doctor` finds of browsers: that a page opens, and how well pages and their servers are kept apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from flywheel.environments.env import Task
from flywheel.errors import FlywheelError
from flywheel.findings import Finding, guarded
from flywheel.sandbox import chromium, confinement, isolation, profiles
from flywheel.sandbox.pool import open_sandbox
from flywheel.settings import Sandbox, Settings


def examine(settings: Settings, task: Task) -> Iterator[Finding]:
    """task: one of a world, whose page is opened for real."""
    yield guarded("sandbox", partial(_page, settings, task))
    yield _confinement(settings.sandbox)
    yield _isolation()


def _page(settings: Settings, task: Task) -> str:
    left = len(profiles.abandoned())
    return asyncio.run(_open(settings, task)) + (f"; folders of killed runs removed: {left}" if left else "")


async def _open(settings: Settings, task: Task) -> str:
    began = time.monotonic()
    async with open_sandbox(settings) as pool, pool.env() as env:
        await env.reset(task, 0)
        seconds = time.monotonic() - began
        status = await pool.status()
    return f"a page in {seconds:.1f} s, {status.memory_mb:.0f} MB"


def _confinement(settings: Sandbox) -> Finding:
    """Of the page that was opened."""
    name = "Chromium's own sandbox"
    try:
        why = confinement.missing(chromium.find(settings), settings)
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)
    if not why:
        return Finding(name, "ok", "on")
    return Finding(
        name, "optional", f"off: {why}. A page that breaks out of Chromium is on this machine", confinement.fix(why)
    )


def _isolation() -> Finding:
    """Of the servers that third-party pages bring with them, which a policy may run code in."""
    why = isolation.missing()
    if not why:
        return Finding("bubblewrap", "ok", "servers of third-party pages are kept apart from this machine")
    fix = "apt-get install bubblewrap" if "not installed" in why else "allow user namespaces"
    return Finding("bubblewrap", "optional", f"{why}: servers of third-party pages can reach this machine", fix)
