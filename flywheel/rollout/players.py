"""A model and its environments that stay open from one rollout to the next, for callers without an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from flywheel.environments.env import Task
from flywheel.environments.router import Environments, open_environments
from flywheel.policy import open_policy
from flywheel.policy.protocol import Policy
from flywheel.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Players:
    """They live on an event loop in a thread of its own, which goes on between two rollouts: browsers are watched over,
    and what nobody uses is closed."""

    policy: Policy
    environments: Environments
    _loop: BlockingPortal

    def run(self, play: Callable[[Policy, Environments], Coroutine[None, None, T]]) -> T:
        """Let them play, and wait for the end. Interrupted (Ctrl-C), the episodes are given up."""
        playing = self._loop.start_task_soon(play, self.policy, self.environments)
        try:
            return playing.result()
        except BaseException:
            playing.cancel()
            raise


@contextmanager
def open_players(model: Path, tasks: Iterable[Task], settings: Settings, root: Path) -> Iterator[Players]:
    """The model in that folder, and environments of the kinds that these tasks are played in.

    root: the folder that relative paths in the settings count from.
    """
    with start_blocking_portal() as loop, loop.wrap_async_context_manager(_open(model, tasks, settings, root)) as both:
        yield Players(*both, loop)


@asynccontextmanager
async def _open(
    model: Path, tasks: Iterable[Task], settings: Settings, root: Path
) -> AsyncIterator[tuple[Policy, Environments]]:
    policy = open_policy(model, settings.policy)
    try:
        async with open_environments(settings, tasks, root) as environments:
            yield policy, environments
    finally:
        await policy.close()
