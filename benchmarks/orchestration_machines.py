"""Several nodes of a Ray cluster on this machine, and the shards of a stage done on them without Prefect."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest import mock

from flywheel.cluster import ClusterBackend
from flywheel.pipeline.stage import Stage, StageContext

NODE = {"num_cpus": 1, "resources": {"browsers": 1}, "object_store_memory": 80 << 20}
_ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
_NODE_S = 600.0
_DASHBOARD_PORTS = ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME")
_RUNTIME_PORT = "RUNTIME_ENV_AGENT_PORT_NAME"
# A node that is killed is given up within seconds; one that begins on busy cores is waited for.
_SYSTEM = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "agent_register_timeout_ms": int(1000 * _NODE_S),
}
_HEAD = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # nobody looks at those


@contextlib.contextmanager
def machines(count: int, modules: Path) -> Iterator[Any]:
    """Ray's `Cluster`: a head without a processor, and nodes with room for one worker each.

    modules: a folder whose modules the nodes find, beside those that this process finds.
    """
    found = os.pathsep.join([str(modules), *sys.path])
    with mock.patch.dict(os.environ, {**_ENVIRONMENT, "PYTHONPATH": found}):
        import ray._raylet as raylet
        from ray._private import services
        from ray.cluster_utils import Cluster as Machines

        made_known, start = services.get_node, services.start_raylet

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

        @functools.wraps(start)  # has its signature, also where one such cluster is open within another
        def start_raylet(*about: Any, **more: Any) -> Any:
            """Ray gives a node's helpers 15 s to write their ports down, which nothing changes; here they are written
            before. -1 is Ray's word for a service that is not there: nobody asks the dashboard's."""
            given = inspect.signature(start).bind(*about, **more).arguments
            given["runtime_env_agent_port"] = _free_port()
            ports = dict.fromkeys(_DASHBOARD_PORTS, -1) | {_RUNTIME_PORT: given["runtime_env_agent_port"]}
            for name, port in ports.items():
                raylet.persist_port(given["session_dir"], given["node_id"], getattr(raylet, name), port)
            return start(**given)

        head = {**NODE, "num_cpus": 0, "resources": {}, **_HEAD, "_system_config": _SYSTEM}
        with mock.patch.multiple(services, get_node=get_node, start_raylet=start_raylet):
            made = Machines(head_node_args=head, initialize_head=True)
            for _ in range(count):
                made.add_node(wait=False, **NODE)
            made.wait_for_nodes(_NODE_S)
            yield made
            made.shutdown()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def do_shards(
    cluster: ClusterBackend, stage: Stage, ctx: StageContext, shards: Sequence[str]
) -> dict[str, tuple[Path, Any]]:
    """(folder, result) of each, as many at once as the cluster has room for. The first error ends it."""
    with cluster.open_workers(stage, ctx) as workers:
        if not workers.runs_concurrently:
            return {shard: workers.do_shard(shard)[:2] for shard in shards}
        with ThreadPoolExecutor(max(1, len(shards)), "shard") as threads:
            asked = {threads.submit(contextvars.copy_context().run, workers.do_shard, shard): shard for shard in shards}
            try:
                results = {asked[done]: done.result()[:2] for done in as_completed(asked)}
            except BaseException:
                workers.close()  # the others need not be waited for
                raise
    return {shard: results[shard] for shard in shards}
