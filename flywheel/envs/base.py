"""Define what all environments share: tasks, suites, `Env`, checkpoints, live view, take-over by people, and verdicts.

An `Env` plays one episode at a time: `reset` begins it, `step` plays it to its end; then follows another `reset`, or
`close`. `terminated` means that the task ended, `truncated` that a limit (the step budget) was reached. A crash is an
`EnvError`, never a reward. Every back-end passes `flywheel.envs.conformance.check_env`.
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

INTERFACES = ("gui", "sdk", "both")  # how a task may be done: by the screen, by functions, by either


@dataclass(frozen=True)
class Task:
    """Hold one task, a row of the table `tasks`: what the agent must do and how that is verified.

    world: the name of its suite or third-party page. template: its template, or the page's variant. level: its
    difficulty. seed: what its params were drawn by. params: the template's parameters, JSON values. max_steps: the step
    budget, after which the env truncates. split: train or eval. verifier: the verifier's name in the back-end; "":
    there is none. threshold: the task is solved where its score (0 to 1) reaches this. checksum: hash of all that the
    task depends on. environment: the back-end that plays it (`flywheel.envs.registry`). source: what made it:
    templates, page, questions, exploration or rules. verifier_kill_rate: share of mutated end states that its verifier
    refused (`flywheel tasks attack`); None: unknown.
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
    source: str = "templates"
    verifier_kill_rate: float | None = None

    @property
    def interface(self) -> str:
        """Return how the task may be done: gui (screen), sdk (functions) or both; "" where its params do not say."""
        allowed = self.params.get("allowed", "")
        return allowed if allowed in INTERFACES else ""


@dataclass(frozen=True)
class Observation:
    """Hold what the agent sees: a picture, a text, or both.

    screenshot: PNG of width x height pixels; None, and 0 x 0, where there is no picture. url: the suite's name, for a
    web page with its path behind it. text: text to read, such as a terminal's screen; "" where there is only a picture.
    """

    screenshot: bytes | None
    width: int = 0
    height: int = 0
    url: str = ""
    text: str = ""


@dataclass(frozen=True)
class StepResult:
    """Hold the result of a reset or a step.

    reward: of this step alone: the score where it terminates, 0 before that and at a truncation. Never both terminated
    and truncated. info: `state` (what the verifier reads, JSON values, and a bool `terminated`) and `score` (the
    verifier's score of that state, 0 to 1); where there is one, `note` (a text, such as why the action did nothing) and
    `result` (what an SDK function returned). `check_env` of `conformance.py` holds a back-end to it.
    """

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class Env(Protocol):
    """Play episodes of tasks, one at a time.

    Every call has a deadline; it raises EnvTimeout after that, EnvError for a crash. Then only `close` may be called.
    """

    async def reset(self, task: Task, seed: int) -> StepResult:
        """Begin a fresh episode of `task` and return its first result, the same for the same task and seed.

        seed: any integer, mostly `task.seed`. Raises BadInput for a task that this environment cannot play, DataError
        for a state that its verifier cannot read, EnvTimeout and EnvError as the class says.
        """

    async def step(self, action: Action) -> StepResult:
        """Carry out one action and return the result.

        An action that this back-end does not have, or outside the screen, does nothing and leaves a `note`. Raises
        EnvError where the episode is over or was not begun, or for a crash, EnvTimeout after the deadline, DataError
        for a state that the verifier cannot read.
        """

    async def close(self) -> None:
        """Free all resources; may be called twice."""


