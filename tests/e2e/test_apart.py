"""Stages beside one another, as processes that two workers of a pool begin; Prefect's server is on PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import minimal_iterations
import psutil
import pytest
from processes import PATIENCE_S
from waiting import until

from flows.ops.prefect_server import open_prefect_server
from flywheel import config
from flywheel.config import run_lock
from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database, run_history
from flywheel.store.versioning import stage_records
from flywheel.store.versioning.dvc_files import VersioningError
from flywheel.utils.errors import BadInput
from flywheel.utils.files import file_lock

_BESIDE = ("ingest", "synthesize")
_AT_ONCE = {"cluster.max_parallel_stages": 2}


@pytest.fixture(scope="module")
def served(postgres_server, tmp_path_factory):
    """A workspace with a recording to take in, its server, and this process as its client."""
    ws = minimal_iterations.begun(tmp_path_factory.mktemp("apart") / "beside", sessions=1)
    named = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": postgres_server.new("apart")}
    with mock.patch.dict(os.environ, named), open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield ws
    refresh_global_settings_context()


@contextlib.contextmanager
def two_workers(ws: Workspace) -> Iterator[list[subprocess.Popen]]:
    """As on two machines: each takes one run at a time."""
    from flows.ops.deployments import deploy_stages, work_pool_name
    from flywheel.utils.processes import terminate_process

    deploy_stages(ws)
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", work_pool_name(ws), "--type", "process"]
    fast = {**os.environ, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    workers = []
    try:
        for number in (1, 2):
            one = [*command, "--limit", "1", "--name", f"machine-{number}"]
            workers.append(subprocess.Popen(one, env=fast, stdin=subprocess.DEVNULL))
        yield workers
    finally:
        for worker in workers:
            terminate_process(worker)


def at_work(ws: Workspace) -> list[str]:
    """Stages whose processes are at work."""
    return [name for name in _BESIDE if run_lock.is_lock_held(ws.state / "stages" / f"{name}.lock")]


@contextlib.contextmanager
def none_recorded(ws: Workspace) -> Iterator[None]:
    """Within the block no stage comes to its end: each is recorded at it, one at a time."""
    with file_lock(ws.state / "dvc.lock", PATIENCE_S, "recording", VersioningError):
        yield


def rows(ws: Workspace) -> dict[str, list[dict]]:
    """What both stages wrote, but for how long they took and in which run."""
    asked = {name: f"from {name}" for name in ("tasks", "steps", "utterances", "images", "grounding_examples")}
    asked["trajectories"] = "select * exclude (run_id) from trajectories"
    asked["metrics"] = "from metrics where name <> 'seconds'"
    return {name: sorted(database.query_catalog(ws, sql).to_pylist(), key=repr) for name, sql in asked.items()}


@contextlib.contextmanager
def both_at_work(cluster, ws: Workspace) -> Iterator[None]:
    """An iteration until `synthesize`, which has gone well at the end; within the block both stages are at work."""
    from flows.iteration import iteration

    failures = []

    def run() -> None:
        try:
            iteration(str(ws.root), settings=_AT_ONCE, until="synthesize")
        except BaseException as error:
            failures.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    asked = f"select id from flow_run where parameters ->> 'workspace' = '{ws.root}' and parent_task_run_id is not null"
    until(lambda: failures or len(cluster.run(asked, "apart")) == 2, "both are asked for")
    with none_recorded(ws):
        until(lambda: failures or at_work(ws) == [*_BESIDE], "both are at work")
        yield
    running.join(PATIENCE_S)
    assert not running.is_alive()
    assert failures == []
    assert stage_records.unfinished_stages(ws, _BESIDE, 1) == []


def test_two_workers_run_two_stages_at_the_same_time_with_the_rows_of_one_after_another(
    postgres_server, served, tmp_path
):
    """Though the process of one is killed, which is begun again."""
    from flows.iteration import iteration

    with two_workers(served) as workers, both_at_work(postgres_server, served):
        for process in psutil.Process(workers[0].pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "worker" not in process.cmdline():
                    process.kill()
        until(lambda: at_work(served) != [*_BESIDE], "one is gone")
        until(lambda: at_work(served) == [*_BESIDE], "it is at work again")
    other = minimal_iterations.begun(tmp_path / "one-after-another", sessions=1)
    iteration(str(other.root), until="synthesize")
    assert rows(served) == rows(other)


def test_its_history_is_that_of_any_iteration(postgres_server, served):
    told = {row["stage"]: row for row in run_history.query_stage_history(served, [1])}
    found = {name: [one["state"] for one in run_history.query_stage_attempts(served, 1, name)[0]] for name in _BESIDE}
    assert sorted(map(len, found.values())) == [1, 2]
    for name, states in found.items():
        assert (told[name]["state"], told[name]["tries"]) == ("Completed", len(states))
        assert states.count("Completed") == 1
        assert {f"finish {name}", f"version {name}"} < {
            one["task"] for one in run_history.query_stage_attempts(served, 1, name)[1]
        }
    runs = postgres_server.run(
        "select name, tags::text, parent_task_run_id from flow_run where name like '001 %'", "apart"
    )
    for run in runs:
        if "one-after-another" not in run["tags"] and "beside" in run["tags"]:
            assert f"stage:{run['name'].removeprefix('001 ')}" in run["tags"]
            assert run["parent_task_run_id"] is not None


@pytest.mark.parametrize(
    ("made_with", "said"),
    [("", "unknown stage nowhere"), ("0.1.0+000000000000", "this worker has other code.*than its iteration")],
)
def test_the_error_of_its_process_is_the_iterations(served, made_with, said):
    """Where a pool of one's own began the iteration, the deployment that it asks by is made by it."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Failed

    from flows import stage_run
    from flows.ops import deployments

    with get_client(sync_client=True) as client:
        for one in client.read_deployments():
            client.delete_deployment(one.id)

    @flow(name="asks")
    def asks() -> None:
        one = stage_run.StageProcess(served, 1, "nowhere", config.Settings().cluster, 60.0)
        assert client.read_flow_run(one.run_id).deployment_id
        with contextlib.suppress(BadInput):
            stage_run.stage_process(str(served.root), 1, "nowhere", one._lease.name, {}, 60.0, made_with)
        raise one._why(Failed())

    with get_client(sync_client=True) as client:
        with pytest.raises(BadInput, match=said):
            asks()
        assert client.read_deployment_by_name(deployments.stage_deployment_name(served))


