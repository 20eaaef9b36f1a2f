"""Run a node, which serves this machine's environments to clients with a lease that the manager signed.

A session that the manager does not know is ended at the next heartbeat. Without a manager sessions go on until their
leases end; later calls are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.registry import EnvPool, open_env_pools
from flywheel.envs.remote import protocol, watch
from flywheel.envs.remote.node_session import CALLS, EpisodeHistory, NodeSession
from flywheel.envs.remote.protocol import LeaseToken
from flywheel.utils.errors import BadInput, EnvError
from flywheel.utils.local_ports import errors_of_port

log = logging.getLogger(__name__)
_BEAT_S = 2.0
_MAX_CALL_BYTES = 64 * 2**20  # bytes of a call: a task with its files, a checkpoint


class EnvNode:
    """Hold the environments of this machine, and the sessions that clients play; a session begins with its first call.

    name: of the node. token: the manager's. pools, identities: back-end -> pool of its environments, hash of its
    settings. film: bytes of each session's episode that are kept for watchers. sessions: by id. boot: random id of this
    start. takeovers: whether people may take sessions over as data, so that whole episodes are kept; taken: those
    sessions, by id, which are no client's any more. pages: add routes to the application (`ui/annotate/takeover.py`).
    """

    def __init__(
        self,
        name: str,
        token: str,
        pools: Mapping[str, EnvPool],
        identities: Mapping[str, str],
        film: int = 0,
        takeovers: bool = False,
    ) -> None:
        self.name, self.boot, self._film, self.takeovers = name, secrets.token_hex(8), film, takeovers
        self.taken: dict[str, NodeSession] = {}
        self.pages: list[Callable[[web.Application], None]] = []
        self._token, self._pools, self._identities = token, pools, identities
        self.sessions: dict[str, NodeSession] = {}
        self._over: dict[str, float] = {}  # ended session -> end of its lease; its calls are refused

    def application(self) -> web.Application:
        """Make the node's HTTP application: clients' calls, and the watch pages; its shutdown ends all sessions."""
        made = web.Application(client_max_size=_MAX_CALL_BYTES)
        made.add_routes(
            [web.post("/sessions/{session}/{call}", self._called), web.delete("/sessions/{session}", self._end)]
        )
        watch.add_watch_routes(made, self.sessions, self._token, takeovers=self.takeovers)
        for add in self.pages:
            add(made)
        made.on_shutdown.append(lambda _: self.end(list(self.sessions)))
        return made

    async def end(self, sessions: Iterable[str]) -> None:
        """End the sessions with these ids; ids that are not here are skipped."""
        found = {one: self.sessions.pop(one) for one in sessions if one in self.sessions}
        self._over |= {one: session.until for one, session in found.items()}
        self._over = {one: until for one, until in self._over.items() if until > time.time()}
        await asyncio.gather(*(session.end() for session in found.values()))

    async def take(self, session: str, person: str) -> NodeSession:
        """Take a session from its client for a person, once the running call has ended, and return it.

        The client's next call fails as one whose environment is lost; the caller ends the session by `give_back`.
        session: its id. person: name. Raises BadInput where the session is over, taken already, or its episode is not
        here from the beginning.
        """
        found = self.sessions.get(session)
        if found is None:
            who = f"{self.taken[session].taken_by} has taken it over" if session in self.taken else "it is over"
            raise BadInput(who, where=f"session {session}", fix="choose another one")
        async with found.lock:
            history = found.history
            if history is None or history.missing:
                why = history.missing if history else "the node was started without a workspace"
                raise BadInput(f"it cannot become data: {why}", where=f"session {session}", fix="watch it alone")
            if self.sessions.pop(session, None) is None:
                raise BadInput("it is over", where=f"session {session}", fix="choose another one")
            found.taken_by = person
            self.taken[session] = found
        return found

    def lend(self, kind: str) -> NodeSession:
        """Open a session of the back-end `kind` without a lease, in place of a lost one; the caller ends it.

        Raises KeyError for a back-end that this node does not play.
        """
        return NodeSession(self._pools[kind], LeaseToken("", self.name, kind, self._identities[kind], 0.0))

    def give_back(self, session: str) -> None:
        """Forget a session that was taken; its environment is ended by whoever took it."""
        if (found := self.taken.pop(session, None)) is not None:
            self._over[session] = found.until

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _called(self, request: web.Request) -> web.Response:
        name, call = request.match_info["session"], request.match_info["call"]
        try:
            note = self._note(request, name)
            if call not in CALLS:
                raise BadInput(f"there is no call {call}", where="node")
            body = await request.read()
            session = self.sessions.get(name) or self.taken.get(name) or self._begin(note)
            return web.Response(body=await session.call(call, body))
        except PermissionError as error:
            return self._refused(error)
        except BadInput as error:
            return web.Response(status=422, body=protocol.encode_error(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = BadInput(f"the call cannot be read: {type(error).__name__} {error}", where=f"node {self.name}")
            return web.Response(status=422, body=protocol.encode_error(fault))
        except Exception as error:
            return web.Response(status=500, body=protocol.encode_error(error))

    def _refused(self, error: PermissionError) -> web.Response:
        return web.Response(status=403, body=protocol.encode_error(EnvError(str(error), where=f"node {self.name}")))

    def _note(self, request: web.Request, session: str) -> LeaseToken:
        try:
            note = LeaseToken.parse(request.headers.get("X-Lease", ""), self._token)
        except (ValueError, TypeError) as error:
            raise PermissionError(str(error)) from None
        if note.session != session or note.node != self.name:
            raise PermissionError("the lease is of another session")
        if note.until < time.time() or session in self._over:
            raise PermissionError("the lease is over")
        return note

    def _begin(self, note: LeaseToken) -> NodeSession:
        pool = self._pools.get(note.kind)
        if pool is None or self._identities[note.kind] != note.identity:
            raise EnvError(f"this node has no {note.kind} of these settings", where=f"node {self.name}")
        history = EpisodeHistory() if self.takeovers else None
        made = self.sessions[note.session] = NodeSession(pool, note, self._film, history)
        return made

    async def _end(self, request: web.Request) -> web.Response:
        try:
            note = self._note(request, request.match_info["session"])
        except PermissionError as error:
            return self._refused(error)
        self._over[note.session] = note.until  # also of a session that has not begun
        await self.end([note.session])
        return web.Response(body=protocol.encode_message({}))


async def send_heartbeats(
    node: EnvNode, manager: str, token: str, about: Mapping[str, Any], until_empty: asyncio.Event
) -> None:
    """Register a node with the manager, then send heartbeats for ever, and end the sessions that are over.

    manager: its address. token: the manager's. about: fields of the registration. until_empty: set once the node is
    drained and has no session. Raises BadInput where the manager refuses the node, or `manager` is not the address of
    one.
    """
    headers = {"Authorization": f"Bearer {token}"}
    try:
        opened = aiohttp.ClientSession(manager, headers=headers, timeout=aiohttp.ClientTimeout(total=10))
    except ValueError as error:
        what = f"not the address of a manager: {error}"
        raise BadInput(what, where=f"manager: {manager}", fix="name its address, such as http://HOST:4300") from None
    async with opened as client:
        registered = False
        while True:
            await node.end([one for one, session in node.sessions.items() if session.until < time.time()])
            try:
                if not registered:
                    path = f"/nodes/{node.name}"
                    if await _post_to_manager(client, path, {"boot": node.boot, **about}) is None:
                        raise BadInput("what answers there is no manager", where=manager, fix="name its address")
                    registered = True
                answer = await _post_to_manager(
                    client, f"/nodes/{node.name}/beat", {"boot": node.boot, "sessions": list(node.sessions)}
                )
                registered = answer is not None
                await node.end((answer or {}).get("end", ()))
                if answer and answer.get("draining") and not (node.sessions or node.taken):
                    until_empty.set()
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("the manager does not answer: %s", error)
            await asyncio.sleep(_BEAT_S if registered else _BEAT_S / 4)


async def _post_to_manager(client: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Post JSON and return the answer; None for status 404, which a heartbeat gets where the node must register first.

    Raises BadInput where the manager refuses, or the address is not a manager's.
    """
    async with client.post(path, json=body) as answer:
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise BadInput(f"the manager refuses this node: {(await answer.text())[:200]}", where="manager")
        try:
            told = await answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict) or not isinstance(told.get("draining", False), bool):
            raise BadInput("what answers there is no manager", where=str(client._base_url), fix="name its address")
        return told


