"""Machines watched and taken over: the agent's terminal, a shell beside it, files; hostile output does nothing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import computers
import managers
import pytest
from aiohttp import WSMsgType
from anyio.from_thread import start_blocking_portal
from processes import PATIENCE_S
from watched_sessions import compose, enter, logged_in, playing, told

from flywheel.agent.actions import ReadFile, Terminal, Wait

small_world = computers.small_world
pytestmark = computers.needed
SANDBOX = {"kinds": {"terminal": {"run_s": 100.0, "timeout_s": 120.0, "wait_ms": 10.0}}}
KEYS, SIZE, SHOWN = range(3)
# Links, the clipboard, titles, a picture's beginning, queries that are answered, HTML.
HOSTILE = (
    r"printf '\033]8;;https://evil.test/\033\\LINK\033]8;;\033\\ "
    r"\033]52;c;c3RvbGVu\007\033]0;<img src=x onerror=alert(1)>\007\033P0;0;0q\033\\\033[c\033[6n\033]10;?\007"
    r"<script>document.title=2</script>END\n'"
)


@pytest.fixture(autouse=True)
def beats(monkeypatch):
    monkeypatch.setenv(managers.TOKEN_VARIABLE, managers.SECRET)
    monkeypatch.setattr(managers.nodes, "_BEAT_S", 0.05)


@pytest.fixture
def page(browser) -> Iterator:
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    made = context.new_page()
    made.set_default_timeout(1000 * PATIENCE_S)
    yield made
    context.close()


def session(tmp_path, **given):
    return playing(tmp_path, computers.task("terminal", **given), SANDBOX, ("terminal",))


def said(kind: int, body: bytes) -> bytes:
    return struct.pack(">BI", kind, len(body)) + body


class Line:
    """A terminal by its socket, as a watcher's page speaks."""

    def __init__(self, socket) -> None:
        self.socket, self.printed, self.bytes = socket, b"", 0

    async def until(self, part: bytes, takes: bool = True) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while part not in self.printed:
                message = await self.socket.receive()
                assert message.type is WSMsgType.BINARY, message
                self.bytes += len(message.data)
                self.printed = (self.printed + message.data)[-(2**16) :]
                if takes:
                    await self.socket.send_bytes(said(SHOWN, struct.pack(">I", len(message.data))))

    async def type(self, text: str) -> None:
        await self.socket.send_bytes(said(KEYS, text.encode()))


# -- by the socket ----------------------------------------------------------------------------------------------------
async def test_a_shell_beside_the_agents(tmp_path):
    async with session(tmp_path) as (address, env), logged_in(address) as client:
        before = (await env.step(Wait())).info
        path = f"/watch/sessions/{(await told(client))['id']}/shell?rows=20&columns=70"
        async with client.ws_connect(path, headers={"Origin": address}) as socket:
            line = Line(socket)
            await line.until(b"$ ")
            await line.type("stty size; echo 'Grüße, 世界' > made.txt; cat made.txt\r")
            await line.until("\nGrüße, 世界".encode())
            assert b"20 70" in line.printed
            await socket.send_bytes(said(SIZE, struct.pack(">HH", 30, 100)))
            await line.type("stty size\r")
            await line.until(b"30 100")
            await line.type("sleep 1000 & echo $! > pid; echo begun\r")
            await line.until(b"\nbegun")
            # What cannot be is passed over, or ends it: it reaches no other.
            await socket.send_bytes(said(SIZE, b"x") + said(77, b"y"))
            await line.type("exit\r")
            async with asyncio.timeout(PATIENCE_S):  # a program that it left holds nobody
                while (await socket.receive()).type is WSMsgType.BINARY:
                    pass
        result = await env.step(ReadFile("made.txt"))
        assert result.info["result"] == "Grüße, 世界\n"
        assert (result.info["score"], result.observation.text) == (before["score"], "~$")


async def test_output_without_end_waits_for_who_reads_it(tmp_path):
    async with session(tmp_path) as (address, env), logged_in(address) as client:
        path = f"/watch/sessions/{(await told(client))['id']}/shell"
        async with client.ws_connect(path, headers={"Origin": address}) as socket:
            line = Line(socket)
            await line.until(b"$ ")
            await line.type("stty size\r")
            await line.until(b"24 80")
            await line.type("yes | head -c 3000000; echo; echo 'the e''nd'\r")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await line.until(b"the end", takes=False)
            assert line.bytes < 1_000_000
            await env.step(Wait())  # nobody is held up
            await socket.send_bytes(said(SHOWN, struct.pack(">I", line.bytes)))
            await line.until(b"the end")
            assert line.bytes > 3_000_000


async def test_the_agents_terminal_is_watched_as_it_prints(tmp_path):
    async with session(tmp_path) as (address, env), logged_in(address) as client:
        path = f"/watch/sessions/{(await told(client))['id']}/terminal"
        async with client.ws_connect(path, headers={"Origin": address}) as socket:
            line = Line(socket)
            await line.until(b"~$ ")
            playing_on = asyncio.ensure_future(env.step(Terminal("echo first; read -r word; echo got $word")))
            await line.until(b"\nfirst")
            await line.type("seen\r")  # to the program that runs
            await line.until(b"got seen")
            assert "got seen" in (await playing_on).observation.text
            async with client.ws_connect(path, headers={"Origin": address}) as other:
                await Line(other).type("touch nothing\r")  # nothing runs: it goes nowhere
                # A message that is too long ends the connection, after all that came before it was heard.
                await other.send_bytes(struct.pack(">BI", KEYS, 2**20 + 1))
                async with asyncio.timeout(PATIENCE_S):
                    async for _ in other:
                        pass
            await env.step(Terminal("echo $((40 + 2))"))
            await line.until(b"\n42")
            assert b"nothing" not in line.printed
        # Who takes nothing misses some of it, and the agent waits for nobody.
        async with client.ws_connect(path, headers={"Origin": address}) as socket:
            result = await env.step(Terminal("yes | head -c 3000000; echo; echo the end"))
            assert result.observation.text.endswith("the end\n~$")
            line = Line(socket)
            await line.until(b"the end")
            assert line.bytes < 3_000_000


