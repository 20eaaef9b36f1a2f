"""Write the iteration's flow runs and task runs, as Prefect reported them, to the table `runs` (stage `runs`).

Without an orchestrator (`dvc repro` alone) the table has no rows.
"""

from __future__ import annotations

from pathlib import Path

from flywheel.pipeline.stage import Record, StageContext, StageResult, single_shard_stage
from flywheel.store import manifest
from flywheel.store.catalog import run_history


def _history(ctx: StageContext) -> list[dict]:
    return run_history.read_run_history(ctx.ws, ctx.iteration)


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    manifest.read_promotion(ctx.ws, ctx.iteration)  # raises where it is undecided: the iteration has not ended
    rows = run_history.run_history_rows(_history(ctx))
    return StageResult((ctx.write("runs", rows),), (), {"runs": len(rows)})


STAGE = single_shard_stage(
    "runs",
    reads=(Record("promotion"),),
    writes=("runs",),
    settings=(),
    work=lambda ctx, folder: {},
    finish=_finish,
    extra=_history,
    closing=True,
)
