"""Pages and phones, live and taken over by a person: what the agent sees stays what it was, and nobody is held up."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from dataclasses import replace

import aiohttp
import managers
import pytest
from aiohttp import WSMsgType, web
from anyio.from_thread import start_blocking_portal
from night import by_day
from PIL import Image
from processes import PATIENCE_S
from watched_sessions import compose, enter, logged_in, playing, told

from flywheel.agent.actions import Click, Drag, Hotkey, Point, Scroll, Type, Wait
from flywheel.envs import registry as kinds
from flywheel.envs.base import Gesture
from flywheel.envs.browser.pool import BrowserPool, open_browser_pool
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.phone.world import PHONE
from flywheel.envs.tasks.drawing import make_task

SMALL = {"width": 400, "height": 300, "pages": 2, "browsers": 1, "pages_min": 0, "timeout_s": 60.0}
TASK = replace(make_task(catalogue.get_world("tiles"), "clear", 1, 4, "train"), max_steps=5000)
BODY = """<!doctype html><meta charset=utf-8><title><img src=x onerror=alert(1)></title>
<body style="margin:0;font:16px sans-serif">
<button style="position:absolute;left:20px;top:20px;width:120px;height:40px" onclick="told('pressed')">Press</button>
<input style="position:absolute;left:20px;top:80px;width:200px;height:30px" oninput="told(this.value)">
<select style="position:absolute;left:20px;top:130px;width:200px;height:30px" onchange="told(this.value)">
  <option>one<option>two<option>three</select>
<button style="position:absolute;left:250px;top:80px;width:100px" onclick="told(prompt('Who?'))">Ask</button>
<canvas id=pad width=180 height=100 style="position:absolute;left:200px;top:180px;background:#dde"></canvas>
<script>
const seen = [], state = { terminated: false, seen, ticks: 0 };
function told(what) { seen.push(what); document.body.style.background = '#fed'; }
setInterval(() => { state.ticks += 1; }, 1000);
pad.onpointerdown = () => told('down'); pad.onpointerup = () => told('up');
let way = 0; pad.onpointermove = (e) => { if (e.buttons) { way += 1; state.way = way; } };
addEventListener('keydown', (e) => { if (e.key === 'ArrowUp') told('up key'); });
addEventListener('keydown', (e) => { if (e.key === 'a' && e.ctrlKey) told('chord'); });
addEventListener('contextmenu', (e) => { e.preventDefault(); told('menu'); });
addEventListener('dblclick', () => told('double'));
addEventListener('wheel', (e) => told('wheel ' + Math.sign(e.deltaY)));
window.__env__ = { getState: () => state };
</script>"""


class OnePage:
    """A source, and a session, of the page above."""

    viewport = step_ms = files = None
    prepare = state_expression = ""
    restorable = False

    def __init__(self, url: str) -> None:
        self.url, self.allowed = url, (url,)

    def open(self, task, seed):
        return self

    def state(self, seen):
        return dict(seen["game"] or {})

    def score(self, state):
        return 0.0

    def close(self):
        """Nothing is held."""


@pytest.fixture(autouse=True)
def beats(monkeypatch):
    monkeypatch.setenv(managers.TOKEN_VARIABLE, managers.SECRET)
    monkeypatch.setattr(managers.nodes, "_BEAT_S", 0.05)


@pytest.fixture
def one_page(monkeypatch):
    """The kind `browser` shows the page above, which a test's own loop serves."""

    class Opened:
        def __init__(self, settings):
            self._settings = settings

        async def __aenter__(self):
            async def page(_: web.Request) -> web.Response:
                return web.Response(text=BODY, content_type="text/html")

            application = web.Application()
            application.add_routes([web.get("/", page)])
            self._served = managers.served(application)
            address = await self._served.__aenter__()
            self._pool = BrowserPool(self._settings.sandbox, OnePage(f"{address}/"))
            return await self._pool.__aenter__()

        async def __aexit__(self, *error):
            await self._pool.__aexit__(*error)
            await self._served.__aexit__(*error)

    monkeypatch.setattr(type(kinds.find_backend("browser")), "open", lambda self, settings, root: Opened(settings))


