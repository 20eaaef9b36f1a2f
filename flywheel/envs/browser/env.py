"""Implement `Env` on a Chromium tab, which the pool leases: reset, step, checkpoints, and take-over by a person."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urljoin

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, CallUser, Finished, actions_from_json, actions_to_json
from flywheel.config import SandboxSettings
from flywheel.envs.base import Gesture, LatestPicture, Observation, StepResult, Task, Verdict
from flywheel.envs.browser.driver.cdp import CdpCommandError
from flywheel.envs.browser.driver.input import FingerGrip, MouseGrip, PixelPoint
from flywheel.envs.browser.driver.page import PageGone
from flywheel.envs.browser.driver.tab import BrowserTab
from flywheel.envs.browser.page_source import PageSession, PageSource
from flywheel.utils.errors import EnvError, EnvTimeout


class TakeOverInput:
    """Carry out the gestures (`envs/base.py`) of a person who has taken over a tab. touch: the tab is a phone's.

    What is shown over a page (a dialog, a picker) takes only actions of the agent, so a gesture there becomes the most
    similar action. Its coroutines raise EnvError as those of `BrowserTab`.
    """

    def __init__(self, tab: BrowserTab, touch: bool) -> None:
        self._tab, self._touch = tab, touch
        self._grip: MouseGrip | FingerGrip | None = None
        self._at: PixelPoint = (0.0, 0.0)
        self._keys: dict[str, None] = {}  # names of keys that are held down, in order

    async def do(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        """Carry out `gestures`, let `ms` of page time pass, send watchers the screen; returns notes for the person."""
        tab = self._tab
        notes = [note for gesture in gestures if (note := await self._one(gesture))]
        seen = await tab.observe(ms)
        if self._holds():
            await self._grip.heed(seen)
        tab.cast.shown(await tab.screenshot(), moving=True)
        return notes + tab.notes.take()

    async def release_all(self) -> None:
        """Release the button or finger, and the keys, that the person holds down."""
        self._let_go()
        for name in list(self._keys):
            await self._release(name)

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _one(self, one: Gesture) -> str:
        tab = self._tab
        mouse = not self._touch and not tab.cast.covered
        match one.kind:
            case "click" if mouse:
                return await self._raw(tab.hands.click(tab.page, self._pixel(one), one.button, one.count))
            case "click":
                right = one.button == "right" and not self._touch
                return await tab.do((act.RightSingle if right else act.Click)(one.at))
            case "long":
                return await tab.do((act.LongPress if self._touch else act.RightSingle)(one.at))
            case "grab":
                return await self._take(one)
            case "move" if self._grip is None:
                return "" if self._touch else await tab.do(act.Hover(one.at))
            case "move" | "drop":
                return await self._pull(one)
            case "wheel" if mouse:
                return await self._raw(tab.hands.wheel(tab.page, self._pixel(one), one.right, one.down))
            case "wheel":
                return await tab.do(act.Scroll(one.at, one.direction))
            case "press":
                return await self._press(one.key)
            case "release":
                return await self._release(one.key)
            case "text":
                return await tab.do(act.Type(one.text))
            case "back":
                return await tab.do(act.PressBack() if self._touch else act.NavigateBack())
            case "home" if self._touch:
                return await tab.do(act.PressHome())
        return "there is no such thing here"

    async def _raw(self, work: Coroutine[Any, Any, Any]) -> str:
        """Await input that goes directly to the page; a dialog that it opens suspends it."""
        return await self._tab.dialogs.run_unless_blocked(work) or ""

    # -- a button or a finger that is held down ----------------------------------------------------------------------
    async def _take(self, one: Gesture) -> str:
        self._let_go()
        if self._tab.cast.covered:
            return ""
        self._at, self._grip = self._pixel(one), self._tab.hands.grip(self._tab.page)
        return await self._raw(self._grip.press(self._at))

    async def _pull(self, one: Gesture) -> str:
        if not self._holds():
            return ""
        self._at, grip = self._pixel(one), self._grip
        if one.kind == "move":
            return await self._raw(grip.move(self._at))
        self._grip = None
        return await self._raw(grip.release(self._at))

    def _holds(self) -> bool:
        """Tell whether a button or finger is held down on the page that is seen; on another page it is released."""
        pages = self._tab.stack.pages
        if self._grip is not None and (self._tab.cast.covered or self._grip.page not in pages[-1:]):
            self._let_go()
        return self._grip is not None

    def _let_go(self) -> None:
        grip, self._grip = self._grip, None
        if grip is not None:
            grip.let_go(self._at)

    # -- keys ---------------------------------------------------------------------------------------------------------
    async def _press(self, name: str) -> str:
        note = await self._key("press", name)
        if not note:
            self._keys[name] = None
        return note

    async def _release(self, name: str) -> str:
        """Release a key, if the person pressed it: the agent may hold others."""
        if name not in self._keys:
            return ""
        del self._keys[name]
        return await self._key("release", name)

    async def _key(self, what: str, name: str) -> str:
        tab = self._tab
        if self._touch and not tab.cast.covered:  # as by a keyboard attached to the phone; the agent has none
            return await self._raw(getattr(tab.hands, what)(tab.page, name))
        return await tab.do((act.Press if what == "press" else act.Release)(name))

    def _pixel(self, one: Gesture) -> PixelPoint:
        return self._tab.hands.pixel(one.at)


class BrowserEnv:
    """Play tasks on web pages in one leased tab (an `Env`, `Checkpointable` and `LiveView`).

    Page time passes only in steps, `sandbox.step_ms` in each (`scripts/document`), so the same task, seed and actions
    give the same pixels. The session scores each step by the task's verifier: the task ends where it is solved, where
    the page's game is over, or where the agent says that it is done.

    source: opens the sessions of tasks. touch: the tab is a phone's. broken: set by an error; the tab is then closed,
    never used again. backend: the server of the session, where it has one.
    """

    def __init__(self, tab: BrowserTab, source: PageSource, settings: SandboxSettings, touch: bool = False) -> None:
        self.tab, self.touch, self._source, self._settings = tab, touch, source, settings
        self._take_over = TakeOverInput(tab, touch)
        self._session: PageSession | None = None
        self.backend: Any = None  # the session's own server, where it has one
        self._task: Task | None = None
        self._seed = 0
        self._actions: list[Action] = []
        self._state: dict[str, Any] = {}
        self._last: StepResult | None = None
        self._over = True
        self.broken = False

    # -- Env ------------------------------------------------------------------------------------------------------
    async def reset(self, task: Task, seed: int) -> StepResult:
        async with self._deadline("reset", task):
            self._forget()
            self._task, self._seed, self._actions, self._over = task, seed, [], False
            session = self._session = self._source.open(task, seed)
            self.backend = getattr(session, "backend", None)
        if self.backend is not None:
            async with self._deadline("start of its server", task, self.backend.limit_s):
                await self.backend.start()
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
                first_party=getattr(session, "first_party", False),
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
                # The screen shows the dialog; the state is read once it is closed, since its script still belongs to
                # the episode.
                last = await self.tab.screenshot()
                await self._read(await self.tab.close_dialogs())
            return await self._result(note, self._said_done(), last)

    async def checkpoint(self) -> bytes:
        """Return the actions since the reset, with the state of page and server where both can be saved, as bytes.

        Raises EnvError before a reset, or where the page is broken, crashes or fails, EnvTimeout after the deadline.
        """
        if self._task is None:
            raise EnvError("nothing to keep", fix="reset the environment first")
        kept: dict[str, Any] = {"task": self._task.task_id, "seed": self._seed}
        kept["actions"] = actions_to_json(self._actions)
        async with self._deadline("checkpoint", self._task):
            if self._session.restorable:
                page = await self.tab.save_state()
                if page["restorable"]:
                    server = base64.b64encode(self._session.save_server_state()).decode()
                    kept |= {"page": page, "server": server, "screen": _hash_screen(self._last), "path": self._path()}
                    kept["note"] = self._last.info.get("note", "")
        return json.dumps(kept).encode()

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Restore a checkpoint and return its last result: by the page's saved state, or by playing its actions again.

        The saved state counts only where it gives the same pixels as before; else the page left something out of it.
        Raises EnvError for other bytes, or the checkpoint of another task, and what `reset` and `step` raise.
        """
        kept, actions = _unpack_checkpoint(checkpoint)
        task = self._task
        if task is None or kept["task"] != task.task_id:
            raise EnvError(f"the checkpoint is of task {kept['task']}", where=self._where(), fix="reset to that task")
        if "page" in kept and (result := await self._set_back(task, kept)) is not None:
            return result
        result = await self.reset(task, kept["seed"])
        for action in actions:
            result = await self.step(action)
        return result

    async def close(self) -> None:
        self._forget()
        self._over = True
        if not self.broken:
            self.tab.rest()

    # -- LiveView ---------------------------------------------------------------------------------------------------
    def watch(self) -> AbstractContextManager[LatestPicture]:
        return self.tab.cast.watch()

    async def apply_gestures(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        if self._task is None:
            return ["No episode is played yet."] if gestures else []
        async with self._deadline("person's gesture", self._task):
            return await self._take_over.do(gestures, ms)

    async def release_all(self) -> None:
        if self._task is not None and not self.broken:
            async with self._deadline("person's leave", self._task):
                await self._take_over.release_all()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _forget(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
        self._state, self._task, self._last, self.backend = {}, None, None, None

    async def _set_back(self, task: Task, kept: Mapping[str, Any]) -> StepResult | None:
        await self.reset(task, kept["seed"])
        async with self._deadline("restore", task):
            self._session.restore_server_state(base64.b64decode(kept["server"]))
            if kept["path"]:
                await self.tab.page.navigate(urljoin(self._session.url, kept["path"]))
            if not await self.tab.load_state(kept["page"]):
                return None
            self._actions = actions_from_json(kept["actions"])
            await self._read(await self.tab.observe(0))
            self.tab.notes.take()
            result = await self._result(kept["note"], self._said_done())
        return result if _hash_screen(result) == kept["screen"] else None

    def _said_done(self) -> bool:
        last = self._actions[-1] if self._actions else None
        if isinstance(last, Finished) and last.content:
            self._state["answer"] = last.content
        return isinstance(last, Finished | CallUser)

    async def _read(self, seen: Mapping[str, Any]) -> None:
        """Read the verifier's state from page and server; while a dialog is open, the page's last state stays."""
        if self.backend is not None and "dialog" not in seen:
            seen = {**seen, "served": await self.backend.read()}
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
        self._state = state | {part: seen[part] for part in ("beyond", "dialog") if seen.get(part)}

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
        """Limit the time of the block, and turn its errors into those of `Env`; any error breaks this env."""
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
        except (PageGone, CdpCommandError) as error:
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
        """Return the error with its place; where the page's server is gone, the reason for that instead."""
        fault = self.backend.fault if self.backend is not None else ""
        return type(error)(fault or error.what, where=self._where(task), fix=error.fix)

    def _path(self) -> str:
        """Return the seen page's URL without what differs from run to run, such as port and session."""
        prefixes = sorted((one for one in self._session.allowed if self.tab.url.startswith(one)), key=len)
        return self.tab.url.removeprefix(prefixes[-1]) if prefixes else self.tab.url

    def _where(self, task: Task | None = None) -> str:
        task = task or self._task
        return f"world {task.world}, task {task.task_id}, page {self.tab.url}" if task else self.tab.url


def _unpack_checkpoint(checkpoint: bytes) -> tuple[dict[str, Any], list[Action]]:
    try:
        kept = json.loads(checkpoint)
        return {"task": str(kept["task"]), "seed": int(kept["seed"]), **kept}, actions_from_json(kept["actions"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise EnvError("this is no checkpoint", where=f"{len(checkpoint)} bytes") from None


def _hash_screen(result: StepResult) -> str:
    return hashlib.sha256(result.observation.screenshot).hexdigest()
