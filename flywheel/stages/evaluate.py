"""evaluate: the merged model on held-out tasks, and against the models that it would have to replace (section 3).

Two questions, two sets of tasks. How good is it: the same held-out tasks in every iteration, so that a curve can be
drawn; what the predecessor did on them is known from its own evaluation, and played only where it is not. Is it to be
promoted: fresh tasks, which no choice of a model has ever looked at, played by the merged model, its predecessor and
the best model so far until the gate knows (`evaluation.gate`). Tasks of templates that training never draws
(`synthesis.held_out`) are told apart from the others. The episodes are kept so that they can be replayed; they are
never routed to a training store. With evaluation.stages, which stage gains and which loses: the models between
predecessor and merged one play the held-out tasks too; of those episodes the results alone are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel import termination
from flywheel.environments.env import Task
from flywheel.environments.router import open_environments
from flywheel.evaluation import gate, rivals, verdicts
from flywheel.policy import checkpoint
from flywheel.policy.checkpoint import digest
from flywheel.rollout.pool import RolloutStats
from flywheel.scoring.panel import Panel
from flywheel.stages import competition, episodes, inputs, shards
from flywheel.stages.base import BROWSERS, Context, Stage, StageResult
from flywheel.store import metrics
from flywheel.store.artifacts import Checkpoint, Partition, Record
from flywheel.synthesis.held_out import is_held_out

_BEFORE, _CANDIDATE = "before", "after"  # the newest model until now, the merged one
_GATE = "gate"
_SPECIALIST = "rl-"


def _plan(ctx: Context) -> Sequence[str]:
    newest = inputs.newest_model(ctx)["digest"]
    known = newest in _known(ctx) or newest == digest(_merged(ctx))
    return (
        *(() if known else (_BEFORE,)),
        *(_stages(ctx) if ctx.settings.evaluation.stages else ()),
        _CANDIDATE,
        *(() if ctx.settings.promotion.rule == "always" else (_GATE,)),
    )


def _stages(ctx: Context) -> tuple[str, ...]:
    """The models between the predecessor and the merged one, in the order in which they were trained."""
    return ("ct", "sft", *(f"{_SPECIALIST}{domain}" for domain in ctx.settings.synthesis.domains))


def _merged(ctx: Context) -> Path:
    return ctx.ws.model(ctx.iteration, "merged")


def _held_out(ctx: Context) -> dict[str, Task]:
    return inputs.tasks(ctx, "synthesize", "eval")


def _known(ctx: Context) -> dict[str, rivals.Solved]:
    """What earlier evaluations found of the models that count now: the newest one and the best so far."""
    before = rivals.read(ctx.ws, ctx.iteration - 1, rivals.key(ctx.settings, list(_held_out(ctx))))
    wanted = {rival["digest"] for rival in _rivals(ctx).values()}
    return {name: outcome for name, outcome in before.items() if name in wanted}


def _rivals(ctx: Context) -> dict[str, dict[str, Any]]:
    """What the merged model is compared with: `before`, and `best` where that is another model."""
    newest = inputs.newest_model(ctx)
    best = rivals.best(newest)
    return {_BEFORE: newest} | ({"best": best} if best["digest"] != newest["digest"] else {})


def _work(ctx: Context, shard: str, folder: Path) -> dict[str, Any]:
    return termination.run(_compete(ctx, folder) if shard == _GATE else _measure(ctx, shard, folder))


async def _measure(ctx: Context, shard: str, folder: Path) -> dict[str, Any]:
    """One model on the held-out tasks that are the same in every iteration; a specialist on those of its domain."""
    models = {_BEFORE: inputs.newest_folder, _CANDIDATE: _merged}
    model = models[shard](ctx) if shard in models else ctx.ws.model(ctx.iteration, shard)
    domain = shard.removeprefix(_SPECIALIST) if shard.startswith(_SPECIALIST) else ""
    tasks = [task for task in _held_out(ctx).values() if domain in ("", task.domain)]
    async with open_environments(ctx.settings, tasks, ctx.ws.root) as environments:
        return await episodes.play(ctx, shard, model, tasks, environments, folder)


async def _compete(ctx: Context, folder: Path) -> dict[str, Any]:
    against = _rivals(ctx)
    if digest(_merged(ctx)) in {rival["digest"] for rival in against.values()}:
        return {"looks": [], "results": {}}  # the same weights play the same
    models = {name: checkpoint.resolve(rival["model"], ctx.ws.root) for name, rival in against.items()}
    return await competition.compete(ctx, _merged(ctx), models, folder)


def _finish(ctx: Context, results: dict[str, tuple[Path, Any]]) -> StageResult:
    fixed = {shard: result for shard, result in results.items() if shard != _GATE}
    folder, competed = results.get(_GATE, (Path(), {"looks": [], "results": {}}))
    looks = competition.looks(folder, competed["looks"])
    played = {shard: fixed[shard] for shard in fixed if shard in (_BEFORE, _CANDIDATE)} | looks
    keys = {"trajectories": "trajectory_id", "steps": None, "images": "sha256", "scores": ("trajectory_id", "scorer")}
    manifests = [shards.gather(ctx, played, table, key) for table, key in keys.items()]
    manifests.append(shards.gather(ctx, looks, "tasks", "task_id"))
    around = {name: sum(result["around"][name] for _, result in played.values()) for name in RolloutStats().as_dict()}
    finished = sum(len(result["results"]) for _, result in played.values())
    figures = [metrics.row(name, value, n=finished) for name, value in around.items()]
    after = [gate.EvalResult(**row) for row in fixed[_CANDIDATE][1]["results"]]
    before = _predecessor(ctx, fixed)
    between = _between(fixed)
    summary = {}
    for domain in (metrics.ALL, *ctx.settings.synthesis.domains):
        old, new = ([row for row in rows if domain in (metrics.ALL, row.domain)] for rows in (before, after))
        if new:
            figures += _success(ctx, domain, old, new)
            summary[domain] = f"{_share(old):.2f} -> {_share(new):.2f}"
        for stage, rows in between.items():
            own = [row for row in rows if domain in (metrics.ALL, row.domain)]
            if own:
                figures.append(metrics.share(f"success_{stage}", sum(row.v for row in own), len(own), domain=domain))
    for name, judged in competition.judged(competed["results"], ctx.settings.promotion).items():
        figures += verdicts.figures(name, judged)
        summary[f"against the {name}"] = f"{judged.difference:+.3f} on {judged.n} fresh tasks: {judged.verdict}"
    outcomes = {inputs.newest_model(ctx)["digest"]: before, digest(_merged(ctx)): after}
    solved = _known(ctx) | {name: rivals.solved(found) for name, found in outcomes.items()}
    rivals.write(ctx.ws, ctx.iteration, rivals.key(ctx.settings, list(_held_out(ctx))), solved)
    return StageResult(tuple(manifests), tuple(figures), summary)


def _predecessor(ctx: Context, fixed: Mapping[str, tuple[Path, Any]]) -> list[gate.EvalResult]:
    """Its results on the held-out tasks: played now, or kept from its own evaluation."""
    if _BEFORE in fixed:
        return [gate.EvalResult(**row) for row in fixed[_BEFORE][1]["results"]]
    tasks, samples = _held_out(ctx), ctx.settings.evaluation.samples
    newest = inputs.newest_model(ctx)["digest"]
    if newest == digest(_merged(ctx)):
        return [gate.EvalResult(**row) for row in fixed[_CANDIDATE][1]["results"]]
    outcomes = [
        (name, number < round(share * samples))
        for name, share in _known(ctx)[newest].items()
        for number in range(samples)
    ]
    return [gate.EvalResult(name, tasks[name].domain, float(v), v) for name, v in outcomes]


def _between(fixed: Mapping[str, tuple[Path, Any]]) -> dict[str, list[gate.EvalResult]]:
    """Results of the models of ct, sft and rl where they played; rl's are the specialists', each in its domain."""
    found: dict[str, list[gate.EvalResult]] = {}
    for shard, (_, result) in fixed.items():
        if shard not in (_BEFORE, _CANDIDATE):
            rows = [gate.EvalResult(**row) for row in result["results"]]
            found.setdefault("rl" if shard.startswith(_SPECIALIST) else shard, []).extend(rows)
    return found


def _share(rows: Sequence[gate.EvalResult]) -> float:
    return sum(row.v for row in rows) / len(rows)


def _success(
    ctx: Context, domain: str, before: list[gate.EvalResult], after: list[gate.EvalResult]
) -> list[dict[str, Any]]:
    """Success of both on a domain's held-out tasks, and the difference."""
    apart = {key for key, task in _held_out(ctx).items() if is_held_out(ctx.settings, task)}
    figures = [
        metrics.share(name, sum(row.v for row in rows), len(rows), domain=domain)
        for name, rows in (("success_before", before), ("success_after", after))
    ]
    gain = gate.compare(before, after, seed=ctx.seed("interval"))
    interval = {"low": gain.low, "high": gain.high, "n": gain.n}
    figures.append(metrics.row("success_difference", gain.difference, domain=domain, **interval))
    return figures + by_template(domain, apart, before, after)


def by_template(
    domain: str, apart: set[str], before: list[gate.EvalResult], after: list[gate.EvalResult]
) -> list[dict[str, Any]]:
    """Success on tasks of templates that training draws from, and of those that it does not; none without the latter.

    apart: ids of the latter's tasks.
    """
    figures = []
    for name, wanted in (("seen", False), ("unseen", True)):
        for when, rows in (("before", before), ("after", after)):
            chosen = [row for row in rows if (row.task_id in apart) == wanted]
            if chosen and any(row.task_id in apart for row in rows):
                share = metrics.share(f"success_{name}_{when}", sum(r.v for r in chosen), len(chosen), domain=domain)
                figures.append(share)
    return figures


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
    extra=lambda ctx: Panel(ctx.settings).versions,
    needs=(BROWSERS,),
)
