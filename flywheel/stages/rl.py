"""rl-<domain>: PPO from the SFT checkpoint in one domain's environments: a specialist (sections 2.5.3, 2.5.4)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flywheel.policy.model import digest
from flywheel.sandbox.pool import open_sandbox
from flywheel.stages import data
from flywheel.stages.base import Context, Stage, StageResult, single
from flywheel.store import lineage, metrics
from flywheel.training.rl import train_rl


def stage(domain: str) -> Stage:
    """The stage that trains the specialist of a domain."""

    def inputs(ctx: Context) -> dict:
        s = ctx.settings
        blocks = (s.sandbox, s.rollout, s.rl)
        return {
            "tasks": data.digests(ctx, [("tasks", "synthesize")]), "model": digest(ctx.ws.model(ctx.iteration, "sft")),
            "settings": [s.seed, *data.policy_settings(s), *(block.model_dump() for block in blocks)],
        }  # fmt: skip

    def work(ctx: Context, folder: Path) -> list[dict]:
        tasks = list(data.tasks(ctx, "synthesize", "train").values())

        def on_metric(metric) -> None:
            if "success" in metric:
                ctx.report(f"step {metric['step']} of {ctx.settings.rl.steps}, success {metric['success']:.2f}")

        return train_rl(
            ctx.ws.model(ctx.iteration, "sft"), ctx.ws.model(ctx.iteration, ctx.stage), domain, tasks,
            settings=ctx.settings, iteration=ctx.iteration, state_folder=folder, on_metric=on_metric,
            open_sandbox=partial(open_sandbox, root=ctx.ws.root),
        )  # fmt: skip

    def finish(ctx: Context, folder: Path, curve: list[dict]) -> StageResult:
        out, begin = ctx.ws.model(ctx.iteration, ctx.stage), ctx.ws.model(ctx.iteration, "sft")
        rows = lineage.trained(ctx.ws.relative(out), digest(out), parents=[ctx.ws.relative(begin)], run_id=ctx.run_id)
        figures = [
            metrics.row(name, value, domain=domain, step=point["step"])
            for point in curve
            for name, value in point.items()
            if name != "step" and isinstance(value, int | float)
        ]
        success = [point["success"] for point in curve if "success" in point]
        summary = {"PPO steps": len(success)}
        if success:
            summary["success of its batches"] = f"{success[0]:.2f} -> {success[-1]:.2f}"
        return StageResult((ctx.write("lineage", rows),), tuple(figures), summary)

    return single(f"rl-{domain}", inputs, work, finish)
