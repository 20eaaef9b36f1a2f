"""Collect batches of episodes for RL while training goes on (UI-TARS-2 report, section 2.5.3).

On one event loop each episode is a task of its own, in a leased environment. The policy may get new weights while an
episode is under way; each step keeps the version that sampled it. The rollout log decides what begins and what is
trained on, so a killed pool resumes where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flywheel.config import Settings
from flywheel.envs.base import Env, Task
from flywheel.envs.registry import EnvProvider
from flywheel.policy.protocol import PolicyBackend
from flywheel.rollout.episode import (
    Episode,
    EpisodeSlots,
    RolloutStats,
    derive_seed,
    read_episode,
    read_episode_facts,
    run_episode_with_retries,
    write_episode,
)
from flywheel.rollout.starts import RestoredStart, SharedStart, StartMismatch
from flywheel.utils.errors import DataError, FlywheelError, TrainingError
from flywheel.utils.files import remove_unfinished

# Two rules bound staleness: how many episodes may begin, and which of the finished ones are trained on. The first is
# AReaL's (2025, section 5.1). Alone it bounds staleness only where episodes are used in the order in which they began;
# a long one would be overtaken again and again. By the second rule an episode that began with version s is trained on
# at version s + max_staleness at the latest, and no batch is larger than another.


def compute_capacity(
    *, max_concurrent: int, running: int, max_staleness: int, version: int, batch: int, accepted: int
) -> int:
    """Compute how many episodes may begin now (AReaL 2025, section 5.1).

    min(max_concurrent - running, (max_staleness + version + 1) batch - (accepted + running)); 0 where that is negative.

    max_concurrent: episodes at once. running: episodes under way. max_staleness: training steps that an episode may be
    behind. version: training steps done. batch: episodes of a step. accepted: episodes that finished since the run
    began, those trained on included. One that failed is in neither number, so its place is free again.
    """
    return max(0, min(max_concurrent - running, (max_staleness + version + 1) * batch - (accepted + running)))


def choose_batch(
    finished: Mapping[int, int], unfinished: Iterable[int], *, version: int, count: int, max_staleness: int
) -> list[int] | None:
    """Choose the `count` finished episodes to train on now, by number; None where training must wait.

    finished: episode's number -> the version of the weights that it began with. unfinished: likewise, the versions of
    the episodes under way. version: training steps done. max_staleness: steps that an episode may be behind. The oldest
    are taken, and only if those that are left can still be trained on in time, `count` at each later version: of all
    that are left, those due at version d or sooner may be (d - version) count at most. By the rule of
    `compute_capacity` this holds before anything has begun; where it holds at a version it can be kept at the next, by
    waiting for the oldest.
    """
    oldest = sorted(finished, key=lambda number: (finished[number], number))
    taken, left = oldest[:count], [finished[number] for number in oldest[count:]]
    if len(taken) < count:
        return None
    due = sorted(start + max_staleness for start in (*left, *unfinished))
    in_time = all(place < (last - version) * count for place, last in enumerate(due))
    return taken if in_time else None


# The log on disk, so that the process may be killed at any moment: an episode counts once. A finished one is a file,
# accepted once it is renamed. `log.jsonl` only grows: a line for each group of episodes when it is drawn, for each
# episode that failed, for each batch when it is taken. The trainer's own checkpoint says which batches were trained on:
# one that was taken and not trained on is given again unchanged.

log = logging.getLogger(__name__)


class TaskSampler(Protocol):
    """Choose the tasks of RL's episodes (`training.rl.curriculum`).

    The log stores the order of both methods' calls, and a resumed run repeats them in that order: the task that `next`
    returns must depend only on the calls before it.
    """

    def next(self) -> Task:
        """Return the task of the next group of episodes."""

    def record(self, task_id: str, scores: Sequence[float], successes: Sequence[bool]) -> None:
        """Record how a group of episodes of the task ended.

        scores: of its episodes, in [0, 1]. successes: whether each solved its task. Both are empty where all of its
        environments failed.
        """


@dataclass(frozen=True)
class EpisodeGroup:
    """Hold what a group of episodes plays. task: theirs. drawn: id of the task that the sampler drew; the outcomes of
    episodes from the task's beginning count to it. start: where they begin; None: at the task's beginning. key: by
    which the planner finds what it keeps of the group."""

    task: Task
    drawn: str
    start: RestoredStart | None = None
    key: str = ""


class GroupPlanner(Protocol):
    """Choose what each group plays, once its task is drawn (`training.rl.groups`).

    As with a `TaskSampler`, the log stores the order of all calls, and a resumed run repeats them in that order.
    """

    def plan(self, number: int, task: Task) -> EpisodeGroup:
        """Plan the group `number`, from 0, for which the sampler has drawn `task`."""

    def record(self, group: EpisodeGroup, successes: Sequence[bool]) -> None:
        """Record how a group ended. successes: whether each episode solved its task; empty where all environments
        failed."""

    def drop(self, group: EpisodeGroup, reason: str) -> None:
        """Record that a group's start cannot be reached: it begins at the task's beginning. reason: in words."""


@dataclass(frozen=True)
class RolloutPlan:
    """Hold the numbers by which a run's episodes are planned.

    samples: episodes of a group, which share their task. batch: episodes of a training step. batches: of the whole run.
    max_staleness: training steps that an episode may be behind. whole_groups: a batch holds all of a group or none of
    it. seed: of the run. first: sample number of each task's first episode; above 0 where another pool of the same
    weights plays those before it.
    """

    samples: int
    batch: int
    batches: int
    max_staleness: int
    seed: int
    whole_groups: bool = False
    first: int = 0


@dataclass(frozen=True)
class EpisodeRequest:
    """Hold the request of one episode. ordinal: its number in the run, from 0. group: number of its group. sample: its
    number among the task's episodes. seed: of its sampling, a function of the run's seed and the ordinal. start: its
    group's. drawn: id of the task that the sampler drew for it."""

    ordinal: int
    group: int
    task: Task
    sample: int
    seed: int
    start: RestoredStart | None = None
    drawn: str = ""


