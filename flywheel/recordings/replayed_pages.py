"""Open a Chromium that plays recordings of other tools (`devtools`, `rrweb`), to make the screens that they lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.pages.file_server import ServedFolder, media_type
from flywheel.utils.errors import EnvError

_FLAGS = ["--enable-blink-features=ComputedAccessibilityInfo", "--disable-gpu", "--hide-scrollbars"]
_STEADY_MS, _LOOKS = 120, 25  # between two looks at a page, and how many at most


@contextmanager
def open_replay_page(settings: SandboxSettings, folder: ServedFolder | None = None, network: bool = False) -> Iterator:
    """Open a page in a fresh profile, as a context that gives Playwright's page.

    settings: the block `sandbox`. folder: answers all requests, by their path. network: where there is no folder,
    whether requests are let through; else all fail. Raises BadInput as `find_chromium`, EnvError where Chromium does
    not start.
    """
    from playwright.sync_api import Error, Route, sync_playwright

    executable = chromium.find_chromium(settings)
    sandbox = not chromium.explain_missing_chromium_sandbox(executable, settings)

    def answer(route: Route) -> None:
        path = folder.find(route.request.url.split("?")[0].split("/", 3)[-1]) if folder else None
        path = path / "index.html" if path and path.is_dir() else path
        if path and path.is_file():
            route.fulfill(body=path.read_bytes(), content_type=media_type(path))
        else:
            route.abort() if folder is None else route.fulfill(status=404)

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=executable,
                args=_FLAGS,
                chromium_sandbox=sandbox,
                env=chromium.environment_without_secrets(),
            )
        except Error as error:
            raise EnvError(f"Chromium does not start: {str(error).splitlines()[0]}", where=executable) from None
        try:
            size = {"width": settings.width, "height": settings.height}
            context = browser.new_context(viewport=size, service_workers="block")
            if folder is not None or not network:
                context.route("**/*", answer)
            yield context.new_page()
        finally:
            browser.close()


def capture_steady_screen(page: Any) -> bytes:
    """Return the page's screen as PNG, once it no longer changes, or after three seconds."""
    seen = page.screenshot()
    for _ in range(_LOOKS):
        page.wait_for_timeout(_STEADY_MS)
        last, seen = seen, page.screenshot()
        if seen == last:
            break
    return seen


def scroll_direction(across: float, down: float) -> str:
    """Return the grammar's word for a scroll by so many pixels to the right and down: the way that it mostly went."""
    if abs(down) >= abs(across):
        return "down" if down > 0 else "up"
    return "right" if across > 0 else "left"
