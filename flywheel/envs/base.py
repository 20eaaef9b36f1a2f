"""Define the interfaces of environments: tasks, V, suites, `Env`, checkpoints, live view and take-over by a person.

An `Env` is one session: reset to a task, stepped to its end, reset again or closed. `terminated` is an end of the task,
`truncated` a limit (the step budget); a crash is an `EnvError`, never a reward. Every back-end passes
`flywheel.envs.conformance.check_env`.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.actions import Action, Point
from flywheel.config import DomainName
from flywheel.utils.errors import BadInput, DataError

INTERFACES = ("gui", "sdk", "both")  # the screen alone, functions alone, either


@dataclass(frozen=True)
class Task:
    """One row of the table `tasks`: what is asked, of which suite (`world`), and how it is verified.

    params: the template's parameters, JSON values. threshold: it is solved where its score (0 to 1) reaches this.
    max_steps: the step budget; the env truncates after it. split: train or eval. verifier: its name in the back-end.
    checksum: of what the task depends on. environment: the back-end that plays it (`flywheel.envs.registry`).
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
        """Which of INTERFACES it may be done by, where its params say so (`allowed`); else ""."""
        allowed = self.params.get("allowed", "")
        return allowed if allowed in INTERFACES else ""


@dataclass(frozen=True)
class Observation:
    """What the agent sees: a picture, a text, or both.

    screenshot: a PNG of width x height pixels; None and 0 x 0 where there is no picture. url: the page's path; "" where
    there is none. text: what there is to read, such as a terminal's screen; "" where the picture is all.
    """

    screenshot: bytes | None
    width: int = 0
    height: int = 0
    url: str = ""
    text: str = ""


@dataclass(frozen=True)
class StepResult:
    """What followed a reset or a step.

    reward: of this step alone. info: `state` (what the verifier reads, JSON values), `score` (the state's, 0 to 1),
    `note` (why the action did nothing), `result` (what an SDK function returned).
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Env(Protocol):
    """Play one session. Every call has a deadline and raises EnvError (a crash) or EnvTimeout; then only `close` is
    left."""

    async def reset(self, task: Task, seed: int) -> StepResult:
        """Begin a fresh session of `task` and return what is seen first; the same task and seed give the same.

        seed: any integer, mostly `task.seed`. Raises BadInput for a task that it cannot play, DataError for a state
        that its verifier cannot read.
        """

    async def step(self, action: Action) -> StepResult:
        """Carry out one action, and return what followed.

        action: one that this back-end has not, or outside the screen, does nothing and leaves a `note`. Raises EnvError
        where the episode is over, DataError for a state that the verifier cannot read.
        """

    async def close(self) -> None:
        """Free everything; may be called twice."""


@runtime_checkable
class Checkpointable(Protocol):
    """An `Env` whose whole state can be saved and restored."""

    async def checkpoint(self) -> bytes:
        """Save the state for `restore`. Raises EnvError before a reset."""

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Restore a checkpoint of this task: what follows is the same as what followed when it was saved.

        checkpoint: as `checkpoint` gave it, in whatever process. Returns the result that was seen last then. Raises
        EnvError for anything else, or the checkpoint of another task.
        """


@runtime_checkable
class PartialCheckpointable(Protocol):
    """An `Env` of which a part can be saved, such as a machine's files without its running programs.

    What is restored is a fresh session with that part, at the same step; `info["lost"]` lists what else there was.
    """

    async def save_partial(self) -> bytes:
        """Save the part that `restore_partial` takes. What runs goes on. Raises EnvError outside of an episode."""

    async def restore_partial(self, kept: bytes) -> StepResult:
        """Begin a fresh session of this task with the part that was saved, and return what is seen.

        kept: as `save_partial` gave it. Raises EnvError for anything else.
        """


