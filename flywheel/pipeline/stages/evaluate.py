"""Evaluate the merged model on held-out tasks, and against the models that it may replace (stage `evaluate`).

Two questions need two sets of tasks. How good is the model? It plays the same held-out tasks in every iteration, so
that the results form a curve. The predecessor's results come from its own evaluation; it plays only where they are
missing. Should the model be promoted? The merged model, its predecessor and the best model so far play fresh tasks, by
which no model was ever chosen, until the gate decides (`evaluation.gate`). Tasks of templates that training never draws
(`synthesis.held_out`) are reported separately. Episodes are stored for replay and never routed to a training store.
With evaluation.stages, the models between predecessor and merged one play the held-out tasks too, to show which stage
gains and which loses; of those episodes only the results are stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.config import PromotionSettings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Task
from flywheel.envs.registry import EnvProvider, open_environments
from flywheel.envs.tasks import page_tasks
from flywheel.envs.tasks.drawing import make_tasks, task_content, task_from_row, task_to_row
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.evaluation import gate
from flywheel.evaluation.evaluator import evaluate_policy
from flywheel.pipeline.stage import (
    BROWSERS,
    Checkpoint,
    Partition,
    Record,
    Stage,
    StageContext,
    StageResult,
    write_episode_shard,
    write_shard,
)
from flywheel.policy import checkpoint, open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.episode import RolloutStats
from flywheel.store import manifest, partitions
from flywheel.store.schema import ALL_DOMAINS, fraction_metric_row, metric_row
from flywheel.utils import processes
from flywheel.utils.confidence_intervals import format_difference
from flywheel.utils.files import write_json

_BEFORE, _CANDIDATE = "before", "after"  # shards: the newest promoted model, and the merged one
_GATE = "gate"
_SPECIALIST = "rl-"
# Each table with the key columns of its rows.
_PLAYED_TABLES = (
    ("trajectories", "trajectory_id"),
    ("steps",),
    ("images", "sha256"),
    ("scores", "trajectory_id", "scorer"),
)


def _plan(ctx: StageContext) -> Sequence[str]:
    newest = ctx.newest_model()["digest"]
    known = newest in _read_known_outcomes(ctx) or newest == checkpoint_digest(_merged(ctx))
    return (
        *(() if known else (_BEFORE,)),
        *(_stages(ctx) if ctx.settings.evaluation.stages else ()),
        _CANDIDATE,
        *(() if ctx.settings.promotion.rule == "always" else (_GATE,)),
    )


def _stages(ctx: StageContext) -> tuple[str, ...]:
    """Return the names of the models between the predecessor and the merged one, in the order of their training."""
    return ("ct", "sft", *(f"{_SPECIALIST}{domain}" for domain in ctx.settings.synthesis.domains))


def _merged(ctx: StageContext) -> Path:
    return ctx.ws.model(ctx.iteration, "merged")


def _held_out(ctx: StageContext) -> dict[str, Task]:
    return ctx.read_tasks("synthesize", "eval")


def _hash_held_out(ctx: StageContext) -> str:
    return gate.held_out_key(ctx.settings, list(_held_out(ctx)))


def _read_known_outcomes(ctx: StageContext) -> dict[str, gate.SolvedShares]:
    """Return the solved shares of the newest and the best model, by digest, as the last evaluation stored them."""
    before = gate.read_comparable_outcomes(ctx.ws, ctx.iteration - 1, _hash_held_out(ctx))
    wanted = {rival["digest"] for rival in _rivals(ctx).values()}
    return {name: outcome for name, outcome in before.items() if name in wanted}


def _rivals(ctx: StageContext) -> dict[str, dict[str, Any]]:
    """Return the models that the merged one is compared with: `before`, and `best` where that is another model."""
    newest = ctx.newest_model()
    best = gate.get_best_model(newest)
    return {_BEFORE: newest} | ({"best": best} if best["digest"] != newest["digest"] else {})


def _work(ctx: StageContext, shard: str, folder: Path) -> dict[str, Any]:
    return processes.run_until_sigterm(_compete(ctx, folder) if shard == _GATE else _measure(ctx, shard, folder))


async def _measure(ctx: StageContext, shard: str, folder: Path) -> dict[str, Any]:
    """Play one model on the held-out tasks; a specialist plays only those of its domain."""
    models = {_BEFORE: StageContext.newest_model_folder, _CANDIDATE: _merged}
    model = models[shard](ctx) if shard in models else ctx.ws.model(ctx.iteration, shard)
    domain = shard.removeprefix(_SPECIALIST) if shard.startswith(_SPECIALIST) else ""
    tasks = [task for task in _held_out(ctx).values() if domain in ("", task.domain)]
    async with open_environments(ctx.settings, tasks, ctx.ws.root) as environments:
        return await play_and_stage(ctx, shard, model, tasks, environments, folder)


async def _compete(ctx: StageContext, folder: Path) -> dict[str, Any]:
    against = _rivals(ctx)
    if checkpoint_digest(_merged(ctx)) in {rival["digest"] for rival in against.values()}:
        return {"looks": [], "results": {}}  # equal weights play equally
    models = {name: checkpoint.resolve_checkpoint(rival["model"], ctx.ws.root) for name, rival in against.items()}
    return await run_sequential_eval(ctx, _merged(ctx), models, folder)


def _finish(ctx: StageContext, results: dict[str, tuple[Path, Any]]) -> StageResult:
    fixed = {shard: result for shard, result in results.items() if shard != _GATE}
    folder, competed = results.get(_GATE, (Path(), {"looks": [], "results": {}}))
    looks = {name: (folder / name, _read_look(folder / name)) for name in competed["looks"]}
    played = {shard: fixed[shard] for shard in fixed if shard in (_BEFORE, _CANDIDATE)} | looks
    manifests = [ctx.gather_shards(played, *table) for table in _PLAYED_TABLES]
    manifests.append(ctx.gather_shards(looks, "tasks", "task_id"))
    around = {name: sum(result["around"][name] for _, result in played.values()) for name in vars(RolloutStats())}
    finished = sum(len(result["results"]) for _, result in played.values())
    figures = [metric_row(name, value, n=finished) for name, value in around.items()]
    after = _results(fixed[_CANDIDATE])
    before = _predecessor_results(ctx, fixed)
    between = _collect_stage_results(fixed)
    summary = {}
    for domain in (ALL_DOMAINS, *ctx.settings.synthesis.domains):
        old, new = ([row for row in rows if domain in (ALL_DOMAINS, row.domain)] for rows in (before, after))
        if new:
            figures += _success_metrics(ctx, domain, old, new)
            summary[domain] = f"{_share(old):.2f} -> {_share(new):.2f}"
        for stage, rows in between.items():
            own = [row.v for row in rows if domain in (ALL_DOMAINS, row.domain)]
            if own:
                figures.append(fraction_metric_row(f"success_{stage}", sum(own), len(own), domain=domain))
    for name, judged in judge_results(competed["results"], ctx.settings.promotion).items():
        figures += gate.build_gate_metrics(name, judged)
        summary[f"against the {name}"] = (
            f"{format_difference(judged.difference)} on {judged.n} fresh tasks: {judged.verdict}"
        )
    outcomes = {ctx.newest_model()["digest"]: before, checkpoint_digest(_merged(ctx)): after}
    solved = _read_known_outcomes(ctx) | {name: gate.solved_share_by_task(found) for name, found in outcomes.items()}
    gate.write_outcomes(ctx.ws, ctx.iteration, _hash_held_out(ctx), solved)
    return StageResult(tuple(manifests), tuple(figures), summary)


def _predecessor_results(ctx: StageContext, fixed: Mapping[str, tuple[Path, Any]]) -> list[gate.EvalResult]:
    """Return the predecessor's results on the held-out tasks: just played, or stored by its own evaluation."""
    if _BEFORE in fixed:
        return _results(fixed[_BEFORE])
    tasks, samples = _held_out(ctx), ctx.settings.evaluation.n_trials
    newest = ctx.newest_model()["digest"]
    if newest == checkpoint_digest(_merged(ctx)):
        return _results(fixed[_CANDIDATE])
    outcomes = [
        (name, number < round(share * samples))
        for name, share in _read_known_outcomes(ctx)[newest].items()
        for number in range(samples)
    ]
    return [gate.EvalResult(name, tasks[name].domain, float(v), v) for name, v in outcomes]


