"""Render synthetic screens in Chromium, and make grounding examples of them: questions with exact answers."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as Picture

from flywheel.config import Settings
from flywheel.envs.browser.driver import chromium
from flywheel.envs.screens import layouts
from flywheel.envs.screens.layouts import SCENE_SIDE, Scene
from flywheel.utils.errors import EnvError

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Rendering: many scenes at once, as one sheet in one Chromium page, which is then cut up.

SHEET_COLUMNS = 8  # scenes across a sheet
_TIMEOUT_MS = 30_000
# What Chromium says where it lost the page's surface, as a busy machine brings about: a new page draws the same sheet.
_LOST_SURFACE = "Unable to capture screenshot"
_PAGES_A_SHEET = 3

SHEET_STYLE = f"""<!doctype html><style>
* {{ box-sizing: border-box; margin: 0; }}
body {{ width: {SHEET_COLUMNS * SCENE_SIDE}px; display: grid;
        grid: auto-flow {SCENE_SIDE}px / repeat({SHEET_COLUMNS}, {SCENE_SIDE}px); }}
section {{ position: relative; width: {SCENE_SIDE}px; height: {SCENE_SIDE}px; overflow: hidden; color: #1b1f27; }}
section * {{ position: absolute; }}
section div {{ display: flex; align-items: center; justify-content: center; white-space: nowrap; }}
svg {{ display: block; overflow: visible; }}
</style>"""


class SceneRenderer:
    """Render scenes in a browser: `with SceneRenderer(executable) as renderer:`, in a thread that runs no event loop.

    executable: path of a Chromium. Raises EnvError at the beginning of the block where it does not start.
    """

    def __init__(self, executable: str) -> None:
        self._executable = executable

    def __enter__(self) -> SceneRenderer:
        from playwright.sync_api import Error, sync_playwright  # its import takes a tenth of a second

        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=self._executable, args=["--no-sandbox", "--disable-gpu"], timeout=_TIMEOUT_MS
            )
            self._page = self._new_page()
        except Error as error:
            self._playwright.stop()
            raise EnvError(f"Chromium does not start: {error}", where=self._executable) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._playwright.stop()

    def _new_page(self) -> Page:
        side = SHEET_COLUMNS * SCENE_SIDE
        return self._browser.new_page(viewport={"width": side, "height": side})

    def draw(self, scenes: Sequence[Scene]) -> np.ndarray:
        """Render `scenes`, in their order, as uint8 [scenes, SCENE_SIDE, SCENE_SIDE, 3], RGB; only within the block.

        Raises EnvError where the browser fails, or takes more than 30 seconds to load a sheet of 64 or for its picture.
        """
        sheet = SHEET_COLUMNS * SHEET_COLUMNS
        parts = [self._sheet(scenes[start : start + sheet]) for start in range(0, len(scenes), sheet)]
        return np.concatenate(parts) if parts else np.zeros((0, SCENE_SIDE, SCENE_SIDE, 3), dtype=np.uint8)

    def _sheet(self, scenes: Sequence[Scene]) -> np.ndarray:
        from playwright.sync_api import Error

        html = SHEET_STYLE + "".join(scene.html for scene in scenes)
        for turn in range(_PAGES_A_SHEET):
            try:
                if turn:
                    self._page = self._new_page()
                self._page.set_content(html, timeout=_TIMEOUT_MS)
                png = self._page.screenshot(timeout=_TIMEOUT_MS)
                break
            except Error as error:
                if turn == _PAGES_A_SHEET - 1 or _LOST_SURFACE not in str(error):
                    raise EnvError(f"a sheet of general screens was not drawn: {error}") from None
        pixels = np.asarray(Picture.open(io.BytesIO(png)).convert("RGB"))
        rows = pixels.reshape(SHEET_COLUMNS, SCENE_SIDE, SHEET_COLUMNS, SCENE_SIDE, 3)
        return rows.swapaxes(1, 2).reshape(-1, SCENE_SIDE, SCENE_SIDE, 3)[: len(scenes)]


# Grounding examples for the CT and SFT mixes and for pretraining: screens with questions and their exact answers.


@dataclass(frozen=True)
class GroundingExample:
    """Hold a screen with a question about it and the answer, a row of the table `grounding_examples`.

    kind: the skill that the question tests (`SceneQuestion.skill`), not the kind of the scene; `page: WORLD` where the
    screen is a page of a world. png: the screen.
    """

    sample_id: str
    kind: str
    png: bytes
    instruction: str
    response: str


def make_grounding_examples(n: int, seed: int, settings: Settings) -> list[GroundingExample]:
    """Make `n` examples: questions about rendered synthetic screens, with their exact answers.

    All kinds of scene and difficulty levels come in turn, with at most three questions a scene. Starts a Chromium for
    the time of the call, which blocks; none where `n` is 0. seed: any integer; the same arguments give the same
    examples. settings: `sandbox` and `policy.coordinates` are read. Raises EnvError where Chromium fails, BadInput
    where none is installed.
    """
    rng = random.Random(f"general {seed}")
    kinds, per_screen = list(layouts.SCENE_KINDS), 3
    drawn: list[layouts.Scene] = []
    questions: list[tuple[int, layouts.SceneQuestion]] = []
    while len(questions) < n:
        number = len(drawn)
        kind, level = kinds[number % len(kinds)], 1 + number // len(kinds) % layouts.SCENE_LEVELS
        scene = layouts.draw_scene(kind, level, rng, settings.policy.coordinates)
        drawn.append(scene)
        chosen = rng.sample(scene.questions, min(per_screen, len(scene.questions), n - len(questions)))
        questions += [(number, question) for question in chosen]
    if not drawn:
        return []  # a workspace without screens needs no Chromium
    # In a thread of its own, since the renderer must not run in a thread with an event loop.
    with ThreadPoolExecutor(1) as pool:
        screens = pool.submit(_screens, drawn, str(chromium.find_chromium(settings.sandbox))).result()
    return [make_grounding_example(asked.skill, screens[number], asked) for number, asked in questions]


def make_grounding_example(kind: str, png: bytes, asked: layouts.SceneQuestion) -> GroundingExample:
    """Make the example of a question `asked` about the screen `png`; its id is a hash of screen, question and answer.
    kind: as in `GroundingExample`."""
    digest = hashlib.sha256(png + asked.instruction.encode() + asked.response.encode()).hexdigest()
    return GroundingExample(f"g{digest[:19]}", kind, png, asked.instruction, asked.response)


def _screens(drawn: list[layouts.Scene], executable: str) -> list[bytes]:
    with SceneRenderer(executable) as renderer:
        return [encode_png(picture) for picture in renderer.draw(drawn)]


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode `pixels`, uint8 [height, width, 3], RGB, as a PNG."""
    out = io.BytesIO()
    Picture.fromarray(pixels).save(out, format="PNG", compress_level=1)
    return out.getvalue()
