"""evaluate: the merged model and its predecessor on the same held-out tasks, by the same rollout (section 3).

Tasks of templates that training never draws (`synthesis.held_out`) are told apart from the others. The episodes are
kept so that they can be replayed; they are never routed to a training store.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flywheel.evaluation import gate
from flywheel.evaluation.evaluate import evaluate
from flywheel.policy import open_policy
from flywheel.policy.model import digest
from flywheel.rollout.pool import Tally
from flywheel.sandbox.pool import open_sandbox
from flywheel.stages import data, staged
from flywheel.stages.base import Context, Stage, StageResult
from flywheel.store import metrics
from flywheel.synthesis.tasks import is_held_out


def _model(ctx: Context, shard: str) -> Path:
    if shard == "before":
        return data.newest_folder(ctx)
    return ctx.ws.model(ctx.iteration, "merged")


def _inputs(ctx: Context) -> dict:
    s = ctx.settings
    return {
        "tasks": data.digests(ctx, [("tasks", "synthesize")]),
        "models": [digest(_model(ctx, shard)) for shard in ("before", "after")],
        "settings": [s.seed, *data.policy_settings(s), s.sandbox.model_dump(), s.evaluation.model_dump()],
        "held_out": s.synthesis.held_out,
    }  # fmt: skip


def _work(ctx: Context, shard: str, folder: Path) -> dict[str, Any]:
    return asyncio.run(_act(ctx, shard, folder))


async def _act(ctx: Context, shard: str, folder: Path) -> dict[str, Any]:
    tasks, done, tally = list(data.tasks(ctx, "synthesize", "eval").values()), 0, Tally()

    def count(episode) -> None:
        nonlocal done
        done += 1
        ctx.report(f"{shard}: {done} of {len(tasks) * ctx.settings.evaluation.samples} episodes")

    policy = open_policy(_model(ctx, shard), ctx.settings.policy)
    try:
        async with open_sandbox(ctx.settings, ctx.ws.root) as sandbox:
            results, episodes = await evaluate(
                policy, tasks, sandbox, iteration=ctx.iteration, settings=ctx.settings, on_episode=count,
                run_id=ctx.run_id, tally=tally,
            )  # fmt: skip
    finally:
        await policy.close()
    staged.put_episodes(folder, episodes)
    return {"results": [vars(result) for result in results], "around": tally.as_dict()}


def _finish(ctx: Context, results: dict[str, tuple[Path, Any]]) -> StageResult:
    manifests = tuple(
        ctx.write(table, staged.take(results, table, key))
        for table, key in (("trajectories", "trajectory_id"), ("steps", None), ("images", "sha256"))
    )
    apart = {key for key, task in data.tasks(ctx, "synthesize", "eval").items() if is_held_out(ctx.settings, task)}
    before, after = ([gate.EvalResult(**row) for row in results[shard][1]["results"]] for shard in ("before", "after"))
    around = {name: sum(result["around"][name] for _, result in results.values()) for name in Tally().as_dict()}
    figures = [metrics.row(name, value, n=len(before) + len(after)) for name, value in around.items()]
    for domain in (metrics.ALL, *ctx.settings.synthesis.domains):
        old, new = ([r for r in rows if domain in (metrics.ALL, r.domain)] for rows in (before, after))
        figures += [
            metrics.share(name, sum(r.v for r in rows), len(rows), domain=domain)
            for name, rows in (("success_before", old), ("success_after", new))
        ]
        figures += by_template(domain, apart, old, new)
        if new:
            gain = gate.compare(old, new, seed=ctx.seed("interval"))
            interval = {"low": gain.low, "high": gain.high, "n": gain.n}
            figures.append(metrics.row("success_difference", gain.difference, domain=domain, **interval))
    share = {(row["domain"], row["name"]): row["value"] for row in figures}
    summary = {
        domain: f"{share[domain, 'success_before']:.2f} -> {share[domain, 'success_after']:.2f}"
        for domain in (metrics.ALL, *ctx.settings.synthesis.domains) if (domain, "success_difference") in share
    }  # fmt: skip
    return StageResult(manifests, tuple(figures), summary)


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


STAGE = Stage("evaluate", lambda ctx: ("before", "after"), _inputs, _work, _finish)
