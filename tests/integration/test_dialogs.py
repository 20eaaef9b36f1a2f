"""Dialogs over the page: seen, answered by mouse and keys; nobody waits for a page that asks. In a real browser."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, Stage, at, browser, html
from dialogs import CLICK, ENTER, ESCAPE, TAB, asks, on, step
from hostile import Site
from night import by_day
from processes import PATIENCE_S

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Hotkey, NavigateBack, Point, Type, Wait
from flywheel.envs.browser.driver.tab import BrowserTab

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=by_day(["begin_frame", "screenshot"]))
async def stage(request):
    with Site({}) as site:
        async with browser(SETTINGS.model_copy(update={"frames": request.param})) as chromium:
            yield Stage(chromium, site)


async def open_kind(tab: BrowserTab) -> str:
    return (await tab.observe(0)).get("dialog", {}).get("kind", "")


# -- seen and answered ---
@pytest.mark.parametrize(
    ("call", "answer", "told"),
    by_day(
        [
            ("alert('hello')", "ok", None),
            ("alert('hello')", ENTER, None),
            ("alert('hello')", ESCAPE, None),
            ("confirm('sure?')", "ok", True),
            ("confirm('sure?')", "cancel", False),
            ("confirm('sure?')", ESCAPE, False),
            ("prompt('name?', 'me')", "ok", "me"),
            ("prompt('name?', 'me')", "cancel", None),
            ("prompt('name?', 'me')", ENTER, "me"),
            ("prompt('name?', 'me')", ESCAPE, None),
            ("prompt('name?', 'me')", Type("you\n"), "you"),
            ("prompt('name?')", ENTER, ""),
            ("prompt()", Type("a\n"), "a"),
            ("confirm('sure?')", Hotkey(("space",)), True),
        ],
        10,
    ),
)
async def test_a_dialog_is_seen_and_answered(stage, call, answer, told):
    tab = await stage.open(asks(f"told.push({call} ?? null)"))
    before = await tab.screenshot()
    note, seen, screen = await step(tab, CLICK)
    assert (note, seen["dialog"]["kind"]) == ("", call.split("(")[0])
    assert screen != before
    note, seen, after = await step(tab, on(seen, answer) if isinstance(answer, str) else answer)
    assert "dialog" not in seen
    assert note == ""
    assert await tab.evaluate("told") == [told]
    assert after == before


async def test_tab_goes_round_and_enter_takes_the_button_that_has_the_focus(stage):
    tab = await stage.open(asks("told.push(prompt('name?'))"))
    for presses, told in ((0, ""), (1, ""), (2, None), (3, ""), (5, None)):
        await step(tab, CLICK)
        for _ in range(presses):
            assert (await step(tab, TAB))[0] == ""
        await step(tab, ENTER)
        assert await tab.evaluate("told.pop()") == told


async def test_the_field_of_a_prompt_is_edited_as_any_field(stage):
    tab = await stage.open(asks("told.push(prompt('name?', 'abc'))", "<input id=i value=pasted>"))
    await tab.evaluate("i.select(); i.focus()")
    await step(tab, Hotkey(("ctrl", "c")))
    await step(tab, CLICK)
    for action in (
        Hotkey(("end",)),
        Hotkey(("backspace",)),
        Type("日本"),
        Hotkey(("home",)),
        Hotkey(("ctrl", "v")),
        act.Press("shift"),
        Hotkey(("right",)),
        act.Release("shift"),
        Hotkey(("ctrl", "x")),
    ):
        assert (await step(tab, action))[0] == "" or isinstance(action, act.Press | act.Release)
    await step(tab, ENTER)
    assert await tab.evaluate("told") == ["pastedb日本"]
    await tab.evaluate("i.value = ''; i.focus()")
    await step(tab, Hotkey(("ctrl", "v")))
    assert await tab.evaluate("i.value") == "a", "what was cut in a dialog is pasted in the page"


@pytest.mark.parametrize(("width", "height"), by_day([(64, 64), (224, 224), (1280, 720)]))
@pytest.mark.parametrize("text", by_day(["hi", "word " * 400, "x" * 3000, "日本語\n\n<b>&amp;", ""], 2))
async def test_whatever_it_says_its_buttons_are_in_sight(stage, width, height, text):
    tab = await stage.open(
        f"<script>addEventListener('keydown', () => prompt({text!r}, {text!r}))</script>", viewport=(width, height)
    )
    _, seen, screen = await step(tab, Type("a"))
    assert [int.from_bytes(screen[place : place + 4]) for place in (16, 20)] == [width, height]
    parts = {part["name"]: part for part in seen["elements"]}
    for name in ("dialog ok", "dialog cancel", "dialog field"):
        assert 0 <= parts[name]["x"] < parts[name]["x"] + parts[name]["w"] <= 1
        assert 0 <= parts[name]["y"] < parts[name]["y"] + parts[name]["h"] <= 1
    await step(tab, on(seen, "cancel"))
    assert await open_kind(tab) == ""


async def test_a_long_message_is_scrolled(stage):
    if not stage.chromium.frames.on_command:
        pytest.skip("a browser that draws by itself scrolls a part of a page when it likes")
    tab = await stage.open(asks("alert('word '.repeat(500))"))
    first = (await step(tab, CLICK))[2]
    note, _, scrolled = await step(tab, act.Scroll(Point(0.5, 0.5), "down"))
    assert (note, scrolled != first) == ("", True)


@pytest.mark.parametrize(
    "action",
    by_day(
        [
            at(5, 195),
            act.Navigate("elsewhere"),
            NavigateBack(),
            Hotkey(("ctrl", "r")),
            Type("x"),
            Hotkey(("f5",)),
            act.Scroll(Point(0.5, 0.9), "down"),
            act.RightSingle(Point(0.5, 0.2)),
            act.Drag(Point(0.1, 0.9), Point(0.9, 0.9)),
        ],
        5,
    ),
)
async def test_what_is_no_answer_does_nothing_and_says_so(stage, action):
    tab = await stage.open(asks("told.push(confirm('sure?'))"))
    await step(tab, CLICK)
    still = (await step(tab, act.Drag(Point(0.9, 0.9), Point(0.9, 0.95))))[2]  # the mouse is nowhere near
    note, seen, screen = await step(tab, action)
    assert 'a dialog waits for an answer: confirm "sure?"' in note
    assert seen["dialog"]["kind"] == "confirm"
    assert screen == still
    await step(tab, ESCAPE)
    assert await tab.evaluate("told") == [False]


async def test_waiting_under_a_dialog_passes_no_time(stage):
    tab = await stage.open(
        asks("setTimeout(() => { told.push(Date.now()); confirm('?'); told.push(Date.now()); }, 150)")
    )
    await step(tab, CLICK, 200)
    assert tab.time == 0
    for _ in range(3):
        note, seen, _ = await step(tab, Wait(), 200)
        assert (note, "dialog" in seen) == ("", True)
    await step(tab, ENTER, 100)
    first, second = await tab.evaluate("told")
    assert first == second
    assert tab.time == 300, "what was left of its step, and the answer's own"


async def test_the_same_actions_give_the_same_screens(stage):
    """In both ways of taking screens, too: the first one's are kept for the second."""
    page = asks("told.push(confirm('A'), prompt('B', 'c'))", "<p style='font-size:40px'>page")
    rounds = []
    for _ in range(2):
        tab = await stage.open(page)
        rounds.append([(await step(tab, action, 50))[2] for action in (CLICK, TAB, ENTER, Type("de"), ENTER, Wait())])
    assert rounds[0] == rounds[1]
    assert len(set(rounds[0])) >= 4
    assert _SCREENS.setdefault("screens", rounds[0]) == rounds[0]