@runtime_checkable
class Checkpointable(Protocol):
    """Save and restore the whole state of an `Env`, which may leave it out.

    Without it `flywheel annotate` takes a step back, and `flywheel model counterfactual` comes to its step, by playing
    all steps before it again, and what does not repeat exactly cannot be gone back to.
    """

    async def checkpoint(self) -> bytes:
        """Return the whole state, as bytes for `restore`. Raises EnvError before a reset."""

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Restore a checkpoint of this task and return the last result before it was saved.

        The same actions then give the same results as they gave after that. checkpoint: from `checkpoint` in any
        process. Raises EnvError for other bytes, or the checkpoint of another task.
        """


@runtime_checkable
class PartialCheckpointable(Protocol):
    """Save and restore a part of the state of an `Env`, such as a machine's files without its running programs.

    A restore begins a fresh session with that part, at the same step; `info["lost"]` lists what was not saved.
    """

    async def save_partial(self) -> bytes:
        """Return the part of the state that can be saved, as bytes for `restore_partial`; running programs go on.

        Raises EnvError outside of an episode, or for a part that is too large; EnvTimeout after the deadline.
        """

    async def restore_partial(self, kept: bytes) -> StepResult:
        """Begin a fresh session of this task with a saved part, and return its first result.

        kept: from `save_partial`. Raises EnvError before the first `reset`, for other bytes, or a part of another
        task; EnvTimeout after the deadline.
        """


class TaskTemplate(BaseModel):
    """Hold a template: a family of tasks of one suite, which differ by level and drawn params.

    instruction: a format string over the drawn params. max_steps: step budget by level. verifier: the verifier's name
    in the back-end; "": there is none, and other scorers judge (`routing.scorers`). threshold: a task is solved from
    this score on; None: `routing.threshold`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    instruction: str = Field(min_length=1)
    verifier: str
    threshold: float | None = Field(None, gt=0, le=1)
    max_steps: dict[int, int] = Field(min_length=1)


class TaskSuite(BaseModel, ABC):
    """Hold one suite: its templates, and how the params of their tasks are drawn.

    environment: the back-end that plays it. domain: its default one; `synthesis.domains` may put it into another.
    checksum: hash of all that its tasks depend on, which stands in each task; computed from the bytes of those files,
    as `suites/desk/world.py` does, it changes by itself. once: each template and level is one task, the same for all
    seeds. source: as of `Task`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    environment: ClassVar[str]
    once: ClassVar[bool] = False
    name: str
    domain: DomainName
    templates: dict[str, TaskTemplate] = Field(min_length=1)
    checksum: str
    source: str = "templates"

    @abstractmethod
    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of one task: JSON values that determine everything that the agent meets.

        seed: any integer; the same arguments give the same params. Raises BadInput for a template or a level that the
        suite does not have, DataError where it finds nothing that can be solved.
        """

    def answer(self, params: Mapping[str, Any]) -> Any:
        """Return the answer that a task asks for, where its `params` do not hold it as `answer`; None: there is none.

        The answer is a text, a number, or texts in any order.
        """
        return None

    @property
    def levels(self) -> list[int]:
        """Return the levels that any template of the suite has, in rising order."""
        return sorted({level for template in self.templates.values() for level in template.max_steps})

    def budget(self, template: str, level: int) -> int:
        """Return the step budget of a template's level: the number of actions after which the env truncates.

        Raises BadInput for a template or a level that the suite does not have.
        """
        spec = self.templates.get(template)
        if spec is None:
            fix = f"known are {', '.join(self.templates)}"
            raise BadInput(f"no template is called {template!r}", where=f"world {self.name}", fix=fix)
        if level not in spec.max_steps:
            where, levels = f"world {self.name}, template {template}", ", ".join(map(str, sorted(spec.max_steps)))
            raise BadInput(f"there is no level {level}", where=where, fix=f"its levels are {levels}")
        return spec.max_steps[level]


# Take-over: a person's mouse, fingers and keys in an environment, as the watch page sends them.

_MAX_SHARE = 1 - 1e-6  # fractions of the screen are below 1
_MAX_WHEEL_PIXELS, _MAX_TEXT_CHARACTERS, _MAX_KEY_CHARACTERS = 10_000.0, 2000, 40
_GESTURES_WITH_POINT = ("click", "long", "grab", "move", "drop", "wheel")


