"""Pictures of the report for a README: the page in headless Chromium."""

from __future__ import annotations

from pathlib import Path

from flywheel.sandbox import chromium
from flywheel.settings import Sandbox
from flywheel.workspace import Workspace

_TIMEOUT_MS = 30_000


def screenshot(page: Path, output: Path, *, width: int = 1280, height: int | None = None, dark: bool = False) -> Path:
    """A PNG of a page, of its whole length unless `height` (CSS pixels) cuts it.

    Raises BadInput where there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(Sandbox()))
        try:
            context = browser.new_context(
                # A page is at least as long as the window.
                viewport={"width": width, "height": height or 100},
                color_scheme="dark" if dark else "light",
            )
            tab = context.new_page()
            tab.set_default_timeout(_TIMEOUT_MS)
            tab.goto(page.resolve().as_uri())
            output.parent.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=str(output), full_page=height is None)
        finally:
            browser.close()
    return output


def report_picture(ws: Workspace, output: Path) -> Path:
    """The top of the report, as it stands in the README."""
    return screenshot(ws.report_page, output, width=1280, height=1500)
