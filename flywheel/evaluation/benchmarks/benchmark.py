"""Define what an adapter of a public benchmark is: it loads task files, converts actions, and scores recorded results.

A result whose environment failed is a fault: it has no score, and no mean, baseline or interval counts it. A
benchmark's own rule may count it as a failure; the official score does as that rule says, and `mean` never does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from flywheel.agent.actions import Action, Point
from flywheel.agent.grammar import pixel_space
from flywheel.utils.confidence_intervals import bootstrap_mean_interval
from flywheel.utils.errors import BadInput

_SEED = 0  # of the bootstrap


@dataclass(frozen=True)
class BenchmarkTask:
    """Hold one task of a benchmark.

    id: the benchmark's own, unique in it. instruction: what the agent is told. category: the benchmark's group of
    tasks. unplayable: why the task cannot be played on this machine; "" where it can. declared: the file's fields, as
    they are. path: the task's file or folder.
    """

    id: str
    instruction: str
    category: str
    unplayable: str = ""
    declared: Mapping[str, Any] = field(default_factory=dict)
    path: Path = Path()


@dataclass(frozen=True)
class RefusedTask:
    """Hold a task file that cannot be read. path: the file, or the task's folder. why: what is wrong with it."""

    path: Path
    why: str


@dataclass(frozen=True)
class AdaptedActions:
    """Hold one action of a benchmark as actions of ours.

    actions: what is done, in order. extras: what the benchmark's form says and ours has no field for, which its
    `format_action` needs to write the same again. An action that ours cannot express has no actions.
    """

    actions: tuple[Action, ...]
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskResult:
    """Hold the result of one episode, which task, seed and budget identify.

    seed: or the number of the attempt. budget: steps that the episode might take; 0 where nobody said. score: by the
    benchmark's own rule; None for a fault. fault: what failed in the environment or the harness; "" for none. category:
    of the task. parts: further numbers of the result by name, such as those of its tests. seconds: that it took; 0
    where that was not recorded. Raises ValueError for both or neither of score and fault, or an infinite score.
    """

    task: str
    seed: int = 0
    budget: int = 0
    score: float | None = None
    fault: str = ""
    category: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.score is None) != bool(self.fault):
            raise ValueError(f"task {self.task}: a result has either a score or a fault")
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"task {self.task}: the score {self.score} is no number")

    @property
    def key(self) -> tuple[str, int, int]:
        """Return what identifies the result: (task, seed, budget)."""
        return self.task, self.seed, self.budget


@dataclass(frozen=True)
class OfficialScore:
    """Hold the figures that a benchmark's own harness reports. score: its main one. figures: all, by its names."""

    score: float
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MaskedScore:
    """Hold the mean score over tasks, with faults left out.

    mean: of each task's mean over its scored episodes; None where no episode has a score. low, high: 95% bootstrap
    interval over tasks. tasks, episodes: numbers of those with a score. faults: number of episodes left out.
    """

    mean: float | None
    low: float
    high: float
    tasks: int
    episodes: int
    faults: int


class BenchmarkAdapter(Protocol):
    """Load the tasks of one benchmark, convert its actions to ours and back, and score its recorded results.

    name: as commands take it. title: as its authors write it. source: where its files are. space: what the coordinates
    in its actions count, such as pixels. ran: which part of it flywheel has really played, in words.
    """

    name: str
    title: str
    source: str
    space: str
    ran: str

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the tasks of the benchmark's `folder`. Raises BadInput where it has none."""
        ...

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse an action in the benchmark's form. screen: width and height, in pixels, where its points count those.
        Raises ValueError for what is no action, and for a point whose space needs a `screen` that is not given."""
        ...

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> Any:
        """Write an action in the benchmark's form. Raises ValueError for one that the benchmark has no form for."""
        ...

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read what the benchmark's own harness recorded. Raises BadInput where there is nothing or it is damaged."""
        ...

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score results as the benchmark's own harness does. Raises BadInput for none."""
        ...


def mask_faults(results: Iterable[TaskResult]) -> MaskedScore:
    """Compute the mean score over tasks and its 95% interval, with episodes that have no score (faults) left out.

    results: one per episode, several a task. The mean is of each task's mean. Without any score it is None, and the
    interval (-inf, inf).
    """
    scores: dict[str, list[float]] = defaultdict(list)
    faults = 0
    for result in results:
        if result.score is None:
            faults += 1
        else:
            scores[result.task].append(result.score)
    means = [fmean(one) for one in scores.values()]
    low, high = bootstrap_mean_interval(means, seed=_SEED)
    episodes = sum(len(one) for one in scores.values())
    return MaskedScore(fmean(means) if means else None, low, high, len(means), episodes, faults)


def compute_advantages(results: Sequence[TaskResult]) -> list[float | None]:
    """Compute each result's advantage as GRPO does: its score minus its task's mean score; None for a fault.

    No fault counts in a mean.
    """
    scores: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if result.score is not None:
            scores[result.task].append(result.score)
    return [None if one.score is None else one.score - fmean(scores[one.task]) for one in results]


def require_results(results: Sequence[TaskResult], title: str) -> None:
    """Raise BadInput where there are no results to score. title: of the benchmark, for the error."""
    if not results:
        raise BadInput(f"there are no results of {title} to score", fix="name the folder that its harness wrote")


def read_pixel(x: Any, y: Any, screen: tuple[int, int] | None) -> Point:
    """Read a point in pixels of a screen as fractions of it.

    Raises ValueError where the screen's size is not given, and for a point that is no pixel of it.
    """
    if screen is None:
        raise ValueError("its point counts pixels, and the size of the screen is not given")
    for number, size in zip((x, y), screen, strict=True):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < size:
            raise ValueError(f"the point ({x!r}, {y!r}) is no pixel of a screen of {screen[0]} x {screen[1]}")
    return Point(x / screen[0], y / screen[1])


def write_pixel(point: Point, screen: tuple[int, int] | None) -> tuple[int, int]:
    """Write a point as the nearest pixel of a screen. Raises ValueError where the screen's size is not given."""
    if screen is None:
        raise ValueError("its point counts pixels, and the size of the screen is not given")
    space = pixel_space(*screen)
    return int(space.x.write(point.x)), int(space.y.write(point.y))


def require_text(value: Any, name: str) -> str:
    """Return `value` where it is a text. name: of the field, which the ValueError for another value names."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text: {value!r}"[:200])
    return value
