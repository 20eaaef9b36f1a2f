"""What Prefect adds: retries of what may mend itself, a bar of progress, history as rows, its own commands."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from processes import PATIENCE_S
from waiting import until

from flywheel import config
from flywheel.config.workspace import Workspace, renew_iteration_run_id
from flywheel.pipeline import stage as pipeline_stage
from flywheel.utils.errors import BadInput, EnvError
from flywheel.utils.files import write_text
from flywheel.utils.progress import replace_listener

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.mark.parametrize(("error", "tries"), [(EnvError("crashed"), 3), (BadInput("wrong"), 1)])
def test_shards_are_tried_again_only_where_that_may_help(ws, monkeypatch, error, tries):
    from prefect import flow

    from tasks import shards as wrapped

    calls = []

    def work(ctx, shard, folder: Path):
        calls.append(shard)
        raise error

    stage = pipeline_stage.Stage("score", (), (), (), lambda ctx: ("one",), work, lambda ctx, results: None)
    monkeypatch.setattr(wrapped.dag, "find_stage", lambda name: stage)
    write_text(ws.frozen_params(1), config.dump_settings(config.Settings()))
    ctx = pipeline_stage.StageContext.open(ws, 1, "score")

    @flow
    def one() -> None:
        wrapped.do_shard(ctx, "one", pipeline_stage.InProcessWorker(stage, ctx))

    with pytest.raises(type(error)):
        one()
    assert len(calls) == tries


def test_shards_on_other_machines_are_asked_for_at_once(ws):
    from prefect import flow

    from tasks import shards as wrapped

    class Elsewhere:
        runs_concurrently, both = True, threading.Barrier(2)

        def do_shard(self, shard):
            self.both.wait(PATIENCE_S)
            return Path(shard), shard, False

    write_text(ws.frozen_params(1), config.dump_settings(config.Settings()))
    ctx, said = pipeline_stage.StageContext.open(ws, 1, "rollout"), []

    @flow
    def both() -> dict:
        return wrapped.do_shards(ctx, ["one", "two"], Elsewhere())

    with replace_listener(lambda stage, line: said.append(line)):
        assert both() == {"one": (Path("one"), "one"), "two": (Path("two"), "two")}
    assert sorted(said) == ["one done", "two done"]


@pytest.mark.smoke
def test_a_bar_shows_how_far_a_stage_is(ws):
    from prefect import flow
    from prefect.artifacts import Artifact

    from flows import run_progress

    write_text(ws.frozen_params(1), config.dump_settings(config.Settings()))
    ctx = pipeline_stage.StageContext.open(ws, 1, "rollout")

    def stands_at(percent: float) -> bool:
        shown = Artifact.get("rollout-progress")  # the newest of that name
        return shown is not None and shown.data == percent

    @flow
    def stage(*, fails: bool) -> None:
        with run_progress.show_progress_bar(ctx, ["one", "two"], every_s=0.01):
            ctx.report_part("one: 5 of 10", 5, 10, "one")
            until(lambda: stands_at(25), "a quarter")
            ctx.report_part("one done", 1, 1, "one")
            ctx.report_part("of another stage's shard", 1, 1, "three")
            until(lambda: stands_at(50), "the half")
            if fails:
                raise BadInput("wrong")

    with pytest.raises(BadInput):
        stage(fails=True)
    assert stands_at(50)
    stage(fails=False)
    assert stands_at(100)


@pytest.mark.smoke
def test_history_has_the_runs_of_the_turn_alone(ws, tmp_path):
    """Not those of an iteration of the same number that was begun before, nor of another workspace on the server."""
    from prefect import flow, tags, task

    from tasks import run_history
    from tasks import run_history as named

    other = Workspace(tmp_path / "other")

    @task(task_run_name="a shard")
    def shard() -> None: ...

    @flow
    def stage() -> None:
        shard()

    def run(ws: Workspace, name: str) -> None:
        with tags(*named.iteration_run_tags(ws, 41)):
            stage.with_options(flow_run_name=name)()

    renew_iteration_run_id(ws, 41)
    run(ws, "041 given up")
    renew_iteration_run_id(ws, 41)
    run(ws, "041 score")
    run(other, "041 of the other")
    rows = run_history.read_run_rows(ws, 41)
    assert sorted((row["kind"], row["name"], row["state"]) for row in rows) == [
        ("flow", "041 score", "Completed"),
        ("task", "a shard", "Completed"),
    ]
    (flow_row,) = (row for row in rows if row["kind"] == "flow")
    (task_row,) = (row for row in rows if row["kind"] == "task")
    assert task_row["parent_id"] == flow_row["run_id"]


def test_the_end_of_a_task_is_in_the_history_though_the_server_hears_of_it_late(ws, monkeypatch):
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Running

    from tasks import run_history
    from tasks import run_history as named

    @flow
    def stage() -> None: ...

    @task(name="report")
    def report() -> None: ...

    def told() -> None:
        with get_client(sync_client=True) as late:
            late.set_task_run_state(one.id, Completed(), force=True)

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(
            stage, name="iteration 044", state=Running(), tags=named.iteration_run_tags(ws, 44)
        )
        one = client.create_task_run(report, run.id, dynamic_key="0", name="report", state=Running())
    waited = []
    monkeypatch.setattr(run_history.time, "sleep", lambda seconds: (waited.append(seconds), told()))
    rows = {row["name"]: row["state"] for row in run_history.read_run_rows(ws, 44, ends=str(run.id))}
    assert rows == {"iteration 044": "Completed", "report": "Completed"}
    assert waited


def test_a_killed_run_and_its_tasks_end_when_they_were_last_heard_of(ws, tmp_path):
    """What another workspace runs on the same server goes on, and so does what a worker is about to begin."""
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import LogCreate
    from prefect.client.schemas.objects import StateType
    from prefect.states import Completed, Running

    from tasks import run_history
    from tasks import run_history as named

    other = Workspace(tmp_path / "other")

    @flow
    def stage() -> None: ...

    @task(name="shard")
    def shard() -> None: ...

    with get_client(sync_client=True) as client:
        tagged = named.iteration_run_tags(ws, 43)
        run = client.create_flow_run(stage, name="043 score", state=Running(), tags=tagged)
        living = client.create_flow_run(
            stage, name="043 score", state=Running(), tags=named.iteration_run_tags(other, 43)
        )
        for key, state in (("0", Completed()), ("1", Running())):
            client.create_task_run(shard, run.id, dynamic_key=key, name=f"shard {key}", state=state)
        last = run.created + timedelta(seconds=100)
        said = LogCreate(name="test", level=20, message="step 7", timestamp=last, flow_run_id=run.id)
        client.create_logs([said])
        assert [one.id for one in run_history.mark_killed_runs(ws)] == [run.id]
        assert run_history.mark_killed_runs(ws) == []
        assert client.read_flow_run(living.id).state_type == StateType.RUNNING
    rows = {row["name"]: row for row in run_history.read_run_rows(ws, 43)}
    states = {"043 score": "Crashed", "shard 0": "Completed", "shard 1": "Crashed"}
    assert {name: row["state"] for name, row in rows.items()} == states
    for name in ("043 score", "shard 1"):
        assert datetime.fromisoformat(rows[name]["ended_at"]) == last
    assert rows["043 score"]["seconds"] == pytest.approx(100, abs=1)


def test_a_server_that_is_killed_comes_back_with_what_it_knew(prefect):
    """A run in its midst does not see it: Prefect's client asks again, and a place of which there is one is still its
    own."""
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

    _, served = prefect
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="one", limit=1))
        lease = client.increment_concurrency_slots_with_lease(["one"], 1, "concurrency", 300).json()["lease_id"]
    pid = json.loads((served.prefect_home / "server.json").read_text())["pid"]

    @task
    def before() -> int:
        os.kill(pid, signal.SIGKILL)
        return 1

    @task
    def after() -> int:
        return 2

    @flow(flow_run_name="through a kill")
    def through() -> int:
        return before() + after()

    assert through() == 3
    with get_client(sync_client=True) as client:
        runs = {run.name: run.state_name for run in client.read_flow_runs(sort="START_TIME_DESC", limit=10)}
        client.renew_concurrency_lease(lease, 300)  # raises, where the server does not know it
    assert runs["through a kill"] == "Completed"
    assert json.loads((served.prefect_home / "server.json").read_text())["pid"] != pid


@pytest.mark.parametrize("command", ["flow-run ls", "deployment ls", "work-pool ls", "automation ls"])
def test_prefects_own_commands_work(command):
    """With FastAPI 0.151 and newer they got 422: Prefect's client sends nulls, which its server then refused."""
    from prefect.testing.cli import CycloptsCliRunner

    done = CycloptsCliRunner().invoke(command)
    assert (done.exit_code, "Traceback" in done.output) == (0, False), done.output[-2000:]


