"""score: a verifier reads each trajectory's recorded final state and gives it a score in [0, 1] (section 2.5.1).

A pure function of data on disk, so it can be run again on old trajectories when a verifier is mended.
"""

from __future__ import annotations

from pathlib import Path

from flywheel.errors import DataError
from flywheel.reward.verifiers import score
from flywheel.sandbox.env import Task
from flywheel.stages import data
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import metrics
from flywheel.store.artifacts import Partition


def _work(ctx: Context, folder: Path) -> dict:
    """Rows of `scores` for every trajectory that ended; crashed and invalid ones get none."""
    tasks = data.tasks(ctx, "ingest") | data.tasks(ctx, "synthesize")
    rows = []
    for trajectory in data.rows(ctx, "trajectories", "ingest", "rollout"):
        if trajectory["status"] in ("completed", "truncated"):
            rows.append(_score(ctx, trajectory, tasks.get(trajectory["task_id"])))
    return {"scores": rows}


def _score(ctx: Context, trajectory: dict, task: Task | None) -> dict:
    row = {"trajectory_id": trajectory["trajectory_id"], "scorer": "", "score": None, "v": None, "detail": ""}
    if task is None:
        return row | {"detail": "its task is not in the table tasks"}
    threshold = min(task.threshold, ctx.settings.routing.threshold)
    row |= {"scorer": f"verifier:{task.verifier}", "threshold": threshold}
    try:
        value = score(task, data.final_state(trajectory))
    except DataError as error:
        return row | {"detail": str(error)}
    return row | {"score": value, "v": value >= threshold}


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    rows = result["scores"]
    domains = {
        row["trajectory_id"]: row["domain"] for row in data.rows(ctx, "trajectories", "rollout")
    }  # P(V=1) is that of the model's own rollouts: human demonstrations are not counted
    verdicts = [(domains[row["trajectory_id"]], bool(row["v"])) for row in rows if row["trajectory_id"] in domains]
    figures = []
    for domain in (metrics.ALL, *ctx.settings.synthesis.domains):
        chosen = [v for name, v in verdicts if domain in (metrics.ALL, name)]
        figures.append(metrics.share("p_v1", sum(chosen), len(chosen), domain=domain))
    share = figures[0]["value"]
    summary = {"scored": len(rows), "P(V=1)": "none" if share is None else f"{share:.3f}"}
    return StageResult((ctx.write("scores", rows),), tuple(figures), summary)


STAGE = single(
    "score",
    reads=(
        Partition("trajectories", "ingest"), Partition("trajectories", "rollout"),
        Partition("tasks", "ingest"), Partition("tasks", "synthesize"),
    ),
    writes=("scores",),
    settings=("synthesis", "routing"),
    work=_work, finish=_finish,
)  # fmt: skip
