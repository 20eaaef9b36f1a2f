"""Record which episodes an asynchronous pool has begun, finished and given to training."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flywheel.envs.base import Task
from flywheel.rollout.episode import Episode, derive_seed, read_episode, read_episode_facts, write_episode
from flywheel.utils.files import remove_unfinished

# Two rules bound staleness: how many episodes may begin, and which of the finished ones are trained on.
#
# The first is AReaL's (2025, section 5.1): it bounds the number of running episodes. Alone it bounds staleness only
# where episodes are used in the order in which they began; a long one would be overtaken again and again. By the second
# rule an episode that began with version s is trained on at version s + max_staleness at the latest, and no batch is
# larger than another.


def compute_capacity(
    *, max_concurrent: int, running: int, max_staleness: int, version: int, batch: int, accepted: int
) -> int:
    """Return how many episodes may begin now (AReaL 2025, section 5.1).

    min(max_concurrent - running, (max_staleness + version + 1) batch - (accepted + running)); 0 where that is negative.

    version: training steps done. accepted: episodes that finished since the run began, those trained on included. One
    that failed is in neither number, so its place is free again.
    """
    return max(0, min(max_concurrent - running, (max_staleness + version + 1) * batch - (accepted + running)))


def choose_batch(
    finished: Mapping[int, int], unfinished: Iterable[int], *, version: int, count: int, max_staleness: int
) -> list[int] | None:
    """Choose the `count` finished episodes to train on now; None where training must wait.

    finished: number -> the version that it began with. unfinished: the versions that the others began with. The oldest
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


# The log on disk, so that the process may be killed at any moment.
#
# A finished episode is a file, accepted when it is renamed. `log.jsonl` only grows: a line for each group of episodes
# when it is drawn, for each episode that failed, for each batch when it is taken. The trainer's own checkpoint, which
# is replaced whole after each batch, says which batches were trained on: one that was taken and not trained on is given
# again, the same one. So an episode counts once, whenever the process ends.

log = logging.getLogger(__name__)


class TaskSampler(Protocol):
    """Where tasks come from (`training.rl.curriculum`). Both calls are made in an order that the log keeps, and made
    again from it when a killed run goes on: what `next` gives must follow from the calls before it alone."""

    def next(self) -> Task:
        """Return the task of the next group of episodes."""

    def record(self, task_id: str, scores: Sequence[float], successes: Sequence[bool]) -> None:
        """Record how a group ended; empty where all of its environments failed."""


@dataclass(frozen=True)
class RolloutPlan:
    """Plan the episodes of a run.

    samples: episodes of a group, which share their task. batch: episodes that start a training step. batches: of the
    whole run. whole_groups: a batch holds all of a group or none of it. seed: of the run. first: the number of each
    task's first episode, where another pool of the same weights has those before it.
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
    """The right to one episode. ordinal: in the order of admission, from 0. sample: its number among the task's
    episodes. seed: of its sampling, a function of the run's seed and the ordinal."""

    ordinal: int
    group: int
    task: Task
    sample: int
    seed: int


@dataclass(frozen=True)
class EpisodeOutcome:
    """Hold the outcome of a finished episode.

    start: the version of the weights when it began, the oldest of its tokens.
    """

    start: int
    score: float
    success: bool