def test_a_flow_is_deployed_to_a_pool_and_scheduled(tmp_path):
    """What a night's operation needs of Prefect: a pool, a deployment with a schedule, and a run of it in the pool."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
    from prefect.deployments import run_deployment

    (tmp_path / "nightly.py").write_text("from prefect import flow\n\n@flow\ndef nightly() -> int:\n    return 7\n")
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="machines", type="process"))
        nightly = flow.from_source(source=str(tmp_path), entrypoint="nightly.py:nightly")
        identity = nightly.deploy(name="at-night", work_pool_name="machines", cron="0 3 * * *", print_next_steps=False)
        run = run_deployment("nightly/at-night", timeout=0)
        chosen = DeploymentFilter(id=DeploymentFilterId(any_=[identity]))
        assert [one.name for one in client.read_deployments(deployment_filter=chosen)] == ["at-night"]
        assert client.read_flow_run(run.id).work_pool_name == "machines"


def test_the_reason_of_a_run_is_the_message_of_its_state():
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Completed, Failed

    from tasks import run_history

    def row(state) -> dict:
        return run_history._row(FlowRun(name="041 score", flow_id="0" * 32, state=state), "flow", None, 1, {})

    assert row(Failed(message="it broke"))["message"] == "it broke"
    assert row(Completed())["message"] == ""
    assert row(None)["message"] == ""
