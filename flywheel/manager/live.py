"""A session's page on a watcher's screen, and the watcher's hands on the page, over one WebSocket.

To the watcher go pictures (binary), the newest that it has time for, and JSON: `touch` once, `taken` and `note` as they
come. From it comes JSON: `take`, and gestures (`environments/gestures.py`). While somebody has taken over, the page's
time passes as fast as the clock's; else it passes with the agent's steps alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from flywheel.environments.gestures import Gesture
from flywheel.environments.watchable import Live, Pictures
from flywheel.errors import EnvError

if TYPE_CHECKING:
    from flywheel.manager.node import Session

_TICK_S = 0.08  # between two looks at the page while a person does nothing
_LONGEST_S = 0.25  # of the clock's time, that passes in the page at once
_TELL_S = 5.0
_MOST = 256  # gestures that wait


async def show(socket: web.WebSocketResponse, session: Session, env: Live) -> None:
    """Until the watcher or the session is gone."""
    visit = _Visit(socket, session, env)
    with env.watch() as pictures:
        await socket.send_json({"touch": env.touch})
        parts = [asyncio.ensure_future(_send(socket, pictures)), asyncio.ensure_future(visit.hear())]
        acting = asyncio.ensure_future(visit.act())
        try:
            await asyncio.wait([*parts, acting, session.life], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in parts:
                one.cancel()
            visit.end()
            # Not cancelled: what is under way in the page has to be finished, and has a deadline of its own.
            await asyncio.gather(*parts, return_exceptions=True)
            await acting


async def _send(socket: web.WebSocketResponse, pictures: Pictures) -> None:
    while True:
        await socket.send_bytes(await pictures.next())


class _Visit:
    """A person at a page. One at a time may have taken it over."""

    def __init__(self, socket: web.WebSocketResponse, session: Session, env: Live) -> None:
        self._socket, self._session, self._env = socket, session, env
        self._gestures: list[Gesture] = []
        self._over, self._wanted = False, False
        self._changed = asyncio.Event()

    async def hear(self) -> None:
        """Until the watcher is gone, or says what cannot be."""
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                return
            try:
                said = json.loads(message.data)
                if "take" in said:
                    self._wanted = bool(said["take"])
                    self._changed.set()
                elif self._wanted:
                    self._add(Gesture.read(said))
            except (ValueError, TypeError, AttributeError):
                return
            if len(self._gestures) > _MOST:
                return

    async def act(self) -> None:
        """Take over and give back as the watcher wants it, until `end`."""
        while not self._over:
            self._changed.clear()
            if not self._wanted:
                await self._changed.wait()
            elif self._session.visitor is not None:
                await self._tell(taken=False, note="Somebody else has taken this session over.")
                self._wanted = False
            else:
                self._session.visitor, note = self, ""
                try:
                    await self._tell(taken=True)
                    await self._visit()
                except EnvError as error:
                    self._wanted, note = False, str(error)
                finally:
                    self._session.visitor = None
                await self._tell(taken=False, note=note)

    def end(self) -> None:
        self._over, self._wanted = True, False
        self._changed.set()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _visit(self) -> None:
        last = time.monotonic()
        while self._wanted:
            self._changed.clear()
            now, gestures, self._gestures = time.monotonic(), self._gestures, []
            async with self._session.alone:  # never within a step of the agent's
                notes = await self._env.visit(gestures, 1000 * min(now - last, _LONGEST_S))
            for note in notes:
                await self._tell(note=note)
            last = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, now + _TICK_S - time.monotonic())):
                    await self._changed.wait()
        async with self._session.alone:
            await self._env.leave()
        self._gestures = []

    def _add(self, gesture: Gesture) -> None:
        """A place that was only passed by is left out."""
        if gesture.does == "move" and self._gestures and self._gestures[-1].does == "move":
            self._gestures.pop()
        self._gestures.append(gesture)
        self._changed.set()

    async def _tell(self, **said: object) -> None:
        try:
            async with asyncio.timeout(_TELL_S):
                await self._socket.send_json(said)
        except (ConnectionError, TimeoutError):
            self.end()  # nobody is there, or nobody listens
