"""Screens: the two ways to have them give the same pixels, and a page that hangs in one costs no other page."""

from __future__ import annotations

import asyncio
import contextlib
import io

import numpy as np
from browser_pages import SETTINGS, SIZE, Stage, browser
from hostile import Site
from PIL import Image

from flywheel.envs.browser.driver.cdp import BeginFrameCapture, ScreenshotCapture
from flywheel.utils.errors import EnvError

PAGES = {
    "text": "<h1>Screens</h1><p style='font:13px serif'>of <b>text</b>, with <i>edges</i>.</p>"
    "<input value=field autofocus>",
    "shapes": "<svg viewBox='0 0 9 9'><circle r=4 cx=4.3 cy=4.6 fill=teal /></svg>",
    "canvas": "<canvas id=c></canvas>"
    "<script>const p = c.getContext('2d'); p.arc(50, 50, 33.3, 0, 5); p.fill()</script>",
    "moving": "<style>@keyframes m { to { transform: rotate(1turn) } } b { position: absolute; top: 50px; left: 50px;"
    " width: 60px; height: 20px; background: red; animation: m 1s linear infinite }</style><b></b>",
}


async def _screens(settings) -> dict[str, list[bytes]]:
    with Site({}) as site:
        async with browser(settings) as chromium:
            assert type(chromium.frames) is (
                BeginFrameCapture if settings.frames == "begin_frame" else ScreenshotCapture
            )
            stage, screens = Stage(chromium, site), {}
            for name, page in PAGES.items():
                tab = await stage.open(page)
                screens[name] = []
                for _ in range(3):
                    await tab.observe(130)
                    screens[name].append(await tab.screenshot())
            return screens


async def test_both_ways_give_the_same_pixels():
    """Also where the browser draws by itself between two looks."""
    ways = [await _screens(SETTINGS.model_copy(update={"frames": way})) for way in ("begin_frame", "screenshot")]
    for name in PAGES:
        for one, other in zip(ways[0][name], ways[1][name], strict=True):
            a, b = (np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) for png in (one, other))
            assert a.shape == (SIZE, SIZE, 3)
            assert np.array_equal(a, b), name
    assert len(set(ways[0]["moving"])) == 3, "it moves"
    assert len(set(ways[0]["text"])) == 1, "its caret does not blink"


async def test_a_page_that_hangs_in_its_frame_does_not_stop_the_others():
    settings = SETTINGS.model_copy(update={"timeout_s": 2})
    with Site({}) as site:
        async with browser(settings) as chromium:
            sound, hung = Stage(chromium, site), Stage(chromium, site)
            calm = await sound.open("<p>calm")
            before = await calm.screenshot()
            tab = await hung.open("<p id=p>x<script>new ResizeObserver(() => { for (;;); }).observe(p)</script>")
            stuck = asyncio.ensure_future(tab.screenshot())
            await asyncio.sleep(0)
            assert await calm.screenshot() == before
            with contextlib.suppress(EnvError):
                await stuck
            assert chromium.alive
            assert await calm.screenshot() == before
