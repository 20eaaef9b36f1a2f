"""Serve this machine's environments to whoever has a lease that the manager signed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import secrets
import time
import zipfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from flywheel.agent.action_json import actions_from_json
from flywheel.agent.actions import ACTION_NAMES, Action
from flywheel.config import Settings
from flywheel.envs import registry as kinds
from flywheel.envs.base import Checkpointable, Env, PartialCheckpointable, StepResult, Task
from flywheel.envs.registry import EnvPool
from flywheel.envs.remote import protocol, watch
from flywheel.envs.remote.protocol import LeaseToken
from flywheel.envs.router import open_env_pools
from flywheel.utils.errors import BadInput, EnvError
from flywheel.utils.local_server import errors_of_port

# The steps of a session's episode with their pictures, kept for whoever watches, and packed to be taken away.

_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # of the files: equal episodes give equal bytes


class EpisodeBuffer:
    """limit: bytes of pictures and texts; 0: nothing is kept. The oldest steps make room for new ones."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._about: dict[str, Any] = {}
        self._steps: deque[tuple[dict[str, Any], bytes | None, int]] = deque()  # each with its size
        self._number = self._size = 0

    @property
    def empty(self) -> bool:
        return not self._steps

    def begin(self, task: Task, seed: int) -> None:
        """Another episode; nothing is kept of the last one."""
        self._about = {"task": task.task_id, "instruction": task.instruction, "world": task.world, "seed": seed}
        self._steps.clear()
        self._number = self._size = 0

    def add(self, action: Action | None, result: StepResult) -> None:
        """What followed an action; None: a reset, or a checkpoint that was restored."""
        if not self._limit:
            return
        seen, info = result.observation, result.info
        step = {"step": self._number, "action": [ACTION_NAMES[type(action)], asdict(action)] if action else None}
        step |= {"text": seen.text, "url": seen.url, "reward": result.reward, "score": info.get("score")}
        step |= {name: info[name] for name in ("note", "result") if name in info}
        step |= {"terminated": result.terminated, "truncated": result.truncated}
        if seen.screenshot is not None:
            step["picture"] = f"{self._number:05d}.png"
        size = len(seen.screenshot or b"") + len(json.dumps(step, default=str))
        self._steps.append((step, seen.screenshot, size))
        self._number, self._size = self._number + 1, self._size + size
        while self._size > self._limit and len(self._steps) > 1:
            self._size -= self._steps.popleft()[2]

    def packing(self) -> Callable[[], bytes]:
        """Makes a ZIP file of what is kept now: `episode.json` with the steps, and the pictures that they name. It may
        be called in another thread."""
        steps = list(self._steps)
        about = {**self._about, "left_out": self._number - len(steps), "steps": [step for step, _, _ in steps]}
        return partial(
            _zip_episode, about, {step["picture"]: picture for step, picture, _ in steps if picture is not None}
        )


def _zip_episode(about: Mapping[str, Any], pictures: Mapping[str, bytes]) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as file:
        file.writestr(zipfile.ZipInfo("episode.json", _ZIP_DATE), json.dumps(about, indent=1, default=str))
        for name, picture in pictures.items():
            file.writestr(zipfile.ZipInfo(name, _ZIP_DATE), picture)
    return kept.getvalue()


# A node: environments of this machine, played from others by whoever has a lease that the manager signed.
#
# What the manager does not know of any more is ended at the next beat. Without a manager the sessions that there are go
# on: their leases say until when.

log = logging.getLogger(__name__)
_BEAT_S = 2.0
_MAX_CALL_BYTES = 64 * 2**20  # bytes of a call: a task with its files, a checkpoint


class NodeSession:
    """An environment for as long as its lease; it is entered and left by one task. film: bytes of its episode that are
    kept."""

    def __init__(self, lender: EnvPool, note: LeaseToken, film: int = 0) -> None:
        self.until, self.film = note.until, EpisodeBuffer(film)
        self._over = asyncio.Event()
        self._env: asyncio.Future[Env] = asyncio.get_running_loop().create_future()
        self._env.add_done_callback(
            lambda future: future.cancelled() or future.exception()
        )  # it may be asked by nobody
        self.alone = asyncio.Lock()  # of the calls, and of what a person does
        self.visitor: object | None = None  # who has taken it over
        self.kind = note.kind
        self.task: Task | None = None
        self.seen: StepResult | None = None  # the last of its results, and how many there were in this episode
        self.steps = 0
        self.life = asyncio.create_task(self._live(lender))

    async def _live(self, lender: EnvPool) -> None:
        try:
            async with lender.env() as env:
                self._env.set_result(env)
                await self._over.wait()
        except Exception as error:
            if not self._env.done():
                self._env.set_exception(error)
            else:
                log.warning("a session did not end well: %s", error)

    async def env(self) -> Env:
        return await asyncio.shield(self._env)

    async def call(self, name: str, body: bytes) -> bytes:
        env = await self.env()
        async with self.alone:
            return await _CALLS[name](self, env, body)

    def told(self, result: StepResult, action: Action | None = None) -> bytes:
        """The result as it is sent, kept for who watches."""
        self.seen, self.steps = result, self.steps + 1
        self.film.add(action, result)
        return protocol.encode_result(result)

    async def end(self) -> None:
        self._over.set()
        if not self._env.done():
            self.life.cancel()
        await asyncio.wait([self.life])


