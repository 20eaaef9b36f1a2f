"""Where the shards of a stage are done: in this process, or on the nodes of a Ray cluster (block `cluster`).

What a shard is, and how its result is kept, `flywheel/pipeline/stage.py` knows alone: whoever does a shard calls it
there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.stage import InProcessWorker, Stage, StageContext


class StageWorkers(Protocol):
    """Do the shards of one stage of one iteration, until the block ends.

    several: shards may be asked for at once, each in a thread of its own.
    """

    several: bool

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """(folder, result, done before), as `pipeline/stage.py: run_shard`. Raises what the shard's work raises, and
        ClusterError."""


class ClusterBackend(Protocol):
    def open_workers(self, stage: Stage, ctx: StageContext) -> AbstractContextManager[StageWorkers]: ...


class LocalCluster:
    """This process: one shard after the other."""

    def open_workers(self, stage: Stage, ctx: StageContext) -> AbstractContextManager[StageWorkers]:
        return InProcessWorker(stage, ctx)


_current: ContextVar[ClusterBackend] = ContextVar("cluster", default=LocalCluster())  # noqa: B039 (it has no state)


def current_cluster() -> ClusterBackend:
    """The cluster of the innermost `open_cluster`; this process where there is none."""
    return _current.get()


@contextlib.contextmanager
def open_cluster(ws: Workspace, settings: Settings) -> Iterator[ClusterBackend]:
    """The cluster that the settings name, looked at before anything is done on it.

    Raises BadInput for settings that cannot work, ClusterError where a node cannot take part.
    """
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote import client  # its HTTP client takes a sixth of a second to load

        client.check_manager_settings(settings)
    with contextlib.ExitStack() as stack:
        cluster: ClusterBackend = LocalCluster()
        if settings.cluster.engine == "ray":
            cluster = stack.enter_context(_open_ray(ws, settings))
        token = _current.set(cluster)
        try:
            yield cluster
        finally:
            _current.reset(token)


@contextlib.contextmanager
def _open_ray(ws: Workspace, settings: Settings) -> Iterator[ClusterBackend]:
    """Raises BadInput as `connect_to_ray`, ClusterError for a node with a fault, and where no environments come up on
    the nodes that are to have them."""
    from flywheel.cluster.connection import connect_to_ray

    with connect_to_ray(settings) as head:
        # They import Ray, whose variables the connection has set.
        from flywheel.cluster import env_nodes, nodes, ray_cluster

        with nodes.open_shared_folder(ws) as shared:
            cluster = ray_cluster.RayCluster(shared, settings, head)
            cluster.check()
            with env_nodes.serve_environments_on_nodes(cluster, settings):
                yield cluster
