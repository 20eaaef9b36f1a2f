"""Several nodes of a Ray cluster on this machine, and the shards of a stage done on them without Prefect."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest import mock

from flywheel.cluster import Cluster
from flywheel.stages.base import Context, Stage

NODE = {"num_cpus": 1, "resources": {"browsers": 1}, "object_store_memory": 80 << 20}
_ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
# A node that is killed is given up within seconds.
_HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
_NODE_S = 600.0
_HEAD = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # nobody looks at those


@contextlib.contextmanager
def machines(count: int, modules: Path) -> Iterator[Any]:
    """Ray's `Cluster`: a head without a processor, and nodes with room for one worker each.

    modules: a folder whose modules the nodes find, beside those that this process finds.
    """
    found = os.pathsep.join([str(modules), *sys.path])
    with mock.patch.dict(os.environ, {**_ENVIRONMENT, "PYTHONPATH": found}):
        from ray._private import services
        from ray.cluster_utils import Cluster as Machines

        made_known = services.get_node

        def get_node(*about: Any) -> Any:
            """Ray gives a node 30 s to become known, which nothing changes; busy cores take longer."""
            ends = time.monotonic() + _NODE_S
            while True:
                try:
                    return made_known(*about)
                except RuntimeError:
                    if time.monotonic() > ends:
                        raise
                    time.sleep(0.1)

        head = {**NODE, "num_cpus": 0, "resources": {}, **_HEAD, "_system_config": _HEALTH}
        with mock.patch.object(services, "get_node", get_node):
            made = Machines(head_node_args=head, initialize_head=True)
            for _ in range(count):
                made.add_node(wait=False, **NODE)
            made.wait_for_nodes(_NODE_S)
            yield made
            made.shutdown()


def do_shards(cluster: Cluster, stage: Stage, ctx: Context, shards: Sequence[str]) -> dict[str, tuple[Path, Any]]:
    """(folder, result) of each, as many at once as the cluster has room for. The first error ends it."""
    with cluster.workers(stage, ctx) as workers:
        if not workers.several:
            return {shard: workers.do_shard(shard)[:2] for shard in shards}
        with ThreadPoolExecutor(max(1, len(shards)), "shard") as threads:
            asked = {threads.submit(contextvars.copy_context().run, workers.do_shard, shard): shard for shard in shards}
            try:
                results = {asked[done]: done.result()[:2] for done in as_completed(asked)}
            except BaseException:
                workers.close()  # the others need not be waited for
                raise
    return {shard: results[shard] for shard in shards}
