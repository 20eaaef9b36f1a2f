"""Check a node of a Ray cluster, run shards of a stage on it, and train one model on several nodes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Within

import flywheel
from flywheel.cluster import resources
from flywheel.cluster.connection import is_reachable
from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.envs import registry
from flywheel.pipeline.stage import InProcessWorker, Stage, StageContext
from flywheel.training.distributed.worker_group import GroupSpec, HostPort, LocalRanks, RankAnswer, use_launcher
from flywheel.utils.errors import BadInput, ClusterError, WorkerLost, last_line
from flywheel.utils.files import write_text
from flywheel.utils.progress import replace_listener

_SOURCE_SUFFIXES = (".py", ".sql", ".js", ".json", ".yaml", ".types")
_SHARD_DONE = None  # in place of a progress line: the shard has ended
NodeFault = tuple[str, str]  # what is wrong with a node, and how to mend it


@dataclass(frozen=True)
class SharedFolder:
    """Hold the file by which a node checks that it sees the run's own folder: just written, and locked by the run.

    path, text: the file and what stands in it. source: digest of the run's code. root: folder of the workspace.
    """

    path: Path
    text: str
    source: str
    root: Path


@contextmanager
def open_shared_folder(ws: Workspace) -> Iterator[SharedFolder]:
    """Write the file by which a node recognises the run's own folder, and hold it locked until the block ends.

    Raises DiskFull.
    """
    path, text = ws.state / "cluster" / secrets.token_hex(4), secrets.token_hex(16)
    write_text(path, text)
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield SharedFolder(path, text, compute_source_digest(), ws.root)
    finally:
        path.unlink()


@cache
def compute_source_digest() -> str:
    """Compute a digest of flywheel's own source, 12 hexadecimal digits: nodes with another one differ in code."""
    root, sha = Path(flywheel.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if path.suffix in _SOURCE_SUFFIXES and "web" not in place.parts:  # sources of bundles are not installed
            sha.update(place.as_posix().encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:12]


def find_node_fault(shared: SharedFolder, settings: Settings, plays: bool) -> NodeFault | None:
    """Find why this machine cannot run shards: what is wrong, and how to mend it; None where it can.

    plays: whether it is to open environments.
    """
    if compute_source_digest() != shared.source:
        return "it has another version of flywheel", "install the same one on all nodes"
    try:
        text, file = shared.path.read_text(encoding="utf-8"), shared.path.open("a")
    except OSError as error:
        return f"the workspace is not there: {error.strerror}", f"share {shared.path.parent} with it, at the same path"
    with file:
        if text != shared.text:
            return "it has another folder at the workspace's path", "share the run's own folder with it"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # the run's lock holds here, so that of a shard will
        else:
            return "locks on files of the shared folder do not reach it", "mount the folder with locks (NFS 4 has them)"
    try:
        registry.load_external_suites(settings, shared.root)  # this process opened no `StageContext`: it was sent one
        if plays:
            registry.check_backends(settings, registry.find_used_backends(settings))
    except BadInput as error:
        return str(error), "mend that machine, or start its node without the resource browsers"
    return None


def raise_node_fault(node: str, fault: NodeFault | None) -> None:
    """Raise ClusterError, which names the address `node`, where `fault` is not None."""
    if fault:
        raise ClusterError(fault[0], where=f"node {node}", fix=fault[1])


def describe_ray_error(error: RayError) -> str:
    """Describe an error of Ray's in one line: the last line of its traceback, or else the error's class."""
    return last_line(str(error)) or type(error).__name__


class ShardWorker:
    """Run shards on a node as a Ray actor: an `InProcessWorker` (`pipeline/stage.py`) that also passes on progress.

    Two calls run at once: `do_shard` and `fetch_progress`. environ: environment variables of its process. team: the
    nodes of a worker that trains on several; else None.
    """

    def __init__(
        self, stage: Stage, ctx: StageContext, environ: Mapping[str, str], team: TrainingTeam | None = None
    ) -> None:
        os.environ.update(environ)  # not by Ray's runtime_env, which stands in logs and in command lines
        self._stage, self._ctx, self._team = stage, ctx, team
        self._worker = InProcessWorker(stage, ctx)
        self._said: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()

    def __repr__(self) -> str:
        """Return the name that Ray's dashboard and logs show."""
        return f"{self._stage.name} {iteration_label(self._ctx.iteration)} of {self._ctx.ws.root.name}"

    def find_fault(self, shared: SharedFolder) -> tuple[str, NodeFault | None]:
        """Return the node's address, and its fault or None: it may have joined after the others were checked."""
        settings = self._ctx.settings
        return ray.util.get_node_ip_address(), find_node_fault(
            shared, settings, resources.needs_local_environments(self._stage, settings)
        )

    def do_shard(self, shard: str) -> tuple[Path, Any, bool]:
        """Run a shard as `InProcessWorker.do_shard`, with its result and errors, and keep progress to be fetched."""
        try:
            with (
                replace_listener(lambda stage, line: self._said.put((stage, line))),
                use_launcher(self._team) if self._team else nullcontext(),
            ):
                return self._worker.do_shard(shard)
        finally:
            self._said.put(_SHARD_DONE)

    def fetch_progress(self, seconds: float) -> list[tuple[str, str]]:
        """Return the progress lines, (stage, line), since the last call; a caller takes the answer as a sign of life.

        It waits until there are any, the shard is over, or `seconds` have passed.
        """
        found = []
        try:
            line = self._said.get(timeout=seconds)
            while line is not _SHARD_DONE:
                found.append(line)
                line = self._said.get_nowait()
        except queue.Empty:
            pass
        return found

    def close(self) -> None:
        """Close what the shards share, such as a model or environments."""
        self._worker.close()


# Training one model on several nodes: Ray gives a worker all of its nodes at once, or none of them (a placement group).
# The worker runs on the first, beside the first of the training processes, as if all were on one machine; an actor on
# each other node has the rest of them. The actor starts the same processes (`training/distributed/worker_group.py`),
# passes bytes to and fro, and reports when one ends. Gradients go from process to process (gloo, NCCL), not through
# Ray.

_CHECK_S = 120.0  # for the check of a node: the actor's process imports flywheel
_BEGIN_S = 300.0  # for its processes to begin: one imports the libraries, then forks the others
_NEWS_S = 1.0  # between two signs of life of a node, at most


@dataclass(frozen=True)
class TrainingTeam:
    """Start training processes on the nodes of one worker, as `RankLauncher` of `training/distributed/worker_group.py`.

    group: Ray's placement group, one bundle a node. wanted: resources of each bundle. silent_s: seconds without an
    answer after which a node is lost (`cluster.heartbeat_timeout_s`).
    """

    group: PlacementGroup
    wanted: Sequence[resources.Resources]
    shared: SharedFolder
    settings: Settings
    silent_s: float

    @classmethod
    def reserve(cls, wanted: Sequence[resources.Resources], *more: Any) -> TrainingTeam:
        """Request nodes without waiting for them: what is placed on them begins once all are there.

        wanted: resources of each node. more: the fields `shared`, `settings` and `silent_s` of the class.
        """
        return cls(placement_group([dict(one) for one in wanted], strategy="STRICT_SPREAD"), wanted, *more)

    def make_scheduling_strategy(self, number: int) -> Within:
        """Return Ray's scheduling strategy for an actor on node `number` of the team."""
        return Within(self.group, number)

    def release(self) -> None:
        """Give the nodes back; Ray ends what runs on them."""
        remove_placement_group(self.group)

    @property
    def address(self) -> str:
        """Return the address of this node, which is the team's first."""
        return ray.util.get_node_ip_address()

    def __call__(self, start: GroupSpec, meets: HostPort) -> TeamRanks:
        """Start the processes of the group `start`, which meet at `meets` (host, port); raises as `TeamRanks`."""
        return TeamRanks(self, start, meets)


class NodeRanks:
    """Run the training processes of one node of a team, other than its first, as a Ray actor."""

    def find_fault(self, shared: SharedFolder, settings: Settings, meets: HostPort) -> NodeFault | None:
        """Find why this node cannot train: what is wrong, and how to mend it; None where it can.

        meets: (host, port) at which the processes meet.
        """
        if found := find_node_fault(shared, settings, plays=False):
            return found
        if not is_reachable(meets):
            place = ":".join(map(str, meets))
            return f"it does not reach {place}, where the processes meet", "let the nodes reach one another's ports"
        return None

    def start(self, start: GroupSpec, first: int, count: int, meets: HostPort) -> None:
        """Start `count` processes, with the ranks from `first` on. start, meets: as of `LocalRanks`."""
        self._ranks = LocalRanks(start, range(first, first + count), meets, ray.util.get_node_ip_address())

    def ask(self, call: bytes) -> None:
        """Send a pickled call to all processes of the node."""
        self._ranks.ask(call)

    def answers(self, waiting: list[int], seconds: float) -> list[RankAnswer]:
        """Return the answers that came from the ranks `waiting` within `seconds`, as `LocalRanks.answers`."""
        return self._ranks.answers(waiting, seconds)


@dataclass
class _TeamNode:
    """Hold the actor of one node. news: its pending call of `answers`, made at `since` (seconds of time.monotonic)."""

    actor: Any
    address: str
    ranks: range
    news: Any = None
    since: float = 0.0


class TeamRanks:
    """Start and call training processes on several nodes, as `RankProcesses` of `training/distributed/worker_group.py`.

    meets: (host, port) at which the processes meet, on this node. Making it raises ClusterError for a node that has a
    fault, fails or is late, WorkerLost for one that is lost.
    """

    lost = WorkerLost  # another worker, with other nodes, resumes where this one was

    def __init__(self, team: TrainingTeam, start: GroupSpec, meets: HostPort) -> None:
        self.grace_s = team.silent_s
        self._team, self._own, self._address = team, None, meets[0]
        self._woken, self._wake = Pipe(duplex=False)  # readable once another node has answered
        counts = resources.split_evenly(start.size, len(team.wanted))
        self._nodes = [
            _TeamNode(self._actor(number), address, range(sum(counts[:number]), sum(counts[: number + 1])))
            for number, address in enumerate(_node_addresses(team.group))
            if number
        ]
        try:
            self._wait_for_all(
                [node.actor.find_fault.remote(team.shared, team.settings, meets) for node in self._nodes], _CHECK_S
            )
            sent = ray.put(start)
            begun = [node.actor.start.remote(sent, node.ranks[0], len(node.ranks), meets) for node in self._nodes]
            self._own = LocalRanks(start, range(counts[0]), meets, self._address)
            self._wait_for_all(begun, _BEGIN_S)
        except BaseException:
            self.close()
            raise

    def where(self, rank: int) -> str:
        return f"node {next((node.address for node in self._nodes if rank in node.ranks), self._address)}"

    def ask(self, call: bytes) -> None:
        sent = ray.put(call)
        for node in self._nodes:
            node.actor.ask.remote(sent)  # where one is lost, `answers` says so
        self._own.ask(call)

    def answers(self, waiting: Collection[int], seconds: float) -> list[RankAnswer]:
        ends = time.monotonic() + seconds
        while True:
            for node in self._nodes:
                self._listen(node, [rank for rank in node.ranks if rank in waiting])
            left = min(_NEWS_S, ends - time.monotonic())
            found = self._own.answers(waiting, left, wake=[self._woken])
            while self._woken.poll():
                self._woken.recv_bytes()
            for node in self._nodes:
                found += self._heard(node, waiting)
            if found or time.monotonic() >= ends:
                return found

    def close(self) -> None:
        for node in self._nodes:
            ray.kill(node.actor)  # its processes end with it
        if self._own:
            self._own.close()
        self._nodes, self._own = [], None
        self._wake.close()

    def _actor(self, number: int) -> Any:
        wanted = self._team.wanted[number]
        return (
            ray.remote(NodeRanks)
            .options(
                num_cpus=wanted[resources.CPU],
                num_gpus=wanted.get(resources.GPU, 0),
                scheduling_strategy=self._team.make_scheduling_strategy(number),
                max_restarts=0,
                max_task_retries=0,
            )
            .remote()
        )

    def _wait_for_all(self, asked: list[Any], seconds: float) -> None:
        """Wait until all nodes have answered. Raises ClusterError for one that has a fault, fails, or is late,
        WorkerLost for one that is lost."""
        waiting, ends = dict(zip(asked, self._nodes, strict=True)), time.monotonic() + seconds
        while waiting:
            ready, late = ray.wait(list(waiting), timeout=max(0.0, ends - time.monotonic()))
            if not ready:
                said = f"it gave no answer in {seconds:g} s", "end that node, or start it anew"
                raise_node_fault(waiting[late[0]].address, said)
            for one in ready:
                node = waiting.pop(one)
                try:
                    raise_node_fault(node.address, ray.get(one))
                except RayError as error:
                    kind = WorkerLost if isinstance(error, RayActorError) else ClusterError
                    raise kind(
                        f"no training process begins: {describe_ray_error(error)}", where=f"node {node.address}"
                    ) from error

    def _listen(self, node: _TeamNode, waiting: list[int]) -> None:
        if waiting and node.news is None:
            node.news, node.since = node.actor.answers.remote(waiting, _NEWS_S), time.monotonic()
            node.news.future().add_done_callback(self._ring)

    def _ring(self, _: Any) -> None:
        with suppress(OSError):  # the listener has ended
            self._wake.send_bytes(b"")

    def _heard(self, node: _TeamNode, waiting: Collection[int]) -> list[RankAnswer]:
        if node.news is None:
            return []
        if not ray.wait([node.news], timeout=0)[0]:
            if time.monotonic() - node.since < self._team.silent_s:
                return []
            reason = f"its node has been silent for {self._team.silent_s:g} s"
        else:
            try:
                news, node.news = node.news, None
                return ray.get(news)
            except RayError as error:
                reason = f"its node was lost ({type(error).__name__})"
        return [RankAnswer(rank, ended=reason) for rank in node.ranks if rank in waiting]


def _node_addresses(group: PlacementGroup) -> list[str]:
    """Return the addresses of the group's nodes, in the order of its bundles."""
    at = placement_group_table(group)["bundles_to_node_id"]
    named = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return [named.get(at[number], "that is gone") for number in sorted(at)]
