"""Collect batches of episodes for RL while training goes on (section 2.5.3).

On one event loop each episode is a task of its own, in a leased environment. The policy may get new weights while an
episode is under way; each step keeps the version that sampled it. The rollout log (`rollout_log.py`) decides what
begins and what is trained on, so a killed pool resumes where it was.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np

from flywheel.config import Settings
from flywheel.envs.base import Env, Task
from flywheel.envs.router import EnvProvider
from flywheel.policy.protocol import PolicyBackend
from flywheel.rollout.episode import Episode
from flywheel.rollout.pool import EpisodeSlots, RolloutStats, run_episode_with_retries
from flywheel.rollout.rollout_log import EpisodeOutcome, EpisodeRequest, RolloutLog
from flywheel.utils.errors import FlywheelError, TrainingError


class OccupancyMeter:
    """Wraps an `EnvProvider` and measures how much of the time its environments are lent.

    places: environments at most. clock: in seconds.
    """

    def __init__(self, environments: EnvProvider, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._environments, self._places, self._clock = environments, places, clock
        self._lent, self._area = 0, 0.0  # environments now; environment-seconds since `_began`
        self._began = self._changed = clock()

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[Env]:
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


GradeFunction = Callable[[Task, Episode], tuple[float, bool]]


@dataclass(frozen=True)
class EpisodeBatch:
    """The episodes of one training step, in the order of their requests. figures: see `AsyncRolloutPool.next_batch`."""

    step: int
    episodes: tuple[tuple[EpisodeRequest, Episode], ...]
    outcomes: tuple[EpisodeOutcome, ...]
    figures: Mapping[str, float]


class AsyncRolloutPool:
    """Play episodes all the time, and hand them out in batches.

        async with AsyncRolloutPool(...) as pool:
            batch = await pool.next_batch()  # train on it, save, `pool.announce` and `policy.load` the new weights
            pool.advance()

    grade: returns an episode's score and whether it is verified. slow: call it in a thread. where: names the run in
    errors. on_episode: called with each episode as it ends, crashed ones included.
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
        self._iteration, self._settings, self._temperature = iteration, settings, temperature
        self._on_episode = on_episode
        self._places = EpisodeSlots(settings, {task.environment for task in rollout_log.tasks.values()})
        self._environments = OccupancyMeter(environments, self._places.count)
        self._versions = {policy.weight_version: rollout_log.version}
        self._tasks: dict[asyncio.Task[None], EpisodeRequest] = {}
        self._rounds: dict[int, int] = {}  # ordinal -> steps that a running episode has made
        self._stats, self._retried = RolloutStats(), 0
        self._crashes, self._crashed = 0, 0  # in a row; since the last batch
        self._fault: Exception | None = None
        self._closed = False
        self._changed = asyncio.Event()

    async def __aenter__(self) -> AsyncRolloutPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the episodes under way; on disk they are as if they had not begun."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self) -> None:
        """Begin episodes before the first batch is asked for."""
        self._fill()

    async def next_batch(self) -> EpisodeBatch:
        """Wait for the episodes of the next training step and return them.

        Figures: staleness_mean and _max (of the batch's tokens, in training steps), length_consumed and
        length_in_flight (mean steps of the batch's episodes, and of those under way so far), running, accepted
        (finished and not yet used, the batch included), utilisation (share of the environments' time in use since the
        last batch), retries, crashed (episodes given up).

        Raises TrainingError after rl.batch_timeout_s, where every environment crashes, and where a scorer fails or
        gives no finite number; PolicyError where the policy fails. Each names the trajectory or the step.
        """
        limit = self._settings.rl.batch_timeout_s
        try:
            async with asyncio.timeout(limit):
                tickets = await self._complete()
        except TimeoutError:
            raise TrainingError(
                f"no batch in {limit:g} s: {len(self.rollout_log.finished)} of {self.rollout_log.plan.batch} episodes "
                f"have finished, {len(self.rollout_log.running)} are under way{self._oldest()}",
                where=self._here,
                fix="raise rl.batch_timeout_s, or look at what this environment waits for",
            ) from None
        figures, outcomes = self._figures(), tuple(self.rollout_log.finished[request.ordinal] for request in tickets)
        read = await asyncio.to_thread(lambda: [self.rollout_log.read(request) for request in tickets])
        episodes = tuple(zip(tickets, read, strict=True))
        return EpisodeBatch(self.rollout_log.version, episodes, outcomes, figures | self._staleness(read))

    def announce(self, weight_version: str, version: int) -> None:
        """Register weights before the policy loads them.

        weight_version: their name, as the policy reports it. version: training steps that they have had.
        """
        self._versions[weight_version] = version

    def advance(self) -> None:
        """Go on to the next step: the batch is trained on and saved, and the policy has the new weights."""
        self.rollout_log.advance()
        self._fill()

    async def _complete(self) -> list[EpisodeRequest]:
        while True:
            self._changed.clear()
            if self._fault is not None:
                raise self._fault
            taken = self.rollout_log.take()
            self._fill()  # with the next batch's, too
            if taken is not None:
                return taken
            await self._changed.wait()

    def _fill(self) -> None:
        if self._closed or self._fault is not None:
            return
        while (request := self.rollout_log.admit(self._places.count)) is not None:
            task = asyncio.create_task(self._one(request), name=f"episode {request.ordinal}")
            self._tasks[task] = request
            task.add_done_callback(self._tasks.pop)

    async def _one(self, request: EpisodeRequest) -> None:
        try:
            async with self._places.acquire(request.task):
                episode = await run_episode_with_retries(
                    request.task,
                    request.sample,
                    self._policy,
                    self._environments,
                    iteration=self._iteration,
                    settings=self._settings,
                    temperature=self._temperature,
                    stats=self._stats,
                    seed=request.seed,
                    on_step=lambda step: self._rounds.__setitem__(request.ordinal, step),
                )
            await self._end(request, episode)
            self._fill()
        except FlywheelError as error:
            where = ", ".join(filter(None, (error.where, self._place(request))))
            self._stop(type(error)(error.what, where=where, fix=error.fix))
        except Exception as error:
            # Any error must reach whoever waits for the batch.
            raised = TrainingError(f"an episode failed: {type(error).__name__}: {error}", where=self._place(request))
            raised.__cause__ = error
            self._stop(raised)
        finally:
            self._rounds.pop(request.ordinal, None)
            self._changed.set()

    async def _end(self, request: EpisodeRequest, episode: Episode) -> None:
        self._on_episode(episode)
        if episode.trajectory.status == "crashed":
            self._give_up(request, episode)
            return
        if self._slow:
            score, success = await asyncio.to_thread(self._judge, request, episode)
        else:
            score, success = self._judge(request, episode)
        self._crashes = 0
        self.rollout_log.accept(request, self._marked(episode), score, success)

    def _give_up(self, request: EpisodeRequest, episode: Episode) -> None:
        error = episode.trajectory.error
        self.rollout_log.fail(request, error)
        self._crashes, self._crashed = self._crashes + 1, self._crashed + 1
        if self._crashes >= max(self._places.count, self.rollout_log.plan.samples):
            raise TrainingError(
                f"every environment crashed: {self._crashes} episodes in a row; the last: {error}",
                fix="see `flywheel doctor`, and the settings in sandbox",
            )

    def _judge(self, request: EpisodeRequest, episode: Episode) -> tuple[float, bool]:
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
        return float(score), bool(success)

    def _marked(self, episode: Episode) -> Episode:
        """Each step with the version of its weights. A server that swaps them by itself is not known here."""
        steps = tuple(replace(step, version=self._version_of(step.weight_version)) for step in episode.steps)
        return replace(episode, steps=steps)

    def _version_of(self, weights: str) -> int:
        if weights not in self._versions:
            raise TrainingError(f"the policy answered with weights {weights}, which this run did not give it")
        return self._versions[weights]

    def _stop(self, error: Exception) -> None:
        self._fault = self._fault or error

    # -- what is told ---------------------------------------------------------------------------------------------
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
        steps = [step for episode in episodes for step in episode.steps]
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
        return f"{self._here}, episode {request.ordinal} of task {request.task.task_id} at its step {step}"

    def _oldest(self) -> str:
        first = min(self._tasks.values(), key=lambda request: request.ordinal, default=None)
        if first is None:
            return ""
        return f"; the oldest is episode {first.ordinal} of task {first.task.task_id} at its step " + str(
            self._rounds.get(first.ordinal, 0)
        )
