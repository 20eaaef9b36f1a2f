"""Serve environments from the nodes of the run's own Ray cluster (`sandbox.manager: cluster`).

The manager runs in a thread of the run and ends with it, so it stores nothing in a file. On each of Ray's nodes with
browsers to offer, an actor does what `flywheel env server node` does. Players find the manager by environment
variables, so its port and token stand neither in the settings nor in keys made of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from anyio.from_thread import start_blocking_portal
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

from flywheel.cluster.nodes import SharedFolder, describe_ray_error, find_node_fault, raise_node_fault
from flywheel.cluster.ray_cluster import RayCluster, list_live_nodes
from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.remote import node_server
from flywheel.envs.remote.client import CLUSTER_MANAGER, MANAGER_VARIABLE, TOKEN_VARIABLE
from flywheel.envs.remote.manager import LeaseLedger, LeasePolicy, manager_application
from flywheel.envs.remote.node_server import open_node
from flywheel.pipeline.stage import BROWSERS
from flywheel.training.distributed.worker_group import HostPort
from flywheel.utils import progress
from flywheel.utils.errors import ClusterError
from flywheel.utils.processes import run_periodically

log = logging.getLogger(__name__)
_LOOK_S = 3.0  # between two checks of which nodes there are
_AGAIN_S = 30.0  # pause after environments did not start: each try takes seconds of the node's processors
_CLOSE_S = 30.0  # for nodes to close their environments
_NO_FILE = Path(":memory:")


@contextmanager
def serve_environments_on_nodes(cluster: RayCluster, settings: Settings) -> Iterator[None]:
    """Serve environments from the nodes within the block, and let the run and its workers find them.

    Does nothing where the settings do not ask for it. Raises ClusterError where no node has the browsers, or none has
    environments within `cluster.acquire_timeout_s`, BadInput where the manager cannot listen.
    """
    if settings.sandbox.backend != "manager" or settings.sandbox.manager != CLUSTER_MANAGER:
        yield
        return
    token = secrets.token_hex(16)
    with _run_manager(_own_address(cluster.place), token, settings) as (address, ledger):
        nodes = _EnvironmentNodes(cluster, settings, ledger, address, token)
        try:
            nodes.await_first()
            cluster.environ = {MANAGER_VARIABLE: address, TOKEN_VARIABLE: token}
            with run_periodically(nodes.look_again, _LOOK_S), _environment_variables(cluster.environ):
                yield
        finally:
            nodes.close()


class EnvironmentNode:
    """Serve environments on one node, as a Ray actor.

    Two calls run at once: `run` and `end`. No method is a coroutine: Ray would then run all methods in one event loop.
    """

    def __init__(self) -> None:
        self._over = threading.Event()

    def run(self, shared: SharedFolder, settings: Settings, name: str, host: str, manager: str, token: str) -> None:
        """Serve environments on this node until `end` is called.

        name: of this node at the manager. host: its address. manager, token: URL and token of the manager. Raises
        ClusterError where this machine has a fault: it may have joined after the others were checked. Raises as
        `open_node` and `run_node` too.
        """
        raise_node_fault(host, find_node_fault(shared, settings, plays=True))  # also loads the settings' worlds
        opening = open_node(name, token, settings, registry.find_used_backends(settings), shared.root)
        asyncio.run(_run_until(self._over, node_server.run_node(opening, token, manager=manager, host=host)))

    def end(self) -> None:
        """Make `run` return, in its own thread."""
        self._over.set()


async def _run_until(over: threading.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends, or `over` is set."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(asyncio.to_thread(over.wait))
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        over.set()  # ends the thread that waits for it
        working.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


@dataclass(frozen=True)
class _NodeActor:
    """Hold the actor of one node, and its pending call of `run` (job).

    name: at the manager, the same for each actor on this node, so that a later one ends the sessions of an earlier one.
    """

    name: str
    host: str
    handle: Any
    job: Any


class _EnvironmentNodes:
    """Keep one actor on each node that has the browsers: on those that join too, and a new one where one has ended."""

    def __init__(self, cluster: RayCluster, settings: Settings, ledger: LeaseLedger, manager: str, token: str) -> None:
        self._cluster, self._settings, self._ledger = cluster, settings, ledger
        self._manager = manager, token
        self._browsers = settings.sandbox.browsers  # as many as a node of these settings has at once
        self._made = ray.remote(
            num_cpus=0, resources={BROWSERS: self._browsers}, max_concurrency=2, max_restarts=0, max_task_retries=0
        )(EnvironmentNode)
        self._actors: dict[str, _NodeActor] = {}  # by Ray's id of the node
        self._begun: set[str] = set()  # names of those that have had environments
        self._not_before: dict[str, float] = {}
        self._why = "they are taken by others, or slow to begin"

    def await_first(self) -> None:
        """Wait until a node has environments. Raises ClusterError where none can have any, or none has in time."""
        wait_s = self._cluster.limits.acquire_timeout_s
        ends, asked = time.monotonic() + wait_s, f"{BROWSERS} {self._browsers}"
        while not self._ledger.nodes:
            if not self._look():
                fix = "start a node with them, or lower sandbox.browsers"
                raise ClusterError(f"no node has {asked}", where="sandbox.manager: cluster", fix=fix)
            if not self._actors:
                raise ClusterError(f"no environments begin: {self._why}", where="sandbox.manager: cluster")
            if time.monotonic() > ends:
                raise ClusterError(
                    f"no node had environments in {wait_s:g} s: {self._why}",
                    where=f"sandbox.manager: cluster, {asked}",
                    fix="wait for the other run, add a node with them, or raise cluster.acquire_timeout_s",
                )
            self._cluster.check_head()
            time.sleep(0.1)

    def close(self) -> None:
        """End all actors: in order those that have environments, the others at once."""
        there = [actor for actor in self._actors.values() if actor.name in self._ledger.nodes]
        with suppress(RayError):
            for one in there:
                one.handle.end.remote()
            if there:
                ray.wait([one.job for one in there], num_returns=len(there), timeout=_CLOSE_S)
        for actor in self._actors.values():
            ray.kill(actor.handle)

    def look_again(self) -> None:
        """Start environments on nodes that have joined, and again where they have ended."""
        try:
            self._look()
        except Exception as error:  # the head does not answer, which the run's own watch reports
            log.warning("the nodes cannot be looked at: %s", error)

    def _look(self) -> bool:
        """Remove ended actors, start missing ones, and tell whether any node has the browsers, free or not."""
        for at, one in list(self._actors.items()):
            if one.name in self._ledger.nodes:
                self._begun.add(one.name)
            if ray.wait([one.job], timeout=0)[0]:
                self._ended(at, one)
        able = {one["NodeID"]: one for one in list_live_nodes() if one["Resources"].get(BROWSERS, 0) >= self._browsers}
        for at, node in able.items():
            if at not in self._actors and time.monotonic() >= self._not_before.get(at, 0.0):
                self._place(at, node["NodeManagerAddress"])
        return bool(able)

    def _place(self, at: str, host: str) -> None:
        handle = self._made.options(scheduling_strategy=At(at, soft=False)).remote()
        name = f"{host}-{at[:8]}"
        job = handle.run.remote(self._cluster.shared, self._settings, name, host, *self._manager)
        self._actors[at] = _NodeActor(name, host, handle, job)

    def _ended(self, at: str, one: _NodeActor) -> None:
        del self._actors[at]
        try:
            ray.get(one.job)
            self._why = "they were drained"
        except RayTaskError as error:
            self._why = describe_ray_error(error)
        except RayError as error:
            self._why = f"they were lost ({type(error).__name__})"
        ray.kill(one.handle)
        if one.name not in self._begun:
            self._not_before[at] = time.monotonic() + _AGAIN_S
        self._begun.discard(one.name)
        progress.announce("environments", f"those of node {one.host} have ended: {self._why}")


@contextmanager
def _run_manager(host: str, token: str, settings: Settings) -> Iterator[tuple[str, LeaseLedger]]:
    """Run the manager within the block; yield its address and its ledger."""
    with start_blocking_portal(name="manager") as portal:
        ledger = portal.call(LeaseLedger, _NO_FILE, LeasePolicy(lease_s=settings.sandbox.lease_s))
        serving = node_server.serve_application(manager_application(ledger, token), host)
        with portal.wrap_async_context_manager(serving) as address:
            yield address, ledger


@contextmanager
def _environment_variables(environ: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process within the block."""
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _own_address(head: HostPort) -> str:
    """Return this machine's address: as Ray knows it, or, of a machine that is no node, as the head sees it."""
    if ray.util.client.ray.is_connected():
        with socket.create_connection(head) as reached:
            return reached.getsockname()[0]
    own = ray.get_runtime_context().get_node_id()
    return next(node["NodeManagerAddress"] for node in list_live_nodes() if node["NodeID"] == own)