async def _open(_session: NodeSession, env: Env, _: bytes) -> bytes:
    return protocol.encode_message(
        {"checkpoints": isinstance(env, Checkpointable), "keeps": isinstance(env, PartialCheckpointable)}
    )


async def _reset(session: NodeSession, env: Env, body: bytes) -> bytes:
    said, _ = protocol.decode_message(body)
    session.task, session.steps = protocol.decode_task(said["task"]), -1
    session.film.begin(session.task, said["seed"])
    return session.told(await env.reset(session.task, said["seed"]))


async def _step(session: NodeSession, env: Env, body: bytes) -> bytes:
    (action,) = actions_from_json(body.decode())
    return session.told(await env.step(action), action)


async def _checkpoint(_session: NodeSession, env: Env, _: bytes) -> bytes:
    return protocol.encode_message({}, await env.checkpoint())


async def _restore(session: NodeSession, env: Env, body: bytes) -> bytes:
    return session.told(await env.restore(body))


async def _keep(_session: NodeSession, env: Env, _: bytes) -> bytes:
    return protocol.encode_message({}, await env.keep())


async def _bring_back(session: NodeSession, env: Env, body: bytes) -> bytes:
    return session.told(await env.bring_back(body))


async def _close(_session: NodeSession, env: Env, _: bytes) -> bytes:
    await env.close()
    return protocol.encode_message({})


_CALLS = {
    "open": _open,
    "reset": _reset,
    "step": _step,
    "checkpoint": _checkpoint,
    "restore": _restore,
    "keep": _keep,
    "bring_back": _bring_back,
    "close": _close,
}