@dataclass(frozen=True)
class Gesture:
    """Hold one gesture of a person who has taken over an environment.

    kind: click, long (a long press), grab, move and drop (a button or a finger held down), wheel, press and release
    (a key), text, back, home. at: its place on the screen, for kinds that have one. count: of clicks. right, down:
    pixels that the wheel scrolls.
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
        """Parse a gesture from `said`, a JSON object that the watch page sent.

        In it, `do` is the kind, `x` and `y` (fractions of the screen) are the place; other keys are named as the
        fields. Values out of bounds are clipped. Raises ValueError for an object that is no gesture.
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

    @property
    def direction(self) -> str:
        """Return the direction in which a turn of the wheel scrolls most: up, down, left or right."""
        if abs(self.right) > abs(self.down):
            return "right" if self.right > 0 else "left"
        return "down" if self.down > 0 else "up"


def _clipped_number(
    said: Mapping[str, Any], name: str, least: float, most: float, default: float | None = None
) -> float:
    value = said.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise ValueError(f"{name} of a gesture is no number")
    return float(max(least, min(most, value)))  # an integer may be too large for a float


# Watching: what a person does is not a step of the agent, so it is neither recorded nor scored.

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@runtime_checkable
class MachineAccess(Protocol):
    """Reach the terminals, files and services of an `Env` that is a machine, and its desktop where it has one.

    All methods raise EnvError for something that the machine does not have. A connection is a reader and a writer.
    """

    async def screen(self) -> Streams:
        """Connect to the desktop by VNC (RFB)."""

    async def service(self, port: int) -> Streams:
        """Connect to the TCP port `port` of the machine."""

    async def terminal(self) -> Streams:
        """Connect to the agent's terminal: read its output, write keys (the protocol is in `terminal_relay.py`)."""

    async def shell(self, rows: int, columns: int) -> Streams:
        """Start a shell for the watcher, connected as `terminal` is. rows, columns: characters of its screen."""

    async def list_folder(self, path: str) -> Mapping[str, Any]:
        """List the folder `path` below the home: `entries` (`name`, `kind`, `bytes`), and how many `more` there are."""

    async def read_file(self, path: str, most: int) -> bytes:
        """Read the file `path` below the home; of a file longer than `most` bytes, a beginning longer than that."""

    async def write_file(self, path: str, content: bytes) -> None:
        """Write `content` to the file `path` below the home, which is created or replaced."""


@runtime_checkable
class StepListener(Protocol):
    """Receive what the agent said before each step, so that a person who takes the episode over can go on from it."""

    def announce(self, chosen: Mapping[str, Any]) -> None:
        """Take the step that the agent has chosen; a text without an action is announced too, and no call follows it.

        chosen: the step's fields, as the table `steps` names them (thought, raw_text, token_ids, ...).
        """


class LatestPicture:
    """Hold the newest picture (PNG or JPEG) for one watcher; pictures that the watcher is too slow for are dropped."""

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self._changed = asyncio.Event()

    def put(self, picture: bytes) -> None:
        """Replace the picture by a newer one and wake the watcher. picture: PNG or JPEG."""
        self._newest = picture
        self._changed.set()

    async def next(self) -> bytes:
        """Wait for a picture that was not returned yet, and return it."""
        await self._changed.wait()
        self._changed.clear()
        return self._newest


