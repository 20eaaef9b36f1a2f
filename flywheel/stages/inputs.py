"""Reading the partitions of the iteration at hand, as the stages need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flywheel.environments.env import Task
from flywheel.policy import checkpoint
from flywheel.stages.base import Context
from flywheel.store import manifest, partitions
from flywheel.synthesis.tasks import from_row


def rows(ctx: Context, table: str, *stages: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Rows of a table that the named stages of this iteration wrote; `columns`: these alone."""
    parts = (partitions.read(ctx.ws, table, ctx.iteration, stage, columns) for stage in stages)
    return [row for part in parts for row in part.to_pylist()]


def tasks(ctx: Context, stage: str, split: str | None = None) -> dict[str, Task]:
    """Tasks by id, in the order of the table; `split`: train or eval alone."""
    found = [from_row(row) for row in rows(ctx, "tasks", stage)]
    return {task.task_id: task for task in found if split in (None, task.split)}


def newest_model(ctx: Context) -> dict[str, Any]:
    """The model that the iteration before this one promoted: `model` (folder) and `digest`."""
    return manifest.read_promotion(ctx.ws, ctx.iteration - 1)


def newest_folder(ctx: Context) -> Path:
    """The folder of that model; a Hugging Face name (the first checkpoint's, perhaps) is fetched where it must be."""
    return checkpoint.resolve(newest_model(ctx)["model"], ctx.ws.root)
