"""A node: environments of this machine, played from others by whoever has a lease that the manager signed.

What the manager does not know of any more is ended at the next beat. Without a manager the sessions that there are go
on: their leases say until when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from flywheel.agent.actions import Action
from flywheel.agent.packing import unpack
from flywheel.environments import kind as kinds
from flywheel.environments import wire
from flywheel.environments.env import Checkpointable, Env, Keepable, StepResult, Task
from flywheel.environments.kind import Lender
from flywheel.environments.router import open_kinds
from flywheel.environments.wire import LeaseNote
from flywheel.errors import BadInput, EnvError
from flywheel.manager import watching
from flywheel.manager.film import Film
from flywheel.settings import Settings

log = logging.getLogger(__name__)
_BEAT_S = 2.0
_MOST = 64 * 2**20  # bytes of a call: a task with its files, a checkpoint


class Session:
    """An environment for as long as its lease; it is entered and left by one task. film: bytes of its episode that are
    kept."""

    def __init__(self, lender: Lender, note: LeaseNote, film: int = 0) -> None:
        self.until, self.film = note.until, Film(film)
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

    async def _live(self, lender: Lender) -> None:
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
        return wire.result_sent(result)

    async def end(self) -> None:
        self._over.set()
        if not self._env.done():
            self.life.cancel()
        await asyncio.wait([self.life])


async def _open(_session: Session, env: Env, _: bytes) -> bytes:
    return wire.message({"checkpoints": isinstance(env, Checkpointable), "keeps": isinstance(env, Keepable)})


async def _reset(session: Session, env: Env, body: bytes) -> bytes:
    said, _ = wire.opened(body)
    session.task, session.steps = wire.task_read(said["task"]), -1
    session.film.begin(session.task, said["seed"])
    return session.told(await env.reset(session.task, said["seed"]))


async def _step(session: Session, env: Env, body: bytes) -> bytes:
    (action,) = unpack(body.decode())
    return session.told(await env.step(action), action)


async def _checkpoint(_session: Session, env: Env, _: bytes) -> bytes:
    return wire.message({}, await env.checkpoint())


async def _restore(session: Session, env: Env, body: bytes) -> bytes:
    return session.told(await env.restore(body))


async def _keep(_session: Session, env: Env, _: bytes) -> bytes:
    return wire.message({}, await env.keep())


async def _bring_back(session: Session, env: Env, body: bytes) -> bytes:
    return session.told(await env.bring_back(body))


async def _close(_session: Session, env: Env, _: bytes) -> bytes:
    await env.close()
    return wire.message({})


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


class Node:
    """lenders: by kind. Its sessions begin with their first call. film: bytes of each one's episode that are kept."""

    def __init__(
        self, name: str, token: str, lenders: Mapping[str, Lender], identities: Mapping[str, str], film: int = 0
    ) -> None:
        self.name, self.boot, self._film = name, secrets.token_hex(8), film
        self._token, self._lenders, self._identities = token, lenders, identities
        self.sessions: dict[str, Session] = {}
        self._over: dict[str, float] = {}  # sessions that have ended, until their leases would have

    def application(self) -> web.Application:
        made = web.Application(client_max_size=_MOST)
        made.add_routes(
            [web.post("/sessions/{session}/{call}", self._called), web.delete("/sessions/{session}", self._end)]
        )
        watching.add(made, self.sessions, self._token)
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
            return web.Response(status=403, body=wire.error_sent(EnvError(str(error), where=f"node {self.name}")))
        except BadInput as error:
            return web.Response(status=422, body=wire.error_sent(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = BadInput(f"the call cannot be read: {type(error).__name__} {error}", where=f"node {self.name}")
            return web.Response(status=422, body=wire.error_sent(fault))
        except Exception as error:
            return web.Response(status=500, body=wire.error_sent(error))

    def _note(self, request: web.Request, session: str) -> LeaseNote:
        try:
            note = LeaseNote.read(request.headers.get("X-Lease", ""), self._token)
        except (ValueError, TypeError) as error:
            raise PermissionError(str(error)) from None
        if note.session != session or note.node != self.name:
            raise PermissionError("the lease is of another session")
        if note.until < time.time() or session in self._over:
            raise PermissionError("the lease is over")
        return note

    def _begin(self, note: LeaseNote) -> Session:
        lender = self._lenders.get(note.kind)
        if lender is None or self._identities[note.kind] != note.identity:
            raise EnvError(f"this node has no {note.kind} of these settings", where=f"node {self.name}")
        made = self.sessions[note.session] = Session(lender, note, self._film)
        return made

    async def _end(self, request: web.Request) -> web.Response:
        try:
            note = self._note(request, request.match_info["session"])
        except PermissionError as error:
            return web.Response(status=403, body=wire.error_sent(EnvError(str(error), where=f"node {self.name}")))
        self._over[note.session] = note.until  # also one that has not begun
        await self.end([note.session])
        return web.Response(body=wire.message({}))

    async def _shut(self, _: web.Application) -> None:
        await self.end(list(self.sessions))


async def beats(node: Node, manager: str, token: str, about: Mapping[str, Any], until_empty: asyncio.Event) -> None:
    """Register, be heard of, end what is over; for ever. until_empty: is set when the manager drains the node and its
    last session has ended."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(manager, headers=headers, timeout=aiohttp.ClientTimeout(total=10)) as client:
        registered = False
        while True:
            try:
                if not registered:
                    await _said(client, f"/nodes/{node.name}", {"boot": node.boot, **about})
                    registered = True
                late = [one for one, session in node.sessions.items() if session.until < time.time()]
                said = await _said(
                    client, f"/nodes/{node.name}/beat", {"boot": node.boot, "sessions": list(node.sessions)}
                )
                registered = said is not None
                await node.end({*late, *(said or {}).get("end", ())})
                if said and said["draining"] and not node.sessions:
                    until_empty.set()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("the manager does not answer: %s", error)
            await asyncio.sleep(_BEAT_S if registered else _BEAT_S / 4)


async def _said(client: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where the node has to register. Raises BadInput where the manager refuses it."""
    async with client.post(path, json=body) as answer:
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise BadInput(f"the manager refuses this node: {(await answer.text())[:200]}", where="manager")
        return await answer.json()


@asynccontextmanager
async def opened(
    name: str, token: str, settings: Settings, names: Iterable[str], root: Path | None = None, film: int = 0
) -> AsyncIterator[tuple[Node, dict[str, tuple[int, str]]]]:
    """A node with environments of these kinds; what it has to offer: places and the identity of settings by kind.
    film: as of `Node`."""
    names = list(names)
    found = {one: kinds.find(one) for one in names}
    identities = {one: wire.identity(kind.identity(settings)) for one, kind in found.items()}
    places = {one: (kind.limits(settings).places, identities[one]) for one, kind in found.items()}
    async with open_kinds(settings, names, root) as lenders:
        node = Node(name, token, lenders, identities, film)
        try:
            yield node, places
        finally:
            with contextlib.suppress(Exception):
                await node.end(list(node.sessions))
