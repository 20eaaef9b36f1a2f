"""A desk for annotators on a small workspace, and a client that works at it by WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import aiohttp
import synthetic
from processes import PATIENCE_S
from told_policy import ToldPolicy

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.policy import checkpoint
from flywheel.ui.annotate import desk as desks
from flywheel.ui.annotate.desk import AnnotationDesk, open_desk
from flywheel.ui.annotate.server import serve_annotation
from flywheel.utils.files import write_json
from flywheel.utils.local_ports import bind_free_port

SECRET = "flywheel:a secret of the tests alone"
BLOCKS = {
    "sandbox": {"timeout_s": 60.0, "pages": 4, "browsers": 1, "pages_min": 0},
    "synthesis": {"train_tasks": 6, "eval_tasks": 4, "domains": {"sites": ["settings"]}, "held_out": [], "levels": [2]},
    "merge": {"weights": {"sites": 1.0}},
}


def told(action: str, thought: str) -> str:
    return f"Thought: {thought}\nAction: {action}"


SAID = [
    told("click(point='<point>50 05</point>')", "The first one."),
    told("click(point='<point>20 05</point>')", "<img src=x onerror=alert(1)>"),
    told("type(content='a')", "I type."),
]


def make_desk_workspace(root, **blocks) -> tuple[Workspace, Settings]:
    return synthetic.workspace(root, **{**BLOCKS, **blocks})


def use_told_policy(monkeypatch, said=SAID) -> list[ToldPolicy]:
    """Every model is a policy that says `said` in turn, with the weights of the model's name; returns those opened."""
    opened: list[ToldPolicy] = []

    def open_told(folder, settings):
        opened.append(ToldPolicy([*said] * 200, f"weights of {folder}"))
        return opened[-1]

    monkeypatch.setattr(desks, "open_policy", open_told)
    monkeypatch.setattr(checkpoint, "resolve_checkpoint", lambda model, root=None: model)
    monkeypatch.setattr(checkpoint, "checkpoint_digest", lambda folder: f"weights of {folder}")
    return opened


def promote(ws: Workspace, k: int, model: str) -> None:
    write_json(ws.levels(k), {"open": {}})
    write_json(ws.promotion(k), {"model": model, "digest": f"weights of {model}"})


@asynccontextmanager
async def serving(ws: Workspace, settings: Settings) -> AsyncIterator[tuple[AnnotationDesk, str]]:
    with closing(bind_free_port()) as listener:
        async with open_desk(ws, settings) as desk, serve_annotation(desk, SECRET, listener) as (url, _):
            yield desk, url


@asynccontextmanager
async def logged_in(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        async with client.post("/login", data={"secret": SECRET}) as answer:
            assert answer.status == 200
        yield client


class Annotator:
    """One page's WebSocket. heard: the newest message of each kind; pictures: how many came."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self.heard, self.pictures = socket, {}, 0

    async def say(self, do: str, **said) -> None:
        await self._socket.send_json({"do": do, **said})

    async def hear(self, holds: Callable[[dict], object]) -> dict:
        """Everything heard so far, once it `holds`."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(self.heard):
                message = await self._socket.receive()
                if message.type is aiohttp.WSMsgType.BINARY:
                    self.pictures += 1
                elif message.type is aiohttp.WSMsgType.TEXT:
                    self.heard |= json.loads(message.data)
                else:
                    raise AssertionError(f"the server closed the connection: {self.heard}")
        return self.heard

    async def at_step(self, step: int, *, candidates: bool = True) -> dict:
        def there(heard):
            state = heard.get("state", {}).get("step") == step
            return state and (not candidates or heard.get("candidates", {}).get("step") == step)

        return await self.hear(there)

    async def begin(self, name: str) -> dict:
        await self.say("begin", annotator=name)
        return await self.at_step(0)


@asynccontextmanager
async def annotator(client: aiohttp.ClientSession, path: str = "/work") -> AsyncIterator[Annotator]:
    origin = str(client._base_url.origin())
    async with client.ws_connect(path, headers={"Origin": origin}) as socket:
        yield Annotator(socket)
