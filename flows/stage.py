"""One stage, whoever runs it: its shards, its finish, its version."""

from __future__ import annotations

from prefect import flow
from prefect.runtime import flow_run

from flows import progress_bar, telling
from flows.review import ask_reviewer
from flows.route_review import ask_about_routes
from flywheel import cluster
from flywheel.progress import report
from flywheel.stages.base import Context
from flywheel.store import pipeline
from flywheel.workspace import Workspace
from tasks import tags
from tasks.stages import do_shards, finish_stage, record_version


@flow
def stage(workspace: str, number: int, name: str) -> str:
    """In the process of its iteration. Returns what came of it, in a line."""
    ctx = Context.open(Workspace.find(workspace), number, name, run_id=flow_run.id or "")
    with telling.to_prefect():
        return do(ctx)


def do(ctx: Context) -> str:
    """Called within a flow. Returns what came of it, in a line."""
    report(ctx.stage, "begins")
    ask_about_routes(ctx)
    ask_reviewer(ctx)
    with tags.none():
        with cluster.current().workers(pipeline.get(ctx.stage), ctx) as workers:
            shards = pipeline.get(ctx.stage).plan(ctx)
            with progress_bar.shown(ctx, shards):
                results = do_shards(ctx, shards, workers)
        outcome = finish_stage(ctx, results)
        record_version(ctx)
    summary = ", ".join(f"{key} {value}" for key, value in outcome.summary.items())
    report(ctx.stage, f"ended: {summary}")
    return summary
