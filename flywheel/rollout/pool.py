"""The rollout pool: many episodes at once, bounded, each lost environment replaced by a fresh one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Protocol

from flywheel.errors import EnvError, EnvTimeout
from flywheel.policy.protocol import Policy
from flywheel.rollout.episode import Episode, crashed, run_episode
from flywheel.sandbox.env import Env, Task
from flywheel.settings import Settings

log = logging.getLogger(__name__)


class Sandbox(Protocol):
    """Lends environments."""

    def env(self) -> AbstractAsyncContextManager[Env]: ...


async def rollout(
    tasks: Sequence[Task],
    samples: int,
    policy: Policy,
    sandbox: Sandbox,
    *,
    iteration: int,
    settings: Settings,
    temperature: float,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    run_id: str = "",
) -> list[Episode]:
    """`samples` episodes of each task, at most min(rollout.max_concurrent, sandbox.pages) at once.

    Returned sorted by trajectory_id, so the order of finishing changes nothing; `on_episode` is called in that order
    of finishing. A crash of an environment is tried again in a fresh one, rollout.retries times; then the episode's
    status is `crashed`, with the error. Raises PolicyError: without a policy no episode can go on.
    """
    slots = asyncio.Semaphore(min(settings.rollout.max_concurrent, settings.sandbox.pages))
    version = policy.weight_version

    async def one(task: Task, sample: int) -> Episode:
        async with slots:
            episode = await _with_retries(task, sample)
        on_episode(episode)
        return episode

    async def _with_retries(task: Task, sample: int) -> Episode:
        started = datetime.now(UTC)
        for attempt in range(settings.rollout.retries + 1):
            try:
                async with asyncio.timeout(_deadline(task, settings)), sandbox.env() as env:
                    return await run_episode(
                        env, policy, task, sample, iteration=iteration, settings=settings, temperature=temperature,
                        run_id=run_id,
                    )  # fmt: skip
            except (EnvError, TimeoutError) as caught:
                error = caught if isinstance(caught, EnvError) else _late(task, settings)
                log.warning("episode of %s, sample %d, try %d: %s", task.task_id, sample, attempt + 1, error)
        return crashed(task, sample, version, iteration=iteration, error=str(error), started=started, run_id=run_id)

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, sample)) for task in tasks for sample in range(samples)]
    except BaseExceptionGroup as several:
        # One cause stops the others; callers want that cause by its class.
        raise several.exceptions[0] from None
    return sorted((task.result() for task in running), key=lambda episode: episode.id)


def _deadline(task: Task, settings: Settings) -> float:
    """Seconds of a whole episode: every call at its own limit, and the time to start an environment."""
    digest_s = settings.language_model.timeout_s if settings.policy.summarizer == "language_model" else 0
    return (task.max_steps + 2) * (2 * (settings.sandbox.timeout_s + settings.policy.timeout_s) + digest_s)


def _late(task: Task, settings: Settings) -> EnvTimeout:
    return EnvTimeout(f"the episode did not end in {_deadline(task, settings):g} s", where=f"task {task.task_id}")
