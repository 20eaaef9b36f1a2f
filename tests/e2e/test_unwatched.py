"""A flywheel that nobody watches: schedules, what data and dead runs begin; `workspace up`, whose parts are killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock
from zoneinfo import ZoneInfo

import httpx
import minimal_iterations
import psutil
import pytest
from processes import PATIENCE_S
from waiting import until

from flows.ops.prefect_server import open_prefect_server
from flywheel.config import OperationsSettings, Settings, run_lock
from flywheel.config.workspace import Workspace, workspace_name
from flywheel.maintenance import checkup as looking
from flywheel.pipeline import iterations
from flywheel.utils import credentials
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text
from tests.support.ports import find_free_ports

FLYWHEEL = str(Path(sys.executable).with_name("flywheel"))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A workspace's own server, and this process as its client."""
    ws = Workspace(tmp_path_factory.mktemp("unwatched") / "night")
    write_text(ws.params, "seed: 7\n")
    write_text(ws.root / "dvc.yaml", "")
    with mock.patch.dict(os.environ), open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield ws
    refresh_global_settings_context()


def runs(**filters):
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return client.read_flow_runs(limit=50, **filters)


def of_deployment(identity_: object) -> list:
    return [run for run in runs() if run.deployment_id == identity_]


def test_a_schedule_has_its_runs(served):
    """With SQLAlchemy 2.1 Prefect's scheduler failed in silence, and no schedule ever began anything."""
    from flows.ops.deployments import deploy_workspace

    rules = OperationsSettings(schedule="0 3 * * *", checkup_schedule="0 5 * * 0", timezone="Europe/Berlin")
    found = deploy_workspace(served, rules)
    for name, hour in (("iteration", 3), ("checkup", 5)):
        planned = until(lambda name=name: of_deployment(found[name]), "scheduled runs")
        assert {run.state_name for run in planned} == {"Scheduled"}
        assert {run.expected_start_time.astimezone(ZoneInfo("Europe/Berlin")).hour for run in planned} == {hour}
    assert of_deployment(found["ingest"]) == []
    deploy_workspace(served, OperationsSettings())  # as after an edit of params.yaml
    until(lambda: not of_deployment(found["iteration"]), "no scheduled runs any more")


def test_a_checkup_says_what_came_of_it_by_its_state(served, monkeypatch):
    from flows.checkup import checkup

    rows = [{"domain": "games", "success": True}, {"domain": "sites", "success": False}]
    for before, name in ((False, "Completed"), (True, "NothingToDo")):
        monkeypatch.setattr(
            looking, "run_checkup", lambda *given, before=before, **run: looking.Checkup(2, rows, before)
        )
        state = checkup(str(served.root), return_state=True)
        assert state.name == name
        assert state.message.startswith(
            "the model of iteration 002 on fresh tasks: all 1 of 2, games 1 of 1, sites 0 of 1"
        )

    def gone(*given, **run):
        raise BadInput("the browser is gone", where="here", fix="start it")

    monkeypatch.setattr(looking, "run_checkup", gone)
    with pytest.raises(BadInput, match="the browser is gone"):
        checkup(str(served.root))
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "one")  # what is deployed has nobody who sees it raised
    state = checkup(str(served.root), return_state=True)
    assert (state.name, state.message) == ("Failed", "the browser is gone (here); start it")


def test_a_schedule_that_is_none_is_named(served):
    """Which the settings would refuse."""
    from flows.ops.deployments import deploy_workspace

    with pytest.raises(BadInput, match=r"not a cron schedule: 99 3 \* \* \* \(operations.ingest_schedule\)"):
        deploy_workspace(served, OperationsSettings().model_copy(update={"ingest_schedule": "99 3 * * *"}))