class RolloutLog:
    """Log the episodes of one run in `folder`. Not for several threads.

    key: names the run's inputs; what another run left in `folder` is deleted. version: training steps done, as the
    trainer's checkpoint says. tasks: by task_id.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        source: TaskSampler,
        tasks: Mapping[str, Task],
        plan: RolloutPlan,
        version: int = 0,
    ) -> None:
        self.folder, self.source, self.tasks, self.plan, self.version = folder, source, tasks, plan, version
        self.taken: list[int] | None = None  # the batch that is being trained on
        self.running: dict[int, int] = {}  # ordinal -> version at admission
        self.finished: dict[int, EpisodeOutcome] = {}  # and not trained on
        self._groups: list[str] = []  # task_id by number
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
    def admit(self, max_concurrent: int) -> EpisodeRequest | None:
        """Return the next episode to begin, and note that it runs; None while there is no room for one.

        max_concurrent: most episodes that may run at once. The staleness of what it will be trained on is bounded too.
        """
        opened = next((n for group in self._unrecorded for n in self._of(group) if self._is_open(n)), None)
        ordinal = len(self._groups) * self.plan.samples if opened is None else opened
        begun = self._begun()
        free = compute_capacity(
            max_concurrent=max_concurrent,
            running=len(self.running),
            version=self.version,
            batch=self.plan.batch,
            # What begins later than the last training step could use would be in vain.
            max_staleness=min(self.plan.max_staleness, self.plan.batches - self.version - 1),
            # Places that are taken: of a group that is used whole, those that have not begun too.
            accepted=(len(self._used_units) + len(begun)) * self._unit - len(self.running),
        )
        # The place of an episode whose group is used whole was taken with the group.
        has_place = ordinal // self._unit in begun and len(self.running) < max_concurrent
        if not (free or has_place):
            return None
        if opened is None:
            self._draw()
        self.running[ordinal] = self.version
        return self._ticket(ordinal)

    def _draw(self) -> None:
        task_id = self.source.next().task_id
        self._write({"group": len(self._groups), "task": task_id})
        self._add_group(task_id)

    def _add_group(self, task_id: str) -> None:
        self._unrecorded[len(self._groups)] = {}
        self._groups.append(task_id)

    def _ticket(self, ordinal: int) -> EpisodeRequest:
        group, number = divmod(ordinal, self.plan.samples)
        task_id = self._groups[group]
        # Counted over the task's groups: two of them may be of the same weights, and a trajectory's name is unique.
        sample = self.plan.first + self._groups[:group].count(task_id) * self.plan.samples + number
        return EpisodeRequest(
            ordinal, group, self.tasks[task_id], sample, derive_seed(self.plan.seed, "episode", ordinal)
        )

    # -- how an episode ends --------------------------------------------------------------------------------------
    def accept(self, request: EpisodeRequest, episode: Episode, score: float, success: bool) -> None:
        """Record that an episode has finished; it stays on disk until it has been trained on.

        request: as `admit` gave it. score: in [0, 1]. success: whether it is verified.
        """
        outcome = EpisodeOutcome(self.running[request.ordinal], score, success)
        facts = {"start": outcome.start, "score": score, "success": success}
        write_episode(self._file(request.ordinal), episode, facts)
        del self.running[request.ordinal]
        self._settle(request.ordinal, outcome)

    def fail(self, request: EpisodeRequest, error: str) -> None:
        """Record that an episode's environment crashed in every try; its place is free again.

        request: as `admit` gave it. error: the last one, in a line.
        """
        self._write({"failed": request.ordinal, "error": error})
        del self.running[request.ordinal]
        self._settle(request.ordinal, None)

    def _settle(self, ordinal: int, outcome: EpisodeOutcome | None) -> None:
        if outcome is None:
            self._failed.add(ordinal)
        else:
            self.finished[ordinal] = outcome
        self._unrecorded[ordinal // self.plan.samples][ordinal] = outcome

    # -- batches --------------------------------------------------------------------------------------------------
    def take(self) -> list[EpisodeRequest] | None:
        """Return the batch of this version, oldest first, or None while it is not complete; the same one when asked
        again."""
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
        """Read the finished episode of a request. Raises DataError where its file is broken."""
        return read_episode(self._file(request.ordinal))

    def advance(self) -> None:
        """Record that the batch was trained on: the trainer's checkpoint is saved, and the new weights answer."""
        self.version += 1
        self._use(self.taken or ())
        self.taken = None

    def _choose(self) -> list[int] | None:
        begun = self._begun()
        running = {ordinal // self._unit for ordinal in self.running}
        waiting = {unit for unit in begun if unit in running or any(map(self._is_open, self._in(unit)))}
        chosen = choose_batch(
            {unit: start for unit, start in begun.items() if unit not in waiting},
            [begun[unit] for unit in waiting],
            version=self.version,
            count=self.plan.batch // self._unit,
            max_staleness=self.plan.max_staleness,
        )
        if chosen is None:
            return None
        return sorted(n for unit in chosen for n in self._in(unit) if n in self.finished)

    def _take(self, ordinals: list[int], recorded: Sequence[Sequence[Any]]) -> None:
        self.taken = ordinals
        for group, scores, successes in recorded:
            self.source.record(self._groups[group], scores, successes)
            del self._unrecorded[group]

    def _use(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self._used.add(ordinal)
            self._used_units.add(ordinal // self._unit)
            self.finished.pop(ordinal, None)
            self._file(ordinal).unlink(missing_ok=True)

    # -- units: what is used together, an episode or a group ------------------------------------------------------
    def _begun(self) -> dict[int, int]:
        """unit -> the oldest version that it began with, of those that were not trained on and did not fail."""
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
        """Drawn, and neither running nor at its end."""
        return not any(ordinal in places for places in (self.running, self.finished, self._failed, self._used))

    # -- on disk --------------------------------------------------------------------------------------------------
    def _file(self, ordinal: int) -> Path:
        return self.folder / f"{ordinal:08d}.zip"

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._log.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")

    def _replay(self, key: str) -> bool:
        """Back to where the process ended; false where there is nothing of this run."""
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
                self.source.next()
                self._add_group(line["task"])
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
        """What was written whole: the end of the last write may be missing, and is cut off."""
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
