"""Run the shards of a stage on Ray: check nodes, start and replace workers, watch the head."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

from flywheel.cluster import nodes, resources
from flywheel.cluster.connection import is_reachable
from flywheel.cluster.nodes import ShardWorker, SharedFolder, TrainingTeam
from flywheel.config import Settings
from flywheel.pipeline.stage import BROWSERS, InProcessWorker, Stage, StageContext
from flywheel.training.distributed.worker_group import HostPort
from flywheel.utils import progress
from flywheel.utils.errors import ClusterError, HeadLost, WorkerLost

_TRIES = 3  # of a shard whose worker is lost: after three it is not bad luck
_NEWS_S = 1.0  # between two signs of life of a worker, at most
_CLOSE_S = 30.0  # for workers to close browsers and models


class RayWorkers(AbstractContextManager):
    """Run shards on Ray, as `flywheel.cluster.StageWorkers`; called from as many threads as there are shards.

    A worker is requested for each shard that waits. Ray's scheduler places workers as there is room, on nodes that join
    later too; a worker that has done its shard takes the next that waits.
    """

    runs_concurrently = True

    def __init__(
        self, cluster: RayCluster, stage: Stage, ctx: StageContext, wanted: Sequence[resources.Resources]
    ) -> None:
        """Hash the stage's inputs, and prepare the workers. wanted: as `resources.compute_worker_resources` returns it.

        Raises as `StageContext.key`.
        """
        ctx.key(stage)  # hash the inputs once, here; the key is sent with `ctx`
        own = wanted[0]
        special = {name: count for name, count in own.items() if name not in (resources.CPU, resources.GPU)}
        self._made = ray.remote(
            num_cpus=own[resources.CPU],
            num_gpus=own.get(resources.GPU, 0),
            resources=special,
            max_concurrency=2,
            max_restarts=0,  # Ray's own retries know neither deadlines nor the errors that a shard is tried again for
            max_task_retries=0,
        )(ShardWorker)
        self._cluster, self._wanted, self._stage = cluster, wanted, ctx.stage
        self._asked_for = stage, ctx
        self._teams: dict[Any, TrainingTeam] = {}  # worker -> its nodes, where it has several
        self._lock = threading.Condition()
        self._waiting, self._closed = 0, False
        self._coming: dict[Any, Any] = {}  # pending call of `find_fault` -> its worker
        self._idle: list[Any] = []
        self._busy: set[Any] = set()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers: idle ones in order, the others at once."""
        with self._lock:
            self._closed = True
            idle, others = self._idle, [*self._coming.values(), *self._busy]
            self._idle, self._coming, self._busy = [], {}, set()
            self._lock.notify_all()
        if idle:
            ray.wait([one.close.remote() for one in idle], num_returns=len(idle), timeout=_CLOSE_S)
        for one in (*idle, *others, *self._teams):
            self._end(one)

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """Run one shard on a worker, on another one where the first is lost; returns as `StageWorkers.do_shard`.

        Raises what its work raises; WorkerLost where three workers were lost over it, HeadLost, and ClusterError where
        no worker comes in `cluster.acquire_timeout_s`, a node has a fault, or the workers are closed.
        """
        for number in range(1, _TRIES + 1):
            worker = self._take()
            try:
                done = self._watched(worker, shard)
            except WorkerLost as error:
                self._drop(worker)
                if number == _TRIES or self._closed:
                    raise
                progress.announce(self._stage, f"{shard}: {error}; another worker does it")
            except BaseException:
                self._drop(worker) if self._closed else self._give(worker)
                raise
            else:
                self._give(worker)
                return done
        raise AssertionError("the last try returns or raises")

    def _watched(self, worker: Any, shard: str) -> tuple[Path, Any, bool]:
        silent_s = self._cluster.limits.heartbeat_timeout_s
        try:
            job = worker.do_shard.remote(shard)
            while True:
                for stage, line in ray.get(worker.fetch_progress.remote(_NEWS_S), timeout=silent_s):
                    (progress.announce if isinstance(line, progress.Announcement) else progress.report_progress)(
                        stage, line
                    )
                self._cluster.record_sign_of_life()
                if ray.wait([job], timeout=0)[0]:
                    return ray.get(job)
                self._cluster.check_head()
        except RayTaskError as error:
            raise error.cause from None
        except GetTimeoutError:
            raise WorkerLost(f"its worker has been silent for {silent_s:g} s", where=shard) from None
        except RayError as error:
            raise WorkerLost(f"its worker was lost ({type(error).__name__})", where=shard) from error

    def _take(self) -> Any:
        """Wait for an idle or a new worker, and mark it busy."""
        with self._lock:
            self._waiting += 1
        try:
            while True:
                with self._lock:
                    if self._closed:
                        raise ClusterError("the stage was given up", where=f"stage {self._stage}")
                    if self._idle:
                        self._busy.add(worker := self._idle.pop())
                        return worker
                    while len(self._coming) < self._waiting:
                        worker = self._make()
                        self._coming[worker.find_fault.remote(self._cluster.shared)] = worker
                self._look_for_new_ones()
                with self._lock:
                    if not self._idle:
                        self._lock.wait(_NEWS_S)
                self._cluster.check_head()
                self._raise_if_starved()
        finally:
            with self._lock:
                self._waiting -= 1

    def _look_for_new_ones(self) -> None:
        with self._lock:
            ready = ray.wait(list(self._coming), num_returns=len(self._coming), timeout=0)[0] if self._coming else []
            come = [(one, self._coming.pop(one)) for one in ready]
        for one, worker in come:
            try:
                node, fault = ray.get(one)
            except RayError as error:
                self._end(worker)
                if getattr(error, "actor_init_failed", False):
                    raise WorkerLost(
                        f"no worker can begin: {nodes.describe_ray_error(error)}", where=f"stage {self._stage}"
                    ) from error
                continue  # its node was lost before it started: another one is requested
            nodes.raise_node_fault(node, fault)
            self._cluster.record_sign_of_life()
            with self._lock:
                self._idle.append(worker)
                self._lock.notify()

    def _raise_if_starved(self) -> None:
        if self._cluster.silent_s > (limit_s := self._cluster.limits.acquire_timeout_s):
            raise ClusterError(
                f"no worker came for {limit_s:g} s, and none is at work",
                where=f"stage {self._stage}: {resources.describe_resources(self._wanted)}",
                fix="add a node with that, or raise cluster.acquire_timeout_s",
            )

    def _give(self, worker: Any) -> None:
        with self._lock:
            self._busy.discard(worker)
            self._idle.append(worker)
            self._lock.notify()

    def _drop(self, worker: Any) -> None:
        with self._lock:
            self._busy.discard(worker)
        self._end(worker)

    def _make(self) -> Any:
        """Request a worker, which begins once there is room for it."""
        stage, ctx = self._asked_for
        environ = self._cluster.environ
        if len(self._wanted) == 1:
            return self._made.remote(stage, ctx, environ)
        team = TrainingTeam.reserve(
            self._wanted, self._cluster.shared, ctx.settings, self._cluster.limits.heartbeat_timeout_s
        )
        worker = self._made.options(scheduling_strategy=team.make_scheduling_strategy(0)).remote(
            stage, ctx, environ, team
        )
        self._teams[worker] = team
        return worker

    def _end(self, worker: Any) -> None:
        ray.kill(worker)
        if team := self._teams.pop(worker, None):
            team.release()