_SCREENS: dict[str, list[bytes]] = {}


# -- without end ---
async def test_a_page_that_asks_a_thousand_times_is_heard_a_few(stage):
    tab = await stage.open(asks("for (let n = 0; n < 1000; n++) told.push(confirm(n))"))
    await step(tab, CLICK)
    shown, notes = 0, ""
    while await open_kind(tab):
        shown, notes = shown + 1, (await step(tab, ENTER))[0]
    assert 1 < shown <= 20
    assert "not shown, since there were too many" in notes
    assert await tab.evaluate("told.filter(Boolean).length") == shown
    assert await tab.evaluate("told.length") == 1000
    _, seen, _ = await step(tab, CLICK)
    assert seen["dialog"]["message"] == "0", "the next action is heard again"


@pytest.mark.parametrize(
    "script",
    [
        "addEventListener('scroll', () => { alert('drawn'); told.push(1) })",
        "new ResizeObserver(() => { if (told.push(1) > 1) alert('drawn') }).observe(p)",
    ],
)
async def test_a_dialog_that_opens_while_the_page_is_drawn_holds_nobody_up(stage, script):
    other = Stage(stage.chromium, stage.site)
    tab = await stage.open(
        f"<div id=p style='height:3000px;width:50px;overflow:auto'>x</div><script>const told = []; {script};"
        "addEventListener('click', () => { p.style.width = '90px' })</script>"
    )
    neighbour = await other.open("<p>neighbour")
    calm = await neighbour.screenshot()
    await step(tab, CLICK)
    for _ in range(2):
        await step(tab, act.Scroll(Point(0.5, 0.9), "down"), 50)
        async with asyncio.timeout(stage.chromium._link.settings.timeout_s / 4):
            assert await neighbour.screenshot() == calm
    for _ in range(5):
        await step(tab, ENTER)
    assert await open_kind(tab) == ""
    assert await tab.evaluate("told.length") > 0
    await neighbour.close()


