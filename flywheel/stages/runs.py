"""runs: flow and task runs of the iteration, as the orchestrator told them, become a table.

Without an orchestrator (`dvc repro` alone) there are none, and the table has no rows.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from flywheel.stages.base import Context, StageResult, single
from flywheel.store import manifest
from flywheel.store.artifacts import Record


def _history(ctx: Context) -> list[dict]:
    path = ctx.ws.run_history(ctx.iteration)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    manifest.read_promotion(ctx.ws, ctx.iteration)  # an iteration that is not decided has not ended
    rows = []
    for row in _history(ctx):
        times = {key: datetime.fromisoformat(row[key]) if row[key] else None for key in ("started_at", "ended_at")}
        rows.append({**row, **times})
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
