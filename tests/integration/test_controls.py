"""Native form controls: operated as on a display, seen in every screen; no picker hurts a page or a neighbour."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, Stage, act, at, browser
from click.testing import CliRunner
from hostile import Site
from night import by_day

from flywheel.agent.actions import Hotkey, Press, Release, Type, Wait
from flywheel.cli import main
from flywheel.utils.errors import EnvError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import sandbox_controls

in_one_loop = pytest.mark.asyncio(loop_scope="module")  # with the browser
_SELECT = "<select id=s style='position:absolute;left:10px;top:10px'><option>one<option>two<option>three</select>"
_LOG = """<script>
    const log = [];
    for (const kind of ["mousedown", "click", "keydown", "keyup", "input", "change", "focus", "blur"])
        addEventListener(kind, (e) => log.push(kind + (e.isTrusted ? "" : " by script")), true);
</script>"""
_OPEN, _TWO = at(25, 20), at(25, 56)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


# -- all of them ---
# The bench operates all of them in both ways; here is one of each that has a way of its own.
_FEW = ("select", "color", "date", "suggestions")
_MORE = (
    *_FEW,
    "select in a frame of another origin",
    "select in a closed shadow tree",
    "select by showPicker",
    "select in a shadow tree that was sent",
    "select in a dialog",
    "select drawn by the page",
    "week",
    "date and time",
)


@in_one_loop
@pytest.mark.parametrize(("way", "names"), by_day([("screenshot", _FEW), ("begin_frame", _MORE)]))
async def test_controls_are_operated_by_mouse_and_by_keys(way, names):
    found = await sandbox_controls.tried(way, names)
    assert {one: why for one, why in found.items() if why} == {}
    assert len(found) == 2 * len(names)


@pytest.mark.exhaustive
def test_a_page_of_every_control_passes_page_try(tmp_path):
    page = Path(__file__).parents[1] / "support" / "native_controls.html"
    (tmp_path / "index.html").write_bytes(page.read_bytes())
    (tmp_path / "page.yaml").write_text(
        "{name: every, title: Every control, folder: ., instruction: Change them., reward: changes, success: 1000,"
        " reset: reload, seeded: false, splits: [eval], max_steps: 6, viewport: [800, 600]}"
    )
    answer = CliRunner().invoke(
        main, ["env", "page", "try", str(tmp_path / "page.yaml"), "--screenshot", str(tmp_path / "s.png")]
    )
    assert answer.output.splitlines()[-1] == "every: it works", answer.output


# -- what the page sees of it ---
@in_one_loop
async def test_the_page_hears_of_the_choice_and_of_nothing_else(stage):
    tab = await stage.open(_LOG + _SELECT)
    await act(tab, _OPEN)
    assert await tab.evaluate("log.splice(0)") == ["mousedown", "focus", "click"]
    await act(tab, Hotkey(("down",)))
    await act(tab, at(25, 35))
    assert await tab.evaluate("log.splice(0)") == [], "keys and presses are the picker's"
    await act(tab, _OPEN)
    await tab.evaluate("log.length = 0")
    await act(tab, _TWO)
    assert await tab.evaluate("[s.value, ...log]") == ["two", "input", "change"], "events of the browser's own, once"
    assert await tab.evaluate("document.body.children.length") == 2


@in_one_loop
async def test_a_press_elsewhere_closes_it_and_reaches_the_page(stage):
    tab = await stage.open(_LOG + _SELECT)
    calm = await tab.screenshot()
    await act(tab, _OPEN)
    assert await tab.screenshot() != calm
    await tab.evaluate("log.length = 0")
    await act(tab, at(150, 180))
    assert await tab.evaluate("[s.value, ...log]") == ["one", "mousedown", "blur", "click"]
    assert await tab.screenshot() == calm


@in_one_loop
async def test_a_picker_follows_its_control_and_goes_with_it(stage):
    tab = await stage.open(_SELECT)
    await act(tab, _OPEN)
    first = await tab.screenshot()
    await tab.evaluate("s.options[1].text = 'other'")
    await act(tab, Wait())
    assert await tab.screenshot() != first
    await tab.evaluate("s.remove()")
    await act(tab, Wait())
    assert not tab.pickers.open
    assert await act(tab, Hotkey(("down",))) == ""


@in_one_loop
async def test_a_page_that_refuses_has_no_picker(stage):
    tab = await stage.open(_SELECT + "<script>s.onmousedown = (e) => e.preventDefault()</script>")
    await act(tab, _OPEN)
    assert not tab.pickers.open
    tab = await stage.open(_SELECT.replace("id=s", "id=s disabled"))
    await act(tab, _OPEN)
    assert not tab.pickers.open


@in_one_loop
async def test_keys_that_are_held_over_a_picker_come_up_again(stage):
    tab = await stage.open(_SELECT)
    await act(tab, _OPEN)
    for action in (Press("down"), Press("down"), Release("down"), Hotkey(("enter",))):
        await act(tab, action)
    assert await tab.evaluate("s.value") == "three"
    assert tab.hands.held == []


@in_one_loop
async def test_a_field_types_on_while_it_suggests(stage):
    tab = await stage.open(
        "<input id=i list=l style='position:absolute;left:10px;top:10px'>"
        "<datalist id=l><option>apple<option>pear<option>plum</datalist>"
    )
    await act(tab, at(30, 20))
    assert len(await _texts(tab)) == 3
    await act(tab, Type("plu"))
    assert await _texts(tab) == ["plum"]
    await act(tab, Hotkey(("backspace",)))
    assert await _texts(tab) == ["apple", "plum"]
    await act(tab, Hotkey(("esc",)))
    assert not tab.pickers.open
    assert await tab.evaluate("i.value") == "pl"


async def _texts(tab) -> list[str]:
    return await tab.pickers.overlay.page.evaluate("[...document.querySelectorAll('.row')].map((row) => row.innerText)")


@in_one_loop
async def test_what_a_field_lacks_is_told_until_the_next_press(stage):
    tab = await stage.open(
        _LOG
        + "<form onsubmit='window.sent = 1; return false'><input id=a><input id=i required><button id=b>go</button>"
    )
    await tab.evaluate("a.checkValidity() && i.checkValidity() && i.focus()")
    await act(tab, Wait())
    assert not tab.pickers.open, "a field that is only asked says nothing"
    await act(tab, Hotkey(("tab",)))
    await act(tab, Hotkey(("tab",)))
    await act(tab, Hotkey(("enter",)))
    assert await tab.pickers.overlay.page.evaluate("document.body.textContent") == "!Please fill out this field."
    shown = await tab.screenshot()
    assert await tab.evaluate("document.activeElement.id") == "i"
    await act(tab, Type("x"))
    assert not tab.pickers.open
    assert await tab.screenshot() != shown
    await act(tab, Type("\n"))
    assert await tab.evaluate("sent") == 1


# -- determinism ---
@in_one_loop
async def test_the_same_actions_show_the_same_pickers(stage):
    """Today is the page's day, not the machine's; and a session that has had a picker leaves nothing behind."""
    page = f"{_SELECT}<input type=date id=d style='position:absolute;left:10px;top:150px;width:150px'>"
    played = []
    for _ in range(2):
        tab = await stage.open(page)
        screens = []
        for action in (_OPEN, _TWO, at(148, 160), Wait()):
            await act(tab, action, 50)
            screens.append(await tab.screenshot())
        assert tab.pickers.open
        assert "January 2026" in await tab.pickers.overlay.page.evaluate("document.body.textContent")
        played.append(screens)
    assert played[0] == played[1]


@in_one_loop
async def test_no_checkpoint_of_a_state_is_taken_while_a_picker_is_open(stage):
    tab = await stage.open(_SELECT)
    await act(tab, _OPEN)
    assert not (await tab.save_state())["restorable"]


# -- hostile pages ---
_HOSTILE = """<script>
    for (const name of ["matches", "checkVisibility", "getBoundingClientRect", "dispatchEvent", "querySelectorAll"])
        for (const one of [Element, Document, EventTarget])
            if (one.prototype[name]) one.prototype[name] = () => { throw new Error("mine"); };
    Object.defineProperty(HTMLInputElement.prototype, "value", { get: () => "mine", set() {} });
    Object.defineProperty(HTMLSelectElement.prototype, "selectedIndex", { get: () => 7, set() {} });
    window.getComputedStyle = () => { throw new Error("mine"); };
    Event = InputEvent = class { constructor() { throw new Error("mine"); } };
    Array.prototype.map = Array.prototype.filter = JSON.stringify = () => { throw new Error("mine"); };
    addEventListener("keydown", (e) => { window.heard = true; e.preventDefault(); }, true);
