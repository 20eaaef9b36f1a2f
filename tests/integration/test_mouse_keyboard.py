"""Mouse, keyboard and clipboard: what a page is told of them. In a real browser."""

from __future__ import annotations

import pytest
import pytest_asyncio
from browser_pages import SIZE, Stage, act, at, browser, html
from hostile import Site

from flywheel.agent.actions import (
    Click,
    Drag,
    Hotkey,
    LeftDouble,
    LeftTriple,
    Navigate,
    Point,
    Press,
    Release,
    RightSingle,
    Scroll,
    Type,
    TypeAt,
)
from flywheel.envs.browser.driver.tab import BrowserTab

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIDDLE = Point(0.5, 0.5)
_LOG = """<script>
    const log = [];
    const on = (kinds, what) => kinds.split(" ").forEach((kind) => addEventListener(kind, (e) => log.push(what(e))));
</script>"""
_KEYS = (
    _LOG
    + """<input id=i style="position:absolute;top:0;left:0;width:190px"><script>
    const held = (e) => (e.shiftKey ? "S" : "") + (e.ctrlKey ? "C" : "");
    on("keydown keyup", (e) => [e.type, e.key, e.code, e.keyCode, e.repeat, held(e)]);
    i.focus();
</script>"""
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({"pop": html("<p data-el=pop>pop<script>addEventListener('click', () => close())</script>")}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


async def log(tab: BrowserTab) -> list:
    return await tab.evaluate("log")


# -- mouse ---
async def test_every_press_of_the_mouse_arrives_where_it_was_meant(stage):
    tab = await stage.open(
        _LOG
        + """<script>
        on("mousedown mouseup click dblclick contextmenu",
           (e) => [e.type, e.clientX, e.clientY, e.button, e.detail, e.isTrusted]);
        addEventListener("contextmenu", (e) => e.preventDefault());
    </script>"""
    )
    await act(tab, at(30, 40))
    await act(tab, RightSingle(Point(0.1, 0.1)))
    await act(tab, LeftDouble(Point(0.5, 0.25)))
    assert await log(tab) == [
        ["mousedown", 30, 40, 0, 1, True],
        ["mouseup", 30, 40, 0, 1, True],
        ["click", 30, 40, 0, 1, True],
        ["mousedown", 20, 20, 2, 1, True],
        ["contextmenu", 20, 20, 2, 0, True],
        ["mouseup", 20, 20, 2, 1, True],
        ["mousedown", 100, 50, 0, 1, True],
        ["mouseup", 100, 50, 0, 1, True],
        ["click", 100, 50, 0, 1, True],
        ["mousedown", 100, 50, 0, 2, True],
        ["mouseup", 100, 50, 0, 2, True],
        ["click", 100, 50, 0, 2, True],
        ["dblclick", 100, 50, 0, 2, True],
    ]


async def test_three_clicks_select_a_paragraph_where_two_select_a_word(stage):
    tab = await stage.open(
        _LOG
        + """<p style=margin:0>one two three</p><p style=margin:0>four</p><script>
        on("click dblclick", (e) => [e.type, e.detail]);
    </script>"""
    )
    selected = "String(getSelection()).trim()"
    word = Point(0.05, 0.05)
    await act(tab, LeftTriple(word))
    assert await tab.evaluate(selected) == "one two three"
    assert await log(tab) == [["click", 1], ["click", 2], ["dblclick", 2], ["click", 3]]
    await act(tab, LeftDouble(word))
    assert await tab.evaluate(selected) == "one"


_TWO_FIELDS = """<input id=first value=old autofocus style="position:absolute;top:0;left:0;width:190px">
    <input id=second value=old style="position:absolute;top:100px;left:0;width:190px">"""
_TWO_VALUES = "[first.value, second.value, document.activeElement.id]"


async def test_what_is_typed_at_a_point_goes_to_the_field_there(stage):
    tab = await stage.open(
        _TWO_FIELDS
        + """<script>second.onkeydown = (e) => { if (e.key === "Enter") document.title = "sent " + second.value }
    </script>"""
    )
    await act(tab, at(20, 10))
    assert await act(tab, TypeAt(Point(0.9, 0.55), " new")) == ""
    assert await tab.evaluate(_TWO_VALUES) == ["old", "old new", "second"]
    assert await act(tab, TypeAt(Point(0.1, 0.05), "other", clear=True)) == ""
    assert await tab.evaluate(_TWO_VALUES) == ["other", "old new", "first"]
    assert await act(tab, TypeAt(Point(0.1, 0.55), "last\n", clear=True)) == ""
    assert await tab.evaluate("[second.value, document.title]") == ["last", "sent last"]


async def test_a_field_that_a_click_opens_takes_what_is_typed_at_its_point(stage):
    tab = await stage.open(
        """<p style="margin:0;height:50px">open</p><script>document.querySelector("p").onclick = () => {
            setTimeout(() => { document.body.innerHTML = "<input id=i>"; i.focus(); }, 0) }</script>"""
    )
    assert await act(tab, TypeAt(Point(0.1, 0.1), "late")) == ""
    assert await tab.evaluate("i.value") == "late"


async def test_nothing_is_typed_where_the_point_is_outside_or_its_click_opens_a_dialog(stage):
    tab = await stage.open(_TWO_FIELDS + "<script>second.onmousedown = () => alert('wait')</script>")
    assert "outside" in await act(tab, TypeAt(Point(0.1, 1.0), "x", clear=True))
    told = await act(tab, TypeAt(Point(0.1, 0.55), "x"))
    assert told.startswith("clicked, and then: not done, since a dialog had opened")
    await tab.close_dialogs()
    assert await tab.evaluate("[first.value, second.value]") == ["old", "old"]


async def test_a_drag_moves_with_the_button_held(stage):
    tab = await stage.open(
        _LOG + "<script>on('pointerdown pointermove pointerup', (e) => [e.type, e.clientX, e.buttons])</script>"
    )
    await act(tab, Drag(Point(0.1, 0.5), Point(0.9, 0.5)))
    events = await log(tab)
    down = events.index(["pointerdown", 20, 1])
    assert events[-1] == ["pointerup", 180, 0]
    assert all(buttons == 1 for _, _, buttons in events[down:-1])
    assert ["pointermove", 180, 1] in events[down:]


async def test_what_is_under_the_mouse_knows_it(stage):
    tab = await stage.open("""<style>p:hover { background: red }</style>
        <p style='margin:0;height:50px'>one</p><p style='margin:0;height:50px'>two</p>""")
    hovered = "getComputedStyle(document.querySelectorAll('p')[1]).backgroundColor"
    before = await tab.screenshot()
    await act(tab, at(10, 75))
    assert await tab.screenshot() != before
    assert await tab.evaluate(hovered) == "rgb(255, 0, 0)"
    await act(tab, at(10, 25))
    assert await tab.evaluate(hovered) == "rgba(0, 0, 0, 0)"


async def test_a_scroll_is_half_a_screen_and_done_when_it_is_seen(stage):
    tab = await stage.open("<div style='width:1000px;height:1000px;background:linear-gradient(45deg,red,blue)'></div>")
    for direction, place in (("down", [0, 100]), ("right", [100, 100]), ("up", [100, 0]), ("left", [0, 0])):
        await act(tab, Scroll(MIDDLE, direction))
        assert await tab.evaluate("[scrollX, scrollY]") == place


async def test_a_list_scrolls_by_itself_and_a_page_may_refuse(stage):
    tab = await stage.open("""<div id=list style='width:100px;height:100px;overflow:auto'><p style='height:900px'></div>
        <div style='height:900px' onwheel='event.preventDefault()'></div>""")
    await act(tab, Scroll(Point(0.2, 0.2), "down"))
    assert await tab.evaluate("[list.scrollTop, scrollY]") == [100, 0]
    await act(tab, Scroll(Point(0.2, 0.9), "down"))
    assert await tab.evaluate("scrollY") in (0, 100)


async def test_clicks_and_keys_reach_a_frame(stage):
    tab = await stage.open("""<iframe style="width:150px;height:150px;border:0" srcdoc="<body style='margin:0'>
        <input style='width:100px;height:30px'><script>
        addEventListener('click', () => { parent.clicked = true; })</script>">
    </iframe>""")
    await act(tab, at(50, 15))
    await act(tab, Type("Ab"))
    assert await tab.evaluate("[clicked, frames[0].document.querySelector('input').value]") == [True, "Ab"]


# -- keyboard ---
async def test_typing_is_keys_pressed_one_by_one(stage):
    tab = await stage.open(_KEYS)
    await act(tab, Type("aB!"))
    assert await log(tab) == [
        ["keydown", "a", "KeyA", 65, False, ""],
        ["keyup", "a", "KeyA", 65, False, ""],
        ["keydown", "B", "KeyB", 66, False, "S"],
        ["keyup", "B", "KeyB", 66, False, "S"],
        ["keydown", "!", "Digit1", 49, False, "S"],
        ["keyup", "!", "Digit1", 49, False, "S"],
    ]
    assert await tab.evaluate("i.value") == "aB!"


async def test_every_character_arrives(stage):
    text = "".join(map(chr, range(32, 127))) + "é 日本 😀"
    tab = await stage.open(_KEYS)
    await act(tab, Type(text))
    assert await tab.evaluate("i.value") == text


async def test_a_newline_submits_and_one_inside_is_text(stage):
    tab = await stage.open(
        "<form onsubmit='window.sent = t.value + i.value; return false'><textarea id=t></textarea><input id=i></form>"
    )
    await tab.evaluate("t.focus()")
    await act(tab, Type("one\ntwo"))
    await tab.evaluate("i.focus()")
    await act(tab, Type("x\n"))
    assert await tab.evaluate("sent") == "one\ntwox"


async def test_hotkeys_hold_their_modifiers(stage):
    tab = await stage.open(_KEYS)
    await act(tab, Type("abc"))
    await act(tab, Hotkey(("ctrl", "a")))
    await act(tab, Type("z"))
    assert await tab.evaluate("i.value") == "z", "all was selected and written over"
    await tab.evaluate("log.length = 0")
    await act(tab, Hotkey(("ctrl", "shift", "k")))
    assert [event[:2] + event[-1:] for event in await log(tab)] == [
        ["keydown", "Control", "C"],
        ["keydown", "Shift", "SC"],
        ["keydown", "K", "SC"],
        ["keyup", "K", "SC"],
        ["keyup", "Shift", "C"],
        ["keyup", "Control", ""],
    ]


_FIELDS = """<input id=a style="position:absolute;top:0;left:0;width:190px;height:30px" value="%s">
<textarea id=b style="position:absolute;top:40px;left:0;width:190px;height:60px"></textarea>"""
_A, _B = Click(Point(0.2, 15 / SIZE)), Click(Point(0.2, 60 / SIZE))


async def keys(tab: BrowserTab, *names: str) -> None:
    for name in names:
        await act(tab, Hotkey(tuple(name.split())))


async def test_what_is_copied_and_cut_is_pasted(stage):
    tab = await stage.open(_FIELDS % "one 日本")
    for where, pressed in ((_A, ("ctrl a", "ctrl c")), (_B, ("ctrl v", "ctrl v"))):
        await act(tab, where)
        await keys(tab, *pressed)
    assert await tab.evaluate("[a.value, b.value]") == ["one 日本", "one 日本one 日本"]
    await keys(tab, "ctrl a", "ctrl x")
    await act(tab, _A)
    await keys(tab, "ctrl a", "ctrl v", "ctrl z")
    assert await tab.evaluate("[a.value, b.value]") == ["one 日本", ""], "a paste can be taken back"


async def test_a_page_has_its_say_in_copying_and_pasting(stage):
    tab = await stage.open(
        _FIELDS % "one"
        + """<script>
        a.oncopy = (e) => { e.clipboardData.setData("text/plain", "its own"); e.preventDefault(); };
        b.onpaste = (e) => { b.value = `<${e.clipboardData.getData("text")}>`; e.preventDefault(); };
        a.onkeydown = (e) => { if (e.key === "Enter") navigator.clipboard.writeText("written"); };
    </script>"""
    )
    await act(tab, _A)
    await keys(tab, "ctrl a", "ctrl c")
    await act(tab, _B)
    await keys(tab, "ctrl v")
    assert await tab.evaluate("b.value") == "<its own>"
    await act(tab, _A)
    await act(tab, Type("x\n"))
    await act(tab, _B)
    await keys(tab, "ctrl v")
    assert await tab.evaluate("b.value") == "<written>"


async def test_the_clipboard_is_the_sessions(stage):
    """It outlives a document and a checkpoint; another session in the same browser never sees it."""
    other = Stage(stage.chromium, stage.site)
    tab = await stage.open(_FIELDS % "secret")
    await act(tab, _A)
    await keys(tab, "ctrl a", "ctrl c")
    stranger = await other.open(_FIELDS % "")
    await act(stranger, _A)
    await keys(stranger, "ctrl v")
    assert await stranger.evaluate("a.value") == ""
    kept = await tab.save_state()
    stage.site.pages["next"] = html(_FIELDS % "")
    await act(tab, Navigate(f"{stage.site.url}/p/next"))
    await tab.screenshot()  # what is not drawn yet takes no clicks
    await act(tab, _B)
    await keys(tab, "ctrl v")
    assert await tab.evaluate("b.value") == "secret"
    assert kept["clipboard"] == "secret"
    fresh = await stage.open(_FIELDS % "")
    await act(fresh, _B)
    await keys(fresh, "ctrl v")
    assert await fresh.evaluate("b.value") == "", "a new session begins with nothing"


async def test_a_key_that_is_held_repeats_and_is_let_go_once(stage):
    tab = await stage.open(_KEYS)
    for key in (Press("right"), Press("right"), Release("right")):
        assert await act(tab, key) == ""
    assert "not held down" in await act(tab, Release("right"))
    assert [(event[0], event[4]) for event in await log(tab)] == [
        ("keydown", False),
        ("keydown", True),
        ("keyup", False),
    ]


async def test_a_modifier_that_is_held_counts_for_clicks_and_letters(stage):
    tab = await stage.open(_KEYS + "<script>on('click', (e) => e.shiftKey)</script>")
    await act(tab, Press("shift"))
    await act(tab, Press("a"))
    await act(tab, Release("a"))
    await act(tab, at(100, 150))
    await act(tab, Release("shift"))
    await act(tab, at(100, 150))
    assert await tab.evaluate("i.value") == "A"
    assert [entry for entry in await log(tab) if entry in (True, False)] == [True, False]
