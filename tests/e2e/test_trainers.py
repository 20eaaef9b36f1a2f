"""One model trained by several nodes of a Ray cluster, all on this machine: the same weights as on one, no process left
behind, errors with names."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import fcntl
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import team_stages
from lamp_env import small_model
from made_experience import needs_deepspeed
from processes import PATIENCE_S, alive, gone
from safetensors.torch import load_file

from flywheel import cluster, config
from flywheel.cluster import resources
from flywheel.config import Settings, SftSettings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag
from flywheel.pipeline import stage as pipeline_stage
from flywheel.utils.errors import BadInput, ClusterError
from flywheel.utils.files import write_text
from flywheel.utils.progress import replace_listener

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from orchestration_machines import NODE, do_shards, machines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="machines")
def three_machines() -> Iterator:
    with machines(3, Path(__file__).parent) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory, project) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "model", project)


@pytest.fixture
def root(tmp_path, model) -> Path:
    (tmp_path / "told").mkdir()
    (tmp_path / "model").symlink_to(model)
    return tmp_path


@pytest.fixture(scope="module")
def nodes(machines, tmp_path_factory) -> Iterator[cluster.ClusterBackend]:
    with cluster.open_cluster(Workspace(tmp_path_factory.mktemp("shared")), chosen(machines)) as opened:
        yield opened


def chosen(machines, **limits) -> Settings:
    limits = {"engine": "ray", "address": machines.address, "training_nodes": 2, **limits}
    return config.parse_settings({"sft": team_stages.SUPERVISED, "rl": team_stages.RL, "cluster": limits}, where="test")


def opened(root: Path, machines, stage: str = "sft") -> pipeline_stage.StageContext:
    ws = Workspace(root)
    write_text(ws.frozen_params(1), config.dump_settings(chosen(machines)))
    return pipeline_stage.StageContext.open(ws, 1, stage)


def told(root: Path) -> list[tuple[str, int, str]]:
    """(rank, process, node) of those that have read the sample that is watched."""
    found = [path.name.split(" ")[1:] for path in (root / "told").glob("pid *")]
    return [(rank, int(pid), node) for rank, pid, node in found]


def same(one: Path, other: Path) -> bool:
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    return mine.keys() == theirs.keys() and all(mine[name].equal(theirs[name]) for name in mine)


def on_one_machine(root: Path, **changes) -> list[float]:
    block = SftSettings(**team_stages.SUPERVISED, **changes)
    return team_stages.supervised(root, root / "alone", root / "alone state", block, lambda metric: None)


# -- the same results -------------------------------------------------------------------------------------------------
def test_two_nodes_come_to_the_weights_of_one_machine_whatever_is_lost_on_the_way(root, machines, nodes):
    """Bit for bit, with a process killed and then a node: each costs the steps since the last saved state, no more."""
    alone = on_one_machine(root)
    for path in (root / "told").iterdir():
        path.unlink()
    for order in ("kill 1", "hold 1"):
        (root / "told" / order).touch()
    ctx, said = opened(root, machines), []
    with replace_listener(lambda stage, line: said.append(line)), ThreadPoolExecutor(1) as threads:
        done = threads.submit(contextvars.copy_context().run, do_shards, nodes, team_stages.SFT, ctx, ["sft"])
        try:
            until(lambda: sum(rank == "1" for rank, *_ in told(root)) == 2, done)
            ((held, at),) = [(pid, node) for rank, pid, node in told(root) if rank == "1" and alive(pid)]
            machines.remove_node(next(n for n in machines.worker_nodes if raylet(n) == at), allow_graceful=False)
            until(lambda: not alive(held), done)
        finally:
            (root / "told" / "hold 1").unlink()
        ((_, losses),) = done.result().values()
    machines.add_node(**NODE)
    assert losses == alone
    assert same(root / "alone", root / "out")
    assert [line.partition(",")[0] for line in said if line.startswith("step")] == [
        f"step {n} of 4" for n in (1, 2, 3, 4)
    ]
    killed, lost = [line for line in said if "another worker does it" in line]
    assert "training process 2 of 2: has ended (exit status -9), its last words: the last words (node " in killed
    assert "training process 2 of 2: " in lost
    begun = told(root)
    assert sum(rank == "1" for rank, *_ in begun) == 3
    assert asyncio.run(gone(pid for _, pid, _ in begun))


def test_rl_comes_to_the_same_on_two_nodes(root, machines, nodes):
    alone = team_stages.reinforced(root, root / "alone", root / "alone state", team_stages.RL)
    ctx = opened(root, machines, "rl-games")
    ((_, curve),) = do_shards(nodes, team_stages.REINFORCED, ctx, ["rl-games"]).values()
    assert [row["step"] for row in curve] == [0, 1, 2]
    for name in ("policy_loss", "value_loss", "grad_norm", "entropy", "reward", "tokens"):
        assert [row[name] for row in curve[1:]] == [row[name] for row in alone[1:]], name
    assert same(root / "alone", root / "out")


@needs_deepspeed
def test_deepspeed_comes_to_the_same_on_two_nodes(root, machines, nodes):
    """Each node has its own part of the weights, of which states and checkpoints need all."""
    sharded = {"engine": "deepspeed", "zero_stage": 3}
    alone, ctx = on_one_machine(root, **sharded), opened(root, machines)
    changed = ctx.settings.model_copy(update={"sft": SftSettings(**team_stages.SUPERVISED, **sharded)})
    ctx = dataclasses.replace(ctx, settings=changed)
    (root / "told" / "kill 1").touch()
    ((_, losses),) = do_shards(nodes, team_stages.SFT, ctx, ["sft"]).values()
    assert losses == alone
    assert same(root / "alone", root / "out")


# -- errors with names ------------------------------------------------------------------------------------------------
def test_nodes_that_are_not_there_are_refused(root, machines, nodes, monkeypatch):
    ctx = opened(root, machines)
    five = ctx.settings.model_copy(update={"sft": SftSettings(**{**team_stages.SUPERVISED, "processes": 5})})
    monkeypatch.setattr(nodes, "limits", nodes.limits.model_copy(update={"training_nodes": 4}))
    with pytest.raises(ClusterError, match=r"there are no 4 nodes that have, one each, CPU 1; CPU 1; CPU 1; CPU 1 \("):
        nodes.open_workers(dag.find_stage("sft"), dataclasses.replace(ctx, settings=five))


def test_nodes_that_stay_busy_are_waited_for_no_longer_than_the_setting_says(root, machines, nodes, monkeypatch):
    import ray

    class Busy:
        def here(self) -> None: ...

    busy = [ray.remote(Busy).options(num_cpus=1).remote() for _ in range(2)]
    try:
        ray.get([one.here.remote() for one in busy])
        monkeypatch.setattr(nodes, "limits", nodes.limits.model_copy(update={"acquire_timeout_s": 2.0}))
        nodes.record_sign_of_life()
        with pytest.raises(ClusterError, match=r"no worker came for 2 s.*\(stage sft: CPU 1; CPU 1\); add a node"):
            do_shards(nodes, team_stages.SFT, opened(root, machines), ["sft"])
    finally:
        for one in busy:
            ray.kill(one)


def test_a_node_that_cannot_take_part_is_told(tmp_path):
    from flywheel.cluster import nodes
    from flywheel.cluster.nodes import NodeRanks

    (path := tmp_path / "token").write_text("mine")
    shared = nodes.SharedFolder(path, "mine", nodes.compute_source_digest(), tmp_path)
    with path.open() as file, socket.create_server(("127.0.0.1", 0)) as server:
        fcntl.flock(file, fcntl.LOCK_EX)
        place = server.getsockname()
        assert NodeRanks().find_fault(shared, Settings(), place) is None
        what, _ = NodeRanks().find_fault(dataclasses.replace(shared, source="older"), Settings(), place)
        assert what == "it has another version of flywheel"
        server.close()
        what, fix = NodeRanks().find_fault(shared, Settings(), place)
        assert what == f"it does not reach 127.0.0.1:{place[1]}, where the processes meet"
        assert "ports" in fix


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ([2], True),
        ([3], False),  # it needs browsers
        ([2, 3, 2], True),
        ([2, 2, 2], True),
        ([2, 3, 3], False),
        ([2, 2, 2, 1], False),
    ],
)
def test_each_part_has_a_node_of_its_own(wanted, fits):
    parts = [{"GPU": share} for share in wanted]
    parts[0]["browsers"] = 1
    nodes = [{"GPU": 2}, {"GPU": 2, "browsers": 1}, {"GPU": 3}]
    assert (resources.describe_missing_resources(parts, nodes) == "") == fits


def test_settings_that_cannot_work_are_refused():
    two = {"engine": "ray", "address": "head:6379", "training_nodes": 2}
    with pytest.raises(BadInput, match=r"cluster.training_nodes is 2, so ct.processes, sft.processes or rl.processes"):
        config.parse_settings({"cluster": two}, where="test")
    with pytest.raises(BadInput, match="name its address"):
        config.parse_settings({"ct": {"processes": 2}, "cluster": {"training_nodes": 2}}, where="test")
    assert config.parse_settings({"ct": {"processes": 2}, "cluster": two}, where="test").cluster.training_nodes == 2


def until(true, job: Future) -> None:
    """Wait while the job goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if job.done():
            pytest.fail(f"it ended: {job.result()}")
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def raylet(node) -> str:
    """The process of a node of this machine by which `team_stages.Watched` names it."""
    (found,) = node.all_processes["raylet"]
    return str(found.process.pid)
