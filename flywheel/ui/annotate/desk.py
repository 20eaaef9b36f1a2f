"""Begin, resume and end annotation sessions, and share the newest model, tasks and environments among annotators."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Env, Task
from flywheel.envs.registry import EnvProvider, open_environments
from flywheel.envs.remote.node_session import NodeSession
from flywheel.envs.remote.protocol import LeaseToken
from flywheel.envs.tasks import page_tasks
from flywheel.pipeline import iterations
from flywheel.policy import checkpoint, open_policy
from flywheel.policy.protocol import PolicyBackend
from flywheel.recordings.annotation.journal import iter_open_sessions
from flywheel.recordings.annotation.session import AnnotationSession
from flywheel.ui.annotate.speech import SpokenThoughts
from flywheel.ui.annotate.task_queue import TaskQueue, newest_promotion
from flywheel.utils.errors import BadInput, DiskFull, EnvError

log = logging.getLogger(__name__)
_REAP_S = 1.0
_ACQUIRE_S = 30.0  # that an annotator waits for a free environment
_DAY_S = 86_400.0


class PolicyShelf:
    """Keep policies open: one for each model that proposes in a session at work, and the newest model's."""

    def __init__(self, settings: Settings, root: Path) -> None:
        self._settings, self._root = settings, root
        self._open: dict[str, PolicyBackend] = {}  # by the digest of the weights
        self._opening = asyncio.Lock()

    async def get(self, model: str) -> PolicyBackend:
        """Return the policy of `model`, a folder or name as promotions have it; the first call opens it.

        Raises ModelError and PolicyError as `open_policy`, ModelError as `resolve_checkpoint` and `checkpoint_digest`.
        With policy.backend openai a server has one model's weights at a time: while a session uses them, another model
        raises BadInput.
        """
        async with self._opening:
            folder = await asyncio.to_thread(checkpoint.resolve_checkpoint, model, self._root)
            digest = await asyncio.to_thread(checkpoint.checkpoint_digest, folder)
            if digest not in self._open:
                if self._open and self._settings.policy.backend == "openai":
                    fix = "finish the sessions that use it first"
                    raise BadInput("the policy server is at work with another model", where=model, fix=fix)
                self._open[digest] = await asyncio.to_thread(open_policy, folder, self._settings.policy)
            return self._open[digest]

    async def close_others(self, used: set[str]) -> None:
        """Close the policies whose weights have none of the digests `used`."""
        async with self._opening:
            for digest in self._open.keys() - used:
                await self._open.pop(digest).close()


@dataclass
class _OneEnvPool:
    """Lend environments for one task, to a `NodeSession`."""

    environments: EnvProvider
    task: Task

    def env(self) -> AbstractAsyncContextManager[Env]:
        return self.environments.env(self.task)


class Desk(Protocol):
    """Begin and resume annotation sessions, for the annotation page.

    sessions: at work, by name. folder: of their journals. newest: the model that proposes and the digest of its
    weights; "" where none does. speech: recognizes spoken thoughts.
    """

    settings: Settings
    folder: Path
    sessions: dict[str, DeskSession]
    newest: tuple[str, str]
    speech: SpokenThoughts

    async def begin(self, annotator: str) -> DeskSession:
        """Begin a session for the person `annotator`. Raises BadInput where no task is left."""

    async def resume(self, annotator: str, name: str) -> DeskSession:
        """Go on with the session `name` of the person `annotator`. Raises BadInput where there is no such session."""

    def hold(self, task: Task) -> NodeSession:
        """Lend an environment for `task`, until `end` is called on the returned session."""

    def left_by(self, annotator: str) -> list[tuple[str, Any]]:
        """List (name, state) of the annotator's sessions that can be resumed and are not at work."""


class TaskLeases(Protocol):
    """Lend tasks to annotators, with the methods of `TaskQueue`."""

    def renew(self, task_id: str, annotator: str, session: str) -> str: ...

    def release(
        self, task_id: str, annotator: str, session: str, *, done: bool = False, skip: bool = False
    ) -> None: ...


