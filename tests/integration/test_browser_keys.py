"""The browser's own keys: done, or said not to be there; and the page has its say before. In a real browser."""

from __future__ import annotations

import io

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, Stage, act, at, browser, html
from hostile import Site
from night import by_day
from PIL import Image

from flywheel.agent.actions import Click, Hotkey, Navigate, NavigateBack, Point, Press, Release, Type
from flywheel.envs import keyboard
from flywheel.envs.browser.driver.tab import BrowserTab
from flywheel.envs.keyboard import CONTROL

pytestmark = pytest.mark.asyncio(loop_scope="module")
MISSING = [name for names in keyboard._KEYS_BY_REASON.values() for name in names.split(", ")]
RESERVED = keyboard.RESERVED_KEYS.split(", ")


def key(name: str) -> Hotkey:
    return Hotkey(tuple(name.split("+")))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=by_day(["begin_frame", "screenshot"]))
async def stage(request):
    with Site({"next": html("<p data-el=next>next")}) as site:
        async with browser(SETTINGS.model_copy(update={"frames": request.param})) as chromium:
            yield Stage(chromium, site)


async def corner(tab: BrowserTab, at_: tuple[int, int]) -> tuple[int, ...]:
    return Image.open(io.BytesIO(await tab.screenshot())).convert("RGB").getpixel(at_)


async def test_what_is_not_there_says_so_and_does_nothing(stage):
    tab = await stage.open("<p>page<script>let heard = 0; addEventListener('keydown', () => heard++)</script>")
    before = await tab.screenshot()
    for name in MISSING:
        assert (await act(tab, key(name))).startswith("not done: "), name
    assert await tab.screenshot() == before
    await tab.evaluate("heard = 0")
    for name in RESERVED:
        await act(tab, key(name))
    assert await tab.evaluate("heard") == 0, "no browser gives these to a page"


async def test_a_page_takes_a_key_and_the_browser_does_nothing(stage):
    tab = await stage.open("""<iframe srcdoc="<script>addEventListener('keydown', (e) => e.preventDefault())</script>x">
        </iframe><script>window.kept = 1; addEventListener('keydown', (e) => e.preventDefault())</script>""")
    for place in ((10, 190), (50, 50)):  # the page, and its frame
        await act(tab, at(*place))
        for name in ("ctrl+f", "f5", "ctrl+r", "ctrl+=", "alt+left", "ctrl+s", "f1"):
            assert await act(tab, key(name)) == ""
    assert await tab.evaluate("[kept, devicePixelRatio]") == [1, 1]
    assert "one tab" in await act(tab, key("ctrl+t"))


@pytest.mark.parametrize("name", ["f5", "ctrl+r", "ctrl+shift+r"])
async def test_a_page_is_loaded_anew(stage, name):
    """Its clock goes on, as over any navigation, and its chance is a new document's."""
    tab = await stage.open(
        "<input id=i><script>window.kept = 1; const drawn = Math.random(), since = Date.now()</script>"
    )
    await act(tab, at(20, 10), 100)
    drawn, since = await tab.evaluate("[drawn, since]")
    assert await act(tab, key(name), 50) == ""
    assert await tab.evaluate("window.kept") == 1, "it ran again"
    assert await tab.evaluate("document.activeElement.tagName") == "BODY"
    assert await tab.evaluate("since") == since + 100
    assert await tab.evaluate("drawn") != drawn
    assert tab.time == 150


async def test_a_held_modifier_counts(stage):
    tab = await stage.open("<input id=i>")
    await act(tab, Press("ctrl"))
    assert "address bar" in await act(tab, Press("l"))
    await act(tab, Release("l"))
    await act(tab, Release("ctrl"))
    assert keyboard.find_shortcut(Press("r"), CONTROL).does == keyboard.RELOAD
    assert keyboard.find_shortcut(Press("r"), 0) is None


