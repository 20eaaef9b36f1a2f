"""Route every trajectory to exactly one store (section 2.3): V = 1 to SFT, the rest to CT; nothing is thrown
away.

Pure functions over rows; `build.py` reads and writes the partitions. What V is says `reward.verdict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from flywheel.reward.verdict import Verdict, of_rows
from flywheel.store import lineage

Row = Mapping[str, Any]
DESTINATIONS = ("sft", "ct", "quarantine")
STATUSES = ("completed", "truncated", "crashed", "invalid")


def route(
    trajectories: Iterable[Row],
    scores: Iterable[Row],
    broken: Mapping[str, str] | None = None,
    *,
    verified_only: bool = True,
) -> list[dict[str, Any]]:
    """Rows of the table `routes`, one for each row of `trajectories`, in their order.

    scores: rows of the table `scores`, one or several a trajectory, each with its threshold.
    broken: trajectory_id -> reason, from the row-level contracts. verified_only: False where SFT takes what failed too,
    as `sft.verified_only`.
    Demonstrations of people go to CT: they are data for continual training (section 2.4), not the newest
    model's.
    """
    verdicts, broken = of_rows(scores), broken or {}
    return [
        _destination(t, verdicts.get(t["trajectory_id"]), broken.get(t["trajectory_id"]), verified_only)
        for t in trajectories
    ]


def _destination(trajectory: Row, verdict: Verdict | None, broken: str | None, verified_only: bool) -> dict[str, Any]:
    status = trajectory["status"]
    # A score without a verdict is none: what is not a number, what stands against no threshold.
    score, v = (None, None) if verdict is None or verdict.v is None else (verdict.score, verdict.v)
    if broken:
        destination, reason = "quarantine", f"contract: {broken}"
    elif status not in ("completed", "truncated"):
        error = trajectory.get("error")
        destination, reason = "quarantine", f"status {status}" + (f": {error}" if error else "")
    elif trajectory["source"] in ("recording", "import"):
        destination, reason = "ct", "human demonstration: continual training"
    elif v is None:
        destination, reason = "quarantine", _unjudged(verdict)
    elif v:
        destination, reason = "sft", f"verified: score {score:.2f}"
    elif not verified_only:
        destination, reason = "sft", f"not verified, and not asked to be: score {score:.2f}"
    else:
        destination, reason = "ct", f"not verified: score {score:.2f}"
    return {
        "trajectory_id": trajectory["trajectory_id"],
        "destination": destination,
        "reason": reason,
        "score": score,
        "v": v,
    }


def _unjudged(verdict: Verdict | None) -> str:
    """Why there is no V; what differs from trajectory to trajectory in brackets."""
    if verdict is None:
        return "no score"
    if verdict.detail:
        return f"no score by {verdict.scorer} ({verdict.detail})" if verdict.scorer else f"no score ({verdict.detail})"
    return "score is not a number"


def build_stores(
    trajectories: Iterable[Row], routes: Iterable[Row], iteration: int, weights: Mapping[str, float] | None = None
) -> dict[str, list[dict]]:
    """Rows of the tables `sft`, `ct`, `quarantine` and `lineage` of one iteration.

    weights: of the trajectories that do not weigh 1 in training.

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
                    "weight": (weights or {}).get(trajectory["trajectory_id"], 1.0),
                }
            )
        stores["lineage"] += lineage.routed(trajectory, destination, iteration)
    return stores


def _set_aside(trajectory: Row, reason: str) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory["trajectory_id"],
        "reason": reason,
        "detail": trajectory.get("error") or "",
        "record": json.dumps(trajectory, default=_json, sort_keys=True, ensure_ascii=False),
    }


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
