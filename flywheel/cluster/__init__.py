"""Choose where the shards of a stage run: in this process, or on the nodes of a Ray cluster (block `cluster`).

Only `flywheel/pipeline/stage.py` knows what a shard is and how its result is stored: every worker calls it.
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

__all__ = ["ClusterBackend", "StageWorkers", "current_cluster", "open_cluster", "resources"]


class StageWorkers(Protocol):
    """Run the shards of one stage of one iteration, until the block of `open_workers` ends.

    runs_concurrently: whether `do_shard` may be called for several shards at once, each from a thread of its own.
    """

    runs_concurrently: bool

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """Run one shard, or take its stored result where it was done before.

        shard: its name, one of those that the stage lists. Returns the folder that the shard wrote to, its result, and
        whether it had been done before. Raises ShardBusy where another process is still at it after 10 minutes,
        DiskFull, and what the stage's own work raises. On a cluster it also raises WorkerLost where three workers are
        lost over the shard, HeadLost, and ClusterError where no worker comes in `cluster.acquire_timeout_s`, or a node
        has a fault.
        """


class ClusterBackend:
    """Run stages in this process, one shard after the other; `ray_cluster.RayCluster` runs them on nodes."""

    def open_workers(self, stage: Stage, ctx: StageContext) -> AbstractContextManager[StageWorkers]:
        """Open the workers that run the shards of `stage` within the block.

        ctx: of the stage: its iteration and settings. `RayCluster` raises ClusterError where no node can do a shard,
        and HeadLost.
        """
        return InProcessWorker(stage, ctx)


_current: ContextVar[ClusterBackend] = ContextVar("cluster", default=ClusterBackend())  # noqa: B039 (it has no state)


def current_cluster() -> ClusterBackend:
    """Return the cluster that the innermost `open_cluster` around the call yields.

    Without one, a `ClusterBackend`, which runs stages in this process.
    """
    return _current.get()


@contextlib.contextmanager
def open_cluster(ws: Workspace, settings: Settings) -> Iterator[ClusterBackend]:
    """Open the cluster that `cluster.engine` and `sandbox.manager` name, check its nodes, and make it the current one.

    ws: its folder is shared with the nodes. settings: the run's. Yields the cluster. At the end of the block it is
    closed, and the one before it is current again. With the engine `local` nothing is started. With `ray` it connects,
    and where `sandbox.manager` is `cluster` it starts environments on the nodes. Raises BadInput for settings that
    cannot work, and where Ray is not installed or cannot be reached or started; ClusterError where a node cannot take
    part, does not answer in 120 seconds, or none has environments in `cluster.acquire_timeout_s`; DiskFull.
    """
    if settings.sandbox.backend == "manager":
        from flywheel.envs.remote import client  # its HTTP client takes a sixth of a second to load

        client.check_manager_settings(settings)
    with contextlib.ExitStack() as stack:
        cluster = ClusterBackend()
        if settings.cluster.engine == "ray":
            from flywheel.cluster.connection import connect_to_ray

            head = stack.enter_context(connect_to_ray(settings))
            # These import Ray; the connection has set the environment variables that it reads.
            from flywheel.cluster import env_nodes, nodes, ray_cluster

            shared = stack.enter_context(nodes.open_shared_folder(ws))
            cluster = ray_cluster.RayCluster(shared, settings, head)
            cluster.check_nodes()
            stack.enter_context(env_nodes.serve_environments_on_nodes(cluster, settings))
        token = _current.set(cluster)
        try:
            yield cluster
        finally:
            _current.reset(token)
