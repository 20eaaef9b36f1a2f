"""What Prefect adds: a reviewer's form, retries of what may mend itself, history as rows."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import httpx
import pytest
from browser_pages import SETTINGS
from click.testing import CliRunner
from hostile import Page, Site
from reviews import waiting

from flows.server import prefect_server
from flywheel import bench, identity, secret, settings
from flywheel.cli import main
from flywheel.errors import BadInput, EnvError, FlywheelError
from flywheel.evaluation import review
from flywheel.files import write_text
from flywheel.progress import listening
from flywheel.stages import base
from flywheel.workspace import Workspace

_DEADLINE_S = 120


@pytest.fixture(scope="module", autouse=True)
def prefect(tmp_path_factory):
    """The server that `flywheel run` starts, and this process as its client: its address and its workspace."""
    ws = Workspace(tmp_path_factory.mktemp("served"))
    with mock.patch.dict(os.environ), prefect_server(ws) as url:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield url, ws
    refresh_global_settings_context()


def asking(ctx: base.Context):
    from prefect import flow

    from flows.review import ask_reviewer

    @flow(name="asks")
    def asks() -> None:
        ask_reviewer(ctx)

    return asks


def paused_run(client, deadline: float):
    from prefect.client.schemas.objects import StateType

    while time.monotonic() < deadline:
        for run in client.read_flow_runs(sort="START_TIME_DESC", limit=10):
            if run.state_type == StateType.PAUSED:
                return run
    pytest.fail("the flow did not pause")


def resume(client, run, answer: dict, deadline: float) -> None:
    """Prefect shows a run as paused before the form's schema is there; until then it rejects every answer."""
    from prefect.client.schemas import SetStateStatus

    while time.monotonic() < deadline:
        result = client.resume_flow_run(run.id, run_input=answer)
        if result.status == SetStateStatus.ACCEPT:
            return
    pytest.fail(f"Prefect did not take the answer: {result.details.reason}")


# What a page does that knows where the server is and which run waits.
_ATTACK = """(async () => {
  const ask = async (path, body, mode) => (await fetch("%s/api" + path, {
    method: "POST", mode, body: JSON.stringify(body),
    headers: {"Content-Type": mode ? "text/plain" : "application/json"},
  })).status;
  const answers = [], answer = {run_input: {decision: "promote", reviewer: "the page under test", comment: ""}};
  for (const mode of [undefined, "no-cors"])
    for (const path of ["/flow_runs/filter", "/flow_runs/%s/resume"])
      answers.push(await ask(path, answer, mode).catch(() => "no answer"));
  return answers;
})()"""


async def attack_from_a_page(url: str, run: str, monkeypatch) -> list[list]:
    """What a page's script is told in the sandbox, and in a browser that nothing guards."""
    monkeypatch.syspath_prepend(str(bench.FOLDER))
    ways, told = importlib.import_module("sandbox_loopback"), []
    with Site({"page": Page()}) as site:
        for guard in (contextlib.nullcontext, ways.unguarded):
            with guard():
                async with ways.one_tab(SETTINGS) as tab:
                    await tab.open(f"{site.url}/p/page", seed=0, allowed=(site.url,))
                    told.append(await tab.evaluate(_ATTACK % (url, run)))
    return told


def attack_by_name(url: str, run: str, **headers: str) -> set[int]:
    """The states that another client gets, such as a browser whose page gave its own name this machine's address."""
    answer = {"run_input": {"decision": "promote", "reviewer": "the page under test", "comment": ""}}
    return {
        httpx.post(f"{url}/api{path}", json=answer, headers=headers, timeout=_DEADLINE_S).status_code
        for path in ("/flow_runs/filter", f"/flow_runs/{run}/resume", "/variables/")
    }


