"""Define the environment contract: tasks, task suites, environments and what a watcher may see of one."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.actions import Action, Point
from flywheel.config import DomainName
from flywheel.utils.errors import BadInput

# The environment contract. Every back-end passes `flywheel.envs.conformance.check_env`, a fake included.
#
# An `Env` is one session: reset to a task, stepped to its end, reset again or closed. `terminated` is an end of the
# task, `truncated` a limit (the step budget); a crash is an `EnvError`, never a reward.

INTERFACES = ("gui", "sdk", "both")  # the screen alone, functions alone, either


@dataclass(frozen=True)
class Task:
    """One row of the table `tasks`: what is asked, in which world, and how it is verified.

    params: the template's parameters, JSON values. threshold: V = 1 where the score reaches it (`reward.verdict`).
    max_steps: the step budget; the env truncates after it. environment: the kind that it is played in
    (`flywheel.envs.registry`); all tasks of earlier versions were played in browsers.
    """

    task_id: str
    domain: str
    world: str
    template: str
    level: int
    seed: int
    instruction: str
    params: Mapping[str, Any]
    max_steps: int
    split: str
    verifier: str
    threshold: float
    checksum: str
    environment: str = "browser"

    @property
    def interface(self) -> str:
        """The ways that it may be done in, where its params say so (`allowed`): gui, sdk or both; else ""."""
        allowed = self.params.get("allowed", "")
        return allowed if allowed in INTERFACES else ""


@dataclass(frozen=True)
class Observation:
    """What the agent sees: a picture, a text, or both.

    screenshot: a PNG of width x height pixels; None, 0 x 0, where there is no picture. text: what is there to read,
    such as a terminal's screen; "" where the picture is all.
    """

    screenshot: bytes | None
    width: int = 0
    height: int = 0
    url: str = ""
    text: str = ""


@dataclass(frozen=True)
class StepResult:
    """reward: of this step alone. info: `state` (what the verifier reads, JSON values), `score` (the state's, 0 to 1),
    `note` (a defined no-op), `result` (what an SDK function returned)."""

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Env(Protocol):
    """Every call has a deadline and raises EnvError (crash) or EnvTimeout, after which only `close` is allowed."""

    async def reset(self, task: Task, seed: int) -> StepResult:
        """A fresh session of the task. The same task and seed give the same observations."""

    async def step(self, action: Action) -> StepResult:
        """Carry out one action. One that does not exist here, or lies outside, is a no-op, said in `info["note"]`."""

    async def close(self) -> None:
        """Free everything; may be called twice."""


@runtime_checkable
class Checkpointable(Protocol):
    """An `Env` whose state can be kept and brought back, where its kind offers that."""

    async def checkpoint(self) -> bytes:
        """A state that `restore` brings back."""

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Back to a checkpoint of this task: what follows is the same as what followed it."""


@runtime_checkable
class PartialCheckpointable(Protocol):
    """An `Env` of which a part can be kept: not all that is at work in it can. What is brought back is a fresh session
    with that part, at the same step; `info["lost"]` says line by line what else there had been."""

    async def save_partial(self) -> bytes:
        """The part that `restore_partial` takes. What is at work goes on."""

    async def restore_partial(self, kept: bytes) -> StepResult:
        """Go on from what was kept of this task."""


# A world: what tasks of one kind of environment are drawn from (section 2.5.1).


class TaskTemplate(BaseModel):
    """A kind of task. instruction: a format string over the drawn params. max_steps: step budget by level.

    verifier: as the environment's kind knows it. threshold: V = 1 where the score reaches it; None: routing.threshold.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    instruction: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    threshold: float | None = Field(None, gt=0, le=1)
    max_steps: dict[int, int] = Field(min_length=1)


class TaskSuite(BaseModel, ABC):
    """environment: the kind that its tasks are played in. domain: where it is listed; a workspace may put it into
    another (`synthesis.domains`). checksum: of all that a task of it depends on. once: each template and level is one
    task, the same for all seeds."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    environment: ClassVar[str]
    once: ClassVar[bool] = False
    name: str
    domain: DomainName
    templates: dict[str, TaskTemplate] = Field(min_length=1)
    checksum: str

    @abstractmethod
    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """The params of one seed's task, JSON values: all that the agent meets, so that two tasks of equal params are
        the same one. Raises BadInput for a template or a level that the world has not."""

    @property
    def levels(self) -> list[int]:
        return sorted({level for template in self.templates.values() for level in template.max_steps})

    def budget(self, template: str, level: int) -> int:
        """The step budget of a template's level. Raises BadInput for a template or a level that the world has not."""
        spec = self.templates.get(template)
        if spec is None:
            raise BadInput(
                f"no template is called {template!r}",
                where=f"world {self.name}",
                fix=f"known are {', '.join(self.templates)}",
            )
        if level not in spec.max_steps:
            raise BadInput(
                f"there is no level {level}",
                where=f"world {self.name}, template {template}",
                fix=f"its levels are {', '.join(map(str, sorted(spec.max_steps)))}",
            )
        return spec.max_steps[level]


# What a person's mouse, fingers and keys do to an environment that is taken over, as the watch page tells of it.

_MAX_SHARE = 1 - 1e-6  # a share of the screen is below 1
_MAX_WHEEL_PIXELS, _MAX_TEXT_CHARACTERS, _MAX_KEY_CHARACTERS = 10_000.0, 2000, 40
_GESTURES_WITH_POINT = ("click", "long", "grab", "move", "drop", "wheel")


@dataclass(frozen=True)
class Gesture:
    """kind: click, long (a long press), grab, move and drop (a button or a finger held down), wheel, press and release
    (a key), text, back, home.

    at: of the screen, where it has a place. right, down: pixels that the wheel turns.
    """

    kind: str
    at: Point = Point(0.0, 0.0)  # noqa: RUF009 (it is frozen)
    button: str = "left"
    count: int = 1
    right: float = 0.0
    down: float = 0.0
    key: str = ""
    text: str = ""

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Gesture:
        """Of a JSON object, its field `do` and those above. Raises ValueError for what is no gesture."""
        kind = said.get("do")
        if kind in _GESTURES_WITH_POINT:
            return cls(
                kind,
                Point(*(max(0.0, min(_MAX_SHARE, _finite_number(said, name))) for name in ("x", "y"))),
                "right" if said.get("button") == "right" else "left",
                int(max(1, min(3, _finite_number(said, "count", 1)))),
                *(
                    max(-_MAX_WHEEL_PIXELS, min(_MAX_WHEEL_PIXELS, _finite_number(said, name, 0)))
                    for name in ("right", "down")
                ),
            )
        if kind in ("press", "release"):
            return cls(kind, key=str(said.get("key", ""))[:_MAX_KEY_CHARACTERS])
        if kind == "text":
            return cls(kind, text=str(said.get("text", ""))[:_MAX_TEXT_CHARACTERS])
        if kind in ("back", "home"):
            return cls(kind)
        raise ValueError(f"no gesture is called {str(kind)[:40]!r}")


def _finite_number(said: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = said.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} of a gesture is no number")
    return float(value)


# What of an environment can be watched while it is played, beside the results of its steps, and taken over.
#
# What a person does there is no step of the agent's: nothing of it is recorded or scored.

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@runtime_checkable
class MachineAccess(Protocol):
    """An `Env` of a machine with terminals, files and services, and maybe a screen. All raise EnvError where what is
    asked for is not there."""

    async def screen(self) -> Streams:
        """The desktop, as VNC (RFB) speaks."""

    async def service(self, port: int) -> Streams:
        """A connection to a port of the machine."""

    async def terminal(self) -> Streams:
        """The agent's terminal: what is printed there, and keys for the program that runs
        (`envs/computer_server/terminal_relay.py`).
        """

    async def shell(self, rows: int, columns: int) -> Streams:
        """A shell of the watcher's own in the same machine, spoken to as `terminal`."""

    async def list_folder(self, path: str) -> Mapping[str, Any]:
        """A folder, counted from the home: `entries` with `name`, `kind`, `bytes`; how many `more`."""

    async def read_file(self, path: str, most: int) -> bytes:
        """A file; of one with more than `most` bytes, more than `most` bytes that are not all of it."""

    async def write_file(self, path: str, content: bytes) -> None:
        """A file, made or written over."""


class LatestPicture:
    """Pictures (PNG or JPEG) for one watcher: the newest. What a slow one has not taken is left out."""

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self._changed = asyncio.Event()

    def put(self, picture: bytes) -> None:
        self._newest = picture
        self._changed.set()

    async def next(self) -> bytes:
        """The newest, once there is one that was not taken."""
        await self._changed.wait()
        self._changed.clear()
        return self._newest


@runtime_checkable
class LiveView(Protocol):
    """An `Env` whose picture can be followed, and which a person's mouse and keys can reach."""

    touch: bool  # it has fingers for a mouse

    def watch(self) -> AbstractContextManager[LatestPicture]:
        """Pictures as they change, until the block ends. Nothing is done for them while nobody watches."""

    async def apply_gestures(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        """Carry out a person's gestures, then let `ms` of the environment's time pass; what is to be told of them.
        Not while a step is under way, and not to be cancelled: the environment would be broken. Raises EnvError."""

    async def release_all(self) -> None:
        """The person lets go of all that is held."""