def test_what_is_due_begins_once_whoever_watches(served, monkeypatch):
    from flows.ops.deployments import deploy_workspace
    from flows.ops.trigger_watcher import TriggerWatcher

    found = deploy_workspace(served, OperationsSettings())
    asked = [iterations.DueRun("night:ingest:001", {"until": "ingest"}, "5 new recordings are there")]
    monkeypatch.setattr(iterations, "due_runs", lambda ws, settings: asked)
    first = TriggerWatcher(served, found)
    assert first.start_due_runs(Settings()) == ["5 new recordings are there"]
    assert first.start_due_runs(Settings()) == []
    TriggerWatcher(served, found).start_due_runs(Settings())  # after a restart
    (run,) = of_deployment(found["ingest"])
    assert run.parameters["until"] == "ingest"
    assert run.parameters["workspace"] == str(served.root)
    assert f"workspace:{workspace_name(served)}" in run.tags


def test_a_run_that_died_is_begun_again_so_often_and_somebody_is_told(served):
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelled, Crashed, Running

    from flows.ops.deployments import deploy_workspace
    from flows.ops.trigger_watcher import TriggerWatcher

    rules = OperationsSettings(restarts=2, notify_command="cat >> told; echo >> told")
    found = deploy_workspace(served, rules)
    watcher, seen = TriggerWatcher(served, found), set()

    def die(run) -> None:
        seen.add(run.id)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run.id, Running(), force=True)
            client.set_flow_run_state(run.id, Crashed(message="signal 9"), force=True)

    with get_client(sync_client=True) as client:
        die(
            client.create_flow_run_from_deployment(
                found["iteration"], parameters={"settings": {"rollout.n_rollouts": 2}}
            )
        )
    with get_client(sync_client=True) as client:  # one that its deployment kept out, since then
        kept_out = client.create_flow_run_from_deployment(found["iteration"])
        client.set_flow_run_state(kept_out.id, Cancelled(), force=True)
        seen.add(kept_out.id)
    for again in (1, 2):
        watcher.restart_dead_runs(rules)
        watcher.restart_dead_runs(rules)
        TriggerWatcher(served, found).restart_dead_runs(rules)
        (run,) = [one for one in of_deployment(found["iteration"]) if one.id not in seen]
        assert f"restart:{again}" in run.tags
        assert run.parameters["settings"] == {"rollout.n_rollouts": 2}
        assert run.state_name == "Scheduled"
        die(run)
    watcher.restart_dead_runs(rules)
    assert {one.id for one in of_deployment(found["iteration"])} == seen
    told = [json.loads(line)["text"] for line in (served.root / "told").read_text().splitlines()]
    assert ["begun again" in text for text in told] == [True, True, False]
    assert "died again and is left: signal 9" in told[-1]


def test_what_a_worker_was_about_to_begin_died_with_it_and_what_is_to_come_stays(served):
    from prefect.client.orchestration import get_client
    from prefect.states import Pending

    from flows.ops.deployments import deploy_workspace, work_pool_name, worker_name
    from flows.ops.trigger_watcher import TriggerWatcher

    found = deploy_workspace(served, OperationsSettings())
    with get_client(sync_client=True) as client:
        begins, comes = (client.create_flow_run_from_deployment(found["iteration"]) for _ in range(2))
        client.set_flow_run_state(begins.id, Pending(name="Submitting"), force=True)
    watcher = TriggerWatcher(served, found)
    watcher.restart_dead_runs(OperationsSettings())  # a worker may be at work
    states = {one.id: one.state_name for one in of_deployment(found["iteration"])}
    assert (states[begins.id], states[comes.id]) == ("Submitting", "Scheduled")
    with get_client(sync_client=True) as client:
        for name, then in (("elsewhere 7", "Submitting"), (worker_name(), "Crashed")):
            if then == "Crashed":
                client.request("DELETE", f"/work_pools/{work_pool_name(served)}/workers/elsewhere 7")
            client.send_worker_heartbeat(work_pool_name(served), name)
            watcher.mark_dead_runs()
            states = {one.id: one.state_name for one in of_deployment(found["iteration"])}
            assert (states[begins.id], states[comes.id]) == (then, "Scheduled")


