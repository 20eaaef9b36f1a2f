"""Choose what a group of RL's episodes plays, once its task is drawn: fresh contents, and where they begin.

Fresh contents (`rl.fresh_tasks`) are of the drawn task's world, template and level. A restored start
(`rl.restored_start_fraction`) lies some steps before the end of a known success: as many as make success a coin toss,
where a group teaches most; a true start is the task's beginning. Each choice is a function of the run's seed, the
group's number and the calls before it, which `RolloutLog` repeats in their order where a killed run goes on: so it
draws the same ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.config import RlSettings
from flywheel.envs.base import Task
from flywheel.rollout.async_pool import EpisodeBatch, EpisodeGroup
from flywheel.rollout.episode import derive_seed
from flywheel.rollout.solvers import SOLVER, has_expert
from flywheel.rollout.starts import KnownSuccess, RestoredStart

DrawFreshTask = Callable[[Task, int], Task]  # of a drawn task and the group's number

_RATE = 0.3  # weight of the newest group in the success rate at a depth
_SURE, _LOST = 0.7, 0.3  # success rates beyond which the start moves away from the end, or towards it


@dataclass
class StartDepth:
    """Hold how many steps before the end of a success the episodes of a task begin, `depth`.

    p: the success rate of those that began there, in [0, 1]; nothing is known of it at first.
    """

    depth: int = 1
    p: float = 0.5

    def record(self, successes: Sequence[bool], most: int) -> None:
        """Record the outcomes of a group that began at the depth, and move the depth by one step where p says so.

        Above 70% of success (p, a moving average in which the newest group weighs 0.3) the start moves away from the
        end, below 30% towards it. successes: whether each episode is one; at least one. most: bound of the depth.
        """
        self.p += _RATE * (sum(successes) / len(successes) - self.p)
        step = (self.p > _SURE) - (self.p < _LOST)
        self.depth = max(1, min(self.depth + step, most))


class GroupChooser:
    """Choose the contents and the start of each group of episodes (a `GroupPlanner`).

    The depth of starts, their success rate, and the turns of restored and true starts are kept for each task; with
    fresh contents for each world, template and level, as a task is then drawn once.
    """

    def __init__(
        self,
        rl: RlSettings,
        seed: int,
        *,
        successes: Iterable[KnownSuccess] = (),
        draw_fresh: DrawFreshTask | None = None,
        on_task: Callable[[Task], None] = lambda task: None,
        solvable: Callable[[Task], bool] = has_expert,
    ) -> None:
        """Begin with what is known before the run.

        rl: block `rl`. seed: of the turns. successes: that episodes can begin within. draw_fresh: draws fresh contents,
        such as `ContentDrawer.draw`; None: the drawn task is played. on_task: called with each task that is drawn so,
        again where a run goes on. solvable: tells whether a task's suite has an expert.
        """
        self._rl, self._seed, self._draw, self._on_task, self._solvable = rl, seed, draw_fresh, on_task, solvable
        self._known: dict[tuple[str, str], list[KnownSuccess]] = defaultdict(list)  # by source and key
        for one in sorted(successes, key=lambda one: one.trajectory_id):
            self._known[one.source, self._key(one.task)].append(one)
        self._depths: dict[str, StartDepth] = defaultdict(StartDepth)
        self._most: dict[str, int] = {}  # by key: of the depth
        self._turns: dict[str, float] = {}
        self._used: Counter[str] = Counter()
        self._last_restored = round((1 - rl.true_start_tail) * rl.steps) * rl.tasks_per_step
        self._unsolved: set[str] = set()  # keys of tasks that the solver failed at
        self.dropped: Counter[str] = Counter()  # starts that cannot be reached, by reason

    def plan(self, number: int, task: Task) -> EpisodeGroup:
        """Plan the group `number`, from 0, for which `task` was drawn. Raises what `draw_fresh` and `on_task` do."""
        key = self._key(task)
        if number < self._last_restored and self._is_turn(key):
            for source in self._rl.start_sources:
                group = (
                    self._from_solver(number, task, key) if source == SOLVER else self._from_known(source, task, key)
                )
                if group is not None:
                    self._turns[key] -= 1
                    return group
        return EpisodeGroup(self._fresh(number, task), task.task_id)

    def record(self, group: EpisodeGroup, successes: Sequence[bool]) -> None:
        """Record how a group ended; only one that was to begin within a success changes anything.

        successes: whether each episode is one; empty changes nothing.
        """
        if group.key and successes:
            self._depths[group.key].record(successes, self._most[group.key])

    def drop(self, group: EpisodeGroup, reason: str) -> None:
        """Drop the success that a group was to begin within, so that no later group begins within it.

        Where a solver was to play up to the start, it is not asked for that task again. reason: why the start cannot be
        reached, counted in `dropped`.
        """
        self.dropped[reason] += 1
        success = group.start.success if group.start else None
        if success is None:
            self._unsolved.add(group.key)
        else:
            kept = [one for one in self._known[success.source, group.key] if one is not success]
            self._known[success.source, group.key] = kept

    def _key(self, task: Task) -> str:
        return task.task_id if self._draw is None else f"{task.world}/{task.template}/{task.level}"

    def _is_turn(self, key: str) -> bool:
        """Give each key its turns of restored starts, evenly; keys begin apart, or a whole batch could have none."""
        if not self._rl.restored_start_fraction:
            return False
        first = derive_seed(self._seed, "start", key) / 2**31
        # What it could not use, for lack of a success, is not made up for.
        self._turns[key] = min(self._turns.get(key, first), 1.0) + self._rl.restored_start_fraction
        return self._turns[key] >= 1

    def _from_known(self, source: str, task: Task, key: str) -> EpisodeGroup | None:
        known = self._known[source, key]
        if not known:
            return None
        success = known[self._used[key] % len(known)]
        self._used[key] += 1
        self._most[key] = max(len(one.steps) for one in known)
        depth = self._depths[key].depth
        if depth >= len(success.steps):  # the task's beginning
            return EpisodeGroup(success.task, task.task_id, None, key)
        return EpisodeGroup(success.task, task.task_id, RestoredStart(success, depth), key)

    def _from_solver(self, number: int, task: Task, key: str) -> EpisodeGroup | None:
        if key in self._unsolved or not self._solvable(task):
            return None
        self._most[key] = task.max_steps
        return EpisodeGroup(self._fresh(number, task), task.task_id, RestoredStart(None, self._depths[key].depth), key)

    def _fresh(self, number: int, task: Task) -> Task:
        fresh = task if self._draw is None else self._draw(task, number)
        if fresh.task_id != task.task_id:
            self._on_task(fresh)
        return fresh


def start_metrics(batch: EpisodeBatch) -> dict[str, float]:
    """Compute the metrics of where the episodes of a batch began.

    restored_fraction: share of its episodes that began within a success. live_true_starts, live_restored_starts: share
    of its groups of true and of restored starts, of two episodes or more, whose scores differ. start_depth: mean number
    of steps before the success' end of the restored ones; start_depth_fraction: the same over the success' steps. What
    has no case is left out.
    """
    groups: dict[tuple[bool, int], list[float]] = defaultdict(list)
    depths, fractions = [], []
    for (request, episode), outcome in zip(batch.episodes, batch.outcomes, strict=True):
        first = episode.trajectory.start_step
        groups[first is not None, request.group].append(outcome.score)
        if request.start is not None and first is not None:
            depths.append(request.start.depth)
            fractions.append(request.start.depth / (request.start.depth + first))
    found = {"restored_fraction": len(depths) / len(batch.episodes)}
    for name, restored in (("live_true_starts", False), ("live_restored_starts", True)):
        live = [max(one) > min(one) for (kind, _), one in groups.items() if kind is restored and len(one) > 1]
        if live:
            found[name] = float(np.mean(live))
    if depths:
        found |= {"start_depth": float(np.mean(depths)), "start_depth_fraction": float(np.mean(fractions))}
    return found
