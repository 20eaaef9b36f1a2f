"""Run many episodes at once, bounded; retry an episode whose environment is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.router import EnvProvider, open_environments
from flywheel.policy import open_policy
from flywheel.policy.protocol import PolicyBackend
from flywheel.rollout.episode import Episode, build_crashed_episode, run_episode
from flywheel.utils.errors import EnvError, EnvTimeout

log = logging.getLogger(__name__)


class EpisodeSlots:
    """Slots for episodes: at most rollout.max_concurrent at once, and of each kind as many as it has environments.

    How many leased environments there are only the manager knows: an episode without one waits there. kinds: of the
    tasks that are played. count: the most episodes at once.
    """

    def __init__(self, settings: Settings, kinds: Iterable[str]) -> None:
        most, leased = settings.rollout.max_concurrent, settings.sandbox.backend == "manager"
        of_kind = {name: most if leased else registry.find_backend(name).limits(settings).places for name in set(kinds)}
        self.count = min(most, sum(of_kind.values()))
        self._free = asyncio.Semaphore(most)
        self._of_kind = {name: asyncio.Semaphore(places) for name, places in of_kind.items()}

    @asynccontextmanager
    async def acquire(self, task: Task) -> AsyncIterator[None]:
        """Hold a slot for an episode of the task; first come, first served within a kind."""
        async with self._of_kind[task.environment], self._free:
            yield


@dataclass
class RolloutStats:
    """Count what happened around the episodes of one rollout or of several.

    retries: episodes begun again after their environment failed. The others are the environments' own count, 0 where
    they keep none: crashes, sessions that were taken back, resets and steps that were answered, those of lost episodes
    included.
    """

    retries: int = 0
    crashes: int = 0
    reclaimed: int = 0
    answers: int = 0

    def add(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Add the growth of the environments' counts. before, after: number of events by name, at two moments."""
        for name, event in (("crashes", "Crashed"), ("reclaimed", "Reclaimed"), ("answers", "Stepped")):
            setattr(self, name, getattr(self, name) + after.get(event, 0) - before.get(event, 0))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


async def run_rollout(
    tasks: Sequence[Task],
    samples: int,
    policy: PolicyBackend,
    environments: EnvProvider,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    run_id: str = "",
    stats: RolloutStats | None = None,
) -> list[Episode]:
    """Play `samples` episodes of each task, as many at once as there are `EpisodeSlots`; return them by trajectory_id.

    tasks: of any environment kinds. policy: answers with the model. environments: lends an environment for each task.
    iteration, run_id: stand in the episodes' rows. temperature: of sampling; 0 is greedy. on_episode: called with each
    as it ends, crashed ones included. stats: counters that are added to. Nothing is stored. After a crash an episode
    starts again in a fresh environment, rollout.retries times; then its status is `crashed`, with the error. Raises
    PolicyError, and ends the other episodes: without a policy no episode can go on.
    """
    stats, before = stats or RolloutStats(), _event_counts(environments)
    places = EpisodeSlots(settings, (task.environment for task in tasks))

    async def one(task: Task, sample: int) -> Episode:
        async with places.acquire(task):
            episode = await run_episode_with_retries(
                task,
                sample,
                policy,
                environments,
                iteration=iteration,
                settings=settings,
                temperature=temperature,
                run_id=run_id,
                stats=stats,
            )
        on_episode(episode)
        return episode

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, sample)) for task in tasks for sample in range(samples)]
    except BaseExceptionGroup as several:
        # One cause stops the others; callers want that cause by its class.
        raise several.exceptions[0] from None
    finally:
        stats.add(before, _event_counts(environments))
    return sorted((task.result() for task in running), key=lambda episode: episode.id)


async def run_episode_with_retries(
    task: Task,
    sample: int,
    policy: PolicyBackend,
    environments: EnvProvider,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    run_id: str = "",
    stats: RolloutStats | None = None,
    seed: int | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> Episode:
    """Play one episode; after a crash or a hang start it again in a fresh environment, rollout.retries times.

    Then its status is `crashed`, with the error, and it must not be scored. seed, on_step: as in `run_episode`; each
    try begins with step 0. Raises PolicyError.
    """
    started, version = datetime.now(UTC), policy.weight_version
    for number in range(settings.rollout.retries + 1):
        if stats is not None:
            stats.retries += number > 0
        try:
            async with asyncio.timeout(_episode_deadline(task, settings)), environments.env(task) as env:
                return await run_episode(
                    env,
                    policy,
                    task,
                    sample,
                    iteration=iteration,
                    settings=settings,
                    temperature=temperature,
                    run_id=run_id,
                    seed=seed,
                    on_step=on_step,
                )
        except (EnvError, TimeoutError) as caught:
            error = caught if isinstance(caught, EnvError) else _deadline_error(task, settings)
            log.warning("episode of %s, sample %d, try %d: %s", task.task_id, sample, number + 1, error)
    return build_crashed_episode(
        task, sample, version, iteration=iteration, error=str(error), started=started, run_id=run_id
    )


def _event_counts(environments: EnvProvider) -> Mapping[str, int]:
    return getattr(environments, "counts", {})


def _episode_deadline(task: Task, settings: Settings) -> float:
    """Seconds of a whole episode: every call at its own limit, and the time to start an environment."""
    call_s = registry.find_backend(task.environment).limits(settings).call_s
    digest_s = settings.language_model.timeout_s if settings.policy.summarizer == "language_model" else 0
    return (task.max_steps + 2) * (2 * (call_s + settings.policy.timeout_s) + digest_s)


def _deadline_error(task: Task, settings: Settings) -> EnvTimeout:
    return EnvTimeout(
        f"the episode did not end in {_episode_deadline(task, settings):g} s", where=f"task {task.task_id}"
    )


T = TypeVar("T")


@dataclass(frozen=True)
class RolloutWorker:
    """Keep a policy and environments open from one rollout to the next, for callers without an event loop.

    They live on an event loop in a thread of its own, which runs between rollouts too: it watches over browsers and
    closes what is idle.
    """

    policy: PolicyBackend
    environments: EnvProvider
    _loop: BlockingPortal

    def run(self, play: Callable[[PolicyBackend, EnvProvider], Coroutine[None, None, T]]) -> T:
        """Run `play` on the worker's event loop and return its result; an interrupt (Ctrl-C) cancels it."""
        playing = self._loop.start_task_soon(play, self.policy, self.environments)
        try:
            return playing.result()
        except BaseException:
            playing.cancel()
            raise


@contextmanager
def open_rollout_worker(model: Path, tasks: Iterable[Task], settings: Settings, root: Path) -> Iterator[RolloutWorker]:
    """Open the model in a folder, and environments of the kinds that the tasks are played in.

    model: the checkpoint's folder. root: the folder that relative paths in the settings count from. Yields a worker,
    with an event loop in a thread of its own, closed at the end of the block. Raises as `open_policy` and
    `open_environments` do, and EnvError where an environment cannot be opened.
    """
    with (
        start_blocking_portal() as loop,
        loop.wrap_async_context_manager(_open_policy_and_environments(model, tasks, settings, root)) as both,
    ):
        yield RolloutWorker(*both, loop)


@asynccontextmanager
async def _open_policy_and_environments(
    model: Path, tasks: Iterable[Task], settings: Settings, root: Path
) -> AsyncIterator[tuple[PolicyBackend, EnvProvider]]:
    policy = open_policy(model, settings.policy)
    try:
        async with open_environments(settings, tasks, root) as environments:
            yield policy, environments
    finally:
        await policy.close()
