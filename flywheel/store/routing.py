"""Route every trajectory to exactly one store (section 2.3): V = 1 to SFT, the rest to CT; nothing is thrown
away.

Pure functions over rows; `stage.py` reads and writes the partitions.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from flywheel.store import lineage

Row = Mapping[str, Any]
DESTINATIONS = ("sft", "ct", "quarantine")
STATUSES = ("completed", "truncated", "crashed", "invalid")


def route(
    trajectories: Iterable[Row],
    scores: Iterable[Row],
    threshold: float,
    broken: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of the table `routes`, one for each row of `trajectories`, in their order.

    threshold: V = 1 where score >= threshold, unless the score's row carries a threshold of its own (a task
    may ask for more). With several scorers every one must reach its threshold, and the lowest score counts.
    broken: trajectory_id -> reason, from the row-level contracts.
    Demonstrations of people go to CT: they are data for continual training (section 2.4), not the newest
    model's.
    """
    by_trajectory = defaultdict(list)
    for score in scores:
        by_trajectory[score["trajectory_id"]].append(score)
    broken = broken or {}
    return [
        _destination(t, by_trajectory[t["trajectory_id"]], threshold, broken.get(t["trajectory_id"]))
        for t in trajectories
    ]


def _destination(trajectory: Row, scores: list[Row], threshold: float, broken: str | None) -> dict[str, Any]:
    status, score, v = trajectory["status"], *_verdict(scores, threshold)
    if broken:
        destination, reason = "quarantine", f"contract: {broken}"
    elif status not in ("completed", "truncated"):
        error = trajectory.get("error")
        destination, reason = "quarantine", f"status {status}" + (f": {error}" if error else "")
    elif trajectory["source"] == "recording":
        destination, reason = "ct", "human demonstration: continual training"
    elif v is None:
        destination, reason = "quarantine", "no score" if not scores else "score is not a number"
    elif v:
        destination, reason = "sft", f"verified: score {score:.2f}"
    else:
        destination, reason = "ct", f"not verified: score {score:.2f}"
    return {
        "trajectory_id": trajectory["trajectory_id"], "destination": destination, "reason": reason, "score": score,
        "v": v,
    }  # fmt: skip


def _verdict(scores: list[Row], threshold: float) -> tuple[float | None, bool | None]:
    """The lowest score and V; (None, None) without a usable score."""
    values = [score["score"] for score in scores]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None, None
    limits = [threshold if score.get("threshold") is None else score["threshold"] for score in scores]
    return min(values), all(value >= limit for value, limit in zip(values, limits, strict=True))


def build_stores(trajectories: Iterable[Row], routes: Iterable[Row], iteration: int) -> dict[str, list[dict]]:
    """Rows of the tables `sft`, `ct`, `quarantine` and `lineage` of one iteration.

    A quarantined trajectory keeps its whole row as JSON in `record`, so that it can be mended and routed
    again.
    """
    stores: dict[str, list[dict]] = {"sft": [], "ct": [], "quarantine": [], "lineage": []}
    for trajectory, decision in zip(trajectories, routes, strict=True):
        destination = decision["destination"]
        if destination == "quarantine":
            stores["quarantine"].append(_set_aside(trajectory, decision["reason"]))
        else:
            stores[destination].append(
                {
                    "trajectory_id": trajectory["trajectory_id"],
                    "task_id": trajectory["task_id"],
                    "domain": trajectory["domain"],
                    "source": trajectory["source"],
                    "score": decision["score"],
                    "steps": trajectory["steps"],
                    "policy_version": trajectory["policy_version"],
                }
            )
        stores["lineage"] += lineage.routed(trajectory, destination, iteration)
    return stores


def _set_aside(trajectory: Row, reason: str) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory["trajectory_id"], "reason": reason, "detail": trajectory.get("error") or "",
        "record": json.dumps(trajectory, default=_json, sort_keys=True, ensure_ascii=False),
    }  # fmt: skip


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
