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
    """Lend environments to tasks of any back-end; it may have `counts` of events, by the name of their class."""

    def env(self, task: Task) -> AbstractAsyncContextManager[Env]:
        """Lend an environment of the task's back-end until the block ends. Raises EnvError where there is none."""


OpenEnvProvider = Callable[[Settings, Iterable[Task]], AbstractAsyncContextManager[EnvProvider]]


class EnvRouter:
    """Lends from the pools of this machine. pools: by the name of the back-end."""

    def __init__(self, pools: Mapping[str, EnvPool]) -> None:
        self._pools = pools

    def env(self, task: Task) -> AbstractAsyncContextManager[Env]:
        """Lend an environment of the task's back-end until the block ends. Raises EnvError where it is not open."""
        pool = self._pools.get(task.environment)
        if pool is None:
            fix = f"open it with this task; open are {', '.join(self._pools) or 'none'}"
            what = f"no environment of the kind {task.environment} is open"
            raise EnvError(what, where=f"task {task.task_id}", fix=fix)
        return pool.env()

    @property
    def counts(self) -> Mapping[str, int]:
        """Events so far of all pools that count them, by the name of their class."""
        events = (getattr(pool, "events", None) for pool in self._pools.values())
        return sum((Counter(event.counts) for event in events if event is not None), Counter())


@asynccontextmanager
async def open_environments(
    settings: Settings, tasks: Iterable[Task], root: Path | None = None
) -> AsyncIterator[EnvProvider]:
    """Open the environments that these tasks need: on this machine, or leased from `sandbox.manager`.

    tasks: only their back-ends count; leased ones are of whatever kind is asked for later. root: the folder that
    relative paths in the settings count from; None: the current one. Raises BadInput for a back-end that is not there,
    wrong settings, or a manager that is not named or whose token is missing; EnvTimeout where a back-end does not open
    or close within its deadline, EnvError where it cannot be opened.
    """
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote.client import open_remote_envs  # its HTTP client takes a sixth of a second to load

        async with open_remote_envs(settings) as leased:
            yield leased
        return
    async with open_env_pools(settings, {task.environment for task in tasks}, root) as pools:
        yield EnvRouter(pools)
