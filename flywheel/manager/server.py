"""The manager over HTTP: nodes register and are heard of, sessions are leased and given back.

One token for all of it, as a bearer's. Answers that are no success have `error`, and 409 is worth another try.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict

from aiohttp import web

from flywheel.environments.wire import LeaseNote
from flywheel.errors import BadInput
from flywheel.manager.ledger import Ledger, NoPlace

log = logging.getLogger(__name__)
_RECLAIM_S = 1.0
_MOST = 2**20  # bytes of a request
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(ledger: Ledger, token: str) -> web.Application:
    """The ledger is closed with it."""
    manager = _Manager(ledger, token)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return _refused(401, "the token is missing or wrong")
        try:
            return await handler(request)
        except NoPlace as error:
            return _refused(409, str(error))
        except BadInput as error:
            return _refused(400, error.what, where=error.where, fix=error.fix)
        except (ValueError, KeyError, TypeError) as error:
            return _refused(422, f"the request cannot be read: {type(error).__name__} {error}")

    made = web.Application(middlewares=[guard], client_max_size=_MOST)
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


class _Manager:
    def __init__(self, ledger: Ledger, token: str) -> None:
        self._ledger, self._token = ledger, token

    async def register(self, request: web.Request) -> web.Response:
        said = await request.json()
        places = {kind: (int(count), str(identity)) for kind, (count, identity) in said["places"].items()}
        self._ledger.register(request.match_info["node"], said["boot"], said["address"], places)
        return web.json_response({})

    async def beat(self, request: web.Request) -> web.Response:
        said, node = await request.json(), request.match_info["node"]
        try:
            end = self._ledger.beat(node, said["boot"], said["sessions"])
        except KeyError:
            return _refused(404, "this node is not registered")
        return web.json_response({"end": end, "draining": self._ledger.nodes[node].draining})

    async def drain(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        if node not in self._ledger.nodes:
            raise BadInput(f"there is no node {node}", where="manager", fix="flywheel sandbox status lists them")
        self._ledger.drain(node, (await request.json()).get("draining", True))
        return web.json_response({})

    async def lease(self, request: web.Request) -> web.Response:
        said = json.loads(await request.read())
        session, node = self._ledger.lease(str(said["user"]), str(said["kind"]), str(said["identity"]))
        note = LeaseNote(session.id, node.id, session.kind, session.identity, session.until).signed(self._token)
        return web.json_response({"session": session.id, "address": node.address, "note": note})

    async def heard(self, request: web.Request) -> web.Response:
        return web.json_response({"over": self._ledger.heard((await request.json())["sessions"])})

    async def release(self, request: web.Request) -> web.Response:
        return web.json_response({"released": self._ledger.release(request.match_info["session"])})

    async def sessions(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(one) for one in self._ledger.sessions.values()])

    async def status(self, _: web.Request) -> web.Response:
        nodes = [
            {"id": one.id, "address": one.address, "draining": one.draining, "heard": one.heard,
             "places": {kind: {"of": count, "taken": one.taken[kind]} for kind, (count, _) in one.places.items()}}
            for one in self._ledger.nodes.values()
        ]  # fmt: skip
        users = Counter(one.user for one in self._ledger.sessions.values())
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
            for session, why in self._ledger.reclaim().items():
                log.info("session %s is over: %s", session, why)


def _refused(status: int, error: str, **more: str) -> web.Response:
    return web.json_response({"error": error, **more}, status=status)
