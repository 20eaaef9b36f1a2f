"""Injected time and chance (`sandbox/scripts`): what a page can tell time by, in a real browser."""

from __future__ import annotations

import json

import pytest
import pytest_asyncio
from browser_pages import Stage, act, at, browser
from hostile import Page, Site, reply

from flywheel.envs.browser.driver.tab import BrowserTab
from flywheel.envs.suites.merge.board import first_random

pytestmark = pytest.mark.asyncio(loop_scope="module")
_LOG = "<script>const log = []; const say = (what) => log.push([what, performance.now()]);</script>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage():
    with Site({}) as site:
        async with browser() as chromium:
            yield Stage(chromium, site)


async def log(tab: BrowserTab) -> list:
    return await tab.evaluate("log")


async def test_a_page_sees_no_name_that_the_parts_share(stage):
    tab = await stage.open("<p data-el=p>")
    kinds = "'core config makeCore uncurried advance picking'.split(' ').map((name) => (0, eval)(`typeof ${name}`))"
    assert await tab.evaluate(kinds) == ["undefined"] * 6
    own = "Object.getOwnPropertyNames(window).filter((name) => name.includes('flywheel'))"
    assert await tab.evaluate(own) == ["__flywheel__", "__flywheel_refusals__"]


async def test_timers_fire_in_order_at_their_times(stage):
    tab = await stage.open(
        _LOG
        + """<script>
        setTimeout(() => say("b"), 30); setTimeout(() => say("a"), 10); setTimeout(say, 30, "c");
        const gone = setTimeout(() => say("never"), 20); clearTimeout(gone);
        const every = setInterval(() => { say("i"); if (log.length > 5) clearInterval(every); }, 25);
        setTimeout("say('text')", 31);
    </script>"""
    )
    assert await log(tab) == []
    await tab.observe(30)
    assert await log(tab) == [["a", 10], ["i", 25], ["b", 30], ["c", 30]]
    await tab.observe(1000)
    assert (await log(tab))[4:] == [["text", 31], ["i", 50]]


async def test_time_goes_on_under_timers_that_set_timers_at_once(stage):
    """As in every browser: from the fifth on, 4 ms each."""
    tab = await stage.open(_LOG + "<script>const again = () => { say(1); setTimeout(again, 0); }; again();</script>")
    await tab.observe(20)
    times = [time for _, time in await log(tab)]
    assert times[:6] == [0] * 6
    assert times[6:] == [4, 8, 12, 16, 20]


async def test_frames_come_sixty_times_a_second_and_all_see_one_time(stage):
    tab = await stage.open(
        _LOG
        + """<script>
        const frame = (time) => { log.push(time); requestAnimationFrame(frame); };
        requestAnimationFrame(frame);
        cancelAnimationFrame(requestAnimationFrame(() => log.push("never")));
    </script>"""
    )
    await tab.observe(1000)
    times = await log(tab)
    assert len(times) == 60
    assert times[0] == pytest.approx(1000 / 60)
    assert times[-1] == pytest.approx(1000)


async def test_all_clocks_agree(stage):
    tab = await stage.open(_LOG)
    await tab.observe(250)
    told = await tab.evaluate("""[
        performance.now(), Date.now() - performance.timeOrigin, new Date() - performance.timeOrigin,
        document.timeline.currentTime, new Event("x").timeStamp, new Date().toISOString(), typeof Date(),
        new Date(2020, 1, 2).getTime() === Date.UTC(2020, 1, 2), new Date() instanceof Date,
    ]""")
    assert told == [250, 250, 250, 250, 250, "2026-01-01T09:00:00.250Z", "string", True, True]


async def test_a_signal_times_out_in_page_time(stage):
    tab = await stage.open(
        _LOG
        + """<script>
        AbortSignal.timeout(40).addEventListener("abort", (event) => say(event.target.reason.name));
    </script>"""
    )
    await tab.observe(39)
    assert await log(tab) == []
    await tab.observe(1)
    assert await log(tab) == [["TimeoutError", 40]]


