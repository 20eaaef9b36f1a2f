"""The processes that train one model, on several nodes.

Ray gives a worker all of its nodes at once, or none of them (a placement group): on the first it runs itself, with the
first of the processes beside it, as where all are on one machine; on each other node an actor has the rest of them. The
actor starts the same processes (`training/parallel/processes.py`), passes bytes to and fro, and says what has become of
them. Gradients go from process to process (gloo, NCCL), not through Ray.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Within

from flywheel.cluster import needs
from flywheel.cluster.connection import reachable
from flywheel.cluster.node import Fault, Shared, fault, reason, refuse
from flywheel.errors import ClusterError, WorkerLost
from flywheel.settings import Settings
from flywheel.training.parallel.processes import Answer, LocalRanks, Place, Start

_LOOK_S = 120.0  # of a node: the actor's process imports flywheel
_BEGIN_S = 300.0  # of its processes: one has to import the libraries before it has forks
_NEWS_S = 1.0  # between two signs of life of a node, at most


@dataclass(frozen=True)
class Team:
    """`training/parallel/workers.py: Launch` on the nodes of one worker.

    group: what Ray keeps for it, a part a node. wanted: what each part is. silent_s: as `cluster.silent_s`.
    """

    group: PlacementGroup
    wanted: Sequence[needs.Resources]
    shared: Shared
    settings: Settings
    silent_s: float

    @classmethod
    def reserve(cls, wanted: Sequence[needs.Resources], *more: Any) -> Team:
        """Asks for the nodes, and does not wait for them: who is placed `within` them begins once all are there."""
        return cls(placement_group([dict(one) for one in wanted], strategy="STRICT_SPREAD"), wanted, *more)

    def within(self, number: int) -> Within:
        """How Ray is told that an actor is to be on that node."""
        return Within(self.group, number)

    def release(self) -> None:
        """What runs on the nodes for it is ended."""
        remove_placement_group(self.group)

    @property
    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def __call__(self, start: Start, meets: Place) -> TeamRanks:
        return TeamRanks(self, start, meets)


class NodeRanks:
    """The actor: the processes of one node."""

    def look(self, shared: Shared, settings: Settings, meets: Place) -> Fault | None:
        """Why this node cannot take part."""
        if found := fault(shared, settings, plays=False):
            return found
        if not reachable(meets):
            place = ":".join(map(str, meets))
            return f"it does not reach {place}, where the processes meet", "let the nodes reach one another's ports"
        return None

    def start(self, start: Start, first: int, count: int, meets: Place) -> None:
        self._ranks = LocalRanks(start, range(first, first + count), meets, ray.util.get_node_ip_address())

    def ask(self, call: bytes) -> None:
        self._ranks.ask(call)

    def answers(self, waiting: list[int], seconds: float) -> list[Answer]:
        return self._ranks.answers(waiting, seconds)


@dataclass
class _Node:
    """An actor, as the worker sees it. news: what it was asked for, `since` when, and has not said yet."""

    actor: Any
    address: str
    ranks: range
    news: Any = None
    since: float = 0.0


class TeamRanks:
    """`training/parallel/processes.py: Ranks` on several nodes."""

    lost = WorkerLost  # another worker, with other nodes, goes on where this one was

    def __init__(self, team: Team, start: Start, meets: Place) -> None:
        self.grace_s = team.silent_s
        self._team, self._own, self._address = team, None, meets[0]
        self._woken, self._wake = Pipe(duplex=False)  # where another node has said something
        counts = needs.shares(start.size, len(team.wanted))
        self._nodes = [
            _Node(self._actor(number), address, range(sum(counts[:number]), sum(counts[: number + 1])))
            for number, address in enumerate(_addresses(team.group))
            if number
        ]
        try:
            self._all([node.actor.look.remote(team.shared, team.settings, meets) for node in self._nodes], _LOOK_S)
            sent = ray.put(start)
            begun = [node.actor.start.remote(sent, node.ranks[0], len(node.ranks), meets) for node in self._nodes]
            self._own = LocalRanks(start, range(counts[0]), meets, self._address)
            self._all(begun, _BEGIN_S)
        except BaseException:
            self.close()
            raise

    def where(self, rank: int) -> str:
        return f"node {next((node.address for node in self._nodes if rank in node.ranks), self._address)}"

    def ask(self, call: bytes) -> None:
        sent = ray.put(call)
        for node in self._nodes:
            node.actor.ask.remote(sent)  # of one that is gone, its answer will say so
        self._own.ask(call)

    def answers(self, waiting: Collection[int], seconds: float) -> list[Answer]:
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

    # -- one node --------------------------------------------------------------------------------------------------
    def _actor(self, number: int) -> Any:
        wanted = self._team.wanted[number]
        return (
            ray.remote(NodeRanks)
            .options(
                num_cpus=wanted[needs.CPU],
                num_gpus=wanted.get(needs.GPU, 0),
                scheduling_strategy=self._team.within(number),
                max_restarts=0,
                max_task_retries=0,
            )
            .remote()
        )

    def _all(self, asked: list[Any], seconds: float) -> None:
        """Until all nodes have done it. Raises ClusterError for one that has a fault, fails, or is late,
        WorkerLost for one that is gone."""
        waiting, ends = dict(zip(asked, self._nodes, strict=True)), time.monotonic() + seconds
        while waiting:
            ready, late = ray.wait(list(waiting), timeout=max(0.0, ends - time.monotonic()))
            if not ready:
                said = f"it gave no answer in {seconds:g} s", "end that node, or start it anew"
                refuse(waiting[late[0]].address, said)
            for one in ready:
                node = waiting.pop(one)
                try:
                    refuse(node.address, ray.get(one))
                except RayError as error:
                    kind = WorkerLost if isinstance(error, RayActorError) else ClusterError
                    raise kind(f"no training process begins: {reason(error)}", where=f"node {node.address}") from error

    def _listen(self, node: _Node, waiting: list[int]) -> None:
        if waiting and node.news is None:
            node.news, node.since = node.actor.answers.remote(waiting, _NEWS_S), time.monotonic()
            node.news.future().add_done_callback(self._ring)

    def _ring(self, _: Any) -> None:
        with suppress(OSError):  # nobody listens any more
            self._wake.send_bytes(b"")

    def _heard(self, node: _Node, waiting: Collection[int]) -> list[Answer]:
        if node.news is None:
            return []
        if not ray.wait([node.news], timeout=0)[0]:
            if time.monotonic() - node.since < self._team.silent_s:
                return []
            said = f"its node has been silent for {self._team.silent_s:g} s"
        else:
            try:
                news, node.news = node.news, None
                return ray.get(news)
            except RayError as error:
                said = f"its node was lost ({type(error).__name__})"
        return [Answer(rank, ended=said) for rank in node.ranks if rank in waiting]


def _addresses(group: PlacementGroup) -> list[str]:
    """Of its nodes, in the order of its parts."""
    at = placement_group_table(group)["bundles_to_node_id"]
    named = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return [named.get(at[number], "that is gone") for number in sorted(at)]
