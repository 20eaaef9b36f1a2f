"""Shards on the nodes of a Ray cluster, all on this machine: the same results, nothing lost, errors with names."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import fcntl
import functools
import importlib.util
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import cluster_stages
import pytest
import small_rollout
from processes import PATIENCE_S
from small_rollout import played

from flywheel import cluster, config
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag
from flywheel.pipeline import stage as pipeline_stage
from flywheel.utils.errors import BadInput, ClusterError, HeadLost, WorkerLost
from flywheel.utils.files import write_text
from flywheel.utils.progress import replace_listener

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from orchestration_machines import NODE, do_shards, machines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="machines")
def three_machines() -> Iterator:
    """A head without a processor, and three nodes with room for one worker each."""
    with machines(3, Path(__file__).parent) as made:
        yield made


def chosen(machines, **blocks) -> Settings:
    limits = {"engine": "ray", "address": machines.address, **blocks.pop("cluster", {})}
    return config.parse_settings({"sandbox": {"browsers": 1}, **blocks, "cluster": limits}, where="test")


@pytest.fixture(scope="module")
def nodes(machines, tmp_path_factory) -> Iterator[cluster.ClusterBackend]:
    """The flywheel's view of them."""
    ws = Workspace(tmp_path_factory.mktemp("shared"))
    with cluster.open_cluster(ws, chosen(machines)) as opened:
        assert cluster.current_cluster() is opened
        yield opened


@pytest.fixture
def ctx(ws, machines) -> pipeline_stage.StageContext:
    return waiting(ws, machines)


def waiting(ws: Workspace, machines) -> pipeline_stage.StageContext:
    (ws.root / "tries").mkdir()
    settings = chosen(machines)
    write_text(ws.frozen_params(1), config.dump_settings(settings))
    return pipeline_stage.StageContext.open(ws, 1, "waits")