class TaskTemplate(BaseModel):
    """A family of tasks of one suite.

    instruction: a format string over the drawn params. max_steps: the step budget of each level. verifier: its name in
    the back-end. threshold: of the score, from which a task is solved; None: routing.threshold.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    instruction: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    threshold: float | None = Field(None, gt=0, le=1)
    max_steps: dict[int, int] = Field(min_length=1)


class TaskSuite(BaseModel, ABC):
    """Draw tasks of one back-end.

    environment: the back-end. domain: where it is listed; `synthesis.domains` may put it into another. checksum: of all
    that its tasks depend on. once: each template and level is one task, the same for all seeds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    environment: ClassVar[str]
    once: ClassVar[bool] = False
    name: str
    domain: DomainName
    templates: dict[str, TaskTemplate] = Field(min_length=1)
    checksum: str

    @abstractmethod
    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of one task of a template and level: JSON values that say all that the agent meets.

        seed: any integer; the same arguments give the same. Raises BadInput for a template or a level that the suite
        has not.
        """

    @property
    def levels(self) -> list[int]:
        """The levels that any of its templates has, in rising order."""
        return sorted({level for template in self.templates.values() for level in template.max_steps})

    def budget(self, template: str, level: int) -> int:
        """Return the step budget of a template's level. Raises BadInput for one that the suite has not."""
        spec = self.templates.get(template)
        if spec is None:
            fix = f"known are {', '.join(self.templates)}"
            raise BadInput(f"no template is called {template!r}", where=f"world {self.name}", fix=fix)
        if level not in spec.max_steps:
            where, levels = f"world {self.name}, template {template}", ", ".join(map(str, sorted(spec.max_steps)))
            raise BadInput(f"there is no level {level}", where=where, fix=f"its levels are {levels}")
        return spec.max_steps[level]


# Take-over: a person's mouse, fingers and keys in an environment, as the watch page sends them.

_MAX_SHARE = 1 - 1e-6  # a share of the screen is below 1
_MAX_WHEEL_PIXELS, _MAX_TEXT_CHARACTERS, _MAX_KEY_CHARACTERS = 10_000.0, 2000, 40
_GESTURES_WITH_POINT = ("click", "long", "grab", "move", "drop", "wheel")


@dataclass(frozen=True)
class Gesture:
    """One gesture of a person who has taken over.

    kind: click, long (a long press), grab, move and drop (a button or a finger held down), wheel, press and release
    (a key), text, back, home. at: of the screen, where it has a place. right, down: pixels that the wheel turns.
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
        """Parse a JSON object: `do` is the kind, `x` and `y` (shares of the screen) the place, other keys are named as
        the fields.

        said: the object. Values out of bounds are clipped. Raises ValueError for what is no gesture.
        """
        kind = said.get("do")
        if kind in _GESTURES_WITH_POINT:
            at = Point(*(_clipped_number(said, name, 0.0, _MAX_SHARE) for name in ("x", "y")))
            button = "right" if said.get("button") == "right" else "left"
            count = _clipped_number(said, "count", 1, 3, 1)
            turned = (_clipped_number(said, way, -_MAX_WHEEL_PIXELS, _MAX_WHEEL_PIXELS, 0) for way in ("right", "down"))
            return cls(kind, at, button, int(count), *turned)
        if kind in ("press", "release"):
            return cls(kind, key=str(said.get("key", ""))[:_MAX_KEY_CHARACTERS])
        if kind == "text":
            return cls(kind, text=str(said.get("text", ""))[:_MAX_TEXT_CHARACTERS])
        if kind in ("back", "home"):
            return cls(kind)
        raise ValueError(f"no gesture is called {str(kind)[:40]!r}")


def _clipped_number(
    said: Mapping[str, Any], name: str, least: float, most: float, default: float | None = None
) -> float:
    value = said.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} of a gesture is no number")
    return max(least, min(most, float(value)))


# Watching: what a person does is no step of the agent, so it is neither recorded nor scored.

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@runtime_checkable
class MachineAccess(Protocol):
    """Reach into an `Env` of a machine with terminals, files and services, and maybe a screen.

    All methods raise EnvError where what is asked for is not there. A connection is a reader and a writer.
    """

    async def screen(self) -> Streams:
        """Connect to the desktop, which speaks VNC (RFB)."""

    async def service(self, port: int) -> Streams:
        """Connect to the TCP port `port` of the machine."""

    async def terminal(self) -> Streams:
        """Connect to the agent's terminal: its output, and keys for the program that runs (`terminal_relay.py`)."""

    async def shell(self, rows: int, columns: int) -> Streams:
        """Start a shell of the watcher's own, spoken to as `terminal`. rows, columns: characters of its screen."""

    async def list_folder(self, path: str) -> Mapping[str, Any]:
        """List the folder `path` below the home: `entries` with `name`, `kind` and `bytes`, and how many `more`."""

    async def read_file(self, path: str, most: int) -> bytes:
        """Read the file `path` below the home; of a longer one than `most` bytes, its beginning of more than that."""

    async def write_file(self, path: str, content: bytes) -> None:
        """Write `content` to the file `path` below the home, new or over the one that is there."""