async def test_chance_is_the_seeds_alone(stage):
    draws = "JSON.stringify([Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint8Array(4))]])"
    told = []
    for seed in (42, 42, 43):
        tab = await stage.open("<p>", seed=seed)
        told.append(json.loads(await tab.evaluate(draws)))
    assert told[0] == told[1]
    assert all(one != other for one, other in zip(told[0], told[2], strict=True))
    assert told[0][0] == first_random(42)


async def test_the_date_goes_on_over_documents_and_chance_does_not_repeat(stage):
    stage.site.pages["second"] = Page(send=lambda request: reply(request, 200, "<p>two"))
    tab = await stage.open("<a href=second style='font-size:80px'>go</a><script>window.first = Math.random()</script>")
    first = await tab.evaluate("first")
    await tab.observe(300)
    await act(tab, at(30, 40), 50)
    assert await tab.evaluate("[location.pathname, Date.now() - Date.UTC(2026, 0, 1, 9), performance.now()]") == [
        "/p/second",
        350,
        50,
    ]
    assert tab.time == 350
    assert await tab.evaluate("Math.random()") != first
    assert await tab.evaluate("sessionStorage.length") == 0, "what is handed on is not left lying"


async def test_a_redirect_by_script_costs_no_page_time(stage):
    """A timer leads on to another page: what is left of the step passes there."""
    stage.site.pages["target"] = Page(send=lambda request: reply(request, 200, "<p>there"))
    tab = await stage.open("<script>setTimeout(() => { location = 'target'; }, 120)</script>")
    await tab.observe(200)
    assert await tab.evaluate("[location.pathname, performance.now()]") == ["/p/target", 80]
    assert tab.time == 200


async def test_animations_and_transitions_follow_page_time(stage):
    tab = await stage.open(
        _LOG
        + """<style>
        @keyframes move { from { left: 0px } to { left: 100px } }
        i { position: absolute; width: 9px; height: 9px }
        #a { animation: move 1s linear } #b { animation: move 1s linear infinite paused }
        #c { transition: left 1s linear; left: 0 }
    </style><i id=a></i><i id=b></i><i id=c></i><script>
        a.addEventListener("animationend", () => say("end"));
        const own = c.animate([{ opacity: 0 }, { opacity: 1 }], 400);
        own.finished.then(() => say("own"));
    </script>"""
    )
    left = "[a, b, c].map((node) => getComputedStyle(node).left)"
    await tab.observe(0)
    await tab.evaluate("c.style.left = '100px'; 0")
    await tab.observe(250)
    assert await tab.evaluate(left) == ["25px", "0px", "25px"]
    await tab.evaluate("b.style.animationPlayState = 'running'; 0")
    await tab.observe(250)
    assert await tab.evaluate(left) == ["50px", "25px", "50px"]
    await tab.observe(600)
    await tab.screenshot()
    await tab.observe(0)
    assert await tab.evaluate(left) == ["0px", "85px", "100px"]
    assert [what for what, _ in await log(tab)] == ["own", "end"]


_MOVING = """<style>@keyframes move { from { left: 0px } to { left: 100px } }
    i { position: absolute; left: 0; width: 9px; height: 9px; background: red }
    .a { animation: move 1s linear } .c { transition: left 1s linear }</style><i class=a></i><i class=c></i>"""
_PLACES = {
    "open tree": "const into = host.attachShadow({mode: 'open'}); into.innerHTML = moving;",
    "closed tree": "const into = host.attachShadow({mode: 'closed'}); into.innerHTML = moving;",
    "tree in a closed tree": "const outer = host.attachShadow({mode: 'closed'}); outer.innerHTML = '<p></p>';"
    "const into = outer.firstChild.attachShadow({mode: 'open'}); into.innerHTML = moving;",
    "tree that came with its document": "host.setHTMLUnsafe('<p><template shadowrootmode=open>' + moving);"
    "const into = host.firstChild.shadowRoot;",
    "frame": "const frame = document.createElement('iframe'); host.append(frame);"
    "const into = frame.contentDocument; into.body.innerHTML = moving;",
}


