"""Scenes to pixels: many at once, as one sheet in one Chromium page, cut up afterwards."""

from __future__ import annotations

import io
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from PIL import Image as Picture
from playwright.sync_api import Error, sync_playwright

from flywheel.errors import EnvError
from flywheel.scenes import SIDE, Scene

COLUMNS = 8  # scenes across a sheet

STYLE = f"""<!doctype html><style>
* {{ box-sizing: border-box; margin: 0; }}
body {{ width: {COLUMNS * SIDE}px; display: grid; grid: auto-flow {SIDE}px / repeat({COLUMNS}, {SIDE}px); }}
section {{ position: relative; width: {SIDE}px; height: {SIDE}px; overflow: hidden; color: #1b1f27; }}
section * {{ position: absolute; }}
section div {{ display: flex; align-items: center; justify-content: center; white-space: nowrap; }}
svg {{ display: block; overflow: visible; }}
</style>"""


class Renderer:
    """A browser that draws scenes. Must be used on one thread that runs no event loop.

    Raises EnvError where the browser cannot be started or dies.
    """

    def __init__(self, executable: str, timeout_s: float = 30) -> None:
        self._executable, self._timeout = executable, timeout_s * 1000

    def __enter__(self) -> Renderer:
        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=self._executable, args=["--no-sandbox", "--disable-gpu"], timeout=self._timeout
            )
            self._page = self._browser.new_page(viewport={"width": COLUMNS * SIDE, "height": COLUMNS * SIDE})
        except Error as error:
            self._playwright.stop()
            raise EnvError(f"Chromium does not start: {error}", where=self._executable) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def draw(self, scenes: Sequence[Scene]) -> np.ndarray:
        """uint8 [scenes, SIDE, SIDE, 3]."""
        sheet = COLUMNS * COLUMNS
        parts = [self._sheet(scenes[start : start + sheet]) for start in range(0, len(scenes), sheet)]
        return np.concatenate(parts) if parts else np.zeros((0, SIDE, SIDE, 3), dtype=np.uint8)

    def _sheet(self, scenes: Sequence[Scene]) -> np.ndarray:
        try:
            self._page.set_content(STYLE + "".join(scene.html for scene in scenes), timeout=self._timeout)
            png = self._page.screenshot(timeout=self._timeout)
        except Error as error:
            raise EnvError(f"a sheet of general screens was not drawn: {error}") from None
        pixels = np.asarray(Picture.open(io.BytesIO(png)).convert("RGB"))
        cut = pixels.reshape(COLUMNS, SIDE, COLUMNS, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)
        return cut[: len(scenes)]