@pytest.fixture
def page(browser) -> Iterator:
    made = browser.new_page(viewport={"width": 900, "height": 700})
    made.set_default_timeout(1000 * PATIENCE_S)
    yield made
    made.close()


async def until(env, holds, tries: int = 100) -> dict:
    """What the agent is told, by steps that do nothing, once it holds."""
    for _ in range(tries):
        state = (await env.step(Wait())).info["state"]
        if holds(state):
            return state
        await asyncio.sleep(0.05)
    raise AssertionError(f"it never held: {state}")


# -- what the agent sees ----------------------------------------------------------------------------------------------
async def hashes(env, task) -> list[bytes]:
    """Screens of an episode with mouse, wheel and keys."""
    moves = (Click(Point(0.3, 0.4)), Drag(Point(0.2, 0.2), Point(0.7, 0.7)), Scroll(Point(0.5, 0.5), "down"))
    seen = [await env.reset(task, task.seed)]
    for action in (*moves, Hotkey(("tab",)), Type("abc"), Wait()):
        seen.append(await env.step(action))
        if seen[-1].terminated or seen[-1].truncated:
            break
    return [one.observation.screenshot for one in seen]


@pytest.mark.parametrize("frames", by_day(["auto", "screenshot"]))
async def test_who_is_watched_sees_the_same(frames):
    task = make_task(catalogue.get_world("shop"), "add", 1, 4, "train")
    settings = managers.chosen(**SMALL, frames=frames)
    async with open_browser_pool(settings) as pool:
        async with pool.env() as env:
            alone = await hashes(env, task)
        async with pool.env() as env:
            shown = []
            with env.watch() as watcher:
                watcher.put = lambda picture, put=watcher.put: (shown.append(picture), put(picture))
                watched = await hashes(env, task)
                before = len(shown)  # the browser goes on drawing while the newest picture is fetched
                assert await asyncio.wait_for(watcher.next(), PATIENCE_S) in shown[before - 1 :]
            assert env.tab.cast._page is None  # the browser is asked for nothing any more
    assert watched == alone
    assert {*alone[1:]} <= {*shown}  # what the agent sees, and between its steps what the browser draws
    sizes = {(image.format, image.size) for image in (Image.open(io.BytesIO(one)) for one in shown)}
    assert sizes == {(form, env.tab.size) for form in ("PNG", "JPEG")}


async def test_nobody_is_asked_for_pictures_while_nobody_watches():
    async with open_browser_pool(managers.chosen(**SMALL)) as pool, pool.env() as env:
        await env.reset(TASK, TASK.seed)
        asked = []
        send = env.tab.page.connection.send
        env.tab.page.connection.send = lambda method, *rest: (asked.append(method), send(method, *rest))[1]
        await env.step(Click(Point(0.5, 0.5)))
        assert not [method for method in asked if "creencast" in method]


