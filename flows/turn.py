"""One turn of the flywheel (section 2.3): the stages in their order. Nothing is decided here but the order."""

from __future__ import annotations

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from flows.review import ask_reviewer
from flywheel import cluster
from flywheel.progress import report
from flywheel.stages.base import Context, StageResult
from flywheel.store import frozen, pipeline, versioning
from flywheel.workspace import Workspace, label
from tasks.stages import do_shards, finish_stage, publish_report, record_version


@flow(name="turn", flow_run_name="iteration {iteration:03d}")
def turn(workspace: str, iteration: int) -> None:
    """ingest, synthesize; rollout, score, route; ct, sft, rl (one a domain), merge; evaluate, promote.

    A stage that is recorded and whose inputs have not changed is passed over.
    """
    ws = Workspace.find(workspace)
    for name in pipeline.order(frozen.load(ws, iteration).synthesis.domains):
        if versioning.is_done(ws, name, iteration):
            report(name, "was done before")
            continue
        run = stage.with_options(name=name, flow_run_name=f"{label(iteration)} {name}")
        run(workspace, iteration, name)
    publish_report(Context.open(ws, iteration, "report", run_id=flow_run.id or ""))


@flow
def stage(workspace: str, iteration: int, name: str) -> StageResult:
    """One stage: its shards, its finish, its version."""
    ctx = Context.open(Workspace.find(workspace), iteration, name, run_id=flow_run.id or "")
    report(name, "begins")
    ask_reviewer(ctx)
    with cluster.current().workers(pipeline.get(name), ctx) as workers:
        results = do_shards(ctx, pipeline.get(name).plan(ctx), workers)
    outcome = finish_stage(ctx, results)
    record_version(ctx)
    summary = ", ".join(f"{key} {value}" for key, value in outcome.summary.items())
    get_run_logger().info("%s", summary)
    report(name, f"ended: {summary}")
    return outcome
