"""Drags as people make them: over page time, and of HTML's own kind. In a real browser."""

from __future__ import annotations

import pytest
import pytest_asyncio
from browser_pages import SIZE, Stage, act, browser, html
from hostile import Page, Site, reply

from flywheel.agent.actions import Click, Drag, Hover, NavigateBack, Point

pytestmark = pytest.mark.asyncio(loop_scope="module")
_LOG = """<style>body > * { position: absolute; margin: 0; width: 40px; height: 40px; background: #aac }</style><script>
    var log = []; const note = (what) => log.push(what + '@' + Math.round(performance.now()));
</script>"""
_TAKER = """<div id=taker style='left:120px;top:120px;width:60px;height:60px'></div><script>
    taker.ondragenter = taker.ondragover = (e) => e.preventDefault();
    taker.ondrop = (e) => { e.preventDefault();
        log.push(['drop', e.dataTransfer.getData('text/plain'), [...e.dataTransfer.types].sort().join()]); };
    addEventListener('dragend', (e) => log.push(['end', e.dataTransfer.dropEffect]));
    addEventListener('dragstart', () => log.push('start'));
</script>"""
_THING = "<div id=thing draggable=true style='left:0;top:0'>it</div>"
_GIVES = "<script>thing.ondragstart = (e) => e.dataTransfer.setData('text/plain', 'cargo')</script>"
ACROSS = Drag(Point(0.1, 0.1), Point(0.75, 0.75))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


async def log(tab) -> list:
    return await tab.evaluate("log")


async def test_a_drag_takes_page_time_and_frames_see_it_on_its_way(stage):
    """A library that looks where the pointer is in its frames alone."""
    tab = await stage.open(
        _LOG
        + """<script>let at = null, down = false; addEventListener('mousemove', (e) => { at = e.clientX });
        onmousedown = () => { down = true; note('down') }; onmouseup = () => { down = false; note('up') };
        const seen = new Set(); const frame = () => { if (down) seen.add(at); requestAnimationFrame(frame) }; frame();
        </script>"""
    )
    assert await act(tab, ACROSS) == ""
    assert await log(tab) == ["down@0", "up@180"]
    assert await tab.evaluate("seen.size") >= 7


async def test_a_step_takes_no_longer_for_a_drag(stage):
    tab = await stage.open(_LOG + "<script>onmouseup = () => note('up')</script>")
    await tab.do(ACROSS, 50)
    assert tab.time == pytest.approx(50)
    await tab.do(ACROSS, 0)
    assert await log(tab) == ["up@50", "up@50"]


async def test_a_list_that_sorts_by_a_timer_sorts(stage):
    """As libraries do that emulate drag and drop: every 50 ms they look what is under the pointer."""
    tab = await stage.open(
        """<style>li { height: 40px; list-style: none; background: #aac; width: 150px }</style>
        <ul id=list style='margin:0;padding:0'><li>a<li>b<li>c<li>d</ul><script>
        let held = null, x = 0, y = 0, timer = 0;
        onmousedown = (e) => { e.preventDefault(); held = e.target.closest('li'); timer = setInterval(() => {
            const over = held && document.elementFromPoint(x, y)?.closest('li');
            const after = over && over.offsetTop > held.offsetTop;
            if (over && over !== held) list.insertBefore(held, after ? over.nextSibling : over);
        }, 50) };
        onmousemove = (e) => { x = e.clientX; y = e.clientY }; onmouseup = () => { held = null; clearInterval(timer) };
        </script>"""
    )
    await act(tab, Drag(Point(0.3, 0.1), Point(0.3, 0.78)))
    assert await tab.evaluate("list.innerText.replace(/\\s/g, '')") == "bcda"


