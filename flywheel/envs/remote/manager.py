"""Run the manager, which leases environments of registered nodes: the ledger of leases and its HTTP application."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from flywheel.envs.remote.protocol import LeaseToken
from flywheel.utils.errors import BadInput, DataError

_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (id TEXT PRIMARY KEY, boot TEXT, address TEXT, places TEXT, draining INTEGER);
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, user TEXT, node TEXT, kind TEXT, identity TEXT, since REAL, until REAL);
"""


class NoCapacity(Exception):
    """Signal that no node has a free environment of a back-end, or that the user has reached the limit of sessions."""


@dataclass
class NodeRecord:
    """Hold what the manager knows of a registered node.

    id: its name. boot: random id of its current start. places: back-end -> number of environments, hash of its
    settings. heard: time of its last heartbeat, in seconds since 1970. draining: it gets no new sessions. taken:
    sessions by back-end.
    """

    id: str
    boot: str
    address: str
    places: dict[str, tuple[int, str]]
    heard: float
    draining: bool = False
    taken: Counter[str] = field(default_factory=Counter)


@dataclass
class LeasedSession:
    """Hold a lease: the environment of a back-end (`kind`) that `user` has on `node`.

    identity: hash of the back-end's settings. since, until: of the lease, and heard: of the user's last heartbeat, in
    seconds since 1970.
    """

    id: str
    user: str
    node: str
    kind: str
    identity: str
    since: float
    until: float
    heard: float


@dataclass(frozen=True)
class LeasePolicy:
    """Hold the limits of sessions in time and number.

    lease_s: seconds that a session may last. silent_s, node_silent_s: seconds without a heartbeat of its user, or its
    node, after which it ends. per_user: sessions of one user at once; 0: no limit.
    """

    lease_s: float = 3600.0
    silent_s: float = 60.0
    node_silent_s: float = 30.0
    per_user: int = 0


