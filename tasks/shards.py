"""Wrap the parts of a stage in Prefect tasks: each shard, the finish, the record in DVC, the report.

They add what Prefect gives (retries, names, states, artifacts) and no logic of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext

from flywheel.cluster import StageWorkers
from flywheel.pipeline import dag, stage
from flywheel.pipeline.stage import StageContext, StageResult
from flywheel.store.versioning import stage_records
from flywheel.ui.report import pages
from flywheel.utils.errors import BadInput, ContractBroken, DiskFull, EnvError, PolicyError
from tasks import artifacts


def _worth_a_retry(task, run, state) -> bool:
    """Tell whether to retry: failures of environments and inference may be chance; bad input and full disks stay."""
    try:
        state.result()
    except (BadInput, ContractBroken, DiskFull):
        return False
    except (EnvError, PolicyError, OSError):
        return True
    except Exception:
        return False
    return False


# No Prefect cache: the workspace itself says what is finished (flywheel/pipeline/stage.py), and so does DVC.
@task(
    task_run_name="{shard}", retries=2, retry_delay_seconds=1, retry_condition_fn=_worth_a_retry, cache_policy=NO_CACHE
)
def do_shard(ctx: StageContext, shard: str, workers: StageWorkers) -> tuple[Path, Any]:
    """Do one shard of a stage, or take its stored result from an earlier run; return its folder and result.

    ctx: of the stage. shard: its name. workers: run it. A progress line says that it is done, or was done before. After
    an EnvError, PolicyError or OSError Prefect tries it twice more. Raises as `StageWorkers.do_shard`.
    """
    folder, result, before = workers.do_shard(shard)
    ctx.report_part(f"{shard} was done before" if before else f"{shard} done", 1, 1, shard)
    return folder, result


def do_shards(ctx: StageContext, shards: Sequence[str], workers: StageWorkers) -> dict[str, tuple[Path, Any]]:
    """Do all shards of a stage: one after the other in this process, at once where they are done on other machines.

    ctx: of the stage. shards: their names. workers: run them. Returns, by shard in their order, its folder and result.
    Raises what `do_shard` does. Call it within a flow.
    """
    if not workers.runs_concurrently:
        return {shard: do_shard(ctx, shard, workers) for shard in shards}
    asked = {shard: do_shard.submit(ctx, shard, workers) for shard in shards}
    return {shard: one.result() for shard, one in asked.items()}


@task(task_run_name="finish {ctx.stage}", cache_policy=NO_CACHE)
def finish_stage(ctx: StageContext, results: dict[str, tuple[Path, Any]]) -> StageResult:
    """Write the partitions and metrics of the stage of `ctx`, and return what was written.

    results: by shard, its folder and result. Where Prefect runs this, it also publishes them as artifacts, with the
    errors of `publish_stage_artifacts`. Raises as `publish_stage_result`.
    """
    outcome = stage.publish_stage_result(dag.find_stage(ctx.stage), ctx, results)
    if TaskRunContext.get() is not None:
        artifacts.publish_stage_artifacts(ctx, outcome)
    return outcome


@task(task_run_name="version {ctx.stage}", cache_policy=NO_CACHE)
def record_version(ctx: StageContext) -> None:
    """Record the outputs of the stage of `ctx` in DVC (`dvc commit`), then remove what was staged for it.

    Raises as `stage_records.record_stage`.
    """
    stage_records.record_stage(ctx.ws, ctx.stage, ctx.iteration)
    stage.clear_staging(ctx)


@task(task_run_name="report", cache_policy=NO_CACHE)
def publish_report(ctx: StageContext) -> None:
    """Write the report's pages of the workspace of `ctx`, and publish their path on the run's page in Prefect.

    Raises as `write_report` and `publish_report_artifact`.
    """
    pages.write_report(ctx.ws)
    artifacts.publish_report_artifact(ctx)
