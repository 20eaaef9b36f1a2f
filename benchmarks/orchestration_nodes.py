"""Three Ray nodes, of which one is killed while shards are done and comes back later.

Shards wait as environments do, so that two cores are enough for three nodes. Throughput falls by the node's share while
it is away, and every shard is done once.
"""

from __future__ import annotations

import contextvars
import math
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orchestration_turn as turn
from bench_case import BenchCase
from orchestration_machines import NODE, do_shards, machines

from flywheel import cluster, config
from flywheel.pipeline.stage import Stage, StageContext, StageResult
from flywheel.utils.files import write_text

_NODES = 3
_WAIT_S, _PHASE_S = 1.0, 40.0
_STARTS_S = 15.0  # until every node is at work
_BACK_S = 30.0
_MORE = 0.05  # that throughput may fall by, beside the node's share


def cases(options: Namespace) -> Iterator[BenchCase]:
    ws = turn.make(options.folder / "nodes")
    with machines(_NODES, Path(__file__).parent) as ray:
        chosen = config.parse_settings(
            {"sandbox": {"browsers": 1}, "cluster": {"engine": "ray", "address": ray.address}}, where="nodes"
        )
        write_text(ws.frozen_params(1), config.dump_settings(chosen))
        with cluster.open_cluster(ws, chosen) as nodes:
            yield from _cases(ray, nodes, StageContext.open(ws, 1, "waits"))


def work(ctx: StageContext, shard: str, folder: Path) -> dict[str, object]:
    """Where it was done, and when."""
    import ray

    time.sleep(_WAIT_S)
    return {"node": ray.get_runtime_context().get_node_id(), "at": time.time()}


STAGE = Stage("waits", (), (), (), lambda ctx: (), work, lambda ctx, results: StageResult(), needs=("browsers",))


def _cases(ray, nodes: cluster.ClusterBackend, ctx: StageContext) -> Iterator[BenchCase]:
    shards = [f"{number:03d}" for number in range(round(_NODES * 3 * _PHASE_S / _WAIT_S))]
    with ThreadPoolExecutor(1) as beside:  # Ray wants the main thread for its nodes
        asked = beside.submit(contextvars.copy_context().run, do_shards, nodes, STAGE, ctx, shards)
        time.sleep(_STARTS_S)
        began = time.time()
        time.sleep(_PHASE_S)
        killed = time.time()
        ray.remove_node(next(iter(ray.worker_nodes)), allow_graceful=False)
        time.sleep(_PHASE_S)
        returned = time.time()
        ray.add_node(wait=False, **NODE)
        done = [result for _, result in asked.result().values()]

    def rate(start: float, end: float) -> float:
        return sum(start <= one["at"] < end for one in done) / (end - start)

    whole, without = rate(began, killed), rate(killed, returned)
    least = 1 - 1 / _NODES - _MORE
    by_node = dict(Counter(one["node"][:6] for one in done))
    yield BenchCase(
        "orchestration", "nodes_killed", "shards/s", without, whole, f"with {_NODES} nodes", without / whole, least,
        without / whole >= least, {"by_node": by_node},
    )  # fmt: skip
    before = {one["node"] for one in done if one["at"] < returned}
    back = min((one["at"] for one in done if one["node"] not in before), default=math.inf) - returned
    yield turn.figure("nodes_back", "s", back, _BACK_S, back <= _BACK_S)
    lost = len(shards) - len(done)
    yield turn.figure("nodes_lost", "shards", lost, 0, lost == 0, of=len(shards))
