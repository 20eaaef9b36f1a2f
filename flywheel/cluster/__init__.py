"""Where the shards of a stage are done: in this process, or on the nodes of a Ray cluster (block `cluster`).

What a shard is, and how its result is kept, `flywheel/stages/base.py` knows alone: whoever does a shard calls it there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from flywheel.settings import Settings
from flywheel.stages.base import Context, Stage, Worker
from flywheel.workspace import Workspace


class Workers(Protocol):
    """Do the shards of one stage of one iteration, until the block ends.

    several: shards may be asked for at once, each in a thread of its own.
    """

    several: bool

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """(folder, result, done before), as `stages/base.py: do_shard`. Raises what the shard's work raises, and
        ClusterError."""


class Cluster(Protocol):
    def workers(self, stage: Stage, ctx: Context) -> AbstractContextManager[Workers]: ...


class Local:
    """This process: one shard after the other."""

    def workers(self, stage: Stage, ctx: Context) -> AbstractContextManager[Workers]:
        return Worker(stage, ctx)


_open: ContextVar[Cluster] = ContextVar("cluster", default=Local())  # noqa: B039 (it has no state)


def current() -> Cluster:
    """The cluster of the innermost `open_cluster`; this process where there is none."""
    return _open.get()


@contextlib.contextmanager
def open_cluster(ws: Workspace, settings: Settings) -> Iterator[Cluster]:
    """The cluster that the settings name, looked at before anything is done on it.

    Raises BadInput for settings that cannot work, ClusterError where a node cannot take part.
    """
    if settings.sandbox.backend == "manager":
        from flywheel.environments import managed  # its HTTP client takes a sixth of a second to load

        managed.check(settings)
    with contextlib.ExitStack() as stack:
        cluster: Cluster = Local()
        if settings.cluster.engine == "ray":
            from flywheel.cluster.connection import open_ray

            cluster = stack.enter_context(open_ray(ws, settings))
        token = _open.set(cluster)
        try:
            yield cluster
        finally:
            _open.reset(token)