async def test_back_and_forward(stage):
    tab = await stage.open("<p>first")
    assert "no page to go back to" in await act(tab, key("alt+left"))
    await act(tab, Navigate("next"))
    assert "no page to go forward to" in await act(tab, key("alt+right"))
    assert await act(tab, key("alt+left")) == ""
    assert "/p/page" in tab.url
    assert await act(tab, key("alt+right")) == ""
    assert tab.url.endswith("/p/next")


@pytest.mark.parametrize("leave", [key("ctrl+w"), NavigateBack()], ids=["key", "back"])
async def test_a_page_that_was_opened_asks_before_it_is_closed(stage, leave):
    stage.site.pages["keeps"] = html("<script>onbeforeunload = (event) => event.preventDefault()</script>")
    tab = await stage.open("<script>addEventListener('click', () => open('keeps'))</script>")
    await act(tab, at(50, 50), 50)
    await tab.screenshot()  # what is not drawn yet takes no clicks
    await act(tab, at(50, 50), 50)  # a page that nobody touched may not ask
    for answer, there in ((key("esc"), "/p/keeps"), (key("enter"), "/p/page")):
        await act(tab, leave)
        assert (await tab.observe(0))["dialog"]["kind"] == "beforeunload"
        await tab.screenshot()
        notes = await act(tab, answer)
        assert there in tab.url
        assert ("closed" in notes) == (there == "/p/page")


async def test_closing_a_page_shows_the_one_below_and_the_last_one_stays(stage):
    tab = await stage.open("<script>addEventListener('click', () => open('next'))</script>")
    await act(tab, at(50, 50), 50)
    assert tab.url.endswith("/p/next")
    assert "closed" in await act(tab, key("ctrl+w"))
    assert "/p/page" in tab.url
    assert "the only page" in await act(tab, key("ctrl+w"))


_CORNER = """<script>const clicks = []; addEventListener("click", (e) => clicks.push([e.clientX, e.clientY]))</script>
<div data-el=corner style="position:fixed;right:0;bottom:0;width:40px;height:40px;background:rgb(255,0,0)"></div>"""


