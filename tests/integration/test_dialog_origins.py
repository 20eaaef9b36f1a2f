"""Dialogs, wherever they come from: timers, frames, popups, loading, leaving. In a real browser."""

from __future__ import annotations

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, Stage, at, browser, html
from dialogs import CLICK, ENTER, ESCAPE, asks, on, step
from hostile import Site
from night import by_day

from flywheel.agent import actions as act
from flywheel.agent.actions import Hotkey, NavigateBack, Type, Wait

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=by_day(["begin_frame", "screenshot"]))
async def stage(request):
    with Site({}) as site:
        async with browser(SETTINGS.model_copy(update={"frames": request.param})) as chromium:
            yield Stage(chromium, site)


# -- wherever they come from ---
@pytest.mark.parametrize(
    "how",
    by_day(
        [
            "setTimeout(ask, 30)",
            "requestAnimationFrame(ask)",
            "Promise.resolve().then(ask)",
            "fetch('nothing').then(ask)",
            "queueMicrotask(ask)",
            "navigation.addEventListener('navigate', ask); location.hash = 'x'",
            "document.body.append(Object.assign(new Image(), { onerror: ask, src: 'nothing.png' }))",
            "const c = new MessageChannel(); c.port1.onmessage = ask; c.port2.postMessage(0)",
            "const f = document.body.appendChild(document.createElement('iframe')); "
            "f.contentWindow.eval('setTimeout')(ask)",
        ],
        5,
    ),
)
async def test_a_dialog_may_come_from_anywhere(stage, how):
    tab = await stage.open(asks(f"const ask = () => {{ told.push(confirm('?')); }}; {how}"))
    assert "dialog" in (await step(tab, CLICK, 100))[1]
    await step(tab, ESCAPE, 100)
    assert await tab.evaluate("told") == [False]


@pytest.mark.parametrize("origin", by_day(["own", "other", "sandboxed"], 2))
async def test_a_dialog_of_a_frame(stage, origin):
    child = "<body style='margin:0'><script>addEventListener('click', () => parent.postMessage(%s, '*'))</script>"
    with Site({"frame": html(child % "confirm('from a frame')")}) as other:
        stage.site.pages["frame"] = other.pages["frame"]
        server = (other if origin == "other" else stage.site).url
        sandbox = "sandbox='allow-scripts allow-modals'" if origin == "sandboxed" else ""
        tab = await stage.open(
            f"<iframe {sandbox} src='{server}/p/frame' style='width:180px;height:180px'></iframe>"
            "<script>onmessage = (event) => { window.told = event.data; }</script>",
            allowed=(f"{stage.site.url}/p/", f"{other.url}/p/"),
        )
        _, seen, _ = await step(tab, at(90, 150))
        assert seen["dialog"] == {"kind": "confirm", "message": "from a frame"}
        await step(tab, on(seen, "cancel"), 50)
        assert await tab.evaluate("told") is False


async def test_a_page_that_asks_while_it_loads_is_first_seen_asking(stage):
    stage.site.pages["greets"] = html(
        "<p data-el=p>hello<script>const name = prompt('Who?', 'me'); onload = () => alert(name)</script>"
    )
    tab = await stage.open("greets", prepare="window.made = name + '!'")
    first = await tab.observe(0)
    assert first["dialog"] == {"kind": "prompt", "message": "Who?"}
    await tab.screenshot()
    _, seen, _ = await step(tab, Type("you\n"))
    assert seen["dialog"] == {"kind": "alert", "message": "you"}
    _, seen, _ = await step(tab, ENTER)
    assert [part["name"] for part in seen["elements"]] == ["p"]
    assert await tab.evaluate("made") == "you!", "what prepares the page comes after the answers"


async def test_dialogs_that_the_tasks_own_script_raises_are_answered(stage):
    tab = await stage.open("<script>window.__env__ = { getState: () => confirm('read?') }</script>")
    assert (await tab.observe(0))["game"] is True
    assert any('confirm "read?": answered OK' in note for note in tab.notes.take())


async def test_a_popup_asks_and_its_opener_waits_behind_it(stage):
    stage.site.pages["asks"] = html("<p>popup<script>opener.told.push(confirm('in front?'))</script>")
    tab = await stage.open(
        "<script>var told = []; addEventListener('click', () => {"
        "open('asks'); setTimeout(() => told.push(confirm('behind?')), 50) })</script>"
    )
    _, seen, _ = await step(tab, CLICK, 200)
    assert seen["dialog"]["message"] == "in front?"
    await step(tab, ESCAPE, 200)
    assert tab.url.endswith("/p/asks")
    await step(tab, NavigateBack(), 200)
    _, seen, _ = await step(tab, Wait(), 200)
    assert seen["dialog"]["message"] == "behind?"
    await step(tab, ENTER)
    assert await tab.evaluate("told") == [False, True]


# -- leaving ---
_KEEPS = asks("", "<a href=next style='font-size:60px'>go</a>") + (
    "<script>addEventListener('beforeunload', (event) => { window.asked = true; event.preventDefault() })</script>"
)


@pytest.mark.parametrize(
    "leave",
    by_day([at(20, 40), act.Navigate("next"), NavigateBack(), Hotkey(("f5",))], 2),
    ids=["link", "address", "back", "reload"],
)
@pytest.mark.parametrize("stays", [True, False])
async def test_a_page_asks_before_it_is_left(stage, leave, stays):
    stage.site.pages |= {"next": html("<p data-el=next>next"), "keeps": html(_KEEPS)}
    tab = await stage.open("next")
    await step(tab, act.Navigate("keeps"))
    await step(tab, at(150, 150))  # a page that nobody touched may not ask
    before = await tab.screenshot()
    _, seen, _ = await step(tab, leave, 50)
    assert seen["dialog"]["kind"] == "beforeunload"
    note, seen, screen = await step(tab, on(seen, "cancel" if stays else "ok"), 50)
    assert note == ""
    assert tab.url.endswith("/p/keeps" if stays or leave == Hotkey(("f5",)) else "/p/next")
    assert await tab.evaluate("window.asked ?? false") == stays
    assert screen == before or not stays
    assert await step(tab, Wait(), 50)