@pytest.mark.parametrize("place", _PLACES)
async def test_animations_follow_page_time_wherever_they_are(stage, place):
    tab = await stage.open(f"<div id=host></div><script>const moving = `{_MOVING}`; {_PLACES[place]}</script>")
    left = "[...into.querySelectorAll('i')].map((node) => getComputedStyle(node).left)"
    await tab.observe(0)
    await tab.evaluate(f"{left}; into.querySelector('.c').style.left = '100px'; 0")
    await tab.observe(250)
    assert await tab.evaluate(left) == ["25px", "25px"]
    await tab.screenshot()
    await tab.observe(500)
    assert await tab.evaluate(left) == ["75px", "75px"]


async def test_a_request_of_a_script_takes_no_page_time(stage):
    stage.site.pages["data"] = Page(send=lambda request: reply(request, 200, '{"n": 1}'))
    tab = await stage.open(
        _LOG
        + """<script>
        setTimeout(async () => { const answer = await fetch("data"); await answer.json(); say("fetch"); }, 10);
        setTimeout(() => {
          const request = new XMLHttpRequest();
          request.onload = () => say("xhr"); request.open("GET", "data"); request.send();
        }, 20);
        const worker = new Worker(URL.createObjectURL(new Blob(["onmessage = (e) => postMessage(e.data + 1)"])));
        worker.onmessage = (event) => say(event.data);
        setTimeout(() => worker.postMessage(1), 30);
        setTimeout(() => { const image = new Image(); image.onerror = () => say("image"); image.src = "none";
                           document.body.append(image); }, 40);
    </script>"""
    )
    await tab.observe(50)
    assert await log(tab) == [["fetch", 10], ["xhr", 20], [2, 30], ["image", 40]]


async def test_frames_of_one_origin_share_a_clock(stage):
    tab = await stage.open("""<iframe srcdoc="<script>
        window.ticks = 0; setInterval(() => { ticks += 1; parent.last = [Date.now(), performance.now()]; }, 100);
    </script>"></iframe>""")
    await tab.observe(1050)
    assert await tab.evaluate("[frames[0].ticks, ...last]") == [10, 1767258000000 + 1000, 1000]
    await tab.evaluate("document.querySelector('iframe').remove()")
    await tab.observe(1000)
    assert await tab.evaluate("last[1]") == 1000, "a frame that is gone has no time"


_NESTED = {
    "document": "document.body.append(frame);",
    "closed tree": "host.attachShadow({mode: 'closed'}).append(frame);",
    "frame of one origin": "const between = document.createElement('iframe'); host.append(between);"
    "between.contentDocument.body.append(frame);",
}


@pytest.mark.parametrize("place", _NESTED)
async def test_frames_of_another_origin_are_advanced_too(stage, place):
    inner = "<script>setInterval(() => top.postMessage(performance.now(), '*'), 100)</script>"
    with Site({"inner": Page(send=lambda request: reply(request, 200, inner))}) as other:
        tab = await stage.open(
            f"""{_LOG}<div id=host></div><script>onmessage = (e) => log.push(e.data);
            const frame = document.createElement('iframe'); frame.src = '{other.url}/p/inner'; {_NESTED[place]}
            </script>""",
            allowed=(f"{stage.site.url}/p/", f"{other.url}/p/"),
        )
        await tab.observe(350)
        await tab.observe(0)
        assert await log(tab) == [100, 200, 300]


async def test_unobserved_time_passes_without_frames(stage):
    tab = await stage.open("""<script>
        window.frames_ = 0; const frame = () => { frames_ += 1; requestAnimationFrame(frame); };
        requestAnimationFrame(frame);
    </script>""")
    for _ in range(12):
        await tab.observe(5000)
    assert tab.time == 60_000
    assert await tab.evaluate("[frames_, performance.now()]") == [3600, 60_000]


