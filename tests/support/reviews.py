"""A workspace whose stage `promote` waits for a reviewer."""

from __future__ import annotations

from flywheel import settings
from flywheel.files import write_json, write_text
from flywheel.stages import base
from flywheel.store import metrics, partitions
from flywheel.workspace import Workspace


def waiting(ws: Workspace, seconds: float, unanswered: str = "keep") -> base.Context:
    """The stage `promote` of a workspace where a reviewer has to decide within `seconds`."""
    write_text(ws.params, "seed: 7\n")
    write_text(ws.root / "dvc.yaml", "")
    rule = {"rule": "review", "review_timeout_s": seconds, "unanswered": unanswered}
    chosen = settings.parse({"promotion": rule}, where="")
    write_text(ws.frozen_params(1), settings.dump(chosen))
    rows = [metrics.share("success_after", 3, 4), metrics.row("success_difference", 0.25, low=-0.1, high=0.6, n=4)]
    partitions.write(ws, "metrics", 1, "evaluate", rows)
    write_json(ws.promotion(0), {"model": "models/base", "digest": "d0"})
    return base.Context.open(ws, 1, "promote")