class LatestPicture:
    """Hold the newest picture (PNG or JPEG) for one watcher; those that it was too slow for are dropped."""

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self._changed = asyncio.Event()

    def put(self, picture: bytes) -> None:
        """Replace the picture by a newer one and wake the watcher. picture: PNG or JPEG."""
        self._newest = picture
        self._changed.set()

    async def next(self) -> bytes:
        """Wait for a picture that was not taken yet, and take it."""
        await self._changed.wait()
        self._changed.clear()
        return self._newest


@runtime_checkable
class LiveView(Protocol):
    """Follow the picture of an `Env`, and let a person's mouse and keys reach it."""

    touch: bool  # it has fingers for a mouse

    def watch(self) -> AbstractContextManager[LatestPicture]:
        """Follow the picture as it changes, until the block ends. While nobody watches, it costs nothing."""

    async def apply_gestures(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        """Carry out a person's `gestures`, then let `ms` of the environment's time pass; returns notes for the person.

        Call it neither during a step nor in a task that may be cancelled: the environment would be broken. Raises
        EnvError.
        """

    async def release_all(self) -> None:
        """Let go of all keys and buttons that the person holds. Raises EnvError."""


# A verifier (section 2.5.2): from a task's params and the recorded state of a finished episode to a score in [0, 1].
#
# A pure function, so that stored trajectories can be scored again. 1 is reached only where exactly what was asked is
# done; a part of it, or something beside it, scores less. Each lies with its tasks.

Verifier = Callable[[Mapping[str, Any], Mapping[str, Any]], float]


def apply_verifier(
    verifier: Verifier, name: str, params: Mapping[str, Any], state: Mapping[str, Any], where: str
) -> float:
    """Score a final state by a verifier, in [0, 1].

    name: of the verifier, for messages. params: of the task. state: that it reads. where: the trajectory, for messages.
    Returns the score. Raises DataError for a state that lacks what the verifier reads, or a score out of [0, 1].
    """
    try:
        value = float(verifier(params, state))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise DataError(f"verifier {name} cannot read the state: {type(error).__name__} {error}", where=where) from None
    if not 0.0 <= value <= 1.0:
        raise DataError(f"verifier {name} gave {value}, which is not in [0, 1]", where=where)
    return value


# V (section 2.3): whether a trajectory counts as solved, decided here alone: 1 where score >= threshold, else 0; none
# where there is no score.
#
# The threshold stands in the table `tasks` since the task was made; a template that names none gets
# `routing.threshold`. Of several scorers all must be satisfied: where one says 0, V is 0, even if others gave no score;
# else, where one gave none, there is no V.


@dataclass(frozen=True)
class Verdict:
    """Hold what one scorer says of one trajectory.

    score: in [0, 1]; None where the scorer gave none, and then `detail` says why. threshold: the task's, in (0, 1];
    None where it is not known. scorer, version: who said it. detail: in words, what it adds to its score.
    """

    score: float | None
    threshold: float | None
    scorer: str = ""
    version: str = ""
    detail: str = ""

    @property
    def v(self) -> bool | None:
        """V; None where there is no score in [0, 1], or no threshold to hold it against."""
        if self.score is None or self.threshold is None or not 0.0 <= self.score <= 1.0:
            return None
        return self.score >= self.threshold

    def row(self, trajectory_id: str) -> dict[str, Any]:
        """Make a row of the table `scores` for the trajectory `trajectory_id`; `success` is V."""
        return {"trajectory_id": trajectory_id, **asdict(self), "success": self.v}


def decide_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Choose the verdict that counts, of all `verdicts` on a trajectory: the least satisfied one.

    That is one whose V is false, else one without V, else one whose V is true; of several, the lowest score, then the
    first. A verdict without a score where there are none.
    """
    return min(verdicts, key=_verdict_rank, default=Verdict(None, None, detail="no score"))


def _verdict_rank(verdict: Verdict) -> tuple[int, float]:
    place = {False: 0, None: 1, True: 2}[verdict.v]
    return place, 0.0 if verdict.v is None else verdict.score


def verdicts_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Verdict]:
    """Return the deciding verdict (`decide_verdict`) of each trajectory that has a row, by its id.

    rows: of the table `scores`; they need `trajectory_id`, other columns that a row lacks are empty.
    """
    by_trajectory: dict[str, list[Verdict]] = defaultdict(list)
    for row in rows:
        texts = {name: row.get(name) or "" for name in ("scorer", "version", "detail")}
        by_trajectory[row["trajectory_id"]].append(Verdict(row.get("score"), row.get("threshold"), **texts))
    return {name: decide_verdict(verdicts) for name, verdicts in by_trajectory.items()}
