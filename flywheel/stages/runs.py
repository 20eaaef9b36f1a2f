"""runs: flow and task runs of the iteration, as the orchestrator told them, become a table.

Without an orchestrator (`dvc repro` alone) there are none, and the table has no rows.
"""

from __future__ import annotations

from pathlib import Path

from flywheel.stages.base import Context, StageResult, single
from flywheel.store import history, manifest
from flywheel.store.artifacts import Record


def _history(ctx: Context) -> list[dict]:
    return history.told(ctx.ws, ctx.iteration)


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    manifest.read_promotion(ctx.ws, ctx.iteration)  # an iteration that is not decided has not ended
    rows = history.as_rows(_history(ctx))
    return StageResult((ctx.write("runs", rows),), (), {"runs": len(rows)})


STAGE = single(
    "runs",
    reads=(Record("promotion"),),
    writes=("runs",),
    settings=(),
    work=lambda ctx, folder: {},
    finish=_finish,
    extra=_history,
    closing=True,
)