@pytest.mark.parametrize(
    ("thing", "dropped"),
    [
        (_THING + _GIVES, ["cargo", "text/plain"]),
        (_THING, ["", ""]),
        ("<a href='there' style='left:0;top:0'>link</a>", ["{site}/p/there", "text/html,text/plain,text/uri-list"]),
        (
            "<p id=said style='left:0;top:0'>words</p><script>getSelection().selectAllChildren(said)</script>",
            ["words", "text/html,text/plain"],
        ),
    ],
    ids=["what the page gives", "nothing", "a link", "selected text"],
)
async def test_a_drag_of_html_drops_where_it_is_taken(stage, thing, dropped):
    tab = await stage.open(_LOG + thing + _TAKER)
    assert await act(tab, ACROSS if "selectAll" not in thing else Drag(Point(0.05, 0.05), Point(0.75, 0.75))) == ""
    said = await log(tab)
    assert said[0] == "start"
    what, types = dropped
    assert said[1] == ["drop", what.replace("{site}", stage.site.url), types]
    assert said[2][0] == "end"
    assert said[2][1] != "none"
    assert tab.time == 180


async def test_a_drag_that_nothing_takes_says_so_and_the_next_one_works(stage):
    tab = await stage.open(_LOG + _THING + _GIVES + _TAKER)
    assert await act(tab, Drag(Point(0.1, 0.1), Point(0.9, 0.1))) == "nothing took what was dragged"
    assert (await log(tab))[-1] == ["end", "none"]
    assert await act(tab, ACROSS) == ""
    assert ["drop", "cargo", "text/plain"] in await log(tab)


async def test_a_page_that_prevents_the_drag_goes_on_with_the_mouse(stage):
    tab = await stage.open(
        _LOG + _THING + "<script>thing.ondragstart = (e) => e.preventDefault(); onmouseup = () => note('up')</script>"
    )
    assert await act(tab, ACROSS) == ""
    assert await log(tab) == ["up@180"]


async def test_effects_that_do_not_go_together_drop_nothing(stage):
    tab = await stage.open(
        _LOG
        + _THING
        + _GIVES
        + _TAKER
        + """<script>
        thing.addEventListener('dragstart', (e) => { e.dataTransfer.effectAllowed = 'copy' });
        taker.addEventListener('dragover', (e) => { e.dataTransfer.dropEffect = 'move' });</script>"""
    )
    assert await act(tab, ACROSS) == "nothing took what was dragged"
    assert not any(entry[0] == "drop" for entry in await log(tab))


async def test_a_drag_goes_into_a_frame(stage):
    inner = """<body style='margin:0'><script>ondragover = (e) => e.preventDefault();
        ondrop = (e) => { e.preventDefault(); parent.log.push(e.dataTransfer.getData('text/plain')) };</script>"""
    stage.site.pages["inner"] = Page(send=lambda request: reply(request, 200, inner))
    frame = "<iframe src=inner style='left:100px;top:100px;width:90px;height:90px;border:0'></iframe>"
    tab = await stage.open(html(_LOG + _THING + _GIVES + frame))
    assert await act(tab, ACROSS) == ""
    assert await log(tab) == ["cargo"]


async def test_the_pointer_hovers_and_presses_nothing(stage):
    tab = await stage.open(
        _LOG
        + """<p id=over style='left:100px;top:100px'></p><style>#over:hover { background: red }</style><script>
        addEventListener('mouseover', (e) => { if (e.target === over) note('over') });
        for (const kind of ['mousedown', 'click']) addEventListener(kind, () => note(kind));</script>"""
    )
    before = await tab.screenshot()
    assert await act(tab, Hover(Point(110 / SIZE, 110 / SIZE))) == ""
    assert await log(tab) == ["over@0"]
    assert await tab.screenshot() != before
    await act(tab, Click(Point(0.1, 0.1)))
    assert await tab.screenshot() == before


async def test_a_drag_that_opens_a_page_over_this_one_lets_go(stage):
    stage.site.pages["over"] = html("<p>over")
    tab = await stage.open(
        _LOG
        + """<script>onmousedown = () => { let n = 0; onmousemove = () => { if (n++ === 3) open('over') } };
        onmouseup = () => note('up')</script>"""
    )
    assert "a page was opened" in await act(tab, ACROSS)
    assert await tab.evaluate("location.pathname") == "/p/over"
    await act(tab, NavigateBack())
    assert [entry.split("@")[0] for entry in await log(tab)] == ["up"]