def test_a_reviewer_decides_in_prefects_form_and_nobody_without_the_secret(ws, prefect, monkeypatch):
    from prefect.client.orchestration import get_client

    ctx, failures = waiting(ws, _DEADLINE_S), []

    def run() -> None:
        try:
            asking(ctx)()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with get_client(sync_client=True) as client:
        paused = paused_run(client, time.monotonic() + _DEADLINE_S)
        url, served = prefect
        host, login = url.removeprefix("http://"), secret.basic(secret.of(served.state))
        in_sandbox, unguarded = asyncio.run(attack_from_a_page(url, str(paused.id), monkeypatch))
        assert set(in_sandbox) == {"no answer"}
        assert set(unguarded) == {"no answer", 0}  # it may send what needs no leave, and cannot read the refusal
        assert attack_by_name(url, paused.id) == {401}
        assert attack_by_name(url, paused.id, authorization=secret.basic("flywheel:guessed")) == {401}
        assert attack_by_name(url, paused.id, host="evil.example", authorization=login) == {421}
        assert attack_by_name(url, paused.id, origin="http://evil.example", authorization=login) == {403}
        assert attack_by_name(url, paused.id, host=host, origin="http://127.0.0.1:1", authorization=login) == {403}
        assert client.read_flow_run(paused.id).state_type == paused.state_type
        assert review.read(ws, 1) is None
        answer = {"decision": "promote", "reviewer": "Ada", "comment": "sites are better"}
        resume(client, paused, answer, time.monotonic() + _DEADLINE_S)
    thread.join(_DEADLINE_S)
    assert not thread.is_alive()
    assert failures == []
    decided = review.read(ws, 1)
    assert (decided.promote, decided.reviewer, decided.comment) == (True, "Ada", "sites are better")


def test_a_reviewer_who_does_not_come_is_an_error_with_a_name(ws):
    with pytest.raises(FlywheelError, match="no reviewer answered in 1 s"):
        asking(waiting(ws, 1, "fail"))()
    assert review.read(ws, 1) is None


def test_where_nobody_decides_the_old_model_stays_and_the_run_goes_on(ws):
    from prefect.client.orchestration import get_client

    run = asking(waiting(ws, 1)).with_options(flow_run_name="nobody comes")
    run()
    decided = review.read(ws, 1)
    assert (decided.promote, decided.reviewer) == (False, "nobody")
    assert decided.comment == "no reviewer answered in 1 s"
    with get_client(sync_client=True) as client:
        states = {one.name: one.state_name for one in client.read_flow_runs(sort="START_TIME_DESC", limit=5)}
    assert states["nobody comes"] == "Completed"


def test_a_decision_that_is_there_is_not_asked_for_again(ws):
    ctx = waiting(ws, 1)
    review.write(ws, 1, promote=False, reviewer="Bo", comment="", at=datetime(2026, 1, 2, tzinfo=UTC))
    asking(ctx)()
    assert review.read(ws, 1).reviewer == "Bo"


def test_a_paused_run_sees_the_decision_of_the_command(ws):
    ctx, failures, said = waiting(ws, _DEADLINE_S), [], []

    def run() -> None:
        try:
            with listening(lambda stage, line: said.append((time.monotonic(), line))):
                asking(ctx)()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        paused_run(client, time.monotonic() + _DEADLINE_S)
    result = CliRunner().invoke(main, ["review", "-k", "1", "--keep", "--reviewer", "Bo", "-w", str(ws.root)])
    assert result.exit_code == 0, result.output
    thread.join(_DEADLINE_S)
    assert not thread.is_alive()
    assert failures == []
    assert (review.read(ws, 1).reviewer, review.read(ws, 1).promote, review.read(ws, 1).earlier) == ("Bo", False, ())
    assert any("waits for a reviewer" in line for _, line in said)
    assert any("decided: keep (Bo" in line for _, line in said)


@pytest.mark.parametrize(("error", "tries"), [(EnvError("crashed"), 3), (BadInput("wrong"), 1)])
def test_shards_are_tried_again_only_where_that_may_help(ws, monkeypatch, error, tries):
    from prefect import flow

    from tasks import stages as wrapped

    calls = []

    def work(ctx, shard, folder: Path):
        calls.append(shard)
        raise error

    stage = base.Stage("score", (), (), (), lambda ctx: ("one",), work, lambda ctx, results: None)
    monkeypatch.setattr(wrapped.pipeline, "get", lambda name: stage)
    write_text(ws.frozen_params(1), settings.dump(settings.Settings()))
    ctx = base.Context.open(ws, 1, "score")

    @flow
    def one() -> None:
        wrapped.do_shard(ctx, "one", base.Worker(stage, ctx))

    with pytest.raises(type(error)):
        one()
    assert len(calls) == tries


