"""Block `cluster`: the machines on which shards are done."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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
    training_nodes: int = Field(1, ge=1, le=64)
    """Nodes that the processes which train one model are shared out over (`ct.processes`, `sft.processes`,
    `rl.processes`), as evenly as may be. For engine ray."""
    stages_at_once: int = Field(1, ge=1, le=64)
    """Stages of one iteration that run at the same time, where none reads what another writes: ingest beside
    synthesize, the specialists of RL beside one another. From 2 on those that are beside others are processes of their
    own, which any worker of the workspace's pool begins."""
    wait_s: float = Field(600.0, gt=0)
    """Seconds that a shard, or a stage beside others, waits for a worker while none is at work anywhere."""
    silent_s: float = Field(120.0, gt=0)
    """Seconds without a sign of life after which a worker counts as lost, and another one does its shard. For engine
    ray."""

    @model_validator(mode="after")
    def _one_ray(self) -> Cluster:
        if self.engine == "ray" and self.stages_at_once > 1 and not self.address:
            raise ValueError("stages_at_once above 1 needs a cluster that all stages reach: name its address")
        if self.training_nodes > 1 and not self.address:
            raise ValueError("training_nodes above 1 needs engine ray and a cluster of several nodes: name its address")
        return self