class EnvNode:
    """lenders: by kind. Its sessions begin with their first call. film: bytes of each one's episode that are kept."""

    def __init__(
        self, name: str, token: str, lenders: Mapping[str, EnvPool], identities: Mapping[str, str], film: int = 0
    ) -> None:
        self.name, self.boot, self._film = name, secrets.token_hex(8), film
        self._token, self._lenders, self._identities = token, lenders, identities
        self.sessions: dict[str, NodeSession] = {}
        self._over: dict[str, float] = {}  # sessions that have ended, until their leases would have

    def application(self) -> web.Application:
        made = web.Application(client_max_size=_MAX_CALL_BYTES)
        made.add_routes(
            [web.post("/sessions/{session}/{call}", self._called), web.delete("/sessions/{session}", self._end)]
        )
        watch.add_watch_routes(made, self.sessions, self._token)
        made.on_shutdown.append(self._shut)
        return made

    async def end(self, sessions: Iterable[str]) -> None:
        """Those of them that are here."""
        found = {one: self.sessions.pop(one) for one in sessions if one in self.sessions}
        self._over |= {one: session.until for one, session in found.items()}
        self._over = {one: until for one, until in self._over.items() if until > time.time()}
        await asyncio.gather(*(session.end() for session in found.values()))

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _called(self, request: web.Request) -> web.Response:
        name, call = request.match_info["session"], request.match_info["call"]
        try:
            note = self._note(request, name)
            if call not in _CALLS:
                raise BadInput(f"there is no call {call}", where="node")
            body = await request.read()
            session = self.sessions.get(name) or self._begin(note)
            return web.Response(body=await session.call(call, body))
        except PermissionError as error:
            return web.Response(status=403, body=protocol.encode_error(EnvError(str(error), where=f"node {self.name}")))
        except BadInput as error:
            return web.Response(status=422, body=protocol.encode_error(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = BadInput(f"the call cannot be read: {type(error).__name__} {error}", where=f"node {self.name}")
            return web.Response(status=422, body=protocol.encode_error(fault))
        except Exception as error:
            return web.Response(status=500, body=protocol.encode_error(error))

    def _note(self, request: web.Request, session: str) -> LeaseToken:
        try:
            note = LeaseToken.read(request.headers.get("X-Lease", ""), self._token)
        except (ValueError, TypeError) as error:
            raise PermissionError(str(error)) from None
        if note.session != session or note.node != self.name:
            raise PermissionError("the lease is of another session")
        if note.until < time.time() or session in self._over:
            raise PermissionError("the lease is over")
        return note

    def _begin(self, note: LeaseToken) -> NodeSession:
        lender = self._lenders.get(note.kind)
        if lender is None or self._identities[note.kind] != note.identity:
            raise EnvError(f"this node has no {note.kind} of these settings", where=f"node {self.name}")
        made = self.sessions[note.session] = NodeSession(lender, note, self._film)
        return made

    async def _end(self, request: web.Request) -> web.Response:
        try:
            note = self._note(request, request.match_info["session"])
        except PermissionError as error:
            return web.Response(status=403, body=protocol.encode_error(EnvError(str(error), where=f"node {self.name}")))
        self._over[note.session] = note.until  # also one that has not begun
        await self.end([note.session])
        return web.Response(body=protocol.encode_message({}))

    async def _shut(self, _: web.Application) -> None:
        await self.end(list(self.sessions))


async def send_heartbeats(
    node: EnvNode, manager: str, token: str, about: Mapping[str, Any], until_empty: asyncio.Event
) -> None:
    """Register, be heard of, end what is over; for ever. until_empty: is set when the manager drains the node and its
    last session has ended."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(manager, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as client:
        registered = False
        while True:
            try:
                if not registered:
                    await _post_to_manager(client, f"/nodes/{node.name}", {"boot": node.boot, **about})
                    registered = True
                late = [one for one, session in node.sessions.items() if session.until < time.time()]
                said = await _post_to_manager(
                    client, f"/nodes/{node.name}/beat", {"boot": node.boot, "sessions": list(node.sessions)}
                )
                registered = said is not None
                await node.end({*late, *(said or {}).get("end", ())})
                if said and said["draining"] and not node.sessions:
                    until_empty.set()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("the manager does not answer: %s", error)
            await asyncio.sleep(_BEAT_S if registered else _BEAT_S / 4)


async def _post_to_manager(client: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where the node has to register. Raises BadInput where the manager refuses it."""
    async with client.post(path, json=body) as answer:
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise BadInput(f"the manager refuses this node: {(await answer.text())[:200]}", where="manager")
        return await answer.json()


@asynccontextmanager
async def open_node(
    name: str, token: str, settings: Settings, names: Iterable[str], root: Path | None = None, film: int = 0
) -> AsyncIterator[tuple[EnvNode, dict[str, tuple[int, str]]]]:
    """A node with environments of these kinds; what it has to offer: places and the identity of settings by kind.
    film: as of `Node`."""
    names = list(names)
    found = {one: kinds.find_backend(one) for one in names}
    identities = {one: protocol.hash_backend_settings(kind.identity(settings)) for one, kind in found.items()}
    places = {one: (kind.limits(settings).places, identities[one]) for one, kind in found.items()}
    async with open_env_pools(settings, names, root) as lenders:
        node = EnvNode(name, token, lenders, identities, film)
        try:
            yield node, places
        finally:
            with contextlib.suppress(Exception):
                await node.end(list(node.sessions))


# A manager, or a node, listens for as long as it is wanted: for the command and for a run's own cluster alike.

_MAX_WAITING_CONNECTIONS = 2048  # connections that wait to be taken


@asynccontextmanager
async def serve_application(application: web.Application, host: str, port: int = 0) -> AsyncIterator[str]:
    """Its address, until the end of the block. port: 0 takes a free one. Raises BadInput where it is in use."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        with errors_of_port(port, host):
            await web.TCPSite(runner, host, port, backlog=_MAX_WAITING_CONNECTIONS).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def run_node(
    opening: AbstractAsyncContextManager[tuple[EnvNode, Mapping[str, Any]]],
    token: str,
    *,
    manager: str,
    host: str,
    port: int = 0,
    address: str = "",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Be a node, until it was drained. opening: `nodes.opened(...)`. address: where who plays finds it; empty: where it
    listens. ready: is told the address. Raises BadInput where the manager refuses it, or the port is in use, and what
    `opening` raises."""
    async with opening as (made, places), serve_application(made.application(), host, port) as own:
        empty = asyncio.Event()
        about = {"address": address or own, "places": places}
        working = [
            asyncio.ensure_future(send_heartbeats(made, manager, token, about, empty)),
            asyncio.ensure_future(empty.wait()),
        ]
        ready(about["address"])
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in working:
                one.cancel()
            await asyncio.gather(*working, return_exceptions=True)