async def test_zoom_lays_the_page_out_anew(stage):
    tab = await stage.open(_CORNER, viewport=(224, 160))
    plain = await tab.screenshot()
    for name, zoom in (("ctrl+=", 1.1), ("ctrl+=", 1.25), ("ctrl++", 1.5), ("ctrl++", 1.75), ("ctrl+=", 2)):
        assert await act(tab, Hotkey(tuple(name.split("+", 1)))) == ""
        seen = await tab.observe(0)
        screen = Image.open(io.BytesIO(await tab.screenshot()))
        assert screen.size == (224, 160)
        assert screen.convert("RGB").getpixel((223, 159)) == (255, 0, 0), "to the very edge"
        ratio, width = await tab.evaluate("[devicePixelRatio, innerWidth]")
        assert (ratio, width) == (pytest.approx(zoom), -(-224 // zoom))
        part = next(one for one in seen["elements"] if one["name"] == "corner")
        assert part["w"] == pytest.approx(40 * zoom / 224, abs=0.01)
    await act(tab, Click(Point(0.5, 0.5)))
    assert await tab.evaluate("clicks") == [[56, 40]], "what is seen in the middle is clicked in the middle"
    await act(tab, Navigate("next"))
    assert await tab.evaluate("devicePixelRatio") == 2, "kept over documents"
    await act(tab, key("alt+left"))
    assert await act(tab, key("ctrl+0")) == ""
    assert await tab.screenshot() == plain
    for _ in range(7):
        assert await act(tab, key("ctrl+-")) == ""
    assert "smallest" in await act(tab, key("ctrl+-"))
    assert await tab.evaluate("innerWidth") == 896
    tab = await stage.open(_CORNER)
    assert await tab.evaluate("devicePixelRatio") == 1, "a session begins with none"


async def test_a_page_that_is_opened_is_zoomed_too(stage):
    tab = await stage.open("<script>addEventListener('click', () => open('next'))</script>")
    await act(tab, key("ctrl+="))
    await act(tab, at(50, 50), 50)
    assert tab.url.endswith("/p/next")
    assert await tab.evaluate("Math.round(devicePixelRatio * 10)") == 11


async def test_keys_that_the_page_itself_has(stage):
    """The engine's own: scrolling, and the focus."""
    tab = await stage.open("<input id=a><input id=b><p style='height:3000px'>")
    for name, there in (("space", 1), ("pagedown", 1), ("end", 1), ("home", 0), ("down", 1), ("shift+space", 0)):
        before = await tab.evaluate("scrollY")
        assert await act(tab, key(name)) == ""
        for _ in range(4):
            await tab.screenshot()
        after = await tab.evaluate("scrollY")
        assert after > before if there else after == 0, name
    for name, focused in (("tab", "a"), ("tab", "b"), ("shift+tab", "a")):
        await act(tab, key(name))
        assert await tab.evaluate("document.activeElement.id") == focused


_TEXT = "<body data-el=page>" + "<p>filler" * 3 + "<p>apple pear plum" + "<p>filler" * 40 + "<p>a Pear again"


async def test_text_is_found(stage):
    tab = await stage.open(_TEXT)
    found = "[String(getSelection()), scrollY > 500]"
    plain = await tab.screenshot()
    assert await act(tab, key("ctrl+f")) == ""
    seen = await tab.observe(0)
    bar = {part["name"]: part for part in seen["elements"]}
    assert {"page", "find bar", "find field", "find next", "find previous", "find close"} <= set(bar)
    assert await tab.screenshot() != plain
    for action, there in (
        (Type("pear"), ["pear", False]),
        (key("enter"), ["Pear", True]),
        (key("enter"), ["pear", False]),
        (key("shift+enter"), ["Pear", True]),
        (key("f3"), ["pear", False]),
        (key("ctrl+shift+g"), ["Pear", True]),
        (middle(bar["find next"]), ["pear", False]),
        (middle(bar["find previous"]), ["Pear", True]),
        (Type("s"), ["", True]),
        (key("ctrl+a"), ["", True]),
        (Type("plum"), ["plum", False]),
    ):
        before = await tab.screenshot()
        assert await act(tab, action) == ""
        assert await tab.evaluate(found) == there, action
        assert await tab.screenshot() != before
    await act(tab, key("esc"))
    assert {part["name"] for part in (await tab.observe(0))["elements"]} == {"page"}
    assert (await tab.evaluate(found))[0] == "plum", "it stays selected"
    await act(tab, key("f3"))
    assert "find bar" in {part["name"] for part in (await tab.observe(0))["elements"]}
    await act(tab, Navigate("next"))
    assert "find bar" not in {part["name"] for part in (await tab.observe(0))["elements"]}, "it goes with its document"


def middle(part: dict) -> Click:
    return Click(Point(part["x"] + part["w"] / 2, part["y"] + part["h"] / 2))


async def test_the_page_lives_on_under_the_bar(stage):
    tab = await stage.open(
        "<input id=i style='position:absolute;top:100px'><p>pear"
        "<script>addEventListener('click', () => { window.clicked = 1 })</script>"
    )
    await act(tab, key("ctrl+f"))
    await act(tab, Type("pe"))
    assert await tab.evaluate("[i.value, String(getSelection())]") == ["", "pe"]
    await act(tab, at(20, 110))
    await act(tab, Type("typed"))
    assert await tab.evaluate("[i.value, clicked]") == ["typed", 1]
    await act(tab, key("ctrl+a"))
    await act(tab, key("ctrl+c"))
    await act(tab, key("ctrl+f"))
    await act(tab, key("ctrl+v"))
    field = next(part for part in (await tab.observe(0))["elements"] if part["name"] == "find field")
    assert field["value"] == "typed"
    assert not (await tab.save_state())["restorable"]
    tab = await stage.open("<p data-el=p>fresh")
    assert [part["name"] for part in (await tab.observe(0))["elements"]] == ["p"]
