"""Train a checkpoint for `ct` or `sft`: mix agent and general samples, then write the loss curve and lineage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from flywheel.config import SupervisedSettings
from flywheel.pipeline.stage import StageContext, StageResult
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.store import lineage, manifest, metrics

# Sources of demonstrations: recorded here, and taken in from other data sets. A step of each weighs the same.
_PEOPLE = {"recording": 1.0, "import": 1.0}


def train_checkpoint(
    ctx: StageContext,
    store_name: str,
    begin: Path,
    folder: Path,
    settings: SupervisedSettings,
    weights: dict[str, float] | None = None,
    demonstrations: float = 0.0,
) -> dict[str, Any]:
    """Train `begin` on the store's steps mixed with general data; the checkpoint is named as the stage.

    weights: of the trajectories' steps in the mix, by source. demonstrations: share of the steps that are people's,
    from the store `ct`. Returns figures and ids as JSON values.
    """
    # They bring torch, which who only asks for the pipeline does not need.
    from flywheel.policy.encoding import Encoder
    from flywheel.training.data import dataset
    from flywheel.training.data.dataset import draw_mixture, merge_weighted_steps
    from flywheel.training.sft import train_supervised

    cumulative = manifest.read_manifest(ctx.ws, ctx.iteration)
    agent = dataset.load_weighted_steps(ctx.ws, cumulative, store_name, weights or {})
    if demonstrations:
        people = dataset.load_weighted_steps(ctx.ws, cumulative, "ct", _PEOPLE, other=0.0)
        agent = merge_weighted_steps(agent, people, demonstrations)
    drawn = draw_mixture(
        agent, dataset.load_general_examples(ctx.ws, cumulative), settings, ctx.seed("mix", store_name)
    )
    samples = dataset.load_samples(ctx.ws, cumulative, drawn, Encoder.from_folder(begin), ctx.settings, folder)

    def on_metric(metric) -> None:
        done, total = metric["step"], metric["steps"]
        ctx.report_part(f"step {done} of {total}, loss {metric['loss']:.3f}", done, total)

    losses = train_supervised(
        begin,
        ctx.ws.model(ctx.iteration, ctx.stage),
        samples,
        settings=settings,
        seed=ctx.seed("order", store_name),
        state_folder=folder,
        on_metric=on_metric,
    )
    return {
        "losses": losses,
        "trained": sorted({one.name for one in drawn if not one.general}),
        "begin": ctx.ws.relative(begin),
        "used": sum(not one.general for one in drawn),
        "samples": len(samples),
    }


def write_training_record(ctx: StageContext, result: dict[str, Any], datasets: Sequence[str]) -> StageResult:
    """The loss curve, the mix, the lineage of the checkpoint."""
    out = ctx.ws.model(ctx.iteration, ctx.stage)
    rows = lineage.checkpoint_links(
        ctx.ws.relative(out),
        checkpoint_digest(out),
        parents=[result["begin"]],
        datasets=datasets,
        trajectories=result["trained"],
        run_id=ctx.run_id,
    )
    losses = result["losses"]
    curve = [metrics.metric_row("loss", loss, step=step) for step, loss in enumerate(losses, 1)]
    tail = max(1, len(losses) // 10)
    share = result["used"] / result["samples"]
    figures = (*curve, metrics.metric_row("agent_fraction", share, n=result["samples"]))
    summary = {
        "samples": result["samples"],
        "from trajectories": len(result["trained"]),
        "loss": f"{fmean(losses[:tail]):.3f} -> {fmean(losses[-tail:]):.3f}",
    }
    return StageResult((ctx.write("lineage", rows),), figures, summary)
