"""A kind of environment from outside: a store of keys and values, read and changed by text alone. No browser.

`BACKENDS["shelves"] = Shelves()` is all that makes the flywheel know it.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from flywheel.agent.actions import Action, CallUser, Finished, Type, Wait
from flywheel.config import Settings
from flywheel.envs.base import Observation, StepResult, Task, TaskSuite, TaskTemplate, Verdict, Verifier, apply_verifier
from flywheel.envs.registry import BackendSettings, EnvLimits, parse_backend_settings
from flywheel.utils.errors import BadInput, EnvError, Finding, run_diagnostic

_THINGS = ("box", "cup", "key", "map", "pen")


class StoreWorld(TaskSuite):
    """Templates: the lamp is to be turned on, or off. What else stands in the store must stay as it is."""

    environment: ClassVar[str] = "shelves"

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        self.budget(template, level)
        rng = random.Random(f"{template} {level} {seed}")
        store = {"lamp": "off" if template == "on" else "on"}
        return {"store": store | {name: str(rng.randrange(100)) for name in rng.sample(_THINGS, level)}}


STORE = StoreWorld(
    name="store",
    domain="stores",
    templates={
        name: TaskTemplate(instruction=f"Turn the lamp {name}.", verifier=f"turned_{name}", max_steps={1: 2, 2: 3})
        for name in ("on", "off")
    },
    checksum=hashlib.sha256(b"store").hexdigest(),
)


def turned(value: str) -> Verifier:
    """All of it is as it was but the lamp, which has this value."""
    return lambda params, state: float(state["store"] == params["store"] | {"lamp": value})


VERIFIERS = {f"turned_{value}": turned(value) for value in ("on", "off")}


class ShelfSettings(BackendSettings):
    largest: int = 20  # keys that a store may hold


class Shelf:
    """An `Env` that offers no checkpoints. Commands are typed: `set KEY VALUE`."""

    def __init__(self, chosen: ShelfSettings) -> None:
        self._chosen, self._task = chosen, None

    async def reset(self, task: Task, seed: int) -> StepResult:
        self._task, self._store, self._steps, self._over = task, dict(task.params["store"]), 0, False
        return self._result("", False)

    async def step(self, action: Action) -> StepResult:
        if self._task is None or self._over:
            raise EnvError("the episode is over", fix="reset the environment first")
        self._steps += 1
        note = ""
        if isinstance(action, Type):
            note = self._command(action.content)
        elif not isinstance(action, Wait | Finished | CallUser):
            note = "there is a keyboard and nothing else"
        return self._result(note, isinstance(action, Finished | CallUser))

    async def close(self) -> None:
        self._task = None

    def _command(self, text: str) -> str:
        words = text.split()
        if len(words) != 3 or words[0] != "set":
            return "no such command"
        if len(self._store | {words[1]: ""}) > self._chosen.largest:
            return "the store is full"
        self._store[words[1]] = words[2]
        return ""

    def _result(self, note: str, said_done: bool) -> StepResult:
        task, state = self._task, {"store": dict(self._store), "terminated": False}
        score = apply_verifier(VERIFIERS[task.verifier], task.verifier, task.params, state, task.task_id)
        terminated = state["terminated"] = bool(said_done or Verdict(score, task.threshold).v)
        truncated = not terminated and self._steps >= task.max_steps
        self._over = terminated or truncated
        text = "\n".join(f"{key}={value}" for key, value in sorted(self._store.items()))
        info = {"state": state, "score": score} | ({"note": note} if note else {})
        return StepResult(Observation(None, text=text), score if terminated else 0.0, terminated, truncated, info)


class Lender:
    """lent: environments so far; running, most: now, and at most at once."""

    def __init__(self, chosen: ShelfSettings, make=Shelf) -> None:
        self._chosen, self._make = chosen, make
        self.lent = self.running = self.most = 0
        self.events = SimpleNamespace(counts=Counter())

    @asynccontextmanager
    async def env(self) -> AsyncIterator[Shelf]:
        self.lent, self.running = self.lent + 1, self.running + 1
        self.most = max(self.most, self.running)
        env = self._make(self._chosen)
        try:
            yield env
        finally:
            self.running -= 1
            await env.close()


class Shelves:
    """name: of the kind, and of its block of settings. opened: every lender that there has been."""

    def __init__(self, name: str = "shelves", world: TaskSuite = STORE, make=Shelf) -> None:
        self.name, self._world, self._make = name, world, make
        self.opened: list[Lender] = []

    def suites(self) -> Iterable[str]:
        return (self._world.name,)

    def suite(self, name: str) -> TaskSuite:
        return self._world

    def verifier(self, task: Task) -> Verifier:
        if task.verifier not in VERIFIERS:
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id)
        return VERIFIERS[task.verifier]

    def limits(self, settings: Settings) -> EnvLimits:
        return self._settings(settings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        return self._settings(settings).model_dump()

    def check(self, settings: Settings) -> None:
        self._settings(settings)

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        return (run_diagnostic(self.name, lambda: f"{self._settings(settings).places} places"),)

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[Lender]:
        self.opened.append(Lender(self._settings(settings), self._make))
        yield self.opened[-1]

    def _settings(self, settings: Settings) -> ShelfSettings:
        return parse_backend_settings(settings, self.name, ShelfSettings)
