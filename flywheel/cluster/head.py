"""`flywheel.cluster.Cluster` on Ray: its nodes are looked at before work begins, its head is watched meanwhile."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

from flywheel.cluster import needs
from flywheel.cluster.connection import Place, reachable
from flywheel.cluster.node import Shared, fault, reason, refuse
from flywheel.cluster.workers import RayWorkers
from flywheel.errors import ClusterError, HeadLost
from flywheel.settings import Settings
from flywheel.stages.base import BROWSERS, Context, Stage, Worker

_LOOK_S = 120  # of a node: the first call there starts a process that imports flywheel
_LOST_S = 30  # a head that is started again by then has been away, and nothing more
_BETWEEN_S = 2  # two looks at the head


class RayCluster:
    """place: where the head listens. environ: variables of the environment that its workers get."""

    def __init__(self, shared: Shared, settings: Settings, place: Place) -> None:
        self.shared, self.limits = shared, settings.cluster
        self._settings, self.place = settings, place
        self.environ: dict[str, str] = {}
        self._lock = threading.Lock()
        self._looked = self._lost = 0.0  # when the head was last looked at, and since when it has not answered
        self._life = time.monotonic()

    # -- what is done where ---------------------------------------------------------------------------------------
    def workers(self, stage: Stage, ctx: Context) -> AbstractContextManager[RayWorkers | Worker]:
        """Raises ClusterError where no nodes that are there now could do a shard."""
        if stage.needs is None:
            return Worker(stage, ctx)
        self.watch()
        self.alive()
        has = [node["Resources"] for node in living()]
        wanted = needs.of_stage(stage, ctx, self.limits, has)
        if said := needs.lacking(wanted, has):
            raise ClusterError(said, where=f"stage {ctx.stage}", fix="add what is missing (docs/cluster.md says how)")
        return RayWorkers(self, stage, ctx, wanted)

    def check(self) -> None:
        """Look at every node that work may come to. Raises ClusterError."""
        look, asked = ray.remote(num_cpus=0, max_retries=0)(fault), {}
        for node in living():
            if any(node["Resources"].get(name) for name in (needs.CPU, needs.GPU, BROWSERS)):
                there = look.options(scheduling_strategy=At(node["NodeID"], soft=False))
                plays = bool(node["Resources"].get(BROWSERS))
                asked[there.remote(self.shared, self._settings, plays)] = node["NodeID"], node["NodeManagerAddress"]
        if not asked:
            raise ClusterError("no node of the Ray cluster has a processor to offer", fix="add nodes (`ray start`)")
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S)
        for one in done:
            at, name = asked[one]
            try:
                found = ray.get(one)
            except RayError as error:
                if at not in {node["NodeID"] for node in living()}:
                    continue  # it went meanwhile, and is no part of the cluster any more
                # A node without flywheel fails as it reads what it is to call: the last line of that has the reason.
                found = reason(error), "look whether flywheel is installed there"
            refuse(name, found)
        for one in late:
            refuse(asked[one][1], (f"it gave no answer in {_LOOK_S} s", "end that node, or start it anew"))

    # -- whether it is still there ---------------------------------------------------------------------------------
    def watch(self) -> None:
        """Raises HeadLost where the head has not answered for _LOST_S. Called every few seconds by all who wait."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked < _BETWEEN_S:
                return
            self._looked = now
            if reachable(self.place):
                self._lost = 0.0
                return
            self._lost = self._lost or now
            if now - self._lost > _LOST_S:
                raise HeadLost(
                    f"the head of the Ray cluster has not answered for {_LOST_S} s",
                    where=":".join(map(str, self.place)),
                    fix="start it, then run again: what was finished is kept",
                )

    def alive(self) -> None:
        """Some worker of the run, of whichever stage, has given a sign of life."""
        self._life = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since then: nobody is at work, and nobody has begun to be."""
        return time.monotonic() - self._life


def living() -> list[dict[str, Any]]:
    """Those that are alive, as Ray tells of them."""
    return [node for node in ray.nodes() if node["Alive"]]
