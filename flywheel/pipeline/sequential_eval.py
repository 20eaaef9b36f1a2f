"""Play fresh tasks with the candidate and its baselines, a look at a time, until the promotion gate decides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.config import PromotionSettings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.router import EnvProvider, open_environments
from flywheel.envs.tasks import drawing
from flywheel.envs.tasks.drawing import make_tasks, task_content, task_from_row, task_to_row
from flywheel.evaluation.evaluator import evaluate_policy
from flywheel.evaluation.gate import EvalResult, GateJudgement, judge_differences, pair_differences
from flywheel.pipeline import stage_io
from flywheel.pipeline.stage import StageContext
from flywheel.policy import open_policy
from flywheel.rollout.episode import RolloutStats
from flywheel.store import manifest, partitions
from flywheel.utils.files import write_json

# Playing tasks: episodes, scores and results are staged.


async def play_and_stage(
    ctx: StageContext, name: str, model: Path, tasks: Sequence[Task], environments: EnvProvider, folder: Path
) -> dict[str, Any]:
    """Play evaluation.n_trials episodes of each task and stage them in `folder`.

    name: of the player, for progress lines. model: its checkpoint. tasks: fresh ones. environments: lends an
    environment for each. Returns `results`, a row an episode, and `around`, the counts of crashes and retries.
    """
    done, total, stats = 0, len(tasks) * ctx.settings.evaluation.n_trials, RolloutStats()

    def count(episode) -> None:
        nonlocal done
        done += 1
        ctx.report_part(f"{name}: {done} of {total} episodes", done, total, name)

    policy = open_policy(model, ctx.settings.policy)
    try:
        judged = await evaluate_policy(
            policy,
            tasks,
            environments,
            iteration=ctx.iteration,
            settings=ctx.settings,
            on_episode=count,
            run_id=ctx.run_id,
            stats=stats,
        )
    finally:
        await policy.close()
    stage_io.write_episode_shard(folder, [one.episode for one in judged])
    stage_io.write_shard(folder, "scores", [verdict.row(one.episode.id) for one in judged for verdict in one.verdicts])
    return {"results": [vars(one.result) for one in judged], "around": vars(stats)}


# The sequential test: fresh tasks, a look at a time, until the gate decides.

Looks = dict[str, tuple[Path, dict[str, Any]]]  # what was played: name -> folder, results
Results = Mapping[str, Sequence[Mapping[str, Any]]]  # player -> rows of EvalResult


async def run_sequential_eval(
    ctx: StageContext, candidate: Path, rivals: Mapping[str, Path], folder: Path
) -> dict[str, Any]:
    """Let the candidate and its rivals play fresh tasks until the gate decides on each rival, or no task is left.

    candidate: its model. rivals: name (`before`, `best`) -> model. folder: each look lies in a folder of its own, so a
    killed run resumes from what it has played. Returns the names of the looks, and each player's results; the
    candidate's under the name `after`.
    """
    rule, players = ctx.settings.promotion, {"after": candidate, **rivals}
    results: dict[str, list[dict]] = {name: [] for name in players}
    looks: list[str] = []
    drawn = _draw_gate_tasks(ctx)
    async with open_environments(ctx.settings, drawn, ctx.ws.root) as environments:
        fresh = await drawing.fetch_page_instructions(drawn, environments.env)
        for start in range(0, len(fresh), rule.tasks_per_look):
            tasks = fresh[start : start + rule.tasks_per_look]
            for name, model in players.items():
                look = f"{start + 1:03d}-{start + len(tasks):03d}-{name}"
                results[name] += (await _play_look(ctx, look, model, tasks, environments, folder / look))["results"]
                looks.append(look)
            verdicts = {name: found.verdict for name, found in judge_results(results, rule).items()}
            ctx.report(f"{start + len(tasks)} fresh tasks: " + ", ".join(f"{v} ({k})" for k, v in verdicts.items()))
            if "fail" in verdicts.values() or "undecided" not in verdicts.values():
                break
    return {"looks": looks, "results": results}


def read_looks(folder: Path, names: Iterable[str]) -> Looks:
    """Read the looks called `names` in `folder`, as `read_shards` takes them."""
    return {name: (folder / name, _read_look_result(folder / name)) for name in names}


def judge_results(results: Results, rule: PromotionSettings) -> dict[str, GateJudgement]:
    """Judge the candidate against each rival by the fresh tasks; empty where none were played.

    results: rows of episodes by player; the candidate is `after`. rule: block `promotion`.
    """
    played = {name: [EvalResult(**row) for row in rows] for name, rows in results.items()}
    new = played.pop("after", [])
    return {name: judge_differences(pair_differences(old, new), rule) for name, old in played.items()}


async def _play_look(
    ctx: StageContext, name: str, model: Path, tasks: Sequence[Task], environments: EnvProvider, folder: Path
) -> dict[str, Any]:
    if not _look_result_path(folder).is_file():
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a few microseconds)
        result = await play_and_stage(ctx, name, model, tasks, environments, folder)
        stage_io.write_shard(folder, "tasks", (task_to_row(task) for task in tasks))
        write_json(_look_result_path(folder), result)
    return _read_look_result(folder)


def _look_result_path(folder: Path) -> Path:
    return folder / "result.json"


def _read_look_result(folder: Path) -> dict[str, Any]:
    return json.loads(_look_result_path(folder).read_text(encoding="utf-8"))


def _draw_gate_tasks(ctx: StageContext) -> list[Task]:
    """An iteration's gate tasks, none with the content of a recorded demonstration."""
    shown = {task_content(task) for task in demonstrated_tasks(ctx.ws, ctx.iteration)}
    tasks = make_tasks(ctx.settings, ctx.iteration, "gate", ctx.ws.root)
    return [task for task in tasks if task_content(task) not in shown]


def demonstrated_tasks(ws: Workspace, iteration: int) -> list[Task]:
    """List the tasks of the recordings that training has taken in up to `iteration`: people record what they like.

    Oldest iteration first; a task may be there more than once. Raises DataError for a missing or damaged file.
    """
    shards = manifest.read_manifest(ws, iteration).shards("tasks")
    paths = [ws.resolve(shard.path) for shard in shards if shard.stage == "ingest"]
    return [
        task_from_row(row) for path in paths for row in partitions.read_partition_file(ws, "tasks", path).to_pylist()
    ]
