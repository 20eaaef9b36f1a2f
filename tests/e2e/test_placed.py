"""Environments on the nodes of the run's own Ray cluster: the same results, whoever dies or joins, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import small_rollout
from processes import PATIENCE_S, alive, descendants, gone
from small_rollout import played

from flywheel import cluster, config
from flywheel.cluster import resources
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.registry import open_environments
from flywheel.envs.remote.client import MANAGER_VARIABLE, TOKEN_VARIABLE
from flywheel.envs.remote.manager import LeasePolicy
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_task
from flywheel.pipeline import dag, iterations
from flywheel.pipeline import stage as pipeline_stage
from flywheel.utils.errors import BadInput, ClusterError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from orchestration_machines import NODE, do_shards, machines

pytestmark = pytest.mark.slow
_SHOWS = {**NODE, "num_cpus": 0}  # environments alone
_PLAYS = {**NODE, "num_cpus": 2, "resources": {}}  # shards alone
_PLACED = {"backend": "manager", "manager": "cluster", "browsers": 1, "pages": 1}
TASK = make_task(catalogue.get_world("tiles"), "clear", 1, 0, "train")


@pytest.fixture(scope="module", name="machines")
def four_machines() -> Iterator:
    """A head, a node where shards are done, two with browsers."""
    with machines(0, Path(__file__).parent) as made:
        for one in (_PLAYS, _SHOWS, _SHOWS):
            made.add_node(wait=False, **one)
        made.wait_for_nodes()
        yield made


def chosen(address: str, **blocks) -> Settings:
    limits = {"engine": "ray", "address": address, **blocks.pop("cluster", {})}
    return config.parse_settings(
        {"sandbox": {**_PLACED, **blocks.pop("sandbox", {})}, **blocks, "cluster": limits}, where="t"
    )


@pytest.fixture(scope="module")
def nodes(machines, tmp_path_factory) -> Iterator[cluster.ClusterBackend]:
    """The flywheel's view of them; environments are placed by each test. Ray is imported from here on: it reads the
    environment then."""
    ws = Workspace(tmp_path_factory.mktemp("shared"))
    with cluster.open_cluster(ws, chosen(machines.address, sandbox={"backend": "local"})) as opened:
        yield opened


@contextlib.contextmanager
def placed(nodes, settings: Settings) -> Iterator[None]:
    from flywheel.cluster import env_nodes  # it imports Ray

    with env_nodes.serve_environments_on_nodes(nodes, settings):
        yield


def asked(path: str) -> Any:
    headers = {"Authorization": f"Bearer {os.environ[TOKEN_VARIABLE]}"}
    return httpx.get(os.environ[MANAGER_VARIABLE] + path, headers=headers, timeout=PATIENCE_S, trust_env=False).json()


def until(holds: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


def node_of(machines, name: str):
    """Ray's node on which the manager's node of this name is."""
    return next(one for one in machines.worker_nodes if name.endswith(one.node_id[:8]))


def told(secret: str, *folders: Path) -> list[Path]:
    """The files below the folders, and the command lines of all processes, that have it."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    found = []
    for path in (*files, *Path("/proc").glob("[0-9]*/cmdline")):
        with contextlib.suppress(OSError):  # it is gone
            if secret.encode() in path.read_bytes():
                found.append(path)
    return found


def actors(node) -> list[int]:
    """The processes on Ray's node that have environments."""
    (raylet,) = node.all_processes["raylet"]
    return [pid for pid, name in descendants(raylet.process.pid) if name.startswith("ray::Environme")]


# -- the same results -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    return small_rollout.synthesized(tmp_path_factory.mktemp("placed") / "ws", _PLACED)


def test_rollouts_are_the_same_with_a_node_killed_that_had_a_session(workspace, machines, nodes, monkeypatch):
    from flywheel.cluster import env_nodes

    monkeypatch.setattr(env_nodes, "LeasePolicy", lambda **more: LeasePolicy(node_silent_s=10.0, **more))
    stage, ctx = dag.find_stage("rollout"), pipeline_stage.StageContext.open(workspace, 1, "rollout")
    own = ctx.settings.sandbox.model_copy(update={"backend": "local"})
    pipeline_stage.run_stage(stage, dataclasses.replace(ctx, settings=ctx.settings.model_copy(update={"sandbox": own})))
    alone = played(workspace)
    assert len(alone["trajectories"]) == small_rollout.TASKS
    pipeline_stage.clear_staging(ctx)
    killed = []

    def kill() -> None:
        session = until(lambda: asked("/sessions"), "nothing was leased")[0]
        machines.remove_node(node_of(machines, session["node"]), allow_graceful=False)
        killed.append(session["node"])

    with placed(nodes, ctx.settings):
        until(lambda: len(asked("/status")["nodes"]) == 2, "there are not two nodes")
        killing = threading.Thread(target=kill)
        killing.start()
        results = do_shards(nodes, stage, ctx, stage.plan(ctx))
        killing.join()
        assert asked("/sessions") == []
        assert told(os.environ[TOKEN_VARIABLE], Path(machines.head_node.get_logs_dir_path()), workspace.root) == []
    assert len(killed) == 1
    machines.add_node(**_SHOWS)
    pipeline_stage.publish_stage_result(stage, ctx, results)
    assert played(workspace) == alone


