"""The form in which people say what trajectories are: who answers first, the deadline, a flow that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import routed_iterations
from made_workspaces import flywheel
from processes import PATIENCE_S

from flywheel.config.workspace import Workspace
from flywheel.maintenance import route_review
from flywheel.store import partitions, routing_decisions
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import FlywheelError

pytestmark = pytest.mark.usefixtures("prefect")


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Path:
    return routed_iterations.routed(tmp_path_factory.mktemp("routed") / "ws", review=4).root


@pytest.fixture
def ws(once, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(once, tmp_path / "ws", symlinks=True))


def settings_of(ws: Workspace, **routing: object):
    own = stage_records.load_iteration_params(ws, 1)
    return own.model_copy(update={"routing": own.routing.model_copy(update=routing)})


def opposite(one: route_review.RouteQuestion) -> str:
    return "not solved" if one.success else "solved"


def store_of(ws: Workspace, trajectory: str) -> str:
    rows = partitions.read_partition(ws, "routes", 1, "route").to_pylist()
    return next(row["destination"] for row in rows if row["trajectory_id"] == trajectory)


def ended(ws: Workspace) -> str:
    (decision,) = routing_decisions.read_decisions(ws, 1)
    return decision.looked["ended"]


@contextmanager
def waiting_flow(ws: Workspace):
    """Within the block a flow waits, in a thread; after it, it has ended well."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            routed_iterations.ask(ws, settings_of(ws))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert failures == []


def paused(client, besides=()):
    from prefect.client.schemas.objects import StateType

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for run in client.read_flow_runs(sort="START_TIME_DESC", limit=10):
            if run.state_type == StateType.PAUSED and run.id not in besides:
                return run
    pytest.fail("the flow did not pause")


def send(client, run, answer: dict) -> None:
    """Prefect shows a run as paused before the form's schema is there; until then it rejects every answer."""
    from prefect.client.schemas import SetStateStatus

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        result = client.resume_flow_run(run.id, run_input=answer)
        if result.status == SetStateStatus.ACCEPT:
            return
    pytest.fail(f"Prefect did not take the answer: {result.details.reason}")


def test_the_form_says_what_is_asked_and_moves_what_is_answered(ws):
    from prefect.client.orchestration import get_client
    from prefect.input import keyset_from_paused_state, read_flow_run_input

    found = route_review.open_questions(ws, 1)
    with waiting_flow(ws), get_client(sync_client=True) as client:
        run = paused(client)
        send(client, run, {"reviewer": "Ada", "comment": "seen", "trajectory_2": opposite(found[1])})
        keys = keyset_from_paused_state(run.state)
        shown = read_flow_run_input(keys["description"], flow_run_id=run.id)
    for one in found:
        assert f"{one.line} (`flywheel data view {one.trajectory_id}`)" in shown
    assert store_of(ws, found[1].trajectory_id) == ("ct" if found[1].success else "sft")
    assert ended(ws) == "Ada sent the form, with 3 of 4 not looked at"
    assert route_review.open_questions(ws, 1) == []


def test_a_run_that_waits_sees_labels_of_the_command(ws):
    from prefect.client.orchestration import get_client

    first = route_review.open_questions(ws, 1)[0]
    with waiting_flow(ws), get_client(sync_client=True) as client:
        paused(client)
        route_review.label_trajectory(ws, 1, first.trajectory_id, opposite(first), reviewer="Bo")
        route_review.label_remaining(ws, 1, "cannot tell", reviewer="Bo")
    assert store_of(ws, first.trajectory_id) == ("ct" if first.success else "sft")
    assert ended(ws) == "all were labelled"


def test_at_the_deadline_what_was_said_counts_and_the_turn_goes_on(ws):
    first = route_review.open_questions(ws, 1)[0]
    route_review.label_trajectory(ws, 1, first.trajectory_id, opposite(first), reviewer="Bo")
    routed_iterations.ask(ws, settings_of(ws, review_timeout_s=1))
    assert ended(ws) == "nobody labelled 3 of 4 in 1 s"
    assert store_of(ws, first.trajectory_id) == ("ct" if first.success else "sft")
    routed_iterations.ask(ws, settings_of(ws))  # it is not asked for again


def test_or_it_is_an_error_with_a_name_and_the_question_stays_open(ws):
    with pytest.raises(FlywheelError, match="nobody answered in 1 s, and 4 trajectories have no label"):
        routed_iterations.ask(ws, settings_of(ws, review_timeout_s=1, on_timeout="fail"))
    assert routing_decisions.read_decisions(ws, 1) == ()
    assert len(route_review.open_questions(ws, 1)) == 4


def test_a_flow_that_is_killed_while_it_waits_is_gone_on_with(ws, prefect):
    from prefect.client.orchestration import get_client

    first, second = route_review.open_questions(ws, 1)[:2]
    paths = [str(Path(routed_iterations.__file__).parent), str(Path(__file__).resolve().parents[2])]
    command = [sys.executable, routed_iterations.__file__, str(ws.root)]
    with get_client(sync_client=True) as client:
        before = {run.id for run in client.read_flow_runs(limit=50)}
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        try:
            killed = paused(client, before)
            route_review.label_trajectory(ws, 1, first.trajectory_id, opposite(first), reviewer="Ada")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
        assert flywheel(ws, "review", "routes", second.trajectory_id, "solved", "--reviewer", "Ada")[0] == 0
        with waiting_flow(ws):
            run = paused(client, {*before, killed.id})
            send(client, run, {"reviewer": "Bo"})
    assert ended(ws) == "Bo sent the form, with 2 of 4 not looked at"
    assert store_of(ws, first.trajectory_id) == ("ct" if first.success else "sft")
    (decision,) = routing_decisions.read_decisions(ws, 1)
    assert [row["label"] for row in decision.looked["asked"]] == [opposite(first), "solved", None, None]