class DeskSession:
    """Hold one annotator's session at work, and give its environment and its task back at the end.

    queue: the leases of its task. holder: the lease of its environment. engine: the session itself. lock: to be held by
    whoever changes the session. until: time.monotonic() at which the lease ends. page: the connection that shows it.
    closed: why it was closed; "": it is open.
    """

    def __init__(self, desk: Desk, queue: TaskLeases, holder: NodeSession, engine: AnnotationSession) -> None:
        self.desk, self._queue, self.holder, self.engine = desk, queue, holder, engine
        self.lock = asyncio.Lock()
        self.until = time.monotonic() + desk.settings.annotation.lease_s
        self.page: object | None = None  # the connection that shows it
        self.closed = ""  # why it is

    async def renew(self) -> None:
        """Hold the task for another lease (`annotation.lease_s`).

        Raises BadInput where somebody else has the task by now, and closes the session; otherwise as `TaskQueue.renew`.
        """
        engine = self.engine
        other = await asyncio.to_thread(self._queue.renew, engine.task.task_id, engine.annotator, engine.name)
        if other:
            await self.close(f"the lease ended, and {other} has this task now; what you decided is kept")
            raise BadInput(self.closed, where=f"session {engine.name}", fix="begin another task")
        self.until = time.monotonic() + self.desk.settings.annotation.lease_s

    async def revive(self) -> None:
        """Go on in a fresh environment after one was lost.

        Raises as `AnnotationSession.revive`, EnvError where no environment is free or opens.
        """
        await self.holder.end()
        self.holder = self.desk.hold(self.engine.task)
        await self.engine.revive(await self.holder.env())

    async def close(self, why: str, *, done: bool = False, skip: bool = False) -> None:
        """Close the session, and give its environment and its task back.

        why: shown to the annotator. done, skip: as for `TaskQueue.release`. Raises DiskFull where a skip cannot be
        written; the session stays open.
        """
        if self.closed:
            return
        engine = self.engine
        if skip:
            engine.skip()
        self.closed = why
        self.desk.sessions.pop(engine.name, None)
        engine.close()
        await self.holder.end()
        with contextlib.suppress(DiskFull):
            leased = engine.task.task_id, engine.annotator, engine.name
            await asyncio.to_thread(self._queue.release, *leased, done=done, skip=skip)
        taken_back = any(candidate.get("undone") for candidate in engine.state.proposed)
        if not (engine.state.steps or taken_back or done):  # nothing was decided
            shutil.rmtree(self.desk.folder / engine.name, ignore_errors=True)


