"""Let people take over an environment node's running sessions on the annotation page, and keep their steps as data.

A session that is taken over is taken from its player, which is told that the environment is lost, and plays the episode
again elsewhere, so that no step of a person is in the run's own episodes. The person goes on in the same environment;
each step is an action of the agent's, journalled in the node's workspace before it is carried out, and the next
iteration there takes the finished session in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.remote.node_server import EnvNode, open_node
from flywheel.envs.remote.node_session import NodeSession
from flywheel.envs.remote.watch import WatchHandlers
from flywheel.recordings.annotation.session import AnnotationSession, refuse_evaluation_task
from flywheel.ui.annotate.desk import DeskSession
from flywheel.ui.annotate.server import AnnotationPages
from flywheel.ui.annotate.speech import SpokenThoughts
from flywheel.utils.errors import BadInput, DiskFull, EnvError

log = logging.getLogger(__name__)
_PREFIX = "/watch/annotate/{of}/"
_REAP_S = 1.0


class _TakenTask:
    """Stand in for the queue of tasks: the task is the person's until the end, and then nobody's."""

    def __init__(self, node: EnvNode, session: str) -> None:
        self._node, self._session = node, session

    def renew(self, task_id: str, annotator: str, session: str) -> str:
        return ""

    def release(self, task_id: str, annotator: str, session: str, *, done: bool = False, skip: bool = False) -> None:
        self._node.give_back(self._session)


class Takeovers:
    """Hold the sessions of a node that people have taken over (`sessions`, by name), and serve their pages.

    ws: the workspace that their data go to. settings: of the node. token: with which people log in.
    """

    def __init__(self, node: EnvNode, ws: Workspace, settings: Settings, token: str) -> None:
        self.node, self.ws, self.settings = node, ws, settings
        self.folder, self.sessions = ws.resolve(settings.annotation.folder), {}
        self.speech = SpokenThoughts(settings)
        self._guard = WatchHandlers(node.sessions, token).guarded

    def add_routes(self, application: web.Application) -> None:
        """Add the page of each session, at /watch/annotate/SESSION/, to the node's application."""
        values = {"WORKSPACE": self.ws.root.name, "ANNOTATOR": "", "BEGIN": "Take this session over", "LOGIN": "/watch"}
        pages = AnnotationPages(
            lambda request: TakeoverDesk(self, request.match_info["of"]), self._guard, lambda _: values
        )
        application.add_routes(pages.routes(_PREFIX))
        application.on_shutdown.append(pages.end)
        application.cleanup_ctx.append(self._live)

    async def _live(self, _: web.Application) -> AsyncIterator[None]:
        reaping = asyncio.create_task(self._reap())
        yield
        reaping.cancel()
        await asyncio.gather(reaping, return_exceptions=True)
        for one in list(self.sessions.values()):
            with contextlib.suppress(DiskFull, EnvError):
                await one.close("the node ended; what you decided is kept: go on in `flywheel annotate`")

    async def _reap(self) -> None:
        """Close sessions whose person has stayed away for `annotation.lease_s`, again and again."""
        why = "you stayed away; what you decided is kept: go on in `flywheel annotate`"
        while True:
            await asyncio.sleep(_REAP_S)
            for one in [one for one in self.sessions.values() if time.monotonic() > one.until]:
                async with one.lock:
                    if time.monotonic() > one.until:
                        try:
                            await one.close(why)
                        except (OSError, EnvError, DiskFull) as error:
                            log.warning("a session was not closed: %s", error)


class TakeoverDesk:
    """Take over one session of the node, as the `Desk` of its annotation page. session: its id at the node."""

    def __init__(self, takeovers: Takeovers, session: str) -> None:
        self._takeovers, self._session = takeovers, session
        self.settings, self.folder, self.sessions = takeovers.settings, takeovers.folder, takeovers.sessions
        self.speech, self.newest = takeovers.speech, ("", "")

    async def begin(self, annotator: str) -> DeskSession:
        """Take the session over for the person `annotator`.

        Raises BadInput where it is over, taken, of an evaluation task, or was not here from its beginning; EnvError,
        DiskFull.
        """
        node = self._takeovers.node
        if (found := node.sessions.get(self._session)) is not None and found.task is not None:
            refuse_evaluation_task(found.task)
        holder = await node.take(self._session, annotator)
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        try:
            env, folder, steps = await holder.env(), self.folder / name, holder.history.steps
            engine = await AnnotationSession.take_over(
                env, holder.task, steps, self.settings, folder, annotator=annotator
            )
        except BaseException:
            node.give_back(self._session)
            await holder.end()
            raise
        return self._add(DeskSession(self, _TakenTask(node, self._session), holder, engine))

    def _add(self, session: DeskSession) -> DeskSession:
        self.sessions[session.engine.name] = session
        return session

    async def resume(self, annotator: str, name: str) -> DeskSession:
        """Go on with the session `name` of the person `annotator`. Raises BadInput where it is not here any more."""
        found = self.sessions.get(name)
        if found is None or found.engine.annotator != annotator:
            raise BadInput("there is no such session of yours here", where=name, fix="go on in `flywheel annotate`")
        return found

    def hold(self, task: Task) -> NodeSession:
        """Lend an environment for `task` in place of a lost one, until `end` is called on the returned session."""
        return self._takeovers.node.lend(task.environment)

    def left_by(self, annotator: str) -> list[tuple[str, Any]]:
        """Return none: sessions that were left here are resumed in `flywheel annotate`."""
        return []


@asynccontextmanager
async def open_takeover_node(
    name: str, token: str, settings: Settings, kinds: Iterable[str], ws: Workspace, film: int = 0
) -> AsyncIterator[tuple[EnvNode, Mapping[str, tuple[int, str]]]]:
    """Open a node, as `open_node`, whose sessions people may take over as data of the workspace `ws`.

    kinds: `names` of `open_node`. ws: relative paths in the settings count from its folder. The other arguments, the
    yielded pair and the errors are those of `open_node`.
    """
    async with open_node(name, token, settings, kinds, ws.root, film, takeovers=True) as (node, places):
        node.pages.append(Takeovers(node, ws, settings, token).add_routes)
        yield node, places