def test_a_killed_run_leaves_no_process_and_is_gone_on_with(served, tmp_path):
    from flows.iteration import iteration

    ws = minimal_iterations.begun(tmp_path / "killed", sessions=1)
    flywheel = Path(sys.executable).with_name("flywheel")
    with (tmp_path / "log").open("wb") as out:
        run = subprocess.Popen(
            [flywheel, "run", "-w", ws.root, "--set", "cluster.max_parallel_stages=2"], stdout=out, stderr=out
        )
    family: list[psutil.Process] = []

    def both() -> bool:
        assert run.poll() is None, (tmp_path / "log").read_text()
        family.extend(psutil.Process(run.pid).children(recursive=True))
        return at_work(ws) == [*_BESIDE]

    try:
        until(lambda: at_work(ws), "a stage is at work")
        with none_recorded(ws):
            until(both, "both are at work")
            run.kill()
            run.wait(PATIENCE_S)
            until(lambda: not at_work(ws), "no stage is at work")
        _, left = psutil.wait_procs(set(family), timeout=PATIENCE_S)
        assert left == []
    finally:
        run.kill()
    assert stage_records.unfinished_stages(ws, _BESIDE, 1) == [*_BESIDE]
    iteration(str(ws.root), until="synthesize")
    assert stage_records.unfinished_stages(ws, _BESIDE, 1) == []
    told = {row["stage"]: row for row in run_history.query_stage_history(ws, [1])}
    assert {(told[name]["state"], told[name]["tries"]) for name in _BESIDE} == {("Completed", 2)}