@runtime_checkable
class LiveView(Protocol):
    """Follow the picture of an `Env`, and pass a person's mouse and keys to it."""

    touch: bool  # it has a touch screen in place of a mouse

    def watch(self) -> AbstractContextManager[LatestPicture]:
        """Follow the picture as it changes, until the block ends. While nobody watches, it costs nothing."""

    async def apply_gestures(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        """Carry out a person's `gestures`, then let `ms` of the environment's time pass; returns notes for the person.

        A call during a step, or one that is cancelled, breaks the environment. Raises EnvError.
        """

    async def release_all(self) -> None:
        """Release all keys and buttons that the person holds down. Raises EnvError."""


# A verifier (section 2.5.2) maps a task's params and an episode's recorded state to a score in [0, 1].
#
# It is a pure function, so that stored trajectories can be scored again. The score is 1 only where exactly the task was
# done; doing a part of it, or anything more, scores less. Verifiers are defined beside their tasks.

Verifier = Callable[[Mapping[str, Any], Mapping[str, Any]], float]


def score_nothing(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return 0, whatever the state: what an episode of a task without a verifier earns while it is played."""
    return 0.0


def apply_verifier(
    verifier: Verifier, name: str, params: Mapping[str, Any], state: Mapping[str, Any], where: str
) -> float:
    """Score a recorded state by a verifier; returns the score, in [0, 1].

    name: of the verifier, for messages. params: of the task. state: `info["state"]` of an environment. where: the
    trajectory or page, for messages. Raises DataError for a state that lacks what the verifier reads, or a score out of
    [0, 1].
    """
    try:
        value = float(verifier(params, state))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise DataError(f"verifier {name} cannot read the state: {type(error).__name__} {error}", where=where) from None
    if not 0.0 <= value <= 1.0:
        raise DataError(f"verifier {name} gave {value}, which is not in [0, 1]", where=where)
    return value


# V (section 2.3) says whether a trajectory counts as solved; only this module decides it. V is 1 where score >=
# threshold, else 0; without a score there is no V.
#
# The threshold is set when the task is made (table `tasks`); a template that names none gets `routing.threshold`. With
# several scorers all must be satisfied: where one says 0, V is 0, even if others gave no score; else, where one gave no
# score, there is no V. One that abstains, since it is not for it to tell, does not count; where all do, there is no V.


@dataclass(frozen=True)
class Verdict:
    """Hold one scorer's judgement of one trajectory.

    score: in [0, 1]; None where the scorer gave none, and then `detail` says why. threshold: the task's, in (0, 1];
    None where it is not known. scorer, version: the scorer's name and version. detail: the scorer's remarks. abstained:
    whether it gave no score by design, not by failure.
    """

    score: float | None
    threshold: float | None
    scorer: str = ""
    version: str = ""
    detail: str = ""
    abstained: bool = False

    @property
    def v(self) -> bool | None:
        """Return V; None where there is no score in [0, 1], or no threshold."""
        if self.score is None or self.threshold is None or not 0.0 <= self.score <= 1.0:
            return None
        return self.score >= self.threshold

    def row(self, trajectory_id: str) -> dict[str, Any]:
        """Return the row of the table `scores` for the trajectory `trajectory_id`, by column; `success` is V."""
        return {"trajectory_id": trajectory_id, **asdict(self), "success": self.v, "current": True}


def decide_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the least satisfied of all `verdicts` on a trajectory, which is the one that counts.

    That is one whose V (`Verdict.v`) is false, else one without V, else one whose V is true, else one that abstained;
    of several with V the lowest score, then the first; of several without V the first. Returns a verdict without a
    score where `verdicts` is empty.
    """
    return min(verdicts, key=_verdict_rank, default=Verdict(None, None, detail="no score"))


def _verdict_rank(verdict: Verdict) -> tuple[int, float]:
    place = 3 if verdict.abstained else {False: 0, None: 1, True: 2}[verdict.v]
    return place, 0.0 if verdict.v is None else verdict.score


def verdicts_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Verdict]:
    """Return the deciding verdict (`decide_verdict`) of each trajectory that has a row, by its id.

    rows: of the table `scores`; those of versions that are not current are left out. Other columns than `trajectory_id`
    may be missing and count as empty. Raises KeyError where that one is.
    """
    by_trajectory: dict[str, list[Verdict]] = defaultdict(list)
    for row in rows:
        if row.get("current") is False:
            continue
        texts = {name: row.get(name) or "" for name in ("scorer", "version", "detail")}
        verdict = Verdict(row.get("score"), row.get("threshold"), **texts, abstained=bool(row.get("abstained")))
        by_trajectory[row["trajectory_id"]].append(verdict)
    return {name: decide_verdict(verdicts) for name, verdicts in by_trajectory.items()}
