"""An `Env` on a Chromium page: reset, step, and what the agent sees (section 2.2, the game sandbox).

Page time stands still but for `sandbox.step_ms` a step (`clock.js`), so the same task, seed and actions give the same
pixels. The verifier runs after each step: the task ends where its score reaches the threshold, where the game is
over, or where the agent says so.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import CDPSession, Page
from playwright.async_api import Error as PlaywrightError

from flywheel.agent.actions import Action, CallUser, Finished
from flywheel.errors import EnvError, EnvTimeout
from flywheel.reward import verifiers
from flywheel.sandbox.env import Observation, StepResult, Task
from flywheel.sandbox.inputs import Hands, pack, unpack
from flywheel.settings import Sandbox
from flywheel.worlds.server import WorldServer

log = logging.getLogger(__name__)
_CLOCK = (Path(__file__).parent / "clock.js").read_text(encoding="utf-8")
_CRASHED = "the page crashed"
# What a navigation does to a call that was under way in the page it left.
_LEFT = ("Execution context was destroyed", "Cannot find context", "Inspected target navigated", "frame was detached")


class BrowserEnv:
    """One leased page. `broken` is set by an error: the page is then thrown away, never used again."""

    def __init__(self, page: Page, cdp: CDPSession, server: WorldServer, settings: Sandbox) -> None:
        self._page, self._cdp, self._server, self._settings = page, cdp, server, settings
        self._hands = Hands(page, settings.width, settings.height, lambda: self._look(0))
        self._task: Task | None = None
        self._url = ""
        self._script = ""
        self._seed = 0
        self._actions: list[Action] = []
        self._state: Mapping[str, Any] = {}
        self._over = True
        self._running: asyncio.Task | None = None
        self.broken = False

    # -- the contract ---------------------------------------------------------------------------------------------
    async def reset(self, task: Task, seed: int) -> StepResult:
        async with self._deadline("reset", task):
            self._forget()
            self._task, self._seed, self._actions, self._over = task, seed, [], False
            self._url = self._server.new_session(task, seed)
            await self._hands.release_all()
            if self._script:
                await self._cdp.send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": self._script})
            source = _CLOCK.replace("SEED", str(int(seed)))
            added = await self._cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})
            self._script = added["identifier"]
            origin = {"origin": self._server.url, "storageTypes": "all"}
            await self._cdp.send("Storage.clearDataForOrigin", origin)
            answer = await self._page.goto(self._url, wait_until="commit")
            if answer is None or not answer.ok:
                said = "nothing" if answer is None else f"status {answer.status}"
                raise EnvError(f"the page does not load: it answered {said}", where=self._where(task))
            state = await self._look(0)
            await self._cdp.send("Page.resetNavigationHistory")
            self._state = state
            return await self._result(note="")

    async def step(self, action: Action) -> StepResult:
        task = self._task
        if task is None or self._over:
            raise EnvError("the episode is over", where=self._where(), fix="reset the environment first")
        async with self._deadline("step", task):
            self._actions.append(action)
            note = await self._hands.do(action, self._url)
            self._state = await self._look(self._settings.step_ms)
            if not self._page.url.startswith(self._url):
                await self._page.goto(self._url, wait_until="commit")
                self._state, note = await self._look(0), "the page left this world and was brought back"
            return await self._result(note, said_done=isinstance(action, Finished | CallUser))

    async def checkpoint(self) -> bytes:
        """The actions since the reset: replayed by `restore`, since the same actions give the same pixels."""
        if self._task is None:
            raise EnvError("nothing to keep", fix="reset the environment first")
        kept = {"task": self._task.task_id, "seed": self._seed, "actions": pack(self._actions)}
        return json.dumps(kept).encode()

    async def restore(self, checkpoint: bytes) -> StepResult:
        kept = json.loads(checkpoint)
        if self._task is None or kept["task"] != self._task.task_id:
            raise EnvError(f"the checkpoint is of task {kept['task']}", where=self._where(), fix="reset to that task")
        result = await self.reset(self._task, kept["seed"])
        for action in unpack(kept["actions"]):
            result = await self.step(action)
        return result

    async def close(self) -> None:
        self._forget()
        self._over = True

    def crash(self) -> None:
        """The page's renderer died: no call to it will answer, so the one under way ends now."""
        self.broken = True
        if self._running is not None:
            self._running.cancel(_CRASHED)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _forget(self) -> None:
        if self._url:
            self._server.end_session(self._url)
        self._url, self._state, self._task = "", {}, None

    async def _look(self, ms: int) -> dict[str, Any]:
        """Let what was begun finish, pass `ms` of page time, and read the state."""
        # Not page.evaluate: this is one message, and the pages' content policy does not bind it.
        call = {"expression": f"window.__flywheel__.observe({ms:d})", "awaitPromise": True, "returnByValue": True}
        while True:
            try:
                answer = await self._cdp.send("Runtime.evaluate", call)
                break
            except PlaywrightError as error:
                if not any(sign in str(error) for sign in _LEFT):
                    raise
        if "exceptionDetails" in answer:
            text = answer["exceptionDetails"].get("exception", {}).get("description", "a script error")
            raise EnvError(f"the page could not be observed: {text}", where=self._where())
        seen = answer["result"]["value"]
        state = self._server.state(self._url) or seen["game"] or dict(self._state)
        if not state:
            raise EnvError("the game published no state", where=self._where())
        state.setdefault("terminated", False)
        state["elements"] = seen["elements"]
        return state

    async def _result(self, note: str, said_done: bool = False) -> StepResult:
        task = self._task
        score = verifiers.score(task, self._state)
        shot = await self._cdp.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        terminated = bool(said_done or score >= task.threshold or self._state["terminated"])
        truncated = not terminated and len(self._actions) >= task.max_steps
        self._over = terminated or truncated
        path = self._page.url.removeprefix(self._url)
        observation = Observation(
            base64.b64decode(shot["data"]), self._settings.width, self._settings.height, f"{task.world}/{path}"
        )
        info = {"state": self._state, "score": score} | ({"note": note} if note else {})
        return StepResult(observation, score if terminated else 0.0, terminated, truncated, info)

    @asynccontextmanager
    async def _deadline(self, what: str, task: Task) -> AsyncIterator[None]:
        """The contract's errors: whatever goes wrong inside breaks this env, by a named error."""
        if self.broken:
            raise EnvError("the page is broken", where=self._where(), fix="lease another environment")
        try:
            self._running = asyncio.current_task()
            async with asyncio.timeout(self._settings.timeout_s):
                yield
        except asyncio.CancelledError as error:
            self.broken = True
            if error.args != (_CRASHED,):
                raise
            self._running.uncancel()
            raise EnvError(f"the page crashed in a {what}", where=self._where(task)) from None
        except TimeoutError:
            self.broken = True
            raise EnvTimeout(
                f"the page did not answer a {what} within {self._settings.timeout_s:g} s", where=self._where(task)
            ) from None
        except PlaywrightError as error:
            self.broken = True
            line = str(error).strip().splitlines()[0]
            raise EnvError(f"the page failed in a {what}: {line}", where=self._where(task)) from error
        except BaseException:
            self.broken = True
            raise
        finally:
            self._running = None

    def _where(self, task: Task | None = None) -> str:
        task = task or self._task
        return f"world {task.world}, task {task.task_id}, page {self._page.url}" if task else self._page.url