@asynccontextmanager
async def open_node(
    name: str,
    token: str,
    settings: Settings,
    names: Iterable[str],
    root: Path | None = None,
    film: int = 0,
    takeovers: bool = False,
) -> AsyncIterator[tuple[EnvNode, dict[str, tuple[int, str]]]]:
    """Open the environments of this machine as a node, which `run_node` then serves and registers with a manager.

    Yields (the node, its places: back-end -> (number of environments, hash of its settings)), for the registration. At
    the end of the block its sessions are ended and its environments closed.

    name: of the node. token: the manager's, by which leases are signed. settings: of the back-ends. names: of the
    back-ends to open. root: the folder that relative paths in the settings count from; None: the current one. film:
    bytes of each session's newest steps (one at least) that are kept for watchers; 0: none. takeovers: whether people
    may take sessions over as data, so that whole episodes are kept. Raises BadInput for an unknown back-end, wrong
    settings of one, or something missing that it needs; EnvTimeout where one does not open or close in time; EnvError
    where one cannot be opened.
    """
    names = list(names)
    found = {one: registry.find_backend(one) for one in names}
    identities = {one: protocol.hash_backend_settings(kind.identity(settings)) for one, kind in found.items()}
    places = {one: (kind.limits(settings).places, identities[one]) for one, kind in found.items()}
    async with open_env_pools(settings, names, root) as pools:
        node = EnvNode(name, token, pools, identities, film, takeovers)
        try:
            yield node, places
        finally:
            with contextlib.suppress(Exception):
                await node.end(list(node.sessions))
                await asyncio.gather(*(session.end() for session in node.taken.values()))


