"""Evaluate the newest model on fresh tasks, between iterations (`flywheel model eval`).

The results, one row per episode, lie in `iterations/NNN/checkup.json` of the iteration that made the model. Git tracks
this file, and the SQL view `fresh_evaluations` reads it. A model is not evaluated twice on the same tasks with the same
settings.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.envs.base import Task
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks import page_tasks
from flywheel.envs.tasks.drawing import fresh_tasks, task_content
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.evaluation import gate
from flywheel.evaluation.evaluator import evaluate_policy
from flywheel.maintenance.rollback import recover_workspace
from flywheel.pipeline import iterations
from flywheel.pipeline.stages.evaluate import demonstrated_tasks
from flywheel.policy import checkpoint, open_policy
from flywheel.store import manifest
from flywheel.store.versioning import dvc_files, git_tags
from flywheel.utils import progress
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_json

CHECKUP = "checkup"  # the name of this work in progress lines
_AT_ONCE = 20  # tasks per saved part: after a kill, finished parts are not played again


@dataclass(frozen=True)
class Checkup:
    """Hold the outcome of a check-up: the newest model's episodes on fresh tasks.

    iteration: the one that made the model. rows: one per episode, as in `checkup.json`. before: whether they were read
    from an earlier check-up rather than played.
    """

    iteration: int
    rows: Sequence[dict[str, Any]]
    before: bool

    def shares(self) -> dict[str, tuple[int, int]]:
        """Return domain -> (solved episodes, all episodes), counted; the key `all`, for every domain, comes first."""
        domains = ("all", *dict.fromkeys(row["domain"] for row in self.rows))
        of = {name: [row["success"] for row in self.rows if name in ("all", row["domain"])] for name in domains}
        return {name: (sum(outcomes), len(outcomes)) for name, outcomes in of.items()}

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {solved} of {n}" for name, (solved, n) in self.shares().items())
        return f"the model of iteration {iteration_label(self.iteration)} on fresh tasks: {shares}"


def run_checkup(ws: Workspace, settings: Settings, run_id: str = "") -> Checkup:
    """Evaluate the newest model on fresh tasks. Call it under the workspace's lock; after a kill the next call resumes.

    settings: the workspace's; `operations.checkup_tasks` tasks are drawn. run_id: the Prefect run's id, stored in the
    episodes' rows. Writes the iteration's `checkup.json`, and commits it where `versioning.git` is set. Returns the new
    outcome, or the stored one where the model was evaluated in the same way before. Raises what `recover_workspace`
    does; BadInput where no fresh task is left to be drawn, the settings name a suite, scorer or template that does not
    exist, or a back-end cannot be used; ModelError where the model cannot be loaded; DataError where a scorer that a
    verdict depends on failed, or an earlier `checkup.json`, manifest, promotion or table is missing or damaged;
    EnvError where an environment or page does not open; PolicyError where the policy fails; FlywheelError where git
    refuses; DiskFull.
    """
    recover_workspace(ws)
    iterations.record_base_model(ws, settings)
    last = iterations.newest_iteration(ws)
    k = last if last == 0 or dvc_files.is_iteration_complete(ws, last) else last - 1
    newest, made = manifest.read_promotion(ws, k), find_origin_iteration(ws, k)
    tasks = _draw_tasks(ws, settings, k, made)
    about = gate.held_out_key(settings, [task.task_id for task in tasks])
    path = ws.checkup(made)
    known = read_checkup(ws, made)
    if (known.get("digest"), known.get("about")) == (newest["digest"], about):
        return Checkup(made, known["rows"], before=True)
    folder = ws.state / CHECKUP / f"{newest['digest'][:12]}-{about}"
    model = checkpoint.resolve_checkpoint(newest["model"], ws.root)
    rows = asyncio.run(_play_tasks(ws, settings, model, tasks, made, folder, run_id))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    found = {"model": newest["model"], "digest": newest["digest"], "about": about, "at": at, "rows": rows}
    write_json(path, found)
    shutil.rmtree(folder.parent, ignore_errors=True)
    if settings.versioning.git:
        message = f"Check-up of the model of iteration {iteration_label(made)}"
        git_tags.commit_to_git(ws.root, message, (ws.relative(path),))
    return Checkup(made, rows, before=False)


def read_checkup(ws: Workspace, iteration: int) -> dict[str, Any]:
    """Read the check-up of the model that `iteration` made; {} where there is none.

    Keys: `model` (its folder or name), `digest` of its weights, `about` (a hash of the tasks and settings), `at`
    (ISO 8601), `rows`. Raises DataError for a damaged file.
    """
    path, fix = ws.checkup(iteration), "restore it from git, or delete it: the model is evaluated again"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"not valid JSON: {error}", where=ws.relative(path), fix=fix) from None
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise DataError("not a check-up: it has no list `rows`", where=ws.relative(path), fix=fix)
    return found


def find_origin_iteration(ws: Workspace, k: int) -> int:
    """Return the iteration that made the model promoted after iteration k; 0 for the first checkpoint.

    Raises DataError where a promotion is missing or damaged.
    """
    newest = manifest.read_promotion(ws, k)["digest"]
    while k and manifest.read_promotion(ws, k - 1)["digest"] == newest:
        k -= 1
    return k


def _draw_tasks(ws: Workspace, settings: Settings, k: int, made: int) -> list[Task]:
    count = settings.operations.checkup_tasks
    shown = {task_content(task) for task in demonstrated_tasks(ws, k)} if k else set()
    tasks = [task for task in fresh_tasks(settings, made, count, ws.root) if task_content(task) not in shown]
    if not tasks:
        raise BadInput(
            "no fresh task can be drawn", where="synthesis.domains", fix="name a world whose tasks have seeds"
        )
    return tasks


async def _play_tasks(
    ws: Workspace, settings: Settings, model: Path, drawn: list[Task], made: int, folder: Path, run_id: str
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with open_environments(settings, drawn, ws.root) as environments:
        tasks = await page_tasks.fetch_page_instructions(drawn, environments.env)
        policy = open_policy(model, settings.policy)
        try:
            for start in range(0, len(tasks), _AT_ONCE):
                path, these = folder / f"{start:05d}.json", tasks[start : start + _AT_ONCE]
                if not path.is_file():
                    judged = await evaluate_policy(
                        policy, these, environments, iteration=made, settings=settings, run_id=run_id
                    )
                    write_json(path, [_row(settings, one.task, one.episode, one.result) for one in judged])
                rows += json.loads(path.read_text(encoding="utf-8"))
                progress.report_progress(CHECKUP, f"{start + len(these)} of {len(tasks)} fresh tasks done")
        finally:
            await policy.close()
    return rows


def _row(settings: Settings, task: Task, episode: Any, result: Any) -> dict[str, Any]:
    asked = {name: getattr(task, name) for name in ("task_id", "domain", "world", "template", "level")}
    played = {"sample": episode.trajectory.sample, "status": episode.trajectory.status}
    return {**asked, "held_out": is_held_out(settings, task), **played, "score": result.score, "success": result.v}
