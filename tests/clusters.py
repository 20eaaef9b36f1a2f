"""All shards of a stage on a cluster, without Prefect."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from flywheel.cluster import Cluster
from flywheel.stages.base import Context, Stage


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
