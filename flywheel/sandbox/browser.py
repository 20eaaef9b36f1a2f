"""An `Env` on a Chromium page: reset, step, and what the agent sees (section 2.2, the game sandbox).

Page time stands still but for `sandbox.step_ms` a step (`scripts/document`), so the same task, seed and actions give
the same pixels. The session scores each step by the task's verifier: the task ends where V = 1, where the game is over,
or where the agent says so.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urljoin

from flywheel.agent.actions import Action, CallUser, Finished
from flywheel.agent.packing import pack, unpack
from flywheel.environments.env import Observation, StepResult, Task
from flywheel.environments.gestures import Gesture
from flywheel.environments.watchable import Pictures
from flywheel.errors import EnvError, EnvTimeout
from flywheel.reward.verdict import Verdict
from flywheel.sandbox import page_state
from flywheel.sandbox.cdp import CommandError
from flywheel.sandbox.page import PageGone
from flywheel.sandbox.sessions import PageSession, PageSource
from flywheel.sandbox.tab import Tab
from flywheel.sandbox.visitor import Visitor
from flywheel.settings import Sandbox


class BrowserEnv:
    """One leased tab. `broken` is set by an error: the tab is then thrown away, never used again. touch: it is a
    phone's."""

    def __init__(self, tab: Tab, source: PageSource, settings: Sandbox, touch: bool = False) -> None:
        self.tab, self.touch, self._source, self._settings = tab, touch, source, settings
        self._visitor = Visitor(tab, touch)
        self._session: PageSession | None = None
        self._backend: Any = None  # the server of the session alone, where it has one
        self._task: Task | None = None
        self._seed = 0
        self._actions: list[Action] = []
        self._state: dict[str, Any] = {}
        self._last: StepResult | None = None
        self._over = True
        self.broken = False

    # -- the contract ---------------------------------------------------------------------------------------------
    async def reset(self, task: Task, seed: int) -> StepResult:
        async with self._deadline("reset", task):
            self._forget()
            self._task, self._seed, self._actions, self._over = task, seed, [], False
            session = self._session = self._source.open(task, seed)
            self._backend = getattr(session, "backend", None)
        if self._backend is not None:
            async with self._deadline("start of its server", task, self._backend.limit_s):
                await self._backend.start()
        async with self._deadline("reset", task):
            seen = await self.tab.open(
                session.url,
                seed=seed,
                allowed=session.allowed,
                prepare=session.prepare,
                read=session.state_expression,
                viewport=session.viewport,
                files=session.files,
                entry=getattr(session, "entry", None),
            )
            await self._read(seen)
            return await self._result()

    async def step(self, action: Action) -> StepResult:
        task = self._task
        if task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        async with self._deadline("step", task):
            self._actions.append(action)
            own, before = self._session.step_ms, self.tab.time
            ms = self._settings.step_ms if own is None else own
            note = await self.tab.do(action, ms)
            left = max(ms - (self.tab.time - before), 0)  # a drag has taken some of it
            await self._read(await self.tab.observe(left))
            await self.tab.settle_downloads()
            last = None
            if self.tab.dialogs.open and (isinstance(action, Finished | CallUser) or self._spent):
                # Seen open, and read closed: what the script of a dialog has still to do belongs to the episode.
                last = await self.tab.screenshot()
                await self._read(await self.tab.close_dialogs())
            return await self._result(note, self._said_done(), last)

    async def checkpoint(self) -> bytes:
        """What `restore` needs: the actions since the reset, and the state of page and server where both offer it."""
        if self._task is None:
            raise EnvError("nothing to keep", fix="reset the environment first")
        kept: dict[str, Any] = {"task": self._task.task_id, "seed": self._seed, "actions": pack(self._actions)}
        async with self._deadline("checkpoint", self._task):
            if self._session.restorable:
                page = await page_state.save(self.tab)
                if page["restorable"]:
                    server = base64.b64encode(self._session.keep()).decode()
                    kept |= {"page": page, "server": server, "screen": _digest(self._last), "path": self._path()}
                    kept["note"] = self._last.info.get("note", "")
        return json.dumps(kept).encode()

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Back to a checkpoint: by the state that the page offered, else by playing the actions again.

        A restored state must show the very pixels that the checkpoint showed; where it does not, the page left
        something out of its state, and the actions are played.
        """
        kept, actions = _unpacked(checkpoint)
        task = self._task
        if task is None or kept["task"] != task.task_id:
            raise EnvError(f"the checkpoint is of task {kept['task']}", where=self._where(), fix="reset to that task")
        if "page" in kept:
            result = await self._set_back(task, kept)
            if result is not None:
                return result
        result = await self.reset(task, kept["seed"])
        for action in actions:
            result = await self.step(action)
        return result

    async def cdp(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A command of the browser's protocol to the page that is seen, under the deadline."""
        async with self._deadline(f"command {method}", self._task):
            return await self.tab.page.send(method, params)

    async def close(self) -> None:
        self._forget()
        self._over = True
        if not self.broken:
            self.tab.rest()

    # -- to be watched ----------------------------------------------------------------------------------------------
    def watch(self) -> AbstractContextManager[Pictures]:
        return self.tab.cast.watch()

    async def visit(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        if self._task is None:
            return ["No episode is played yet."] if gestures else []
        async with self._deadline("person's gesture", self._task):
            return await self._visitor.do(gestures, ms)

    async def leave(self) -> None:
        if self._task is not None and not self.broken:
            async with self._deadline("person's leave", self._task):
                await self._visitor.leave()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
        self._state, self._task, self._last, self._backend = {}, None, None, None

    async def _set_back(self, task: Task, kept: Mapping[str, Any]) -> StepResult | None:
        await self.reset(task, kept["seed"])
        async with self._deadline("restore", task):
            self._session.bring_back(base64.b64decode(kept["server"]))
            if kept["path"]:
                await self.tab.page.navigate(urljoin(self._session.url, kept["path"]))
            if not await page_state.load(self.tab, kept["page"]):
                return None
            self._actions = unpack(kept["actions"])
            await self._read(await self.tab.observe(0))
            self.tab.notes.take()
            result = await self._result(kept["note"], self._said_done())
        return result if _digest(result) == kept["screen"] else None

    def _said_done(self) -> bool:
        last = self._actions[-1] if self._actions else None
        if isinstance(last, Finished) and last.content:
            self._state["answer"] = last.content
        return isinstance(last, Finished | CallUser)

    async def _read(self, seen: Mapping[str, Any]) -> None:
        """The verifier's state, of what the page and its server tell. Under a dialog, what the page told last holds."""
        if self._backend is not None and "dialog" not in seen:
            seen = {**seen, "served": await self._backend.read()}
        state = self._session.state(seen) or dict(self._state)
        if note := state.pop("note", ""):
            self.tab.notes.add(note)
        if "dialog" in seen:
            state = self._state | state
        if not (state or "dialog" in seen):
            raise EnvError("the page published no state", where=self._where())
        state.setdefault("terminated", False)
        state["elements"] = seen["elements"]
        for part in ("beyond", "dialog"):
            state.pop(part, None)
            if seen.get(part):
                state[part] = seen[part]
        self._state = state

    @property
    def _spent(self) -> bool:
        return len(self._actions) >= self._task.max_steps

    async def _result(self, note: str = "", said_done: bool = False, screenshot: bytes | None = None) -> StepResult:
        task, tab = self._task, self.tab
        score = self._session.score(self._state)
        screenshot = screenshot or await tab.screenshot()
        tab.cast.shown(screenshot)
        terminated = bool(said_done or Verdict(score, task.threshold).v or self._state["terminated"])
        truncated = not terminated and self._spent
        self._over = terminated or truncated
        note = "; ".join(filter(None, [note, *tab.notes.take()]))
        observation = Observation(screenshot, *tab.size, f"{task.world}/{self._path()}")
        info = {"state": self._state, "score": score} | ({"note": note} if note else {})
        self._last = StepResult(observation, score if terminated else 0.0, terminated, truncated, info)
        return self._last

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task | None, limit_s: float = 0.0) -> AsyncIterator[None]:
        """The contract's errors: whatever goes wrong inside breaks this env, by a named error."""
        limit_s = limit_s or self._settings.timeout_s
        if self.broken:
            raise EnvError("the page is broken", where=self._where(), fix="lease another environment")
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            self.broken = True
            late = EnvTimeout(f"the page did not answer a {what} within {limit_s:g} s", where=self._where(task))
            raise self._told(late, task) from None
        except (PageGone, CommandError) as error:
            self.broken = True
            how = "crashed" if isinstance(error, PageGone) else "failed"
            raise EnvError(f"the page {how} in a {what}: {error.what}", where=self._where(task)) from error
        except EnvError as error:
            self.broken = True
            raise self._told(error, task) from error
        except BaseException:
            self.broken = True
            raise

    def _told(self, error: EnvError, task: Task | None) -> EnvError:
        """The error, or in its place why the page's server is gone."""
        fault = self._backend.fault if self._backend is not None else ""
        return type(error)(fault or error.what, where=self._where(task), fix=error.fix)

    def _path(self) -> str:
        """Of the page that is seen, without what differs from run to run: the port, the session."""
        prefixes = sorted((one for one in self._session.allowed if self.tab.url.startswith(one)), key=len)
        return self.tab.url.removeprefix(prefixes[-1]) if prefixes else self.tab.url

    def _where(self, task: Task | None = None) -> str:
        task = task or self._task
        return f"world {task.world}, task {task.task_id}, page {self.tab.url}" if task else self.tab.url


def _unpacked(checkpoint: bytes) -> tuple[dict[str, Any], list[Action]]:
    try:
        kept = json.loads(checkpoint)
        return {"task": str(kept["task"]), "seed": int(kept["seed"]), **kept}, unpack(kept["actions"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EnvError("this is no checkpoint", where=f"{len(checkpoint)} bytes") from None


def _digest(result: StepResult) -> str:
    return hashlib.sha256(result.observation.screenshot).hexdigest()
