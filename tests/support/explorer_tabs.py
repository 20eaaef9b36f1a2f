"""The explorer in a real browser: a page that is logged in, and what is wrong with it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect
from processes import PATIENCE_S

from flywheel.ui.explorer.app import ExplorerServer

axe = pytest.importorskip("axe_playwright_python.base", reason="pip install -e '.[dev]'").AXE_FILE_PATH
SIZES = [(1280, 860, "light"), pytest.param((390, 800, "dark"), marks=pytest.mark.exhaustive)]
WAIT_MS = 1000 * PATIENCE_S


def open_page(browser, server: ExplorerServer, *, width=1280, height=860, scheme="light") -> Page:
    """A page that is logged in. What its console complains of, and what it asks of others, is in its `faults`."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = context.new_page()
    tab.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    tab.faults = []
    tab.on("pageerror", lambda error: tab.faults.append(str(error)))
    tab.on("console", lambda told: tab.faults.append(told.text) if _is_fault(told) else None)
    tab.on("request", lambda asked: tab.faults.append(asked.url) if not _own(asked.url, server) else None)
    tab.goto(server.entrance())
    return tab


def serious(tab: Page) -> list[str]:
    """What axe finds that keeps somebody out."""
    tab.evaluate(axe.read_text(encoding="utf-8"))
    found = tab.evaluate("axe.run()")["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]


def _is_fault(told) -> bool:
    """Of no line of ours: Chromium itself would style what is typed over a selection, which the policy forbids."""
    by_the_browser = "Applying inline style" in told.text and not told.location["lineNumber"]
    return "Content Security Policy" in told.text and not by_the_browser


def _own(url: str, server: ExplorerServer) -> bool:
    return url.startswith((f"{server.url}/", "data:", f"blob:{server.url}/"))