# -- who may ----------------------------------------------------------------------------------------------------------
async def test_a_live_page_is_for_this_nodes_own_pages_alone(tmp_path):
    async with playing(tmp_path, TASK, SMALL, ("browser",)) as (address, _), logged_in(address) as client:
        live = f"/watch/sessions/{(await told(client))['id']}/live"
        for origin in ({"Origin": "http://evil.test"}, {"Origin": "null"}, {}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(live, headers=origin)
            assert refused.value.status == 403
        async with aiohttp.ClientSession(address) as stranger:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await stranger.ws_connect(live, headers={"Origin": address})
            assert refused.value.status == 401


# -- by the socket ----------------------------------------------------------------------------------------------------
async def heard(socket, wanted) -> dict:
    """The first word that is wanted; pictures are passed over."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await socket.receive()
            assert message.type in (WSMsgType.TEXT, WSMsgType.BINARY), message
            if message.type is WSMsgType.TEXT and wanted(said := json.loads(message.data)):
                return said


async def test_one_person_at_a_time_and_the_agents_steps_between(tmp_path, one_page):
    async with playing(tmp_path, TASK, SMALL, ("browser",)) as (address, env), logged_in(address) as client:
        live = f"/watch/sessions/{(await told(client))['id']}/live"
        own = {"Origin": address}
        async with client.ws_connect(live, headers=own) as first, client.ws_connect(live, headers=own) as second:
            await first.send_json({"do": "click", "x": 0.2, "y": 0.13})  # not taken over: nothing comes of it
            assert (await env.step(Wait())).info["state"]["seen"] == []
            await first.send_json({"take": True})
            await heard(first, lambda said: said.get("taken"))
            await second.send_json({"take": True})
            await heard(second, lambda said: said.get("taken") is False and "Somebody else" in said["note"])
            await first.send_json({"do": "press", "key": "Control"})
            await first.send_json({"do": "click", "x": 0.2, "y": 0.13})
            state = await until(env, lambda state: "pressed" in state["seen"])
            ticks = state["ticks"]
            await until(env, lambda state: state["ticks"] > ticks)  # time passes meanwhile
            await first.send_json({"take": False})
            await heard(first, lambda said: said.get("taken") is False)
            await second.send_json({"take": True})
            await heard(second, lambda said: said.get("taken"))
            for key in ("a", "ArrowUp"):
                await second.send_json({"do": "press", "key": key})
            state = await until(env, lambda state: "up key" in state["seen"])
            assert "chord" not in state["seen"]  # the first one's Ctrl was let go
            await second.send_json({"do": "nothing that there is"})
            assert (await asyncio.wait_for(closed(second), PATIENCE_S)) is True


async def closed(socket) -> bool:
    while (await socket.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
        pass
    return True


async def test_what_the_browser_shows_over_a_page_is_seen_and_answered(tmp_path, one_page):
    async with playing(tmp_path, TASK, SMALL, ("browser",)) as (address, env), logged_in(address) as client:
        live = f"/watch/sessions/{(await told(client))['id']}/live"
        async with client.ws_connect(live, headers={"Origin": address}) as socket:
            await socket.send_json({"take": True})
            await heard(socket, lambda said: said.get("taken"))
            await socket.send_json({"do": "click", "x": 300 / 400, "y": 100 / 300})
            asked = await until(env, lambda state: "dialog" in state)
            assert asked["dialog"] == {"kind": "prompt", "message": "Who?"}
            async with asyncio.timeout(PATIENCE_S):  # a picture of it: the browser's own shows the page alone
                while (message := await socket.receive()).data[:4] != b"\x89PNG":
                    assert message.type in (WSMsgType.TEXT, WSMsgType.BINARY), message
            await socket.send_json({"do": "text", "text": "Zoë"})
            await socket.send_json({"do": "press", "key": "Enter"})
            await socket.send_json({"do": "release", "key": "Enter"})
            await until(env, lambda state: "Zoë" in state["seen"])


async def test_who_watches_and_takes_nothing_holds_up_nobody(tmp_path, one_page):
    async with playing(tmp_path, TASK, SMALL, ("browser",)) as (address, env), logged_in(address) as client:
        live = f"/watch/sessions/{(await told(client))['id']}/live"
        async with client.ws_connect(live, headers={"Origin": address}) as socket:
            await socket.send_json({"take": True})
            await heard(socket, lambda said: said.get("taken"))
            socket._conn.transport.pause_reading()  # it is there, and takes nothing
            for number in range(200):
                await socket.send_json({"do": "text", "text": str(number)})
            for _ in range(5):
                await env.step(Wait())
            socket._conn.transport.abort()  # in the middle of a gesture, or not
        await env.step(Wait())
        async with client.ws_connect(live, headers={"Origin": address}) as socket:
            taken = False
            while not taken:  # once the node has seen that the first is gone
                await socket.send_json({"take": True})
                taken = (await heard(socket, lambda said: "taken" in said))["taken"]
        await env.step(Wait())


def test_what_is_no_gesture_is_refused():
    placed = {"do": "click", "x": 5, "y": -5, "count": 99, "button": "left click"}
    read = Gesture.from_json(placed)
    assert (read.at.x < 1, read.at.y, read.count, read.button) == (True, 0.0, 3, "left")
    assert Gesture.from_json({"do": "wheel", "x": 10**400, "y": 0, "down": -(10**400)}).down == -10_000
    for wrong in ({}, {"do": "click"}, {"do": "click", "x": "1", "y": 0}, {"do": "move", "x": float("nan"), "y": 0}):
        with pytest.raises(ValueError, match="gesture"):
            Gesture.from_json(wrong)


# -- in a browser -----------------------------------------------------------------------------------------------------
def test_a_page_is_taken_over(tmp_path, page, one_page):
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(playing(tmp_path, TASK, SMALL, ("browser",))) as (address, env),
    ):
        asked = []
        page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        enter(page, address, "Page")
        page.wait_for_function("() => document.querySelector('#view canvas')?.width === 400")
        box = page.locator("#view canvas").bounding_box()
        scale = box["width"] / 400

        def at(x: float, y: float) -> tuple[float, float]:
            return box["x"] + x * scale, box["y"] + y * scale

        page.mouse.click(*at(80, 40))  # only watched
        assert loop.call(env.step, Wait()).info["state"]["seen"] == []
        page.check("#take")
        box = page.locator("#view canvas").bounding_box()
        page.mouse.click(*at(80, 40))
        loop.call(until, env, lambda state: "pressed" in state["seen"])
        # What is shown has changed with it.
        page.wait_for_function(
            "() => { const [r, g, b] = document.querySelector('#view canvas').getContext('2d')"
            ".getImageData(380, 20, 1, 1).data; return r > 245 && b < 235; }"
        )
        page.mouse.click(*at(100, 95))
        page.keyboard.type("ab")
        compose(page, "漢字")
        page.keyboard.insert_text(" é")
        loop.call(until, env, lambda state: "ab漢字 é" in state["seen"])
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Control+a")
        loop.call(until, env, lambda state: {"up key", "chord"} <= set(state["seen"]))
        page.mouse.click(*at(350, 20), button="right")
        page.mouse.dblclick(*at(350, 60))
        page.mouse.wheel(0, 120)
        loop.call(until, env, lambda state: {"menu", "double", "wheel 1"} <= set(state["seen"]))
        page.mouse.move(*at(220, 200))
        page.mouse.down()
        page.mouse.move(*at(300, 240), steps=10)
        page.mouse.up()
        state = loop.call(until, env, lambda state: state["seen"][-1] == "up")
        assert state["way"] >= 1
        # A control that the browser itself would draw.
        page.mouse.click(*at(100, 145))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        loop.call(until, env, lambda state: "two" in state["seen"])
        page.keyboard.press("Control+Alt+Enter")
        assert not page.is_checked("#take")
        assert (asked, page.title()) == ([], "Sessions")


@pytest.mark.exhaustive
def test_a_phone_is_touched(tmp_path, page):
    task = make_task(PHONE, next(iter(PHONE.templates)), 1, 5, "train")
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(playing(tmp_path, task, {**SMALL, "width": 800}, ("phone",))) as (address, env),
    ):
        enter(page, address, "Page")
        page.check("#take")
        elements = loop.call(env.step, Wait()).info["state"]["elements"]
        app = next(one for one in elements if one["name"])
        box = page.locator("#view canvas").bounding_box()
        share = (app["x"] + app["w"] / 2, app["y"] + app["h"] / 2)
        page.mouse.click(box["x"] + share[0] * box["width"], box["y"] + share[1] * box["height"])
        loop.call(until, env, lambda state: state["app"] != "")
        page.click("text=Home")
        loop.call(until, env, lambda state: state["app"] == "")