class LeaseLedger:
    """Keep nodes and sessions in memory, and in a SQLite file from which a restarted manager goes on.

    What a crash may not lose (a lease, its end, a node) is written before the request is answered; after a start all
    sessions count as just heard of. path: the file, created where it is missing. terms: limits of sessions. clock:
    returns seconds since 1970. Not for several threads. Raises DataError where the file is not a manager's or cannot be
    opened; methods that add, change or end nodes and sessions raise sqlite3.Error where it cannot be written.
    """

    def __init__(self, path: Path, terms: LeasePolicy, clock: Callable[[], float] = time.time) -> None:
        self._terms, self._clock = terms, clock
        self.nodes: dict[str, NodeRecord] = {}
        self.sessions: dict[str, LeasedSession] = {}
        self.ended: Counter[str] = Counter()  # since the start: reason -> number of sessions that it ended
        self._by_user: Counter[str] = Counter()
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._read()
        except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"not a manager's file: {error}", where=path, fix="name another --state") from None

    def register(self, node: str, boot: str, address: str, places: Mapping[str, tuple[int, str]]) -> None:
        """Add a node that has started, or that this manager does not know; ends its sessions from before that start.

        node: its name. boot: changes with each start. address: where clients reach it. places: back-end -> (number of
        environments, hash of its settings).
        """
        known = self.nodes.get(node)
        if known is not None and known.boot != boot:
            self._end([session for session in self.sessions.values() if session.node == node], "the node began anew")
        taken = known.taken if known is not None else Counter()
        new = NodeRecord(node, boot, address, dict(places), self._clock(), bool(known and known.draining), taken)
        self.nodes[node] = new
        self._keep_node(new)

    def beat(self, node: str, boot: str, has: Iterable[str]) -> list[str]:
        """Record a node's heartbeat; returns the ids of sessions that it must end: over, or another node's.

        node: its name. boot: as registered. has: ids of the sessions that it plays, of which some are returned. Raises
        KeyError where the node must register first.
        """
        known = self.nodes[node]
        if known.boot != boot:
            raise KeyError(node)
        known.heard = self._clock()
        return [one for one in has if one not in self.sessions or self.sessions[one].node != node]

    def lease(self, user: str, kind: str, identity: str) -> tuple[LeasedSession, NodeRecord]:
        """Lease an environment of the back-end `kind` to `user`; returns the session and its node, the least occupied.

        identity: the hash of the back-end's settings. Raises NoCapacity where none is free or `user` has reached the
        limit, BadInput where waiting would not help: all nodes with the back-end have other settings.
        """
        if self._terms.per_user and self._by_user[user] >= self._terms.per_user:
            raise NoCapacity(f"{user} has {self._terms.per_user} sessions, which is as many as a user may have")
        having = [node for node in self.nodes.values() if kind in node.places]
        if not having:
            raise NoCapacity(f"no node has environments of the kind {kind}: start one by `flywheel env server node`")
        alike = [node for node in having if node.places[kind][1] == identity]
        if not alike:
            raise BadInput(
                f"the nodes play {kind} by other settings than this run", where="sandbox",
                fix="give them the run's params.yaml: flywheel env server node --workspace",
            )  # fmt: skip
        free = [node for node in alike if not node.draining and node.taken[kind] < node.places[kind][0]]
        if not free:
            raise NoCapacity(f"all places for {kind} are taken")
        node = min(free, key=lambda one: one.taken[kind] / one.places[kind][0])
        now = self._clock()
        row = (secrets.token_urlsafe(12), user, node.id, kind, identity, now, now + self._terms.lease_s)
        self._db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        session = LeasedSession(*row, heard=now)
        self._add(session)
        return session, node

    def release(self, session: str) -> bool:
        """End the session with the id `session`; returns whether there was one."""
        found = self.sessions.get(session)
        if found is not None:
            self._end([found], "released")
        return found is not None

    def record_user_heartbeat(self, sessions: Iterable[str]) -> list[str]:
        """Record heartbeats of sessions, by id, from their users; returns the ids of sessions that are over."""
        over, now = [], self._clock()
        for session in sessions:
            if (found := self.sessions.get(session)) is not None:
                found.heard = now
            else:
                over.append(session)
        return over

    def reclaim(self) -> dict[str, str]:
        """End sessions that are overdue, or whose user or node is silent, and forget silent nodes.

        Returns the ids of the ended sessions, each with the reason in words.
        """
        now, found = self._clock(), {}
        for node in [one for one in self.nodes.values() if now - one.heard > self._terms.node_silent_s]:
            found |= self._end(
                [session for session in self.sessions.values() if session.node == node.id], "the node is silent"
            )
            del self.nodes[node.id]
            self._db.execute("DELETE FROM nodes WHERE id = ?", (node.id,))
        found |= self._end([one for one in self.sessions.values() if now > one.until], "overdue")
        silent = [one for one in self.sessions.values() if now - one.heard > self._terms.silent_s]
        return found | self._end(silent, "nobody is heard of")

    def drain(self, node: str, draining: bool = True) -> None:
        """Stop leasing on a node, or, with `draining` False, lease on it again; its sessions go on.

        node: its name. Raises KeyError where there is no such node.
        """
        self.nodes[node].draining = draining
        self._keep_node(self.nodes[node])

    def close(self) -> None:
        """Close the file; no other method may be called then."""
        self._db.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    def _read(self) -> None:
        now = self._clock()
        for node, boot, address, places, draining in self._db.execute("SELECT * FROM nodes"):
            self.nodes[node] = NodeRecord(node, boot, address, _parse_places(places), now, bool(draining))
        for row in self._db.execute("SELECT * FROM sessions"):
            self._add(LeasedSession(*row, heard=now))

    def _add(self, session: LeasedSession) -> None:
        self.sessions[session.id] = session
        self._by_user[session.user] += 1
        if session.node in self.nodes:
            self.nodes[session.node].taken[session.kind] += 1

    def _end(self, sessions: Iterable[LeasedSession], why: str) -> dict[str, str]:
        found = {}
        for session in sessions:
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session.id,))
            del self.sessions[session.id]
            self._by_user[session.user] -= 1
            if session.node in self.nodes:
                self.nodes[session.node].taken[session.kind] -= 1
            self.ended[why] += 1
            found[session.id] = why
        return found

    def _keep_node(self, node: NodeRecord) -> None:
        places = ";".join(f"{kind}={count}={identity}" for kind, (count, identity) in node.places.items())
        row = (node.id, node.boot, node.address, places, node.draining)
        self._db.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", row)


def _parse_places(text: str) -> dict[str, Any]:
    parts = (one.split("=") for one in text.split(";") if one)
    return {kind: (int(count), identity) for kind, count, identity in parts}