def test_shards_on_other_machines_are_asked_for_at_once(ws):
    from prefect import flow

    from tasks import stages as wrapped

    class Elsewhere:
        several, both = True, threading.Barrier(2)

        def do_shard(self, shard):
            self.both.wait(_DEADLINE_S)
            return Path(shard), shard, False

    write_text(ws.frozen_params(1), settings.dump(settings.Settings()))
    ctx, said = base.Context.open(ws, 1, "rollout"), []

    @flow
    def both() -> dict:
        return wrapped.do_shards(ctx, ["one", "two"], Elsewhere())

    with listening(lambda stage, line: said.append(line)):
        assert both() == {"one": (Path("one"), "one"), "two": (Path("two"), "two")}
    assert sorted(said) == ["one done", "two done"]


def test_history_has_the_runs_of_the_turn_alone(ws, tmp_path):
    """Not those of an iteration of the same number that was begun before, nor of another workspace on the server."""
    from prefect import flow, tags, task

    from tasks import history
    from tasks import tags as named

    other = Workspace(tmp_path / "other")

    @task(task_run_name="a shard")
    def shard() -> None: ...

    @flow
    def stage() -> None:
        shard()

    def run(ws: Workspace, name: str) -> None:
        with tags(*named.iteration(ws, 41)):
            stage.with_options(flow_run_name=name)()

    identity.begin_turn(ws, 41)
    run(ws, "041 given up")
    identity.begin_turn(ws, 41)
    run(ws, "041 score")
    run(other, "041 of the other")
    rows = history.runs_of(ws, 41)
    assert sorted((row["kind"], row["name"], row["state"]) for row in rows) == [
        ("flow", "041 score", "Completed"),
        ("task", "a shard", "Completed"),
    ]
    (flow_row,) = (row for row in rows if row["kind"] == "flow")
    (task_row,) = (row for row in rows if row["kind"] == "task")
    assert task_row["parent_id"] == flow_row["run_id"]


def test_a_killed_run_and_its_tasks_end_when_they_were_last_heard_of(ws, tmp_path):
    """What another workspace runs on the same server goes on, and so does what a worker is about to begin."""
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import LogCreate
    from prefect.client.schemas.objects import StateType
    from prefect.states import Completed, Running

    from tasks import history
    from tasks import tags as named

    other = Workspace(tmp_path / "other")

    @flow
    def stage() -> None: ...

    @task(name="shard")
    def shard() -> None: ...

    with get_client(sync_client=True) as client:
        tagged = named.iteration(ws, 43)
        run = client.create_flow_run(stage, name="043 score", state=Running(), tags=tagged)
        living = client.create_flow_run(stage, name="043 score", state=Running(), tags=named.iteration(other, 43))
        for key, state in (("0", Completed()), ("1", Running())):
            client.create_task_run(shard, run.id, dynamic_key=key, name=f"shard {key}", state=state)
        last = run.created + timedelta(seconds=100)
        said = LogCreate(name="test", level=20, message="step 7", timestamp=last, flow_run_id=run.id)
        client.create_logs([said])
        assert [one.id for one in history.mark_killed_runs(ws)] == [run.id]
        assert history.mark_killed_runs(ws) == []
        assert client.read_flow_run(living.id).state_type == StateType.RUNNING
    rows = {row["name"]: row for row in history.runs_of(ws, 43)}
    states = {"043 score": "Crashed", "shard 0": "Completed", "shard 1": "Crashed"}
    assert {name: row["state"] for name, row in rows.items()} == states
    for name in ("043 score", "shard 1"):
        assert datetime.fromisoformat(rows[name]["ended_at"]) == last
    assert rows["043 score"]["seconds"] == pytest.approx(100, abs=1)


def test_a_server_that_is_killed_comes_back_with_what_it_knew(prefect):
    """A run in its midst does not see it: Prefect's client asks again."""
    from prefect import flow, task
    from prefect.client.orchestration import get_client

    _, served = prefect
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
