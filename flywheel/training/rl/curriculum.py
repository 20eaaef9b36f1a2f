"""Choose the task of the next group of episodes: levels rise with success, and tasks that teach nothing are rarer.

For value pretraining tasks come in shuffled rounds instead.

A group of episodes is informative if some succeed and some fail (with equal outcomes all advantages are 0). The success
rate p of a task has a Beta distribution: its prior comes from the outcomes of the task's kind (world, template, level),
its counts from the task's own outcomes, older ones with less weight. A task's weight is the probability that a group of
n is mixed,

    1 - E[p^n] - E[(1 - p)^n],   E[p^n] = prod_{i<n} (a + i) / (a + b + i) for p ~ Beta(a, b),

so a task that is always or never solved is drawn less, and one that was never tried more. (The report says that tasks
grow harder with the agent, but not how; DAPO 2025 discards unmixed groups, after they were played.)

Draws are spread as evenly as in shuffled rounds: at each draw every kind gets the probabilities of its tasks as credit,
and the kind with the most credit is drawn and pays 1; then a task of that kind is drawn in the same way. Kinds are
drawn first because tasks of a kind have similar probabilities: drawn from all tasks at once, they would come one kind
after another, and a batch of one kind teaches V only that kind's mean. Only the first order is random, and the state is
a few numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from flywheel.config import RlSettings
from flywheel.envs.base import Task
from flywheel.utils.errors import TrainingError

TaskKind = tuple[str, str, int]  # world, template, level
K = TypeVar("K", str, TaskKind)
_PULL = 2.0  # weight of the kind's success rate in the estimate of a task, in episodes
# Most weight of `PastOutcomes` of a task and of a kind, in groups: they are of an older policy.
_TASK_GROUPS, _KIND_GROUPS = 2.0, 4.0
_REASONS = {"level not reached": "level not reached", "always": "always solved", "never": "never solved"}
_SURE = 0.95  # success rate from which a task counts as always solved; up to 1 - _SURE it counts as never solved


@dataclass(frozen=True)
class PastOutcomes:
    """Hold how often tasks were solved before the run.

    tasks, kinds: (successes, episodes) by task_id, and by kind (world, template, level).
    """

    tasks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    kinds: Mapping[TaskKind, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, outcomes: Iterable[tuple[str, TaskKind, bool]]) -> PastOutcomes:
        """Count outcomes by task and by kind. outcomes: (task_id, kind, verified) of each scored episode."""
        tasks: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        kinds: dict[TaskKind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for task_id, kind, verified in outcomes:
            for count in (tasks[task_id], kinds[kind]):
                count[0] += verified
                count[1] += 1
        return cls(*({key: (k, n) for key, (k, n) in found.items()} for found in (tasks, kinds)))


@dataclass
class _FadingCount:
    """Count successes and episodes, older ones with less weight."""

    successes: float = 0.0
    episodes: float = 0.0

    def add(self, successes: float, episodes: float, keep: float) -> None:
        self.successes = keep * self.successes + successes
        self.episodes = keep * self.episodes + episodes

    @classmethod
    def at_most(cls, found: tuple[float, float], episodes: float) -> _FadingCount:
        """Return a count of older outcomes, scaled down to at most `episodes`. found: (successes, episodes)."""
        successes, n = found
        scale = min(1.0, episodes / n) if n else 0.0
        return cls(successes * scale, n * scale)


class Curriculum:
    """Hold what is known of the success at the tasks of one domain, and choose among them.

    Tasks above the open level of their world are drawn only through the uniform share (rl.curriculum_uniform_fraction).
    A level opens once the share rl.curriculum_level_up_success of the newest episodes of the level below succeeds, of
    one and a half groups or more, and never closes. Not safe for concurrent threads.
    """

    def __init__(self, tasks: Sequence[Task], rl: RlSettings, seed: int, prior: PastOutcomes | None = None) -> None:
        """Begin with `tasks`, each of which has an id of its own.

        rl: block `rl`. seed: of the first order. prior: outcomes before the run. Raises TrainingError for no tasks, or
        two with the same id.
        """
        self._tasks = {task.task_id: task for task in sorted(tasks, key=lambda task: task.task_id)}
        if not tasks or len(self._tasks) < len(tasks):
            what = "two tasks have the same id" if tasks else "there are no tasks"
            raise TrainingError(what, where="curriculum", fix="check synthesis.domains")
        prior, group = prior or PastOutcomes(), max(rl.group_size, 2)
        self._rl, self._group = rl, group
        worlds = dict.fromkeys(task.world for task in self._tasks.values())
        self._levels = {world: sorted({task.level for task in tasks if task.world == world}) for world in worlds}
        self._own = {
            name: _FadingCount.at_most(prior.tasks.get(name, (0, 0)), _TASK_GROUPS * group) for name in self._tasks
        }
        known = {kind: _FadingCount.at_most(found, _KIND_GROUPS * group) for kind, found in prior.kinds.items()}
        self._kinds: dict[TaskKind, _FadingCount] = {
            kind: known.get(kind, _FadingCount()) for kind in map(_task_kind, tasks)
        }
        self._open = {world: min(levels) for world, levels in self._levels.items()}
        for world in self._open:
            self._rise(world)
        self._drawn = dict.fromkeys(self._tasks, 0)
        self._mixed = _FadingCount()  # groups whose scores differ, among all groups
        self._of_kind = {
            kind: [name for name, t in self._tasks.items() if _task_kind(t) == kind] for kind in self._kinds
        }
        # First credits, smaller than the share of one draw: they order tasks of equal probability.
        self._credit = {
            name: _first_credit(seed, name) / len(names) for names in self._of_kind.values() for name in names
        }
        self._kind_credit = {kind: _first_credit(seed, *kind) / len(self._kinds) for kind in self._kinds}

    def next(self) -> Task:
        """Draw the task of the next group; it depends on the state only. Every task is drawn again, also the rarest."""
        chances = self.chances()
        of_kind = {kind: math.fsum(chances[name] for name in names) for kind, names in self._of_kind.items()}
        kind = _draw_by_credit(self._kind_credit, of_kind)
        chosen = _draw_by_credit(self._credit, {name: chances[name] / of_kind[kind] for name in self._of_kind[kind]})
        self._drawn[chosen] += 1
        return self._tasks[chosen]

    def record(self, task_id: str, scores: Sequence[float], successes: Sequence[bool]) -> None:
        """Record the outcomes of a whole group of episodes of `task_id`.

        scores, successes: of each episode; empty lists, where every environment crashed, change nothing. Raises
        TrainingError for an unknown task, lists of different lengths, or a score that is not finite.
        """
        task = self._tasks.get(task_id)
        if task is None or len(scores) != len(successes) or not all(map(math.isfinite, scores)):
            told = f"{len(scores)} scores {list(scores)[:8]}, {len(successes)} verdicts"
            what = f"the outcome of a group cannot be used: {told}"
            fix = "a verifier gives each episode one finite score"
            raise TrainingError(what, where=f"curriculum, task {task_id}", fix=fix)
        if not scores:
            return
        won, n = float(sum(successes)), float(len(successes))
        self._own[task_id].add(won, n, self._rl.curriculum_ema_decay)
        self._kinds[_task_kind(task)].add(won, n, 1 - (1 - self._rl.curriculum_ema_decay) / 2)
        self._mixed.add(float(max(scores) > min(scores)), 1.0, 0.9)
        self._rise(task.world)

    def success_rate(self, task_id: str) -> float | None:
        """Return the success rate of the task `task_id`, 0 to 1, in which newer episodes count more.

        None where it has not been played. Raises KeyError for an unknown task.
        """
        own = self._own[task_id]
        return own.successes / own.episodes if own.episodes else None

    def chances(self) -> dict[str, float]:
        """Return each task's share of the next draws, by task_id.

        They sum to 1, and each is at least rl.curriculum_uniform_fraction / (number of tasks).
        """
        weights = {name: self._weight(task) for name, task in self._tasks.items()}
        total, floor = math.fsum(weights.values()), self._rl.curriculum_uniform_fraction
        even = 1 / len(weights)
        return {name: even * floor + (1 - floor) * (w / total if total else even) for name, w in weights.items()}

    def metrics(self) -> dict[str, float]:
        """Return what the curriculum adds to the metrics of an RL step, by name.

        Names begin with curriculum_: level_<world> (open level), level (mean over worlds), always, never, untried
        (shares of the tasks: 95% of the episodes solved, 5%, under half a group played), informative (share of the
        newest groups with different scores; absent before the first group).
        """
        marks = [self._mark(name) for name in self._tasks]
        found = {f"curriculum_level_{world}": float(level) for world, level in sorted(self._open.items())}
        found["curriculum_level"] = math.fsum(self._open.values()) / len(self._open)
        for mark in ("always", "never", "untried"):
            found[f"curriculum_{mark}"] = marks.count(mark) / len(marks)
        if self._mixed.episodes:
            found["curriculum_informative"] = self._mixed.successes / self._mixed.episodes
        return found

    def table(self) -> list[dict[str, Any]]:
        """Return a row per task for the table `curriculum`: how often it was drawn, its outcomes, its probability.

        `reason` says why that is below an even share; it is "" where it is not, or where other tasks are only more
        promising.
        """
        rows, even = [], 1 / len(self._tasks)
        for name, chance in self.chances().items():
            task, own = self._tasks[name], self._own[name]
            mark = "level not reached" if task.level > self._open[task.world] else self._mark(name)
            why = _REASONS.get(mark, "") if chance < even else ""
            row = {field: getattr(task, field) for field in ("task_id", "domain", "world", "template", "level")}
            rows.append(
                row
                | {
                    "groups": self._drawn[name],
                    "successes": own.successes,
                    "episodes": own.episodes,
                    "sampling_prob": chance,
                    "relative_prob": chance / even,
                    "reason": why,
                }
            )
        return rows

    def _weight(self, task: Task) -> float:
        if task.level > self._open[task.world]:
            return 0.0
        kind, own = self._kinds[_task_kind(task)], self._own[task.task_id]
        rate = (kind.successes + 1) / (kind.episodes + 2)
        return mixed_group_probability(
            _PULL * rate + own.successes, _PULL * (1 - rate) + own.episodes - own.successes, self._group
        )

    def _mark(self, name: str) -> str:
        """Classify a task by its success rate: always, never, mixed; untried where it has too few episodes."""
        own = self._own[name]
        if own.episodes < 0.5 * self._group:
            return "untried"
        rate = own.successes / own.episodes
        return "always" if rate >= _SURE else "never" if rate <= 1 - _SURE else "mixed"

    def _rise(self, world: str) -> None:
        """Open the level above each level with enough success, also one that only the uniform share has drawn."""
        for level, above in pairwise(self._levels[world]):
            counts = [count for kind, count in self._kinds.items() if (kind[0], kind[2]) == (world, level)]
            won, n = (math.fsum(getattr(c, name) for c in counts) for name in ("successes", "episodes"))
            if n >= 1.5 * self._group and won / n >= self._rl.curriculum_level_up_success:
                self._open[world] = max(self._open[world], above)


def describe_curriculum(table: Sequence[Mapping[str, Any]]) -> str:
    """Describe in one line how many tasks of a curriculum are drawn less than evenly for a reason of their own.

    table: as `Curriculum.table` returns it; rows whose `reason` is "" are not counted, also where others are only more
    promising. Reasons are `always solved`, `level not reached` and `never solved`. Returns such as "3 always solved, 5
    never solved of 20", or "none of 20".
    """
    counts = Counter(row["reason"] for row in table if row["reason"])
    return f"{', '.join(f'{n} {why}' for why, n in sorted(counts.items())) or 'none'} of {len(table)}"


def mixed_group_probability(a: float, b: float, n: int) -> float:
    """Compute the probability that n >= 2 episodes of a task, whose success rate is Beta(a, b), end differently."""
    won = math.prod((a + i) / (a + b + i) for i in range(n))
    lost = math.prod((b + i) / (a + b + i) for i in range(n))
    return max(0.0, 1 - won - lost)


def _task_kind(task: Task) -> TaskKind:
    return task.world, task.template, task.level


def _draw_by_credit(credit: dict[K, float], chances: Mapping[K, float]) -> K:
    """Add each probability of `chances` (they sum to 1) to its credit; return the key with the most credit, which pays
    1."""
    for one, chance in chances.items():
        credit[one] += chance
    chosen = max(chances, key=lambda one: (credit[one], one))
    credit[chosen] -= 1
    return chosen


def _first_credit(seed: int, *names: object) -> float:
    """Return a pseudo-random number from seed and names, 0 <= x < 1."""
    text = " ".join(map(str, ("curriculum", seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48


class ShuffledTasks:
    """Draw tasks in shuffled rounds, each once per round (a `TaskSampler`).

    It serves value pretraining, where the policy is fixed. tasks: at least one. seed: of the order.
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._order = [tasks[i] for i in np.random.default_rng(seed).permutation(len(tasks))]
        self._drawn = 0

    def next(self) -> Task:
        """Return the next task; every round has the same order. Raises ZeroDivisionError where there are no tasks."""
        self._drawn += 1
        return self._order[(self._drawn - 1) % len(self._order)]

    def record(self, task_id: str, scores: Sequence[float], successes: Sequence[bool]) -> None:
        """Do nothing: outcomes change no draw."""
