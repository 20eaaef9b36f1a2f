"""What Prefect adds: a reviewer's form, retries of what may mend itself, history as rows."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from flywheel import settings
from flywheel.errors import BadInput, EnvError, FlywheelError
from flywheel.evaluation import review
from flywheel.stages import base
from flywheel.store import metrics, partitions
from flywheel.store.partitions import write_text
from flywheel.workspace import Workspace

_DEADLINE_S = 120


@pytest.fixture(scope="module", autouse=True)
def prefect():
    from prefect.testing.utilities import prefect_test_harness

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patient:
            # The harness waits for its server, but not for an answer that takes longer than httpx's five seconds.
            patient.setattr(httpx, "Client", partial(httpx.Client, timeout=_DEADLINE_S))
            stack.enter_context(prefect_test_harness(server_startup_timeout=_DEADLINE_S))
        yield


@pytest.fixture
def waiting(ws: Workspace):
    """A function that makes the stage `promote` of a workspace where a reviewer has to decide within `seconds`."""

    def make(seconds: float) -> base.Context:
        chosen = settings.parse({"promotion": {"rule": "review", "review_timeout_s": seconds}}, where="")
        write_text(ws.frozen_params(1), settings.dump(chosen))
        rows = [metrics.share("success_after", 3, 4), metrics.row("success_difference", 0.25, low=-0.1, high=0.6, n=4)]
        partitions.write(ws, "metrics", 1, "evaluate", rows)
        return base.Context.open(ws, 1, "promote")

    return make


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


def test_a_reviewer_decides_in_prefects_form(ws, waiting):
    from prefect.client.orchestration import get_client

    ctx, failures = waiting(_DEADLINE_S), []

    def run() -> None:
        try:
            asking(ctx)()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    with get_client(sync_client=True) as client:
        paused = paused_run(client, time.monotonic() + _DEADLINE_S)
        answer = {"decision": "promote", "reviewer": "Ada", "comment": "sites are better"}
        resume(client, paused, answer, time.monotonic() + _DEADLINE_S)
    thread.join(_DEADLINE_S)
    assert not thread.is_alive()
    assert failures == []
    decided = review.read(ws, 1)
    assert (decided.promote, decided.reviewer, decided.comment) == (True, "Ada", "sites are better")


def test_a_reviewer_who_does_not_come_is_an_error_with_a_name(ws, waiting):
    with pytest.raises(FlywheelError, match="no reviewer answered in 1 s"):
        asking(waiting(1))()
    assert review.read(ws, 1) is None


def test_a_decision_that_is_there_is_not_asked_for_again(ws, waiting):
    from datetime import UTC, datetime

    ctx = waiting(1)
    review.write(ws, 1, promote=False, reviewer="Bo", comment="", at=datetime(2026, 1, 2, tzinfo=UTC))
    asking(ctx)()
    assert review.read(ws, 1).reviewer == "Bo"


def test_what_the_reviewer_is_told(ws, waiting):
    waiting(1)
    told = review.case(ws, 1)
    assert "| all | success_after | 0.750 |" in told
    assert "-0.10 to 0.60" in told


@pytest.mark.parametrize(("error", "tries"), [(EnvError("crashed"), 3), (BadInput("wrong"), 1)])
def test_shards_are_tried_again_only_where_that_may_help(ws, monkeypatch, error, tries):
    from prefect import flow

    from tasks import stages as wrapped

    calls = []

    def work(ctx, shard, folder: Path):
        calls.append(shard)
        raise error

    stage = base.Stage("score", lambda ctx: ("one",), lambda ctx: "x", work, lambda ctx, results: None)
    monkeypatch.setattr(wrapped.stages, "get", lambda name: stage)
    write_text(ws.frozen_params(1), settings.dump(settings.Settings()))
    ctx = base.Context.open(ws, 1, "score")

    @flow
    def one() -> None:
        wrapped.do_shard(ctx, "one")

    with pytest.raises(type(error)):
        one()
    assert len(calls) == tries


def test_history_has_flow_and_task_runs_of_the_iteration_alone():
    from prefect import flow, task

    from tasks import history

    @task(task_run_name="a shard")
    def shard() -> None: ...

    @flow
    def stage() -> None:
        shard()

    stage.with_options(flow_run_name="041 score")()
    stage.with_options(flow_run_name="042 score")()
    rows = history.runs_of(41)
    assert sorted((row["kind"], row["name"], row["state"]) for row in rows) == [
        ("flow", "041 score", "Completed"),
        ("task", "a shard", "Completed"),
    ]
    (flow_row,) = (row for row in rows if row["kind"] == "flow")
    (task_row,) = (row for row in rows if row["kind"] == "task")
    assert task_row["parent_id"] == flow_row["run_id"]