@dataclass(frozen=True)
class EpisodeOutcome:
    """Hold the outcome of a finished episode. start: version of the weights when it began. score: in [0, 1]. success:
    whether it is verified."""

    start: int
    score: float
    success: bool


class RolloutLog:
    """Hold the log of one RL run's episodes, in `folder`: which begin, and which are trained on. It is not thread-safe.

    key: names the run's inputs; what another run left in `folder` is deleted, and so is a log whose batches are not
    those up to `version`. source: draws the tasks. tasks: by task_id. plan: of the run. version: training steps done,
    as the trainer's checkpoint says. planner: chooses what each group plays; None: the task that was drawn. Raises
    DataError for a finished episode whose file is broken, and where a group that was played is now planned with another
    task, ValueError for a line of the log that is not JSON, KeyError for a task that `tasks` lacks; every method that
    writes raises OSError.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        source: TaskSampler,
        tasks: Mapping[str, Task],
        plan: RolloutPlan,
        version: int = 0,
        planner: GroupPlanner | None = None,
    ) -> None:
        self.folder, self.source, self.tasks, self.plan, self.version = folder, source, tasks, plan, version
        self.planner = planner
        self.taken: list[int] | None = None  # the batch that is being trained on
        self.running: dict[int, int] = {}  # ordinal -> version at admission
        self.finished: dict[int, EpisodeOutcome] = {}  # finished and not trained on
        self._groups: list[EpisodeGroup] = []  # by number
        self._unrecorded: dict[int, dict[int, EpisodeOutcome | None]] = {}  # group -> ordinal -> None where it failed
        self._used: set[int] = set()  # ordinals that were trained on
        self._used_units: set[int] = set()
        self._failed: set[int] = set()
        self._unit = plan.samples if plan.whole_groups else 1  # episodes that are used together
        self._log = folder / "log.jsonl"
        if not self._replay(key):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._write({"key": key})

    # -- admission ------------------------------------------------------------------------------------------------
    def admit_episode(self, max_concurrent: int) -> EpisodeRequest | None:
        """Return the request of the next episode, and record that it runs; None while there is no room.

        max_concurrent: maximum of episodes at once. `compute_capacity` bounds staleness too.
        """
        opened = next((n for group in self._unrecorded for n in self._of(group) if self._is_open(n)), None)
        ordinal = len(self._groups) * self.plan.samples if opened is None else opened
        begun = self._begun()
        free = compute_capacity(
            max_concurrent=max_concurrent,
            running=len(self.running),
            version=self.version,
            batch=self.plan.batch,
            # An episode that begins too late for the last training step would be in vain.
            max_staleness=min(self.plan.max_staleness, self.plan.batches - self.version - 1),
            # Places that are taken; a group that is used whole takes those of episodes that have not begun, too.
            accepted=(len(self._used_units) + len(begun)) * self._unit - len(self.running),
        )
        # The place of an episode whose group is used whole was taken with the group.
        has_place = ordinal // self._unit in begun and len(self.running) < max_concurrent
        if not (free or has_place):
            return None
        if opened is None:
            group = self._plan_group(self.source.next())
            begins = {"start": [group.start.parent_id, group.start.depth]} if group.start else {}
            self._write({"group": len(self._groups), "task": group.task.task_id, **begins})
            self._add_group(group)
        self.running[ordinal] = self.version
        return self._ticket(ordinal)

    def _plan_group(self, task: Task) -> EpisodeGroup:
        if self.planner is None:
            return EpisodeGroup(task, task.task_id)
        return self.planner.plan(len(self._groups), task)

    def _add_group(self, group: EpisodeGroup) -> None:
        self._unrecorded[len(self._groups)] = {}
        self._groups.append(group)

    def _ticket(self, ordinal: int) -> EpisodeRequest:
        number, place = divmod(ordinal, self.plan.samples)
        group, task = self._groups[number], self._groups[number].task
        # Counted over the task's groups: two of them may be of the same weights, and trajectory ids must be unique.
        before = sum(earlier.task.task_id == task.task_id for earlier in self._groups[:number])
        sample = self.plan.first + before * self.plan.samples + place
        seed = derive_seed(self.plan.seed, "episode", ordinal)
        return EpisodeRequest(ordinal, number, task, sample, seed, group.start, group.drawn)

    # -- how an episode ends --------------------------------------------------------------------------------------
    def accept(self, request: EpisodeRequest, episode: Episode, score: float, success: bool) -> None:
        """Record that the `episode` of a `request` has finished; it stays on disk until it has been trained on.

        score: in [0, 1]. success: whether it is verified. Raises DiskFull, KeyError where that request does not run.
        """
        outcome = EpisodeOutcome(self.running[request.ordinal], score, success)
        write_episode(self._file(request.ordinal), episode, vars(outcome))
        del self.running[request.ordinal]
        self._settle(request.ordinal, outcome)

    def fail(self, request: EpisodeRequest, error: str) -> None:
        """Record that a request's episode crashed in every try, or that nobody could score it; its place is free again.

        error: the last one, in words. Raises KeyError where that request does not run.
        """
        del self.running[request.ordinal]
        self._write({"failed": request.ordinal, "error": error})
        self._settle(request.ordinal, None)

    def drop_start(self, group: int, reason: str) -> None:
        """Record that the start of group number `group` cannot be reached; its episodes begin at the task's beginning.

        reason: in words. A second call changes nothing.
        """
        if self._groups[group].start is not None:
            self._write({"dropped": group, "reason": reason})
            self._drop(group, reason)

    def _drop(self, number: int, reason: str) -> None:
        group = self._groups[number]
        if self.planner is not None:
            self.planner.drop(group, reason)
        self._groups[number] = replace(group, start=None, key="")

    def find_start(self, group: int) -> RestoredStart | None:
        """Return the start of group number `group`; None for the task's beginning."""
        return self._groups[group].start

    def has_ended(self, group: int) -> bool:
        """Tell whether any episode of group number `group` has finished."""
        return any(n in self.finished or n in self._used for n in self._of(group))

    def is_over(self, group: int) -> bool:
        """Tell whether no episode of group number `group` runs or is still to begin."""
        return not any(n in self.running or self._is_open(n) for n in self._of(group))

    def _settle(self, ordinal: int, outcome: EpisodeOutcome | None) -> None:
        if outcome is None:
            self._failed.add(ordinal)
        else:
            self.finished[ordinal] = outcome
        self._unrecorded[ordinal // self.plan.samples][ordinal] = outcome

    # -- batches --------------------------------------------------------------------------------------------------
    def take_batch(self) -> list[EpisodeRequest] | None:
        """Return the requests of the next batch, oldest first, the same until `advance`; None until it is full."""
        if self.taken is None:
            ordinals = self._choose()
            if ordinals is None:
                return None
            known = {group: found for group, found in self._unrecorded.items() if len(found) == self.plan.samples}
            recorded = [[group, *_results(found)] for group, found in sorted(known.items())]
            used = [[n, self.finished[n].score, self.finished[n].success] for n in ordinals]
            self._write({"batch": self.version, "episodes": used, "recorded": recorded})
            self._take(ordinals, recorded)
        return [self._ticket(ordinal) for ordinal in self.taken]

    def read(self, request: EpisodeRequest) -> Episode:
        """Read a request's finished episode. Raises DataError where its file is broken, or gone after `advance`."""
        return read_episode(self._file(request.ordinal))

    def advance(self) -> None:
        """Record that the batch of `take_batch` was trained on: its checkpoint is saved, and the new weights answer."""
        self.version += 1
        self._use(self.taken or ())
        self.taken = None

    def _choose(self) -> list[int] | None:
        begun = self._begun()
        running = {ordinal // self._unit for ordinal in self.running}
        waiting = {unit for unit in begun if unit in running or any(map(self._is_open, self._in(unit)))}
        finished = {unit: start for unit, start in begun.items() if unit not in waiting}
        unfinished = [begun[unit] for unit in waiting]
        count, late = self.plan.batch // self._unit, self.plan.max_staleness
        chosen = choose_batch(finished, unfinished, version=self.version, count=count, max_staleness=late)
        if chosen is None:
            return None
        return sorted(n for unit in chosen for n in self._in(unit) if n in self.finished)

    def _take(self, ordinals: list[int], recorded: Sequence[Sequence[Any]]) -> None:
        self.taken = ordinals
        for number, scores, successes in recorded:
            group = self._groups[number]
            if group.start is None:
                self.source.record(group.drawn, scores, successes)
            if self.planner is not None:
                self.planner.record(group, successes)
            del self._unrecorded[number]

    def _use(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self._used.add(ordinal)
            self._used_units.add(ordinal // self._unit)
            self.finished.pop(ordinal, None)
            self._file(ordinal).unlink(missing_ok=True)

    # -- units: what is used together, an episode or a group ------------------------------------------------------
    def _begun(self) -> dict[int, int]:
        """Map each unit that runs or is finished, and is not trained on, to the oldest version that it began with."""
        starts = [*self.running.items(), *((n, outcome.start) for n, outcome in self.finished.items())]
        found: dict[int, int] = {}
        for ordinal, start in starts:
            unit = ordinal // self._unit
            found[unit] = min(start, found.get(unit, start))
        return found

    def _in(self, unit: int) -> range:
        return range(unit * self._unit, (unit + 1) * self._unit)

    def _of(self, group: int) -> range:
        return range(group * self.plan.samples, (group + 1) * self.plan.samples)

    def _is_open(self, ordinal: int) -> bool:
        """Tell whether an episode was drawn, and neither runs nor has ended."""
        return not any(ordinal in places for places in (self.running, self.finished, self._failed, self._used))

    # -- on disk --------------------------------------------------------------------------------------------------
    def _file(self, ordinal: int) -> Path:
        return self.folder / f"{ordinal:08d}.zip"

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._log.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def _replay(self, key: str) -> bool:
        """Restore the state in which the process ended; return False where the folder holds no log of this run."""
        lines = self._lines()
        if not lines or lines[0] != {"key": key}:
            return False
        batches = [line for line in lines if "batch" in line]
        done = [line["batch"] for line in batches]
        if done not in (list(range(self.version)), list(range(self.version + 1))):
            log.warning("%s: its batches are not those of the trainer's checkpoint; it begins anew", self.folder)
            return False
        for line in lines[1:]:
            if "group" in line:
                group = self._plan_group(self.source.next())
                if self.planner is None:
                    group = EpisodeGroup(self.tasks[line["task"]], line["task"])
                elif group.task.task_id != line["task"]:
                    what = (
                        f"group {line['group']} played the task {line['task']}, and now {group.task.task_id} is drawn"
                    )
                    raise DataError(what, where=self._log, fix="the code of its world changed: delete the folder")
                self._add_group(group)
            elif "dropped" in line:
                self._drop(line["dropped"], line["reason"])
            elif "failed" in line:
                self._settle(line["failed"], None)
            else:
                for ordinal, score, success in line["episodes"]:
                    group = self._unrecorded.get(ordinal // self.plan.samples)
                    if group is not None:
                        group[ordinal] = EpisodeOutcome(line["batch"], score, success)
                self._take([ordinal for ordinal, *_ in line["episodes"]], line["recorded"])
                if line["batch"] < self.version:
                    self._use(self.taken)
                    self.taken = None
        self._find_episodes()
        return True

    def _find_episodes(self) -> None:
        for path in sorted(self.folder.glob("*.zip")):
            ordinal, outcome = int(path.stem), EpisodeOutcome(**read_episode_facts(path))
            self.finished[ordinal] = outcome
            if ordinal // self.plan.samples in self._unrecorded:
                self._unrecorded[ordinal // self.plan.samples][ordinal] = outcome
        remove_unfinished(self.folder)

    def _lines(self) -> list[dict[str, Any]]:
        """Read the lines that were written whole; an incomplete last line is cut off the file."""
        if not self._log.is_file():
            return []
        written = self._log.read_bytes()
        whole = written[: written.rfind(b"\n") + 1]
        if len(whole) < len(written):
            with self._log.open("r+b") as file:
                file.truncate(len(whole))
        return [json.loads(line) for line in whole.splitlines()]


def _results(found: Mapping[int, EpisodeOutcome | None]) -> tuple[list[float], list[bool]]:
    known = [found[ordinal] for ordinal in sorted(found) if found[ordinal] is not None]
    return [outcome.score for outcome in known], [outcome.success for outcome in known]


# The pool.


class OccupancyMeter:
    """Lend environments as `environments` does, and measure the share of time for which they are lent. places: maximum
    number of environments. clock: returns seconds."""

    def __init__(self, environments: EnvProvider, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._environments, self._places, self._clock = environments, places, clock
        self._lent, self._area = 0, 0.0  # environments now; environment-seconds since `_began`
        self._began = self._changed = clock()

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[Env]:
        """Lend an environment for `task` as the wrapped provider does, with its errors."""
        async with self._environments.env(task) as env:
            self._change(1)
            try:
                yield env
            finally:
                self._change(-1)

    def utilisation_since_last_call(self) -> float:
        """Return the share of the places' time that environments were lent, 0 to 1, since the last call."""
        self._change(0)
        seconds = self._changed - self._began
        share = self._area / (self._places * seconds) if seconds > 0 else 0.0
        self._area, self._began = 0.0, self._changed
        return share

    def _change(self, by: int) -> None:
        now = self._clock()
        self._area += self._lent * (now - self._changed)
        self._lent, self._changed = self._lent + by, now


GradeFunction = Callable[[Task, Episode], tuple[float, bool | None]]


@dataclass(frozen=True)
class EpisodeBatch:
    """Hold the episodes of one training step, each with its request, and their `outcomes` in the same order. step:
    training steps done before it. figures: see `AsyncRolloutPool.next_batch`."""

    step: int
    episodes: tuple[tuple[EpisodeRequest, Episode], ...]
    outcomes: tuple[EpisodeOutcome, ...]
    figures: Mapping[str, float]


class AsyncRolloutPool:
    """Play episodes of an RL run all the time, and hand them out in batches.

        async with AsyncRolloutPool(...) as pool:
            batch = await pool.next_batch()  # train on it, save, `pool.register_weights` and `policy.load` them
            pool.advance()

    rollout_log: of the run. policy: chooses the actions. environments: lends them. grade: returns an episode's score
    and whether it is verified; None: no scorer can tell, and the episode is not used. slow: whether `grade` is called
    in a thread. iteration: stored in the episodes' rows. temperature: of sampling. where: names the run in errors.
    on_episode: called with each episode as it ends, crashed ones included. Raises BadInput for a task's environment
    that is not known, or wrong settings of it.
    """

    def __init__(
        self,
        rollout_log: RolloutLog,
        policy: PolicyBackend,
        environments: EnvProvider,
        *,
        grade: GradeFunction,
        slow: bool = False,
        iteration: int,
        settings: Settings,
        temperature: float,
        where: str,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> None:
        self.rollout_log, self._policy, self._where = rollout_log, policy, where
        self._grade, self._slow = grade, slow
        self._settings, self._on_episode = settings, on_episode
        self._places = EpisodeSlots(settings, {task.environment for task in rollout_log.tasks.values()})
        self._environments = OccupancyMeter(environments, self._places.count)
        self._versions = {policy.weight_version: rollout_log.version}
        self._tasks: dict[asyncio.Task[None], EpisodeRequest] = {}
        self._rounds: dict[int, int] = {}  # ordinal -> steps that a running episode has made
        self._starts: dict[int, SharedStart] = {}  # of groups that are under way
        self._stats, self._retried = RolloutStats(), 0
        self._playing = {"iteration": iteration, "settings": settings, "temperature": temperature, "stats": self._stats}
        self._crashes, self._crashed = 0, 0  # in a row; since the last batch
        self._fault: Exception | None = None
        self._closed = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> AsyncRolloutPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the episodes under way; on disk they are as if they had not begun."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next_batch(self) -> EpisodeBatch:
        """Wait for the episodes of the next training step and return them, the same at each call until `advance`.

        Figures: staleness_mean and _max (of the batch's tokens, in training steps), length_consumed and
        length_in_flight (mean steps of the batch's episodes, and of those under way so far), running, accepted
        (finished and not yet used, the batch included), utilisation (share of the environments' time in use since the
        last batch), retries, crashed (episodes given up).

        Raises TrainingError after rl.batch_timeout_s, where every environment crashes, where a scorer fails or gives no
        finite number, for weights that were not registered, and for any error but the project's; PolicyError and
        BadInput as `run_episode`; DataError for a finished episode whose file is broken; DiskFull. Each names the
        trajectory or the step; but for a timeout, and an episode that cannot be read, all later calls raise it again.
        """
        limit = self._settings.rl.batch_timeout_s
        try:
            async with asyncio.timeout(limit):
                tickets = await self._complete()
        except TimeoutError:
            oldest = min(self._tasks.values(), key=lambda request: request.ordinal, default=None)
            raise TrainingError(
                f"no batch in {limit:g} s: {len(self.rollout_log.finished)} of {self.rollout_log.plan.batch} episodes "
                f"have finished, {len(self.rollout_log.running)} are under way"
                + (f"; the oldest is {self._place(oldest)}" if oldest else ""),
                where=self._here,
                fix="raise rl.batch_timeout_s, or look at what this environment waits for",
            ) from None
        figures, outcomes = self._figures(), tuple(self.rollout_log.finished[request.ordinal] for request in tickets)
        read = await asyncio.to_thread(lambda: [self.rollout_log.read(request) for request in tickets])
        episodes = tuple(zip(tickets, read, strict=True))
        return EpisodeBatch(self.rollout_log.version, episodes, outcomes, figures | self._staleness(read))

    def register_weights(self, weight_version: str, version: int) -> None:
        """Register weights before the policy loads them. weight_version: as the policy will give it. version: training
        steps that they have had."""
        self._versions[weight_version] = version

    def advance(self) -> None:
        """Go on to the next step: the batch is trained on and saved, and the policy has the new weights."""
        self.rollout_log.advance()
        self.fill()

    async def _complete(self) -> list[EpisodeRequest]:
        while True:
            self._changed.clear()
            if self._fault is not None:
                raise self._fault
            taken = self.rollout_log.take_batch()
            self.fill()  # begins episodes of the next batch, too
            if taken is not None:
                return taken
            await self._changed.wait()

    def fill(self) -> None:
        """Begin as many episodes as there is room for; none once the pool is closed or an error of an episode waits."""
        if self._closed or self._fault is not None:
            return
        while (request := self.rollout_log.admit_episode(self._places.count)) is not None:
            task = asyncio.create_task(self._one(request), name=f"episode {request.ordinal}")
            self._tasks[task] = request
            task.add_done_callback(self._tasks.pop)

    async def _one(self, request: EpisodeRequest) -> None:
        try:
            async with self._places.acquire(request.task):
                episode = await self._play(request)
            await self._end(request, episode)
            if self.rollout_log.is_over(request.group):
                self._starts.pop(request.group, None)
            self.fill()
        except FlywheelError as error:
            where = ", ".join(filter(None, (error.where, self._here, self._place(request))))
            self._fault = self._fault or type(error)(error.what, where=where, fix=error.fix)
        except Exception as error:
            # Any error must reach whoever waits for the batch.
            what, where = f"an episode failed: {type(error).__name__}: {error}", f"{self._here}, {self._place(request)}"
            raised = TrainingError(what, where=where)
            raised.__cause__ = error
            self._fault = self._fault or raised
        finally:
            self._rounds.pop(request.ordinal, None)
            self._changed.set()

    async def _play(self, request: EpisodeRequest) -> Episode:
        whose = (request.task, request.sample, self._policy, self._environments)
        on_step = partial(self._rounds.__setitem__, request.ordinal)
        playing = {"seed": request.seed, "on_step": on_step, **self._playing}
        if (start := self._find_start(request)) is not None:
            try:
                return await run_episode_with_retries(*whose, start=start, **playing)
            except StartMismatch as mismatch:
                what = "a start of %s, in %s, is dropped: %s"
                log.warning(what, request.task.task_id, start.parent_id or "what its solver does", mismatch)
                self.rollout_log.drop_start(request.group, str(mismatch))
        return await run_episode_with_retries(*whose, **playing)

    def _find_start(self, request: EpisodeRequest) -> SharedStart | None:
        begins, group = self.rollout_log.find_start(request.group), request.group
        if begins is None:
            return None
        if group not in self._starts:
            proven = self.rollout_log.has_ended(group)
            self._starts[group] = SharedStart(begins, request.task, self._settings.policy, proven=proven)
        return self._starts[group]

    async def _end(self, request: EpisodeRequest, episode: Episode) -> None:
        self._on_episode(episode)
        if episode.trajectory.status == "crashed":
            self._give_up(request, episode.trajectory.error)
            return
        if self._slow:
            score, success = await asyncio.to_thread(self._judge, request, episode)
        else:
            score, success = self._judge(request, episode)
        if success is None:  # an unknown outcome is no failure: it earns nothing, and is out of its group's mean
            self._give_up(request, "all abstain, or a person is to tell", "no scorer could tell how it ended")
            return
        self._crashes = 0
        self.rollout_log.accept(request, self._marked(episode), score, success)

    def _give_up(self, request: EpisodeRequest, error: str, what: str = "every environment crashed") -> None:
        self.rollout_log.fail(request, error)
        self._crashes, self._crashed = self._crashes + 1, self._crashed + 1
        if self._crashes >= max(self._places.count, self.rollout_log.plan.samples):
            raise TrainingError(
                f"{what}: {self._crashes} episodes in a row; the last: {error}",
                fix="see `flywheel doctor`, the settings in sandbox, and routing.scorers",
            )

    def _judge(self, request: EpisodeRequest, episode: Episode) -> tuple[float, bool | None]:
        try:
            score, success = self._grade(request.task, episode)
        except Exception as error:
            raise TrainingError(
                f"it could not be judged: {type(error).__name__}: {error}", where=f"trajectory {episode.id}"
            ) from error
        if not (math.isfinite(score) and math.isfinite(episode.trajectory.reward)):
            reward = episode.trajectory.reward
            raise TrainingError(
                f"the score is {score}, the environment's rewards sum to {reward}",
                where=f"trajectory {episode.id}",
                fix=f"the scorers and the world {request.task.world} must give finite numbers",
            )
        return float(score), success

    def _marked(self, episode: Episode) -> Episode:
        """Return the episode with the version of its weights at each step. Raises TrainingError for weights that were
        not announced, as where a server swaps them by itself."""
        own = episode.own_steps
        for step in own:
            if step.weight_version not in self._versions:
                what = f"the policy answered with weights {step.weight_version}, which this run did not give it"
                raise TrainingError(what)
        steps = tuple(replace(step, version=self._versions[step.weight_version]) for step in own)
        return replace(episode, steps=(*episode.steps[: len(episode.steps) - len(own)], *steps))

    # -- figures --------------------------------------------------------------------------------------------------
    def _figures(self) -> dict[str, float]:
        in_flight = [self._rounds.get(ordinal, 0) for ordinal in self.rollout_log.running]
        found = {
            "running": float(len(in_flight)),
            "accepted": float(len(self.rollout_log.finished)),
            "utilisation": self._environments.utilisation_since_last_call(),
            "retries": float(self._stats.retries - self._retried),
            "crashed": float(self._crashed),
        }
        self._retried, self._crashed = self._stats.retries, 0
        return found | ({"length_in_flight": float(np.mean(in_flight))} if in_flight else {})

    def _staleness(self, episodes: list[Episode]) -> dict[str, float]:
        steps = [step for episode in episodes for step in episode.own_steps]
        found: dict[str, float] = {"length_consumed": len(steps) / len(episodes)}
        if steps:
            late = np.repeat(
                [self.rollout_log.version - step.version for step in steps], [len(step.token_ids) for step in steps]
            )
            found |= {"staleness_mean": float(late.mean()), "staleness_max": float(late.max())}
        return found

    @property
    def _here(self) -> str:
        return f"{self._where}, step {self.rollout_log.version + 1}"

    def _place(self, request: EpisodeRequest) -> str:
        step = self._rounds.get(request.ordinal, 0)
        return f"episode {request.ordinal} of task {request.task.task_id} at its step {step}"