</script>"""


@in_one_loop
async def test_a_page_that_replaces_everything_changes_nothing(stage):
    tab = await stage.open(_SELECT + "<input id=c type=color style='position:absolute;left:10px;top:150px'>" + _HOSTILE)
    for action in (_OPEN, _TWO, at(30, 160), at(60, 60), at(195, 195)):
        await act(tab, action)
    assert await tab.evaluate("[s.options[1].selected, document.querySelector('input:not([value=x])') === c]") == [
        True,
        True,
    ]
    assert await tab.evaluate("window.heard") is None


@in_one_loop
@pytest.mark.exhaustive
async def test_a_picker_that_nobody_can_find_costs_its_own_session_alone(stage, monkeypatch):
    """As one of a kind that this sandbox does not know would."""
    settings = SETTINGS.model_copy(update={"timeout_s": 2})
    with Site({}) as site:
        async with browser(settings) as chromium:
            sound, lost = Stage(chromium, site), Stage(chromium, site)
            calm = await sound.open("<p>calm")
            before = await calm.screenshot()
            tab = await lost.open(_SELECT)

            async def blind(*_):
                pass

            monkeypatch.setattr(tab.pickers, "look", blind)
            await tab.do(_OPEN)
            await tab.observe(0)
            stuck = asyncio.ensure_future(tab.screenshot())
            await asyncio.sleep(0)
            assert await calm.screenshot() == before
            with pytest.raises(EnvError, match="was ended"):
                await stuck
            assert chromium.alive