_MAX_WAITING_CONNECTIONS = 2048  # that wait to be accepted


@asynccontextmanager
async def serve_application(application: web.Application, host: str, port: int = 0) -> AsyncIterator[str]:
    """Serve an application until the block ends; yields its address, `http://HOST:PORT`.

    host, port: where it listens, a name or an address, which the result repeats (IPv6 in brackets); port 0 takes a free
    one. The end of the block waits up to 60 s for running requests, then cancels them. Raises BadInput where the port
    is in use, or nothing can listen there.
    """
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            with errors_of_port(port, host):
                await web.TCPSite(runner, host, port, backlog=_MAX_WAITING_CONNECTIONS).start()
        except (OSError, OverflowError, UnicodeError) as error:  # the others: too large a port, no name of a host
            what = f"cannot serve at {host}:{port}: {getattr(error, 'strerror', '') or error}"
            raise BadInput(what, where="--host, --port", fix="give another address") from None
        yield f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}"
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
    """Run a node until the manager has drained it and its last session has ended, or until it is cancelled.

    It registers with the manager, and again where the manager has forgotten it; a manager that does not answer is tried
    again for ever. opening: `open_node(...)`, entered and left here. token: the manager's, sent as a bearer token.
    manager: its address, such as `http://HOST:4300`. host, port: where the node listens; port 0 takes a free one.
    address: at which clients reach it, in the same form; "": where it listens. ready: called with that address once it
    listens, before it registers. Raises BadInput where the manager refuses the node, `manager` is no address, the port
    is in use or nothing can listen there, and what `opening` raises.
    """
    async with opening as (made, places), serve_application(made.application(), host, port) as own:
        empty = asyncio.Event()
        about = {"address": address or own, "places": places}
        ready(about["address"])
        beating = send_heartbeats(made, manager, token, about, empty)
        for ended in await watch.run_until_first_ends(beating, empty.wait()):
            ended.result()