class AnnotationDesk:
    """Begin, resume and end sessions of several annotators in a workspace, as `Desk`; `open_desk` makes it."""

    def __init__(self, ws: Workspace, settings: Settings, domain: str, model: str) -> None:
        rules, sandbox = settings.annotation, settings.sandbox
        patient = {"lease_s": _DAY_S, "heartbeat_timeout_s": max(sandbox.heartbeat_timeout_s, 2 * rules.lease_s)}
        held = sandbox.model_copy(update=patient | {"acquire_timeout_s": min(sandbox.acquire_timeout_s, _ACQUIRE_S)})
        self.ws, self.settings = ws, settings.model_copy(update={"sandbox": held})
        self.folder = ws.resolve(rules.folder)
        self.sessions: dict[str, DeskSession] = {}
        self.speech = SpokenThoughts(settings)
        self._domain, self._model = domain, model
        self._shelf = PolicyShelf(self.settings, ws.root)
        self._refreshing = asyncio.Lock()
        self._starting: list[str] = []  # weights of sessions that are about to begin
        self._queue: TaskQueue
        self.newest = "", ""  # model, digest of its weights
        self.environments: EnvProvider

    async def refresh(self) -> None:
        """Take the newest promoted model, and draw the pool of tasks anew, where an iteration has ended since.

        Raises as `newest_promotion`, `TaskQueue` and `PolicyShelf.get`.
        """
        async with self._refreshing:
            iteration, promoted = await asyncio.to_thread(newest_promotion, self.ws)
            model = self._model or promoted["model"]
            if getattr(self, "_queue", None) is None or self._queue.iteration != iteration:
                queue = await asyncio.to_thread(TaskQueue, self.ws, self.settings, iteration, self._domain)
                policy = await self._shelf.get(model)
                self._queue, self.newest = queue, (model, policy.weight_version)

    async def begin(self, annotator: str) -> DeskSession:
        """Begin a session of the next task with the newest model; tasks of the person's left sessions are not offered.

        Raises as `refresh` and `TaskQueue.lease` (BadInput where no task is left), EnvError, DiskFull.
        """
        await self.refresh()
        queue, (model, _) = self._queue, self.newest
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        left = {state.task.task_id for _, state in await asyncio.to_thread(self.left_by, annotator)}
        task, reason = await asyncio.to_thread(queue.lease, annotator, name, left)
        try:
            policy = await self._shelf.get(model)
            if not task.instruction:
                (task,) = await page_tasks.fetch_page_instructions([task], self.environments.env)
            told = {"annotator": annotator, "iteration": queue.iteration, "model": model, "drawn_for": reason}

            async def start(env: Env) -> AnnotationSession:
                return await AnnotationSession.begin(env, task, policy, self.settings, self.folder / name, **told)

            return await self._enter(queue, task, policy, start)
        except BaseException:
            await asyncio.to_thread(queue.release, task.task_id, annotator, name)
            raise

    async def resume(self, annotator: str, name: str) -> DeskSession:
        """Go on with the session `name` that the person `annotator` left, or that is still at work.

        Raises BadInput where there is no such session of theirs, or somebody else has its task, and as `refresh` and
        `AnnotationSession.resume`.
        """
        await self.refresh()
        if name in self.sessions and self.sessions[name].engine.annotator == annotator:
            return self.sessions[name]
        state = dict(self.left_by(annotator)).get(name)
        if state is None:
            raise BadInput("there is no such session of yours", where=name, fix="begin another")
        task, queue = state.task, self._queue
        if other := await asyncio.to_thread(queue.renew, task.task_id, annotator, name):
            what = f"the lease ended, and {other} has this task now; what you decided is kept"
            raise BadInput(what, where=f"session {name}", fix="begin another task")
        policy = await self._shelf.get(state.begun["model"] or self.newest[0])  # one that was taken over names none

        async def start(env: Env) -> AnnotationSession:
            return await AnnotationSession.resume(env, policy, self.settings, self.folder / name)

        return await self._enter(queue, task, policy, start)

    async def _enter(self, queue: TaskQueue, task: Task, policy: PolicyBackend, start) -> DeskSession:
        holder = self.hold(task)
        self._starting.append(policy.weight_version)  # so that it stays open
        try:
            engine = await start(await holder.env())
        except BaseException:
            await holder.end()
            raise
        finally:
            self._starting.remove(policy.weight_version)
        session = self.sessions[engine.name] = DeskSession(self, queue, holder, engine)
        return session

    def hold(self, task: Task) -> NodeSession:
        """Lease an environment for `task`, until `end` is called on the returned session."""
        lease = LeaseToken(task.task_id, "", task.environment, "", 0.0)
        return NodeSession(_OneEnvPool(self.environments, task), lease)

    def left_by(self, annotator: str) -> list[tuple[str, Any]]:
        """List (name, state) of the annotator's sessions that are neither finished, skipped nor at work, by name."""
        found = iter_open_sessions(self.folder)
        mine = [(name, state) for name, state in found if state.begun["annotator"] == annotator]
        return [(name, state) for name, state in mine if name not in self.sessions]

    async def reap(self) -> None:
        """Close, every second until cancelled, sessions whose lease has ended, and policies that nobody uses."""
        while True:
            await asyncio.sleep(_REAP_S)
            try:
                for one in [one for one in self.sessions.values() if time.monotonic() > one.until]:
                    async with one.lock:
                        if time.monotonic() > one.until:
                            why = "the lease ended, and the task went back to the others; what you decided is kept"
                            await one.close(why)
                used = {one.engine.state.begun["weights"] for one in self.sessions.values()}
                await self._shelf.close_others(used | {self.newest[1], *self._starting})
            except (OSError, EnvError) as error:
                log.warning("a session was not closed: %s", error)

    async def aclose(self) -> None:
        """Close all sessions and policies. Their leases stay: an annotator goes on after a restart."""
        for one in list(self.sessions.values()):
            one.closed = "the server ended; what you decided is kept"
            one.engine.close()
            await one.holder.end()
        await self._shelf.close_others(set())


@contextlib.asynccontextmanager
async def open_desk(
    ws: Workspace, settings: Settings, domain: str = "", model: str = ""
) -> AsyncIterator[AnnotationDesk]:
    """Open the `AnnotationDesk` of a workspace, at which people annotate, until the end of the block.

    Its model and environments are opened too. domain: of the tasks; "": all. model: a checkpoint's folder, relative to
    the workspace, or Hugging Face name, in place of the newest promoted model; "": that one. Raises BadInput for
    settings that cannot be used and a domain without tasks, ModelError and PolicyError for a model that cannot be
    opened, DataError as `AnnotationDesk.refresh`, EnvError, DiskFull.
    """
    desk = AnnotationDesk(ws, settings, domain, model)
    iterations.record_base_model(ws, settings)
    try:
        await desk.refresh()
        tasks = [task for task, _ in desk._queue.pool]
        async with open_environments(desk.settings, tasks, ws.root) as desk.environments:
            reaping = asyncio.create_task(desk.reap())
            try:
                yield desk
            finally:
                reaping.cancel()
                await asyncio.gather(reaping, return_exceptions=True)
                await desk.aclose()
    finally:
        await desk._shelf.close_others(set())