log = logging.getLogger(__name__)
_RECLAIM_S = 1.0
_MAX_REQUEST_BYTES = 2**20  # bytes of a request
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def manager_application(ledger: LeaseLedger, token: str) -> web.Application:
    """Make the HTTP application of the manager, the service that leases environments of several nodes to clients.

    ledger: the nodes and leases; each second overdue ones are ended, and at its end the application closes it. token:
    that nodes and clients send as a bearer token. The response to a failed request is JSON with `error`, for 400 also
    `where` and `fix`: 400 refused input, 401 wrong token, 404 heartbeat of an unregistered node, 409 no environment is
    free (try again later), 422 unreadable request. An unknown route (404, 405), a body above 1 MiB (413) and a ledger
    whose file cannot be written (500) are answered by a text.
    """
    manager = _ManagerHandlers(ledger, token)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return _error_response(401, "the token is missing or wrong")
        try:
            return await handler(request)
        except NoCapacity as error:
            return _error_response(409, str(error))
        except BadInput as error:
            return _error_response(400, error.what, where=error.where, fix=error.fix)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _error_response(422, f"the request cannot be read: {type(error).__name__} {error}")

    made = web.Application(middlewares=[guard], client_max_size=_MAX_REQUEST_BYTES)
    made.add_routes(
        [
            web.post("/nodes/{node}", manager.register),
            web.post("/nodes/{node}/beat", manager.beat),
            web.post("/nodes/{node}/drain", manager.drain),
            web.post("/sessions", manager.lease),
            web.post("/sessions/beat", manager.heard),
            web.delete("/sessions/{session}", manager.release),
            web.get("/sessions", manager.sessions),
            web.get("/status", manager.status),
        ]
    )
    made.cleanup_ctx.append(manager.reclaiming)
    return made


class _ManagerHandlers:
    def __init__(self, ledger: LeaseLedger, token: str) -> None:
        self._ledger, self._token = ledger, token

    async def register(self, request: web.Request) -> web.Response:
        body = await request.json()
        places = {kind: (int(count), str(identity)) for kind, (count, identity) in body["places"].items()}
        self._ledger.register(request.match_info["node"], body["boot"], body["address"], places)
        return web.json_response({})

    async def beat(self, request: web.Request) -> web.Response:
        body, node = await request.json(), request.match_info["node"]
        boot, sessions = body["boot"], body["sessions"]
        try:
            end = self._ledger.beat(node, boot, sessions)
        except KeyError:
            return _error_response(404, "this node is not registered")
        return web.json_response({"end": end, "draining": self._ledger.nodes[node].draining})

    async def drain(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        if node not in self._ledger.nodes:
            raise BadInput(f"there is no node {node}", where="manager", fix="flywheel env server status lists them")
        self._ledger.drain(node, (await request.json()).get("draining", True))
        return web.json_response({})

    async def lease(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        session, node = self._ledger.lease(str(body["user"]), str(body["kind"]), str(body["identity"]))
        note = LeaseToken(session.id, node.id, session.kind, session.identity, session.until).sign(self._token)
        return web.json_response({"session": session.id, "address": node.address, "note": note})

    async def heard(self, request: web.Request) -> web.Response:
        return web.json_response({"over": self._ledger.record_user_heartbeat((await request.json())["sessions"])})

    async def release(self, request: web.Request) -> web.Response:
        return web.json_response({"released": self._ledger.release(request.match_info["session"])})

    async def sessions(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(session) for session in self._ledger.sessions.values()])

    async def status(self, _: web.Request) -> web.Response:
        nodes = [
            {"id": node.id, "address": node.address, "draining": node.draining, "heard": node.heard,
             "places": {kind: {"of": count, "taken": node.taken[kind]} for kind, (count, _) in node.places.items()}}
            for node in self._ledger.nodes.values()
        ]  # fmt: skip
        users = Counter(session.user for session in self._ledger.sessions.values())
        ended = dict(self._ledger.ended)
        return web.json_response(
            {"nodes": nodes, "sessions": len(self._ledger.sessions), "users": users, "ended": ended}
        )

    async def reclaiming(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._reclaim())
        yield
        task.cancel()
        self._ledger.close()

    async def _reclaim(self) -> None:
        while True:
            await asyncio.sleep(_RECLAIM_S)
            try:
                ended = self._ledger.reclaim()
            except sqlite3.Error as error:  # such as a full disk, which may be emptied
                log.warning("sessions that are over cannot be ended: %s", error)
                continue
            for session, why in ended.items():
                log.info("session %s is over: %s", session, why)


def _error_response(status: int, error: str, **more: str) -> web.Response:
    return web.json_response({"error": error, **more}, status=status)
