"""Block `cluster`: the machines on which shards are done."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flywheel.settings.block import Block


class Cluster(Block):
    """The machines on which the shards of stages are done. They share the folder of the workspace."""

    engine: Literal["local", "ray"] = "local"
    """Where shards are done. local: in this program, one after the other; ray: on the nodes of a Ray cluster, as
    many at once as there is room for. ray needs flywheel[ray]."""
    address: str = Field("", pattern=r"^((ray://)?[\w.-]+:\d+)?$")
    """The cluster's head: HOST:6379 from one of its nodes, ray://HOST:10001 from elsewhere. Empty: one is started on
    this machine for the run. For engine ray."""
    cpus: int = Field(1, ge=1, le=256)
    """Processor cores that a worker on a node takes. For engine ray."""
    wait_s: float = Field(600.0, gt=0)
    """Seconds that a shard waits for a worker while none is at work anywhere. For engine ray."""
    silent_s: float = Field(120.0, gt=0)
    """Seconds without a sign of life after which a worker counts as lost, and another one does its shard. For engine
    ray."""