def until(true: Callable[[], object], job: Future) -> None:
    """Wait while the job goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if job.done():
            pytest.fail(f"it ended: {job.result()}")
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def tries(ctx: pipeline_stage.StageContext) -> list[tuple[str, str, int]]:
    """(shard, node, process) of each shard that was begun."""
    told = [(path.name.split()[0], *path.read_text().split()) for path in (ctx.ws.root / "tries").glob("[!.]*")]
    return [(shard, node, int(process)) for shard, node, process in told]


def go(ctx: pipeline_stage.StageContext, *shards: str) -> None:
    for shard in shards:
        (ctx.ws.root / f"go {shard}").touch()


def kill(machines, node_id: str) -> None:
    machines.remove_node(next(node for node in machines.worker_nodes if node.node_id == node_id), allow_graceful=False)


@contextlib.contextmanager
def asked(
    open_one: cluster.ClusterBackend, ctx: pipeline_stage.StageContext, shards: str, stage=cluster_stages.WAITS
) -> Iterator[Future]:
    """The shards are asked for in a thread; let go of at the end, whatever happened."""
    with ThreadPoolExecutor(1) as threads:
        try:
            yield threads.submit(do_shards, open_one, stage, ctx, tuple(shards))
        finally:
            go(ctx, *shards)


# -- on nodes of its own, before those of the module are there: a process is connected to one cluster of Ray at a time
@pytest.mark.smoke
def test_a_shard_whose_node_is_lost_is_done_on_another(ws, tmp_path):
    """On two nodes of its own, which cost half of what those below do."""
    shared = Workspace(tmp_path / "shared")
    with machines(1, Path(__file__).parent) as made, cluster.open_cluster(shared, chosen(made)) as nodes:
        ctx = waiting(ws, made)
        with asked(nodes, ctx, "ab") as done:
            until(lambda: len(tries(ctx)) == 1, done)
            ((lost, lost_node, _),) = tries(ctx)
            made.add_node(**NODE)
            until(lambda: len(tries(ctx)) == 2, done)
            kill(made, lost_node)
            go(ctx, *{"a", "b"} - {lost})
            until(lambda: len(tries(ctx)) == 3, done)
            go(ctx, lost)
            results = done.result()
        assert sorted(result for _, result in results.values()) == ["a", "b"]
        assert sorted(shard for shard, *_ in tries(ctx)) == sorted(["a", "b", lost])
        assert len({node for shard, node, _ in tries(ctx) if shard == lost}) == 2


# -- the same results -------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    return small_rollout.synthesized(tmp_path_factory.mktemp("cluster") / "ws", {"browsers": 1})


def test_rollouts_are_the_same_with_a_node_killed_among_them(workspace, machines, nodes):
    stage, ctx = dag.find_stage("rollout"), pipeline_stage.StageContext.open(workspace, 1, "rollout")
    pipeline_stage.run_stage(stage, ctx)
    alone = played(workspace)
    assert len(alone["trajectories"]) == small_rollout.TASKS
    pipeline_stage.clear_staging(ctx)
    (root := workspace.root).joinpath("hold").touch()
    said: list[str] = []
    with replace_listener(lambda name, line: said.append(line)), ThreadPoolExecutor(1) as threads:
        plays = functools.partial(do_shards, nodes, cluster_stages.PLAYS, ctx, stage.plan(ctx))
        done = threads.submit(contextvars.copy_context().run, plays)
        try:
            until(lambda: [*root.glob("held *")], done)
            (held,) = root.glob("held *")
            kill(machines, held.name.removeprefix("held "))
            until(lambda: any("another worker does it" in line for line in said), done)
        finally:
            for file in root.glob("h[eo]ld*"):
                file.unlink()
        results = done.result()
    machines.add_node(**NODE)
    assert list(results) == list(stage.plan(ctx))
    pipeline_stage.publish_stage_result(stage, ctx, results)
    assert played(workspace) == alone


# -- nothing lost -----------------------------------------------------------------------------------------------------
def test_work_goes_on_without_a_node_and_with_a_new_one(ctx, machines, nodes):
    with asked(nodes, ctx, "abcde") as done:
        until(lambda: len(tries(ctx)) == 3, done)
        begun = tries(ctx)
        assert len({node for _, node, _ in begun}) == 3
        lost, lost_node, _ = begun[0]
        kill(machines, lost_node)
        go(ctx, begun[1][0])
        until(lambda: len(tries(ctx)) == 4, done)  # its worker takes the next
        machines.add_node(**NODE)
        until(lambda: len(tries(ctx)) == 5, done)
        (after,) = {node for _, node, _ in tries(ctx)} - {node for _, node, _ in begun}
        assert after in {node.node_id for node in machines.worker_nodes}
        go(ctx, *"abcde")
        results = done.result()
    assert [result for _, result in results.values()] == list("abcde")
    assert sorted(shard for shard, *_ in tries(ctx)) == sorted([*"abcde", lost])


def test_a_worker_that_hangs_is_replaced(ctx, nodes, monkeypatch):
    monkeypatch.setattr(nodes, "limits", nodes.limits.model_copy(update={"heartbeat_timeout_s": 3.0}))
    with asked(nodes, ctx, "a") as done:
        until(lambda: len(tries(ctx)) == 1, done)
        os.kill(tries(ctx)[0][2], signal.SIGSTOP)
        until(lambda: len(tries(ctx)) == 2, done)  # it had the lock of the shard: it was ended
        go(ctx, "a")
        assert done.result()["a"][1] == "a"


# -- errors with names ------------------------------------------------------------------------------------------------
def test_a_shard_that_ends_its_workers_is_given_up(ctx, nodes):
    with pytest.raises(WorkerLost, match=r"its worker was lost \(Actor\w+\) \(a\)"):
        do_shards(nodes, cluster_stages.DIES, ctx, "a")


def test_a_worker_is_named_by_what_it_does(ctx, nodes):
    """On Ray's dashboard, and before its lines in Ray's logs."""
    from flywheel.cluster.nodes import ShardWorker  # it imports Ray

    assert repr(ShardWorker(cluster_stages.WAITS, ctx, {})) == f"waits 001 of {ctx.ws.root.name}"


def test_what_no_node_has_is_refused(ctx, machines, nodes):
    training = dataclasses.replace(
        ctx, stage="rl-games", settings=chosen(machines, rl={"device": "cuda", "processes": 2})
    )
    with pytest.raises(ClusterError, match=r"no node has CPU 1, browsers 1, GPU 2 \(stage rl-games\)"):
        nodes.open_workers(dag.find_stage("rl-games"), training)


def test_a_node_without_chromium_is_named(machines, nodes, tmp_path):
    bare = machines.add_node(**NODE, env_vars={"PATH": str(tmp_path), "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path)})
    try:
        with pytest.raises(ClusterError, match=r"no Chromium is installed.*\(node [\d.]+\); mend that machine"):
            nodes.check_nodes()
    finally:
        machines.remove_node(bare, allow_graceful=False)


def test_a_folder_that_is_not_shared_is_told(tmp_path):
    from flywheel.cluster import nodes

    (path := tmp_path / "token").write_text("mine")
    seen = nodes.SharedFolder(path, "mine", nodes.compute_source_digest(), tmp_path)

    def told(**changes) -> str:
        return (nodes.find_node_fault(dataclasses.replace(seen, **changes), Settings(), plays=False) or ("", ""))[0]

    assert told() == "locks on files of the shared folder do not reach it"
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert told() == ""
        assert told(text="another") == "it has another folder at the workspace's path"
        assert told(path=tmp_path / "none") == "the workspace is not there: No such file or directory"
        assert told(source="older") == "it has another version of flywheel"
        wanting = Settings.model_validate({"synthesis": {"worlds": ["none.yaml"]}})
        what, _ = nodes.find_node_fault(seen, wanting, plays=False) or ("", "")
        assert what.startswith("the manifest cannot be read")
        assert str(tmp_path / "none.yaml") in what


def test_a_cluster_that_cannot_be_reached_is_bad_input(ws, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    settings = config.parse_settings({"cluster": {"engine": "ray", "address": address}}, where="test")
    with pytest.raises(BadInput, match=f"no Ray answers at {address}"), cluster.open_cluster(ws, settings):
        pass
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="Ray is not installed"), cluster.open_cluster(ws, settings):
        pass
    with pytest.raises(BadInput, match=r"cluster.address is set, so cluster.engine must be ray"):
        config.parse_settings({"cluster": {"address": address}}, where="test")


def test_a_head_that_is_gone_is_told_and_what_was_finished_is_kept(ctx, machines, nodes, monkeypatch):
    """The last test with these machines."""
    from flywheel.cluster import ray_cluster

    monkeypatch.setattr(ray_cluster, "_LOST_S", 1)
    with asked(nodes, ctx, "ab") as done:
        until(lambda: len(tries(ctx)) == 2, done)
        go(ctx, "a")
        until(lambda: (pipeline_stage.shard_folder(cluster_stages.WAITS, ctx, "a") / "result.json").exists(), done)
        machines.head_node.kill_gcs_server(check_alive=False)
        with pytest.raises(HeadLost, match="the head of the Ray cluster has not answered"):
            done.result()
    with pipeline_stage.InProcessWorker(cluster_stages.WAITS, ctx) as here:
        assert here.do_shard("a")[1:] == ("a", True)