@pytest.fixture
def small(tmp_path) -> Workspace:
    """A workspace in which a run until `synthesize` is a matter of seconds."""
    return minimal_iterations.begun(tmp_path / "small")


def test_what_is_up_outlives_its_parts_and_leaves_nothing_behind(small, tmp_path, monkeypatch):
    """A run of the deployment; then worker and server are killed, a second run, and all of it is taken down. It was
    started in a folder with modules that are called as ours."""
    from flows.ops import supervisor

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)

    for name in ("flows", "tasks", "prefect"):
        write_text(tmp_path / name / "__init__.py", "raise RuntimeError('not ours')")

    def flywheel(*words: str) -> str:
        command = [FLYWHEEL, *words, "-w", str(small.root)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    port = find_free_ports(3)  # Prefect, the report, the explorer
    said = flywheel("workspace", "up", "--port", str(port))
    try:
        assert f"Prefect:  http://127.0.0.1:{port}\n" in said
        assert f"Explorer: http://127.0.0.1:{port + 2}\n" in said
        assert httpx.get(f"http://127.0.0.1:{port + 2}/", follow_redirects=True).status_code == 401
        up = supervisor.find_supervisor(small)
        family = psutil.Process(up["pid"]).children(recursive=True)
        with client_of(small, monkeypatch) as client:
            (deployed,) = [one for one in client.read_deployments() if one.name.endswith("-iteration")]

            def run(until_: str | None) -> Callable:
                made = client.create_flow_run_from_deployment(deployed.id, parameters={"until": until_})
                return lambda: (one := client.read_flow_run(made.id)).state.is_final() and one

            first = until(run("synthesize"), "the first run")
            assert (first.state_name, first.name) == ("Completed", "iteration 001")
            assert "waits after synthesize" in first.state.message
            kill(family, "flows.ops.process_worker", "flows.ops.prefect_server_main")
            second = until(run("ingest"), "the second run, by a new worker and a new server")
            assert second.state_name == "Completed"
            with run_lock.hold_workspace(small):
                third = until(run("ingest"), "the third run, while another one is at work")
                kept_out = until(run(None), "an iteration, while another one is at work")
            assert (third.state_type.value, third.state_name) == ("CANCELLED", "Skipped")
            assert "another run is at work here" in third.state.message
            assert "it comes again in 50 s" in kept_out.state.message
            (later,) = [one for one in client.read_flow_runs(limit=50) if "later:1" in one.tags]
            assert later.state_name == "Scheduled"
            assert (later.expected_start_time - kept_out.start_time).total_seconds() > 45
            client.delete_flow_run(later.id)
            run("rollout")
            left = psutil.Process(until(lambda: run_lock.workspace_holder(small), "the fourth run, which is at work"))
            family += psutil.Process(up["pid"]).children(recursive=True)
            kill(family, "flows.ops.process_worker")  # its run goes on without it
    finally:
        flywheel("workspace", "down")
    _, alive = psutil.wait_procs([left, *family], timeout=PATIENCE_S)
    assert alive == []
    assert supervisor.find_supervisor(small) == {}
    done = subprocess.run([FLYWHEEL, "workspace", "down", "-w", str(small.root)], capture_output=True, text=True)
    assert (done.returncode, "nothing is up here" in done.stderr) == (2, True)


def kill(processes: list[psutil.Process], *words: str) -> None:
    """Those whose command has one of the words; some have ended already."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(part in " ".join(process.cmdline()) for part in words):
                process.kill()


def client_of(ws: Workspace, monkeypatch):
    from prefect.client.orchestration import get_client
    from prefect.context import refresh_global_settings_context

    from flows.ops import supervisor

    monkeypatch.setenv("PREFECT_API_URL", f"{supervisor.find_supervisor(ws)['prefect']}/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", credentials.workspace_credentials(ws.state))
    refresh_global_settings_context()
    return get_client(sync_client=True)
