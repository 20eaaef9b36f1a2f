"""A node's pages: sessions watched and taken over in a real browser, services shown; who may, and what may not be."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar

import aiohttp
import desktops
import managers
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal
from processes import PATIENCE_S
from text_env import Shelf, Shelves
from watched_sessions import log_in, logged_in, playing, told

from flywheel.agent.actions import Type
from flywheel.envs.base import Observation, StepResult, Streams
from flywheel.envs.registry import BACKENDS
from flywheel.envs.remote.node_session import EpisodeBuffer
from flywheel.envs.suites.desk.world import DESK
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import EnvError

EVIL = "<img src=x onerror=\"document.title='broken in'\"><script>document.title='broken in'</script>"
SCREEN = {"kinds": {"computer": {"width": 480, "height": 360, "wait_ms": 30.0}}}


class Served(Shelf):
    """One whose machine is this one; what it shows is hostile."""

    ports: ClassVar[dict[int, int]] = {}

    async def reset(self, task, seed):
        result = await super().reset(task, seed)
        return type(result)(Observation(None, text=EVIL), info=result.info)

    async def screen(self) -> Streams:
        raise EnvError("there is no desktop to be seen")

    terminal = shell = list_folder = read_file = write_file = screen

    async def service(self, port: int) -> Streams:
        if port not in self.ports:
            raise EnvError("nothing answers there")
        return await asyncio.open_connection("127.0.0.1", self.ports[port])


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    monkeypatch.setenv(managers.TOKEN_VARIABLE, managers.SECRET)
    monkeypatch.setattr(managers.nodes, "_BEAT_S", 0.05)
    monkeypatch.setitem(BACKENDS, "shelves", Shelves(make=Served))


# -- who may ----------------------------------------------------------------------------------------------------------
async def test_without_the_token_nothing_is_shown(tmp_path):
    async with playing(tmp_path, managers.task()) as (address, _), aiohttp.ClientSession(address) as client:
        async with client.post("/watch/login", data={"token": "wrong"}) as answer:
            assert answer.status == 403
        parts = ("picture", "screen", "live", "terminal", "shell", "folder", "file", "recording")
        for path in ("/watch/sessions", *(f"/watch/sessions/x/{part}" for part in parts)):
            for cookie in ("", "wrong", managers.SECRET):
                async with client.get(path, headers={"Cookie": f"flywheel-watch={cookie}"}) as answer:
                    assert answer.status == 401
        async with client.get("/watch/static/..%2f..%2fnode.py") as answer:
            assert answer.status == 404


async def test_another_sites_page_is_told_nothing(tmp_path):
    async with playing(tmp_path, managers.task()) as (address, _), logged_in(address) as client:
        for site in ("cross-site", "same-site"):
            async with client.get("/watch/sessions", headers={"Sec-Fetch-Site": site}) as answer:
                assert answer.status == 403
        name = (await told(client))["id"]
        for part in ("screen", "terminal", "shell"):
            for origin in ({"Origin": "http://evil.test"}, {"Origin": "null"}, {}):
                async with client.get(f"/watch/sessions/{name}/{part}", headers=origin) as answer:
                    assert answer.status == 403
        async with client.put(f"/watch/sessions/{name}/file?path=x", headers={"Origin": "http://evil.test"}) as answer:
            assert answer.status == 403


# -- services ---------------------------------------------------------------------------------------------------------
APP = """<!DOCTYPE html><html><HEAD lang=en><title>App</title></HEAD><body><script>
const told = (name, what) => { document.body.dataset[name] = String(what); };
localStorage.setItem('a', 1); localStorage.b = 2; document.cookie = 'c=3; path=/';
told('kept', [localStorage.a, localStorage.getItem('b'), localStorage.length, document.cookie, origin]);
const put = { method: 'PUT', body: '{}', headers: { 'Content-Type': 'application/json', 'X-Own': 'x' } };
fetch('data', put).then((r) => r.json()).then((r) => told('own', r.body), (e) => told('own', e));
const sessions = fetch('/watch/sessions', { credentials: 'include' });
sessions.then((r) => told('foreign', r.status), (e) => told('foreign', e.name));
const socket = new WebSocket(new URL('talk', location.href.replace('http', 'ws')));
socket.onopen = () => socket.send('hello'); socket.onmessage = (e) => told('talk', e.data);
</script>"""


async def _app(_: web.Request) -> web.Response:
    return web.Response(text=APP, content_type="text/html")


async def _page(request: web.Request) -> web.Response:
    seen = {"path": request.path_qs, "cookie": request.headers.get("Cookie"), "body": await request.text()}
    answer = web.json_response(seen, headers={"Content-Security-Policy": "none", "X-Own": "kept"})
    answer.set_cookie("flywheel-watch", "stolen", path="/")
    return answer


async def _echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(f"{message.data}!")
    return socket


@pytest.fixture
def service(monkeypatch):
    @asynccontextmanager
    async def serve() -> AsyncIterator[None]:
        application = web.Application()
        own = [web.get("/app", _app), web.get("/talk", _echo)]
        application.add_routes([*own, web.route("*", "/{path:.*}", _page)])
        async with managers.served(application) as address:
            monkeypatch.setitem(Served.ports, 8123, int(address.rpartition(":")[2]))
            yield

    return serve


async def test_a_service_is_shown_as_a_page_of_nobody(tmp_path, service):
    async with playing(tmp_path, managers.task()) as (address, _), service(), logged_in(address) as client:
        base = (await told(client))["services"]
        async with client.post(f"{base}8123/a/b?c=d%20e", data="said") as answer:
            assert await answer.json() == {"path": "/a/b?c=d%20e", "cookie": None, "body": "said"}
            assert answer.headers["Content-Security-Policy"] == "sandbox allow-scripts allow-forms allow-popups"
            assert "Set-Cookie" not in answer.headers
            assert answer.headers["Access-Control-Allow-Origin"] == "*"  # of nobody, its own scripts are strangers
            assert "Access-Control-Allow-Credentials" not in answer.headers
            assert answer.headers["X-Own"] == "kept"
        async with client.ws_connect(f"{base}8123/talk") as socket:
            await socket.send_str("hello")
            assert (await socket.receive_str(timeout=PATIENCE_S)) == "hello!"
        whole = (await told(client))["whole"]
        async with client.get(f"{whole}8123/a") as answer:
            assert (await answer.json())["path"] == f"{whole}8123/a"
        async with client.get(f"{base}8124/") as answer:
            assert (answer.status, "nothing answers there" in await answer.text()) == (502, True)
        secret = base.split("/")[3]
        for wrong in (base.replace(secret, "0" * len(secret)), f"/watch/services/{secret}/another/"):
            async with client.get(f"{wrong}8123/") as answer:
                assert answer.status == 404


# -- recordings -------------------------------------------------------------------------------------------------------
def test_a_film_holds_the_newest_steps_within_its_limit():
    film, task = EpisodeBuffer(4000), managers.task()
    film.begin(task, 3)
    pictures = [bytes([number]) * 1000 for number in range(5)]
    for number, picture in enumerate(pictures):
        film.add(
            Type("x") if number else None, StepResult(Observation(picture, 1, 1), info={"score": 0.5, "state": {}})
        )
    with zipfile.ZipFile(io.BytesIO(film.make_packer()())) as file:
        about = json.loads(file.read("episode.json"))
        kept = [file.read(step["picture"]) for step in about["steps"]]
    assert (about["task"], about["seed"], about["left_out"]) == (task.task_id, 3, 5 - len(kept))
    assert kept == pictures[-len(kept) :]
    assert 1 < len(kept) < 5
    assert about["steps"][-1]["action"] == ["type", {"content": "x"}]
    film.begin(task, 4)
    assert film.empty


async def test_a_recording_is_there_where_the_node_keeps_one(tmp_path):
    async with playing(tmp_path, managers.task()) as (address, _), logged_in(address) as client:
        base = f"/watch/sessions/{(await told(client))['id']}/recording"
        async with client.get(base) as answer:
            assert (answer.status, "--recording-mb" in await answer.text()) == (404, True)
    async with playing(tmp_path, managers.task(), film=2**20) as (address, env), logged_in(address) as client:
        await env.step(Type("set cup 3"))
        now = await told(client)
        assert now["film"]
        async with client.get(f"/watch/sessions/{now['id']}/recording") as answer:
            assert answer.headers["Content-Disposition"].startswith("attachment")
            with zipfile.ZipFile(io.BytesIO(await answer.read())) as file:
                steps = json.loads(file.read("episode.json"))["steps"]
    assert [step["text"] for step in steps] == [EVIL, steps[1]["text"]]
    assert "cup=3" in steps[1]["text"]


# -- in a browser -----------------------------------------------------------------------------------------------------
@pytest.fixture
def page(browser) -> Iterator:
    made = browser.new_page(viewport={"width": 900, "height": 700})
    made.set_default_timeout(1000 * PATIENCE_S)
    yield made
    made.close()


def test_what_a_session_shows_is_text(tmp_path, page):
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(playing(tmp_path, managers.task())) as (address, _),
    ):
        log_in(page, address)
        page.wait_for_selector(".card pre:has-text('onerror')")
        page.click(".card")
        page.wait_for_selector("#parts button:text-is('Terminal')")
        assert page.title() == "Sessions"
        page.click("text=All sessions")
        page.wait_for_selector(".card")


def test_a_services_scripts_reach_the_service_and_nothing_else(tmp_path, page, service):
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(playing(tmp_path, managers.task())) as (address, _),
        loop.wrap_async_context_manager(service()),
    ):
        log_in(page, address)
        page.click(".card")
        page.click("#parts button:text-is('Services')")
        page.fill("[name=port]", "8123")
        assert "/8123/" in page.inner_text("[aria-label='Command for Jupyter']")
        with page.expect_popup() as opened:
            page.click("text=Open the service")
        app = opened.value
        app.goto(f"{app.url}app")
        app.wait_for_selector("body[data-own][data-foreign][data-talk]", state="attached")
        assert app.evaluate("({...document.body.dataset})") == {
            "kept": "1,2,2,c=3,null",
            "own": "{}",
            "foreign": "TypeError",
            "talk": "hello!",
        }
        app.close()


@desktops.needed
def test_a_desktop_is_seen_and_taken_over(tmp_path, page):
    task = make_task(DESK, "sort", 1, 5, "train")
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(playing(tmp_path, task, SCREEN, ("computer",))) as (address, env),
    ):
        log_in(page, address)
        page.wait_for_selector(".card img:visible")
        page.click(".card")
        page.wait_for_selector("#view canvas")
        page.wait_for_function("document.querySelector('#view canvas').width === 480")  # the desktop's own
        page.keyboard.type("touch seen\n")  # only watched: no key arrives
        page.check("#take")
        page.locator("#view canvas").click()
        page.keyboard.type("touch taken\n")
        files = loop.call(_until_there, env, "taken")
        assert "seen" not in files


async def _until_there(env, path: str) -> dict:
    """The session's files once this one is among them: the agent's next steps show what the person did."""
    for _ in range(5):
        files = (await env.step(Type(""))).info["state"]["files"]
        if path in files:
            return files
    raise AssertionError(f"no file {path} came")