# -- whatever is done ---
_NAGS = """<body style='margin:0'><input id=i style='position:absolute;top:160px;width:90px;height:30px'><a href=nags
    style='position:absolute;top:160px;left:100px;font-size:30px'>again</a><p id=p>0<script>
    const say = (what) => { p.textContent += what; };
    addEventListener("click", () => { if (confirm("more?")) say(prompt("what?", p.textContent)); });
    addEventListener("keydown", (event) => { if (event.key === "a") alert("a"); });
    addEventListener("beforeunload", (event) => event.preventDefault());
    addEventListener("scroll", () => { alert("scrolled"); say("s"); });
    setTimeout(() => { alert("late"); say("l"); }, 300);
    say(confirm("at load?"));
</script><div style='height:900px'></div>"""


def drawn(random: Random) -> Action:
    point, key = (
        Point(random.random(), random.random()),
        random.choice(
            (
                "enter",
                "enter",
                "esc",
                "tab",
                "space",
                "f5",
                "ctrl f",
                "ctrl =",
                "ctrl 0",
                "alt left",
                "ctrl w",
                "pagedown",
            )
        ),
    )
    return random.choice(
        (
            Click(point),
            Click(Point(0.75, 0.9)),
            Hotkey(tuple(key.split())),
            Hotkey(tuple(key.split())),
            Type("ab"),
            Type("a\n"),
            act.Scroll(point, "down"),
            act.LeftDouble(point),
            NavigateBack(),
            Wait(),
            act.Press("a"),
        )
    )


@pytest.mark.parametrize("seed", by_day(range(3)))
async def test_any_play_ends_as_it_did_before_and_disturbs_nobody(stage, seed):
    if not stage.chromium.frames.on_command:
        pytest.skip("what a page asks while it draws depends on when a browser draws that does so by itself")
    stage.site.pages["nags"] = html(_NAGS)
    other = Stage(stage.chromium, stage.site)
    neighbour = await other.open("<p>neighbour")
    calm, plays = await neighbour.screenshot(), []
    for _ in range(2):
        random, told = Random(seed), []
        tab = await stage.open("nags")
        await tab.screenshot()
        for _ in range(40):
            action = drawn(random)
            async with asyncio.timeout(PATIENCE_S):
                note, seen, screen = await step(tab, action, 50)
                assert await neighbour.screenshot() == calm
            told.append((str(action), note, seen.get("dialog"), hash(screen)))
        plays.append(told)
    for one, again in zip(*plays, strict=True):
        assert one == again
    assert len({dialog["message"] for _, _, dialog, _ in plays[0] if dialog}) > 2
    await neighbour.close()
