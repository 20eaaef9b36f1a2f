"""synthesize: the iteration's tasks, training and held-out, and general screens for the mixes (section 2.5.1)."""

from __future__ import annotations

from pathlib import Path

from flywheel import termination
from flywheel.environments import catalogue
from flywheel.environments.env import Task
from flywheel.environments.router import open_environments
from flywheel.sandbox.manifests import load_all
from flywheel.stages import inputs, shards
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import metrics, screens
from flywheel.store.artifacts import Record
from flywheel.synthesis import levels, pages
from flywheel.synthesis.general import make_general
from flywheel.synthesis.tasks import make_tasks, to_row


def _pages(ctx: Context) -> dict:
    """What the tasks are made of besides the settings: the worlds and the third-party pages as they are."""
    s = ctx.settings
    return {
        "worlds": {name: catalogue.get(name).checksum for name in catalogue.names()},
        "pages": {name: pages.checksum(one) for name, one in load_all(s.synthesis.manifests, ctx.ws.root).items()},
    }


def _work(ctx: Context, folder: Path) -> dict:
    opened = levels.read(ctx.ws, ctx.iteration - 1)
    tasks = [
        task
        for split in ("train", "eval")
        for task in make_tasks(ctx.settings, ctx.iteration, split, ctx.ws.root, opened)
    ]
    if not all(task.instruction for task in tasks):
        ctx.report("reading the instructions that pages tell")
        tasks = termination.run(_instruct(ctx, tasks))
    ctx.report(f"{len(tasks)} tasks made; rendering general screens")
    general = make_general(ctx.settings.synthesis.general_samples, ctx.seed("general"), ctx.settings)
    pictures, rows = {}, []
    for sample in general:
        name = screens.sha256(sample.png)
        pictures[name] = sample.png
        rows.append(
            {
                "sample_id": sample.sample_id,
                "kind": sample.kind,
                "image_sha256": name,
                "instruction": sample.instruction,
                "response": sample.response,
            }
        )
    shards.write_shard(folder, "tasks", (to_row(task) for task in tasks))
    shards.write_shard(folder, "general", rows)
    shards.write_shard(folder, "images", screens.image_rows(pictures))
    return {}


async def _instruct(ctx: Context, tasks: list[Task]) -> list[Task]:
    silent = [task for task in tasks if not task.instruction]
    async with open_environments(ctx.settings, silent, ctx.ws.root) as environments:
        return await pages.instruct(tasks, environments.env)


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    results = {"synthesize": (folder, result)}
    manifests = {name: shards.gather(ctx, results, name) for name in ("tasks", "general", "images")}
    tasks = inputs.rows(ctx, "tasks", ctx.stage)
    train = [task for task in tasks if task["split"] == "train"]
    figures = [metrics.row("tasks", len(train))]
    for domain in ctx.settings.synthesis.domains:
        figures.append(metrics.row("tasks", sum(task["domain"] == domain for task in train), domain=domain))
    summary = {
        "tasks": len(train),
        "held out": len(tasks) - len(train),
        "worlds": len({task["world"] for task in tasks}),
        "general screens": manifests["general"].rows,
    }
    return StageResult(tuple(manifests.values()), tuple(figures), summary)


STAGE = single(
    "synthesize",
    reads=(Record("levels", previous=True),),
    writes=("tasks", "general", "images"),
    settings=("seed", "policy", "sandbox", "synthesis", "routing"),
    work=_work,
    finish=_finish,
    extra=_pages,
)
