"""What never comes is not waited for beyond a part of the deadline: loads without an end, popups without a page."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, Stage, act, at, browser, html
from hostile import Page, Site, silence

from flywheel.agent.actions import Wait

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 6
# A picture from a canvas, as a film: a browser that draws on command alone never has its first frame.
_STREAM = """<canvas id=c width=60 height=60></canvas><video id=v autoplay muted></video><p id=out>0</p><script>
    const pen = c.getContext('2d'); pen.fillStyle = 'red'; pen.fillRect(9, 9, 30, 30);
    v.srcObject = c.captureStream();
    let n = 0; setInterval(() => { out.textContent = ++n }, 50);
</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({}) as site:
        site.pages["silence"] = Page(send=silence(site.over))
        async with browser(SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})) as chromium:
            yield Stage(chromium, site)


@pytest.mark.parametrize(
    "body",
    [
        _STREAM,
        "<img src=silence><iframe src=silence></iframe><p id=out>0</p><script>"
        "let n = 0; setInterval(() => { out.textContent = ++n }, 50)</script>",
    ],
    ids=["a film of a canvas", "a frame that never answers"],
)
async def test_a_page_whose_load_never_ends_is_shown_as_it_is_and_waited_for_once(stage, body):
    async with asyncio.timeout(DEADLINE_S):
        tab = await stage.open(html(body))
    async with asyncio.timeout(DEADLINE_S / 3):  # no step waits for it again
        await act(tab, Wait(), 200)
    assert await tab.evaluate("out.textContent") == "4"
    assert (await tab.screenshot()).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "way",
    [
        "<a href='data:text/html,<p>x' target=_blank style='font-size:90px'>go</a>",
        "<div onclick=\"window.open('data:text/html,<p>x')\" style='font-size:90px'>go</div>",
    ],
    ids=["link", "script"],
)
async def test_a_popup_of_a_data_address_is_closed_and_noted(stage, way):
    tab = await stage.open(way)
    before = await tab.screenshot()
    assert "a popup was closed: browsers open no data: address in one" in await act(tab, at(40, 60), 100)
    assert len(tab.stack.pages) == 1
    assert len(await tab.screenshot()) > len(before) / 2, "the opener is seen again"
    assert await act(tab, Wait(), 100) == ""