async def test_files_are_read_and_written(tmp_path):
    async with session(tmp_path) as (address, env), logged_in(address) as client:
        base, own = f"/watch/sessions/{(await told(client))['id']}", {"Origin": address}
        await env.step(Terminal("mkdir sub; printf '\\377' > sub/b; head -c 300000 /dev/zero > big; mkfifo pipe"))
        async with client.get(f"{base}/folder?path=.") as answer:
            kinds = {one["name"]: one["kind"] for one in (await answer.json())["entries"]}
        assert kinds == {"notes.txt": "file", "sub": "folder", "big": "file", "pipe": "other"}
        for path, why in (("sub/b", "UTF-8"), ("big", "256 KB")):
            async with client.get(f"{base}/file?path={path}") as answer:
                assert why in (await answer.json())["why"]
        for path in ("none", "sub", "pipe"):
            async with client.get(f"{base}/file?path={path}") as answer:
                assert answer.status == 404
        async with client.get(f"{base}/file?path=notes.txt") as answer:
            read = await answer.json()
        assert read["text"] == "one\ntwo\n"
        address = f"{base}/file?path=notes.txt&digest={read['digest']}"
        async with client.put(address, data="drei\n", headers=own) as answer:
            assert answer.status == 200
        async with client.put(address, data="again", headers=own) as answer:  # it has changed since
            assert (answer.status, "changed" in await answer.text()) == (409, True)
        async with client.put(address, data="x") as answer:
            assert answer.status == 403
        assert (await env.step(ReadFile("notes.txt"))).info["result"] == "drei\n"


# -- in a browser -----------------------------------------------------------------------------------------------------
ROWS = "() => document.querySelector('.xterm-rows')?.innerText.replaceAll('\\u00a0', ' ') ?? ''"


def test_a_terminal_is_taken_over(tmp_path, page):
    with start_blocking_portal() as loop, loop.wrap_async_context_manager(session(tmp_path)) as (address, env):
        enter(page, address, "Shell")
        page.wait_for_selector("text=a shell of your own")
        page.check("#take")
        page.wait_for_function(f"() => ({ROWS})().includes('$')")
        page.keyboard.type("echo $((6 * 7)) > answer.txt; ls\n")
        page.keyboard.type("echo ")
        compose(page, "漢字")
        page.wait_for_function(f"() => ({ROWS})().includes('echo 漢字')")  # as who writes so waits for it
        page.keyboard.type(" > kanji\n")
        page.wait_for_function(f"() => ({ROWS})().includes('answer.txt')")
        page.keyboard.type("cat kanji; tput cols\n")
        page.wait_for_function(f"() => ({ROWS})().includes('漢字\\n')")
        page.click("#parts button:text-is('Files')")
        page.click("#view button:text-is('answer.txt')")
        page.wait_for_function("() => document.querySelector('#view textarea').value === '42\\n'")
        page.fill("#view textarea", "43\n")
        page.click("text=Save")
        page.wait_for_selector("#note:has-text('Saved.')")
        assert loop.call(env.step, ReadFile("answer.txt")).info["result"] == "43\n"
        page.uncheck("#take")
        assert page.evaluate("document.querySelector('#view textarea').readOnly")
        page.click("#parts button:text-is('Terminal')")
        loop.call(env.step, Terminal("echo seen $((1 + 1))"))
        page.wait_for_function(f"() => ({ROWS})().includes('seen 2')")


def test_hostile_output_does_nothing_to_who_watches(tmp_path, page):
    said_by_page = []
    page.on("dialog", lambda dialog: (said_by_page.append(dialog.message), dialog.dismiss()))
    page.on("websocket", lambda socket: socket.on("framesent", lambda data: said_by_page.append(data)))
    with start_blocking_portal() as loop, loop.wrap_async_context_manager(session(tmp_path)) as (address, env):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
        enter(page, address, "Terminal")
        page.evaluate("navigator.clipboard.writeText('mine')")
        loop.call(env.step, Terminal(HOSTILE))
        page.wait_for_function(f"() => ({ROWS})().includes('END')")
        box = page.locator(".xterm-rows span", has_text="LINK").last.bounding_box()
        page.mouse.move(box["x"] + 1, box["y"] + 1)
        for held in ("Shift", "Control"):
            page.keyboard.down(held)
            page.mouse.click(box["x"] + 8, box["y"] + box["height"] / 2)
            page.keyboard.up(held)
        assert page.evaluate("navigator.clipboard.readText()") == "mine"
        assert (page.title(), len(page.context.pages), page.url.partition("#")[0]) == (
            "Sessions",
            1,
            f"{address}/watch",
        )
        assert said_by_page == []  # only watched: what a terminal would answer is not sent
