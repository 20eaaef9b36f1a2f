"""evaluate: the merged model and its predecessor on the same held-out tasks, by the same rollout (section 3).

The episodes are kept so that they can be replayed; they are never routed to a training store.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flywheel.evaluation import gate
from flywheel.evaluation.evaluate import evaluate
from flywheel.policy import open_policy
from flywheel.policy.model import digest
from flywheel.sandbox.pool import open_sandbox
from flywheel.stages import data, staged
from flywheel.stages.base import Context, Stage, StageResult
from flywheel.store import metrics


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
    }  # fmt: skip


def _work(ctx: Context, shard: str, folder: Path) -> list[dict[str, Any]]:
    return asyncio.run(_act(ctx, shard, folder))


async def _act(ctx: Context, shard: str, folder: Path) -> list[dict[str, Any]]:
    tasks, done = list(data.tasks(ctx, "synthesize", "eval").values()), 0

    def count(episode) -> None:
        nonlocal done
        done += 1
        ctx.report(f"{shard}: {done} of {len(tasks) * ctx.settings.evaluation.samples} episodes")

    policy = open_policy(_model(ctx, shard), ctx.settings.policy)
    try:
        async with open_sandbox(ctx.settings, ctx.ws.root) as sandbox:
            results, episodes = await evaluate(
                policy, tasks, sandbox, iteration=ctx.iteration, settings=ctx.settings, on_episode=count,
                run_id=ctx.run_id,
            )  # fmt: skip
    finally:
        await policy.close()
    staged.put_episodes(folder, episodes)
    return [vars(result) for result in results]


def _finish(ctx: Context, results: dict[str, tuple[Path, Any]]) -> StageResult:
    manifests = tuple(
        ctx.write(table, staged.take(results, table, key))
        for table, key in (("trajectories", "trajectory_id"), ("steps", None), ("images", "sha256"))
    )
    before, after = ([gate.EvalResult(**row) for row in results[shard][1]] for shard in ("before", "after"))
    figures = []
    for domain in (metrics.ALL, *ctx.settings.synthesis.domains):
        old, new = ([r for r in rows if domain in (metrics.ALL, r.domain)] for rows in (before, after))
        figures += [
            metrics.share(name, sum(r.v for r in rows), len(rows), domain=domain)
            for name, rows in (("success_before", old), ("success_after", new))
        ]
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


STAGE = Stage("evaluate", lambda ctx: ("before", "after"), _inputs, _work, _finish)