_CHECK_S = 120  # for the check of a node: the first call there starts a process that imports flywheel
_LOST_S = 30  # a head that answers again by then was only restarted
_BETWEEN_S = 2  # between two checks of the head


class RayCluster:
    """Run stages on the nodes of a Ray cluster.

    place: (host, port) of the head. environ: environment variables that its workers get. limits: block `cluster`.
    """

    def __init__(self, shared: SharedFolder, settings: Settings, place: HostPort) -> None:
        self.shared, self.limits = shared, settings.cluster
        self._settings, self.place = settings, place
        self.environ: dict[str, str] = {}
        self._lock = threading.Lock()
        self._looked = self._lost = 0.0  # when the head was last checked; since when it is silent (0: not)
        self._life = time.monotonic()

    def open_workers(self, stage: Stage, ctx: StageContext) -> AbstractContextManager[RayWorkers | InProcessWorker]:
        """Open the workers of a stage: on nodes, or in this process for a stage that stays on the run's machine.

        Raises ClusterError where no present node can do a shard, HeadLost, and as `StageContext.key`.
        """
        if stage.needs is None:
            return InProcessWorker(stage, ctx)
        self.check_head()
        self.record_sign_of_life()
        has = [node["Resources"] for node in list_live_nodes()]
        wanted = resources.compute_worker_resources(stage, ctx, self.limits, has)
        if missing := resources.describe_missing_resources(wanted, has):
            raise ClusterError(missing, where=f"stage {ctx.stage}", fix="add it (docs/cluster.md#the-cluster)")
        return RayWorkers(self, stage, ctx, wanted)

    def check_nodes(self) -> None:
        """Check every node that may get work.

        Raises ClusterError for a node with a fault or without an answer in 120 seconds, and where there is no node.
        """
        look, asked = ray.remote(num_cpus=0, max_retries=0)(nodes.find_node_fault), {}
        for node in list_live_nodes():
            if any(node["Resources"].get(name) for name in (resources.CPU, resources.GPU, BROWSERS)):
                there = look.options(scheduling_strategy=At(node["NodeID"], soft=False))
                plays = bool(node["Resources"].get(BROWSERS))
                asked[there.remote(self.shared, self._settings, plays)] = node["NodeID"], node["NodeManagerAddress"]
        if not asked:
            raise ClusterError("no node of the Ray cluster has a processor to offer", fix="add nodes (`ray start`)")
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=_CHECK_S)
        for one in done:
            at, name = asked[one]
            try:
                found = ray.get(one)
            except RayError as error:
                if at not in {node["NodeID"] for node in list_live_nodes()}:
                    continue  # it has left the cluster meanwhile
                # A node without flywheel fails as it unpickles the call: the last line of the error has the reason.
                found = nodes.describe_ray_error(error), "look whether flywheel is installed there"
            nodes.raise_node_fault(name, found)
        for one in late:
            fault = f"it gave no answer in {_CHECK_S} s", "end that node, or start it anew"
            nodes.raise_node_fault(asked[one][1], fault)

    def check_head(self) -> None:
        """Check that the head answers; all who wait call this every few seconds.

        Raises HeadLost where it was silent for 30 seconds.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._looked < _BETWEEN_S:
                return
            self._looked = now
            if is_reachable(self.place):
                self._lost = 0.0
                return
            self._lost = self._lost or now
            if now - self._lost > _LOST_S:
                raise HeadLost(
                    f"the head of the Ray cluster has not answered for {_LOST_S} s",
                    where=":".join(map(str, self.place)),
                    fix="start it, then run again: what was finished is kept",
                )

    def record_sign_of_life(self) -> None:
        """Record that some worker of the run has given a sign of life."""
        self._life = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Return the seconds since the last sign of life of any worker."""
        return time.monotonic() - self._life


def list_live_nodes() -> list[dict[str, Any]]:
    """List the nodes that Ray reports alive, as `ray.nodes()` describes them."""
    return [node for node in ray.nodes() if node["Alive"]]
