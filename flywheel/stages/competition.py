"""Models compete for promotion: fresh tasks, a look at a time, until the gate knows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.environments.env import Task
from flywheel.environments.router import Environments, open_environments
from flywheel.evaluation.gate import EvalResult, Judgement, judge, paired
from flywheel.files import write_json
from flywheel.settings import Promotion
from flywheel.stages import episodes, shards
from flywheel.stages.base import Context
from flywheel.store import manifest, partitions
from flywheel.synthesis import pages
from flywheel.synthesis.tasks import content, from_row, make_tasks, to_row
from flywheel.workspace import Workspace

Looks = dict[str, tuple[Path, dict[str, Any]]]  # what was played: name -> folder, results
Results = Mapping[str, Sequence[Mapping[str, Any]]]  # player -> rows of EvalResult


async def compete(ctx: Context, candidate: Path, rivals: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Let the candidate and its rivals play fresh tasks until the gate knows of each rival, or no task is left.

    rivals: name (`before`, `best`) -> model. Each look lies in a folder of its own, so a killed run takes up what it
    has played. Returns the names of the looks, and each player's results; the candidate's by the name `after`.
    """
    rule, players = ctx.settings.promotion, {"after": candidate, **rivals}
    results: dict[str, list[dict]] = {name: [] for name in players}
    looks: list[str] = []
    drawn = _draw(ctx)
    async with open_environments(ctx.settings, drawn, ctx.ws.root) as environments:
        fresh = await pages.instruct(drawn, environments.env)
        for start in range(0, len(fresh), rule.tasks_per_look):
            tasks = fresh[start : start + rule.tasks_per_look]
            for name, model in players.items():
                look = f"{start + 1:03d}-{start + len(tasks):03d}-{name}"
                results[name] += (await _look(ctx, look, model, tasks, environments, folder / look))["results"]
                looks.append(look)
            verdicts = {name: found.verdict for name, found in judged(results, rule).items()}
            ctx.report(f"{start + len(tasks)} fresh tasks: " + ", ".join(f"{v} ({k})" for k, v in verdicts.items()))
            if "fail" in verdicts.values() or "undecided" not in verdicts.values():
                break
    return {"looks": looks, "results": results}


def looks(folder: Path, names: Iterable[str]) -> Looks:
    """The looks of a competition, as `shards.read_shards` wants them."""
    return {name: (folder / name, _read(folder / name)) for name in names}


def judged(results: Results, rule: Promotion) -> dict[str, Judgement]:
    """What the fresh tasks say of the candidate against each rival; nothing where none were played."""
    played = {name: [EvalResult(**row) for row in rows] for name, rows in results.items()}
    new = played.pop("after", [])
    return {name: judge(paired(old, new), rule) for name, old in played.items()}


async def _look(
    ctx: Context, name: str, model: Path, tasks: Sequence[Task], environments: Environments, folder: Path
) -> dict[str, Any]:
    if not _file(folder).is_file():
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a few microseconds)
        result = await episodes.play(ctx, name, model, tasks, environments, folder)
        shards.write_shard(folder, "tasks", (to_row(task) for task in tasks))
        write_json(_file(folder), result)
    return _read(folder)


def _file(folder: Path) -> Path:
    return folder / "result.json"


def _read(folder: Path) -> dict[str, Any]:
    return json.loads(_file(folder).read_text(encoding="utf-8"))


def _draw(ctx: Context) -> list[Task]:
    """An iteration's gate tasks, none with the content of a recorded demonstration."""
    shown = {content(task) for task in recorded(ctx.ws, ctx.iteration)}
    tasks = make_tasks(ctx.settings, ctx.iteration, "gate", ctx.ws.root)
    return [task for task in tasks if content(task) not in shown]


def recorded(ws: Workspace, iteration: int) -> list[Task]:
    """Tasks of the recordings that training has taken in so far: people record what they like."""
    shards = manifest.read(ws, iteration).shards("tasks")
    paths = [ws.resolve(shard.path) for shard in shards if shard.stage == "ingest"]
    return [from_row(row) for path in paths for row in partitions.read_file(ws, "tasks", path).to_pylist()]
