"""What is at work: one truth for `status`, `iteration history` and the refusal of a second run."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from reviews import waiting

from flows import run_progress
from flywheel.cli import main
from flywheel.config import run_lock
from flywheel.config.run_lock import StageAtWork
from flywheel.config.workspace import Workspace
from flywheel.evaluation import promotion_review
from flywheel.maintenance import status
from flywheel.pipeline import dag
from flywheel.pipeline.stage import StageContext
from flywheel.store.versioning import dvc_files
from flywheel.utils import progress
from flywheel.utils.files import write_text


def begin(ws: Workspace, by: str = run_lock.RUN_COMMAND) -> StageContext:
    """A run of iteration 1 at its stage `promote`; the lock is the caller's."""
    ctx = waiting(ws, 60)
    write_text(dvc_files.dvc_yaml_path(ws, 1), dag.render_dvc_yaml(1, ["sites"]))
    run_lock.record_run(ws, 1, by)
    return ctx


def refusal(ws: Workspace) -> str:
    with pytest.raises(run_lock.WorkspaceBusy) as refused, run_lock.hold_workspace(ws):
        pass
    return str(refused.value)


def test_nothing_is_at_work_once_the_lock_is_free(ws):
    with run_lock.hold_workspace(ws):
        begin(ws)
        assert run_lock.read_run_at_work(ws).iteration == 1
    assert run_lock.read_run_at_work(ws) is None
    with run_lock.hold_workspace(ws):  # another command that holds it, and does no iteration
        (ws.state / "lock").write_text("1")
        assert run_lock.read_run_at_work(ws) is None
        assert "another run is at work here (process 1)" in refusal(ws)


def test_a_stage_tells_its_share_over_all_of_its_shards(ws):
    with run_lock.hold_workspace(ws):
        ctx = begin(ws)
        with run_progress.track_stage(ctx) as record:
            record.plan(["a", "b", "c", "d"])
            progress.report_shard_progress("promote", "a: 1 of 2", "a", 0.5)
            progress.report_shard_progress("promote", "b done", "b", 1.0)
            progress.report_progress("rollout", "of another stage")
            record.record()
            (now,) = run_lock.read_run_at_work(ws).stages
        assert (now.share, now.line, now.ended) == (0.375, "b done", None)
        (now,) = run_lock.read_run_at_work(ws).stages
        assert (now.share, now.ended is not None) == (1.0, True)


@pytest.mark.parametrize(
    ("by", "ends"),
    [
        (run_lock.RUN_COMMAND, r"`kill \d+`"),
        (run_lock.UP_COMMAND, "`flywheel workspace down`"),
        ("a worker of Prefect", "cancelling it in Prefect"),
    ],
)
def test_a_second_run_is_told_what_the_first_one_does_and_how_to_end_it(ws, by, ends):
    with run_lock.hold_workspace(ws):
        ctx = begin(ws, by)
        with run_progress.track_stage(ctx):
            said = refusal(ws)
            (head, stage) = status.read_work_status(ws).lines()
    assert re.search(r"iteration 001, promote since \d\d-\d\d \d\d:\d\d UTC", said)
    assert re.search(f"`flywheel status --watch` follows it, {ends} ends it", said)
    assert re.search(f"iteration 001 is at work since .*{ends} ends it", head)
    assert stage.startswith("  promote since ")


def test_while_a_run_waits_what_is_told_to_type_is_what_answers_it(ws):
    with run_lock.hold_workspace(ws):
        ctx = begin(ws)
        with run_progress.track_stage(ctx) as record, record.wait_for("a reviewer", promotion_review.review_command(1)):
            said, lines = refusal(ws), list(status.read_work_status(ws).lines())
            for text in (said, lines[1]):
                assert "promote waits for a reviewer since" in text
                (typed,) = re.findall("type `flywheel (.*?)`", text)
                result = CliRunner().invoke(main, [*typed.replace("NAME", "Ada").split(), "-w", str(ws.root)])
                assert (result.exit_code, "the run that waits for it goes on" in result.output) == (0, True)
        with run_progress.track_stage(ctx):
            assert "waits for" not in refusal(ws)


@pytest.mark.parametrize(
    ("share", "usual", "left"),
    [
        (0.0, None, None),  # nothing tells it
        (0.0, 30.0, 20.0),
        (0.0, 5.0, 0.0),  # longer than usual
        (0.5, None, 10.0),
        (0.5, 30.0, 15.0),  # halfway between its pace (10) and what is usual (20)
        (1.0, 30.0, 0.0),
    ],
)
def test_how_long_a_stage_goes_on(share, usual, left):
    assert status.estimate_seconds_left(StageAtWork("rollout", 100.0, share=share), usual, 110.0) == left


def test_how_long_people_take_is_not_estimated():
    waits = StageAtWork("promote", 100.0, waits_for="a reviewer", waits_since=100.0)
    assert status.estimate_seconds_left(waits, 30.0, 110.0) is None
