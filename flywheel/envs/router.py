"""Lend each task an environment of its back-end; open only the back-ends whose tasks are played."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from flywheel.config import Settings
from flywheel.envs.base import Env, Task
from flywheel.envs.registry import EnvPool, open_env_pools
from flywheel.utils.errors import EnvError


class EnvProvider(Protocol):
    """Lends environments to tasks of any kind. One with `counts` is asked how they fared."""

    def env(self, task: Task) -> AbstractAsyncContextManager[Env]: ...


OpenEnvProvider = Callable[[Settings, Iterable[Task]], AbstractAsyncContextManager[EnvProvider]]


class EnvRouter:
    """lenders: by the name of the kind."""

    def __init__(self, lenders: Mapping[str, EnvPool]) -> None:
        self._lenders = lenders

    def env(self, task: Task) -> AbstractAsyncContextManager[Env]:
        """An environment of the task's kind until the block ends. Raises EnvError where that kind is not open."""
        lender = self._lenders.get(task.environment)
        if lender is None:
            raise EnvError(
                f"no environment of the kind {task.environment} is open", where=f"task {task.task_id}",
                fix=f"open it with this task; open are {', '.join(self._lenders) or 'none'}",
            )  # fmt: skip
        return lender.env()

    @property
    def counts(self) -> Mapping[str, int]:
        """Events so far, of all kinds that keep a count, by the name of their class."""
        told = (getattr(lender, "events", None) for lender in self._lenders.values())
        return sum((Counter(events.counts) for events in told if events is not None), Counter())


@asynccontextmanager
async def open_environments(
    settings: Settings, tasks: Iterable[Task], root: Path | None = None
) -> AsyncIterator[EnvProvider]:
    """The environments that these tasks are played in: of this machine, or leased by `sandbox.manager`. root: the
    folder that relative paths in the settings count from.

    Raises EnvTimeout where a kind does not open within its deadline, or does not close.
    """
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote.client import open_remote_envs  # its HTTP client takes a sixth of a second to load

        async with open_remote_envs(settings) as managed:
            yield managed
        return
    async with open_env_pools(settings, {task.environment for task in tasks}, root) as lenders:
        yield EnvRouter(lenders)