def _collect_stage_results(fixed: Mapping[str, tuple[Path, Any]]) -> dict[str, list[gate.EvalResult]]:
    """Return the results of the models of ct, sft and rl, where they played; those of all specialists count as `rl`."""
    found: dict[str, list[gate.EvalResult]] = {}
    for shard, played in fixed.items():
        if shard not in (_BEFORE, _CANDIDATE):
            found.setdefault("rl" if shard.startswith(_SPECIALIST) else shard, []).extend(_results(played))
    return found


def _results(played: tuple[Path, Any]) -> list[gate.EvalResult]:
    return [gate.EvalResult(**row) for row in played[1]["results"]]


def _share(rows: Sequence[gate.EvalResult]) -> float:
    return sum(row.v for row in rows) / len(rows)


def _success_metrics(
    ctx: StageContext, domain: str, before: list[gate.EvalResult], after: list[gate.EvalResult]
) -> list[dict[str, Any]]:
    """Return metric rows of the success of both models on a domain's held-out tasks, and of the difference."""
    apart = {key for key, task in _held_out(ctx).items() if is_held_out(ctx.settings, task)}
    figures = [
        fraction_metric_row(name, sum(row.v for row in rows), len(rows), domain=domain)
        for name, rows in (("success_before", before), ("success_after", after))
    ]
    gain = gate.compare_models(before, after, seed=ctx.seed("interval"))
    interval = {"low": gain.low, "high": gain.high, "n": gain.n}
    figures.append(metric_row("success_difference", gain.difference, domain=domain, **interval))
    return figures + success_by_template(domain, apart, before, after)