BUSY = """<script>
    window.log = [];
    const told = (what) => log.push(`${what} ${performance.now().toFixed(1)}`);
    const frame = () => { told("frame"); requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
    setInterval(async () => {  // each part of it before the next callback, however many parts
      for (let i = 0; i < 50; i++) await null;
      told("promised");
    }, 7);
    const { port1, port2 } = new MessageChannel();
    let left = 0;
    port1.onmessage = () => { told("message"); if (left-- > 0) port2.postMessage(0); };
    setInterval(() => { left = 1; port2.postMessage(0); told("posted"); }, 45);
    setInterval(() => { postMessage("hello", "*"); }, 110);
    addEventListener("message", () => told("window"));
    setInterval(() => { fetch("answer").then((it) => it.text()).then(told); }, 900);
    setTimeout(() => clearInterval(setInterval(told, 1)), 20);
</script>"""


async def test_unobserved_time_is_the_same_time(stage):
    """Callbacks share tasks where much time passes at once; the page cannot tell."""
    stage.site.pages["answer"] = Page(send=lambda request: reply(request, 200, "answer"))
    kept = []
    for steps in ([103] * 29 + [13], [3000], [1701, 1299]):  # none ends where a message was just sent
        tab = await stage.open(BUSY)
        for ms in steps:
            await tab.observe(ms)
        kept.append(await log(tab))
    assert kept[0] == kept[1] == kept[2]
    assert {line.split()[0] for line in kept[0]} == {"frame", "promised", "posted", "message", "window", "answer"}
    assert len(kept[0]) == 180 + 428 + 66 * 2 + 66 + 27 + 3


async def test_a_page_that_replaces_the_built_ins_is_observed_all_the_same(stage):
    tab = await stage.open("""<p data-el="one" style="height: 20px">one</p><script>
        const bad = () => { throw new Error("broken"); };
        for (const type of [Array, Map, Set, WeakMap, WeakSet, String, Number, Document, Element])
          for (const name of Object.getOwnPropertyNames(type.prototype))
            if (name !== "constructor" && name !== "length")
              try { type.prototype[name] = bad; } catch {}
        for (const name of ["max", "min", "round", "floor", "imul", "random"]) Math[name] = bad;
        Promise.prototype.then = JSON.stringify = JSON.parse = window.setTimeout = window.MessageChannel = bad;
    </script>""")
    seen = await tab.observe(100)
    assert [element["name"] for element in seen["elements"]] == ["one"]
    assert tab.time == 100


async def test_document_open_does_not_lose_the_clock(stage):
    tab = await stage.open(
        "<script>document.open(); document.write('<p data-el=new>new</p>'); document.close()</script>"
    )
    seen = await tab.observe(70)
    assert [element["name"] for element in seen["elements"]] == ["new"]
    assert await tab.evaluate("performance.now()") == 70


async def test_a_worker_has_the_pages_time_and_chance(stage):
    told = []
    for _ in range(2):
        tab = await stage.open(
            _LOG
            + """<script>
            const work = `setInterval(() => postMessage(["tick", performance.now(), Date.now(), Math.random()]), 50);
                onmessage = (event) => setTimeout(() => postMessage([event.data, performance.now()]), 70);`;
            const worker = new Worker(URL.createObjectURL(new Blob([work])));
            worker.onmessage = (event) => log.push([...event.data, performance.now()]);
            setTimeout(() => worker.postMessage("late"), 60);
        </script>"""
        )
        await tab.observe(140)
        told.append(await log(tab))
    begin = 1767258000000  # 2026-01-01, 9 o'clock
    assert [entry[:2] for entry in told[0]] == [["tick", 50], ["tick", 100], ["late", 130]]
    assert [entry[2] - begin for entry in told[0][:2]] == [50, 100]
    assert [entry[-1] for entry in told[0]] == [50, 100, 130], "the page hears of it at that time"
    assert told[0] == told[1]