# -- who joins, who dies ----------------------------------------------------------------------------------------------
async def test_a_node_that_joins_is_used_and_an_ended_actor_is_placed_again(machines, nodes):
    settings = chosen(machines.address)
    assert await gone(pid for one in machines.worker_nodes for pid in actors(one))  # of the test before
    with placed(nodes, settings):
        status = lambda: asked("/status")["nodes"]  # noqa: E731
        await asyncio.to_thread(until, lambda: len(status()) == 2, "there are not two nodes")
        async with open_environments(settings, [TASK]) as environments, contextlib.AsyncExitStack() as held:
            for _ in range(2):
                env = await held.enter_async_context(environments.env(TASK))
                await env.reset(TASK, 3)
            new = machines.add_node(wait=False, **_SHOWS)
            env = await held.enter_async_context(environments.env(TASK))  # it waits for the place
            assert (await env.reset(TASK, 3)).observation.screenshot
            by_node = {one["node"]: one for one in asked("/sessions")}
            assert len(by_node) == 3
            (last,) = [name for name in by_node if name.endswith(new.node_id[:8])]
        first = next(one for one in status() if one["id"] == last)
        (process,) = actors(new)
        below = [pid for pid, _ in descendants(process)]
        os.kill(process, signal.SIGKILL)
        again = await asyncio.to_thread(
            until,
            lambda: [one for one in status() if one["id"] == last and one["address"] != first["address"]],
            "the actor was not placed again",
        )
        assert again[0]["places"]["browser"] == {"of": 1, "taken": 0}
        assert await gone(below)
        left = [pid for node in machines.worker_nodes for pid in actors(node)]
        assert len(left) == 3
        left += [pid for one in left for pid, _ in descendants(one)]
        host, port = os.environ[MANAGER_VARIABLE].removeprefix("http://").split(":")
    machines.remove_node(new, allow_graceful=False)
    assert await gone(left)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))
    assert not os.environ.keys() & {MANAGER_VARIABLE, TOKEN_VARIABLE}


def test_nothing_is_left_of_a_run_that_is_killed(machines, nodes, tmp_path):
    import ray

    place = tmp_path / "place"
    program = Path(__file__).parents[1] / "support" / "placed_rollout.py"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}  # it imports this file
    run = subprocess.Popen([sys.executable, program, machines.address, place], env=os.environ | path)
    try:
        address = until(lambda: place.exists() and place.read_text(), "the run does not play")
        playing = [pid for node in machines.worker_nodes for pid in actors(node)]
        browsers = [pid for one in playing for pid, _ in descendants(one)]
        assert browsers
        assert all(alive(pid) for pid in browsers)
        assert ray.cluster_resources()["browsers"] == 2
    finally:
        run.kill()
        run.wait()
    assert asyncio.run(gone([*playing, *browsers]))
    host, port = address.removeprefix("http://").split(":")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)))
    until(lambda: ray.available_resources().get("browsers") == 2, "the browsers are not given back")


# -- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, r"sandbox.manager is cluster, and there is none \(cluster.engine\); set it to ray"),
        (
            {"engine": "ray", "address": "a:1", "max_parallel_stages": 2},
            r"do not share \(cluster.max_parallel_stages\)",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_run_begins(limits, said, project):
    settings = config.parse_settings({"sandbox": _PLACED, "cluster": limits}, where="test")
    with pytest.raises(BadInput, match=said):
        iterations.run_preflight(Workspace(project), settings)
    with pytest.raises(BadInput, match=said), cluster.open_cluster(Workspace(project), settings):
        pass


async def test_where_no_run_has_a_cluster_open_it_is_told():
    with pytest.raises(BadInput, match="no cluster of a run's is open here"):
        async with open_environments(config.parse_settings({"sandbox": _PLACED}, where="test"), [TASK]):
            pass


def test_without_browsers_to_be_had_no_run_begins(machines, nodes, monkeypatch):
    import ray

    many = chosen(machines.address, sandbox={"browsers": 3})
    with pytest.raises(ClusterError, match="no node has browsers 3"), placed(nodes, many):
        pass
    monkeypatch.setattr(nodes, "limits", nodes.limits.model_copy(update={"acquire_timeout_s": 1.0}))

    @ray.remote(num_cpus=0, resources={"browsers": 1})
    class Another:
        def there(self) -> None: ...

    others = [Another.remote() for _ in range(2)]
    try:
        ray.get([one.there.remote() for one in others], timeout=PATIENCE_S)
        with (
            pytest.raises(ClusterError, match="no node had environments in 1 s: they are taken"),
            placed(nodes, chosen(machines.address)),
        ):
            pass
    finally:
        for one in others:
            ray.kill(one)


def test_workers_of_stages_take_no_browsers_where_environments_are_leased(machines, workspace):
    ctx = pipeline_stage.StageContext.open(workspace, 1, "rollout")
    wanted = resources.compute_worker_resources(dag.find_stage("rollout"), ctx, ctx.settings.cluster, [])
    assert wanted == [{"CPU": 1}]
