"""A workspace whose stage `promote` waits for a reviewer."""

from __future__ import annotations

from flywheel import config
from flywheel.config.workspace import Workspace
from flywheel.pipeline import stage
from flywheel.store import partitions
from flywheel.store.schema import fraction_metric_row, metric_row
from flywheel.utils.files import write_json, write_text


def waiting(ws: Workspace, seconds: float, unanswered: str = "keep") -> stage.StageContext:
    """The stage `promote` of a workspace where a reviewer has to decide within `seconds`."""
    write_text(ws.params, "seed: 7\n")
    write_text(ws.root / "dvc.yaml", "")
    rule = {"rule": "review", "review_timeout_s": seconds, "on_timeout": unanswered}
    chosen = config.parse_settings({"promotion": rule}, where="")
    write_text(ws.frozen_params(1), config.dump_settings(chosen))
    rows = [fraction_metric_row("success_after", 3, 4), metric_row("success_difference", 0.25, low=-0.1, high=0.6, n=4)]
    partitions.write_partition(ws, "metrics", 1, "evaluate", rows)
    write_json(ws.promotion(0), {"model": "models/base", "digest": "d0"})
    return stage.StageContext.open(ws, 1, "promote")
