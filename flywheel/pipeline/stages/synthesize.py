"""Make the iteration's training and held-out tasks, and general screens for training (stage `synthesize`).

UI-TARS-2 report, section 2.5.1.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.browser.pages.manifest import load_page_manifests
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks import open_levels, page_tasks
from flywheel.envs.tasks.drawing import draw_training_tasks, make_tasks, task_to_row
from flywheel.envs.tasks.grounding import GroundingExample, make_grounding_examples
from flywheel.pipeline.stage import Record, StageContext, StageResult, single_shard_stage, write_shard
from flywheel.store import images
from flywheel.store.schema import metric_row
from flywheel.synthesis import page_grounding
from flywheel.training.refresh import find_wanted
from flywheel.utils import processes


def _pages(ctx: StageContext) -> dict:
    """Return checksums of the suites and third-party pages, which the tasks depend on besides the settings."""
    s = ctx.settings
    return {
        "worlds": {name: registry.get_task_suite(name).checksum for name in registry.list_task_suites()},
        "pages": {
            name: page_tasks.page_checksum(one)
            for name, one in load_page_manifests(s.synthesis.manifests, ctx.ws.root).items()
        },
    }


def _work(ctx: StageContext, folder: Path) -> dict:
    opened = open_levels.read_open_levels(ctx.ws, ctx.iteration - 1)
    outcomes = open_levels.read_outcomes(ctx.ws, ctx.iteration - 1) if ctx.settings.synthesis.refresh else {}
    train = draw_training_tasks(ctx.settings, ctx.iteration, ctx.ws.root, opened, find_wanted(outcomes))
    reasons = {task.task_id: reason for task, reason in train}
    tasks = [task for task, _ in train] + make_tasks(ctx.settings, ctx.iteration, "eval", ctx.ws.root)
    if not all(task.instruction for task in tasks):
        ctx.report("reading the instructions that pages tell")
        tasks = processes.run_until_sigterm(_instruct(ctx, tasks))
    ctx.report(f"{len(tasks)} tasks made; rendering general screens")
    pages = _ask_about_pages(ctx, [task for task, _ in train])
    count = ctx.settings.synthesis.num_grounding_examples - len(pages)
    general = make_grounding_examples(count, ctx.seed("general"), ctx.settings)
    pictures, rows = {}, []
    for sample in [*general, *pages]:
        name = images.image_digest(sample.png)
        pictures[name] = sample.png
        told = {field: getattr(sample, field) for field in ("sample_id", "kind", "instruction", "response")}
        rows.append({**told, "image_sha256": name})
    write_shard(folder, "tasks", (task_to_row(task) | {"drawn_for": reasons.get(task.task_id)} for task in tasks))
    write_shard(folder, "grounding_examples", rows)
    write_shard(folder, "images", images.image_rows(pictures))
    return {"pages": len(pages)}


def _ask_about_pages(ctx: StageContext, train: list[Task]) -> list[GroundingExample]:
    count = page_grounding.count_page_examples(ctx.settings)
    if not count:
        return []
    ctx.report("asking about the pages of the tasks")
    making = page_grounding.make_page_examples(count, ctx.seed("pages"), ctx.settings, train, ctx.ws.root)
    made = processes.run_until_sigterm(making)
    if len(made) < count:
        ctx.report(f"the pages have {len(made)} of {count} examples; general screens take the place of the others")
    return made


async def _instruct(ctx: StageContext, tasks: list[Task]) -> list[Task]:
    silent = [task for task in tasks if not task.instruction]
    async with open_environments(ctx.settings, silent, ctx.ws.root) as environments:
        return await page_tasks.fetch_page_instructions(tasks, environments.env)


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    results = {"synthesize": (folder, result)}
    manifests = {name: ctx.gather_shards(results, name) for name in ("tasks", "grounding_examples", "images")}
    tasks = ctx.read_rows("tasks", ctx.stage)
    train = [task for task in tasks if task["split"] == "train"]
    figures = [metric_row("tasks", len(train))]
    for domain in ctx.settings.synthesis.domains:
        figures.append(metric_row("tasks", sum(task["domain"] == domain for task in train), domain=domain))
    drawn_for = Counter(task["drawn_for"] for task in train)
    told = sorted(drawn_for.items()) if ctx.settings.synthesis.refresh else []
    figures += [metric_row(f"tasks_{reason}", number) for reason, number in told]
    summary = {
        "tasks": len(train),
        **({"drawn for": ", ".join(f"{number} {reason}" for reason, number in told)} if told else {}),
        "held out": len(tasks) - len(train),
        "worlds": len({task["world"] for task in tasks}),
        "general screens": manifests["grounding_examples"].rows,
        **({"of pages": result["pages"]} if result["pages"] else {}),
    }
    return StageResult(tuple(manifests.values()), tuple(figures), summary)


STAGE = single_shard_stage(
    "synthesize",
    reads=(Record("levels", previous=True),),
    writes=("tasks", "grounding_examples", "images"),
    settings=("seed", "policy", "sandbox", "synthesis", "routing"),
    work=_work,
    finish=_finish,
    extra=_pages,
)