def success_by_template(
    domain: str, apart: set[str], before: list[gate.EvalResult], after: list[gate.EvalResult]
) -> list[dict[str, Any]]:
    """Compute success on tasks of templates that training draws and of others, as metric rows; [] without the latter.

    domain: of the rows. apart: ids of the tasks whose templates training never draws. before, after: results of the
    predecessor and of the merged model.
    """
    figures = []
    for name, wanted in (("seen", False), ("unseen", True)):
        for when, rows in (("before", before), ("after", after)):
            chosen = [row.v for row in rows if (row.task_id in apart) == wanted]
            if chosen and any(row.task_id in apart for row in rows):
                figure = f"success_{name}_{when}"
                figures.append(fraction_metric_row(figure, sum(chosen), len(chosen), domain=domain))
    return figures


async def play_and_stage(
    ctx: StageContext, name: str, model: Path, tasks: Sequence[Task], environments: EnvProvider, folder: Path
) -> dict[str, Any]:
    """Play evaluation.n_trials episodes of each task with one model, and write them and their scores into `folder`.

    ctx: of the stage. name: of the player, for progress lines. model: folder of its checkpoint. tasks: held-out or
    fresh ones. environments: lends an environment for each task. Returns `results`, one row per episode (the fields of
    `EvalResult`), and `around`, the counts of crashes and retries (`RolloutStats`). Raises as `open_policy`,
    `evaluate_policy` and `write_episode_shard`.
    """
    total, stats = len(tasks) * ctx.settings.evaluation.n_trials, RolloutStats()
    policy = open_policy(model, ctx.settings.policy)
    try:
        judged = await evaluate_policy(
            policy,
            tasks,
            environments,
            iteration=ctx.iteration,
            settings=ctx.settings,
            on_episode=ctx.count_episodes(name, total, "episodes"),
            run_id=ctx.run_id,
            stats=stats,
        )
    finally:
        await policy.close()
    write_episode_shard(folder, [one.episode for one in judged])
    write_shard(folder, "scores", [verdict.row(one.episode.id) for one in judged for verdict in one.verdicts])
    return {"results": [vars(one.result) for one in judged], "around": vars(stats)}


Results = Mapping[str, Sequence[Mapping[str, Any]]]  # player -> rows of EvalResult


