"""A small store for the explorer's tests, and the explorer on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from processes import PATIENCE_S
from synthetic_rows import image_row, step, task, trajectory

from flywheel.config.workspace import Workspace
from flywheel.store import lineage
from flywheel.store.partitions import write_partition
from flywheel.ui.explorer.app import ExplorerServer, serve_explorer
from flywheel.utils.files import write_json

SCRIPT = "<script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
KINDS = ("click", "type", "drag", "scroll")


def rollouts(ws: Workspace, iteration: int = 1, *, stage: str = "rollout", policy: str = "d0base") -> list[str]:
    """Six rollouts of three tasks, every other one verified; what they were asked and thought holds a script."""
    split = "eval" if stage == "evaluate" else "train"
    tasks = [task(f"k{n}", "sites", world, split) for n, world in enumerate(("shop", "settings", "shop"))]
    rows = [
        trajectory(
            f"t{iteration}{stage[0]}{n}",
            tasks[n // 2],
            sample=n % 2,
            steps=4,
            reward=float(n % 2),
            policy_version=policy,
            instruction=f"Buy mug {n} {SCRIPT if n == 5 else ''}".strip(),
        )
        for n in range(6)
    ]
    steps = [
        {**step(row, n, total=4, kind=KINDS[n]), "thought": f"I look for mug {n} {SCRIPT if n == 1 else ''}".strip()}
        for row in rows
        for n in range(4)
    ]
    for one in steps:
        if one["action_type"] == "type":
            one["action"] = f"type(content='{SCRIPT[:40]}')"
    drawn = [task("drawn", "sites", "shop")] if stage == "evaluate" else []  # each iteration draws some to train on
    write_partition(ws, "tasks", iteration, "synthesize", [*tasks, *drawn])
    write_partition(ws, "trajectories", iteration, stage, rows)
    write_partition(ws, "steps", iteration, stage, steps)
    write_partition(
        ws, "images", iteration, stage, [image_row(n) for n in range(3)]
    )  # that of the fourth step is missing
    judged = [{"trajectory_id": row["trajectory_id"], "scorer": "verifier", "score": row["reward"]} for row in rows]
    scores = [one | {"success": one["score"] == 1.0, "threshold": 1.0, "detail": ""} for one in judged]
    write_partition(ws, "scores", iteration, "evaluate" if stage == "evaluate" else "score", scores)
    if stage == "rollout":
        routes = [
            {
                **one,
                "destination": "sft" if one["success"] else "ct",
                "reason": "verified" if one["success"] else "not verified",
            }
            for one in scores
        ]
        write_partition(ws, "routes", iteration, "route", [{k: one[k] for k in _ROUTE} for one in routes])
    return [row["trajectory_id"] for row in rows]


def held_out(ws: Workspace) -> None:
    """Two promoted models, each on the same held-out tasks: of the second's episodes the first two were solved."""
    for k, policy in ((1, "one"), (2, "two")):
        rollouts(ws, k, stage="evaluate", policy=policy)
        promoted = {"model": f"m{k}", "digest": policy, "iteration": k, "promoted": True, "reason": ""}
        write_json(ws.promotion(k), promoted)
        write_partition(ws, "lineage", k, "merge", lineage.checkpoint_links(f"m{k}", policy))
    won = [
        {"trajectory_id": f"t2e{n}", "scorer": "verifier", "score": 1.0 * (n < 2), "success": n < 2} for n in range(6)
    ]
    write_partition(ws, "scores", 2, "evaluate", [one | {"threshold": 1.0, "detail": ""} for one in won])


_ROUTE = ("trajectory_id", "destination", "reason", "score", "success")


@contextmanager
def explorer(
    ws: Workspace, other: Workspace | None = None, **rights: bool
) -> Iterator[tuple[ExplorerServer, httpx.Client]]:
    """The explorer, and a client that is logged in. rights: of its pages (`allow_runs`)."""
    with (
        serve_explorer(ws, 0, other, **rights) as served,
        httpx.Client(base_url=served.url, timeout=PATIENCE_S) as client,
    ):
        assert client.get(served.entrance()).status_code == 303
        yield served, client
