"""The rollout pool: many episodes at once, bounded, each lost environment replaced by a fresh one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from flywheel.environments import kind
from flywheel.environments.env import Task
from flywheel.environments.router import Environments
from flywheel.errors import EnvError, EnvTimeout
from flywheel.policy.protocol import Policy
from flywheel.rollout.episode import Episode, crashed, run_episode
from flywheel.settings import Settings

log = logging.getLogger(__name__)


class Places:
    """Room for episodes: at most rollout.max_concurrent at once, and of each kind as many as it has environments. Of
    leased ones the manager alone knows how many all nodes have: who has no place waits for it there.

    kinds: of the tasks that are played. count: the most that there can be at once.
    """

    def __init__(self, settings: Settings, kinds: Iterable[str]) -> None:
        most, leased = settings.rollout.max_concurrent, settings.sandbox.backend == "manager"
        of_kind = {name: most if leased else kind.find(name).limits(settings).places for name in set(kinds)}
        self.count = min(most, sum(of_kind.values()))
        self._free = asyncio.Semaphore(most)
        self._of_kind = {name: asyncio.Semaphore(places) for name, places in of_kind.items()}

    @asynccontextmanager
    async def one(self, task: Task) -> AsyncIterator[None]:
        """First come, first served, of each kind; who waits for its kind keeps no other waiting."""
        async with self._of_kind[task.environment], self._free:
            yield


@dataclass
class RolloutStats:
    """What happened around the episodes of one rollout or of several: it is kept with the run.

    retries: episodes begun again after their environment failed. The others are the environments' own count, 0 where
    they keep none: crashes, sessions that were taken back, resets and steps that were answered, those of lost episodes
    included.
    """

    retries: int = 0
    crashes: int = 0
    reclaimed: int = 0
    answers: int = 0

    def add(self, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        """Add what the counts of events grew by."""
        for name, event in (("crashes", "Crashed"), ("reclaimed", "Reclaimed"), ("answers", "Stepped")):
            setattr(self, name, getattr(self, name) + after.get(event, 0) - before.get(event, 0))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


async def rollout(
    tasks: Sequence[Task],
    samples: int,
    policy: Policy,
    environments: Environments,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    run_id: str = "",
    stats: RolloutStats | None = None,
) -> list[Episode]:
    """`samples` episodes of each task, as many at once as there are `Places`.

    Returned sorted by trajectory_id, so the order of finishing changes nothing; `on_episode` is called in that order
    of finishing. A crash of an environment is tried again in a fresh one, rollout.retries times; then the episode's
    status is `crashed`, with the error. `stats` is added to. Raises PolicyError: without a policy no episode can go on.
    """
    stats, before = stats or RolloutStats(), _counts(environments)
    places = Places(settings, (task.environment for task in tasks))

    async def one(task: Task, sample: int) -> Episode:
        async with places.one(task):
            episode = await attempt(
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
        stats.add(before, _counts(environments))
    return sorted((task.result() for task in running), key=lambda episode: episode.id)


async def attempt(
    task: Task,
    sample: int,
    policy: Policy,
    environments: Environments,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    run_id: str = "",
    stats: RolloutStats | None = None,
    seed: int | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> Episode:
    """One episode. A crash of its environment, a hang too, is tried again in a fresh one, rollout.retries times; then
    the episode's status is `crashed`, with the error, and it must not be scored. seed, on_step: as `run_episode` has
    them; each try begins with step 0. Raises PolicyError."""
    started, version = datetime.now(UTC), policy.weight_version
    for number in range(settings.rollout.retries + 1):
        if stats is not None:
            stats.retries += number > 0
        try:
            async with asyncio.timeout(_deadline(task, settings)), environments.env(task) as env:
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
            error = caught if isinstance(caught, EnvError) else _late(task, settings)
            log.warning("episode of %s, sample %d, try %d: %s", task.task_id, sample, number + 1, error)
    return crashed(task, sample, version, iteration=iteration, error=str(error), started=started, run_id=run_id)


def _counts(environments: Environments) -> Mapping[str, int]:
    return getattr(environments, "counts", {})


def _deadline(task: Task, settings: Settings) -> float:
    """Seconds of a whole episode: every call at its own limit, and the time to start an environment."""
    call_s = kind.find(task.environment).limits(settings).call_s
    digest_s = settings.language_model.timeout_s if settings.policy.summarizer == "language_model" else 0
    return (task.max_steps + 2) * (2 * (call_s + settings.policy.timeout_s) + digest_s)


def _late(task: Task, settings: Settings) -> EnvTimeout:
    return EnvTimeout(f"the episode did not end in {_deadline(task, settings):g} s", where=f"task {task.task_id}")