async def run_sequential_eval(
    ctx: StageContext, candidate: Path, rivals: Mapping[str, Path], folder: Path
) -> dict[str, Any]:
    """Let the candidate and its rivals play fresh tasks until it fails against one, all are decided or no task is left.

    ctx: of the stage. candidate: folder of its checkpoint. rivals: name (`before`, `best`) -> folder of its checkpoint.
    folder: gets one subfolder per look (one player on one batch of tasks), so that a killed run resumes after the last
    finished look. Returns `looks`, the names of the subfolders, and `results`, the episode rows by player, the
    candidate as `after`. Raises as `make_tasks`, `demonstrated_tasks`, `open_environments`, `fetch_page_instructions`,
    `play_and_stage` and `judge_results`, and DiskFull.
    """
    rule, players = ctx.settings.promotion, {"after": candidate, **rivals}
    results: dict[str, list[dict]] = {name: [] for name in players}
    looks: list[str] = []
    shown = {task_content(task) for task in demonstrated_tasks(ctx.ws, ctx.iteration)}
    gate_tasks = make_tasks(ctx.settings, ctx.iteration, "gate", ctx.ws.root)
    drawn = [task for task in gate_tasks if task_content(task) not in shown]  # people may record any task
    async with open_environments(ctx.settings, drawn, ctx.ws.root) as environments:
        fresh = await page_tasks.fetch_page_instructions(drawn, environments.env)
        for start in range(0, len(fresh), rule.tasks_per_look):
            tasks = fresh[start : start + rule.tasks_per_look]
            for name, model in players.items():
                look = f"{start + 1:03d}-{start + len(tasks):03d}-{name}"
                results[name] += (await _play_look(ctx, look, model, tasks, environments, folder / look))["results"]
                looks.append(look)
            verdicts = {name: found.verdict for name, found in judge_results(results, rule).items()}
            played, told = start + len(tasks), ", ".join(f"{v} ({k})" for k, v in verdicts.items())
            ctx.report_part(f"{played} of {len(fresh)} fresh tasks at most: {told}", played, len(fresh), _GATE)
            if "fail" in verdicts.values() or "undecided" not in verdicts.values():
                break
    return {"looks": looks, "results": results}


def judge_results(results: Results, rule: PromotionSettings) -> dict[str, gate.GateJudgement]:
    """Judge the candidate against each rival on the fresh tasks; return the gate's judgements by rival.

    results: episode rows by player; the candidate is `after`; empty ones give {}. rule: block `promotion`. Raises
    DataError where a rival played other tasks than the candidate, or none.
    """
    played = {name: [gate.EvalResult(**row) for row in rows] for name, rows in results.items()}
    new = played.pop("after", [])
    return {name: gate.judge_differences(gate.pair_differences(old, new), rule) for name, old in played.items()}


async def _play_look(
    ctx: StageContext, name: str, model: Path, tasks: Sequence[Task], environments: EnvProvider, folder: Path
) -> dict[str, Any]:
    path = folder / "result.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a few microseconds)
        result = await play_and_stage(ctx, name, model, tasks, environments, folder)
        write_shard(folder, "tasks", map(task_to_row, tasks))
        write_json(path, result)
    return _read_look(folder)


def _read_look(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def demonstrated_tasks(ws: Workspace, iteration: int) -> list[Task]:
    """List the tasks of all recordings ingested up to `iteration`, which fresh tasks must not repeat.

    Oldest iteration first; a task may be there more than once. Raises DataError for a missing or damaged file.
    """
    shards = manifest.read_manifest(ws, iteration).shards("tasks")
    paths = [ws.resolve(shard.path) for shard in shards if shard.stage == "ingest"]
    return [
        task_from_row(row) for path in paths for row in partitions.read_partition_file(ws, "tasks", path).to_pylist()
    ]


STAGE = Stage(
    "evaluate",
    reads=(
        Checkpoint("ct"),
        Checkpoint("sft"),
        Checkpoint("rl-{domain}"),
        Checkpoint("merged"),
        Record("promotion", previous=True),
        Record("held_out", previous=True),
        Record("manifest"),
        Partition("tasks", "synthesize"),
    ),
    writes=("tasks", "scores", "trajectories", "steps", "images", Record("held_out")),
    settings=(
        "seed",
        "policy",
        "language_model",
        "sandbox",
        "rollout",
        "synthesis",
        "routing",
        "evaluation",
        "promotion",
    ),
    plan=_plan,
    work=_work,
    finish=_finish,
    extra=lambda ctx: ScorerSet(ctx.settings).versions,
    needs=(BROWSERS,),
)
