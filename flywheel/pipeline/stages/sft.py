"""Fine-tune on the newest verified trajectories, with general data (stage `sft`; UI-TARS-2, section 2.3).

The stage `ct` also trains by `train_checkpoint`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from flywheel.config import PreferenceSettings, SupervisedSettings
from flywheel.pipeline.stage import TRAINING, Checkpoint, Record, StageContext, StageResult, single_shard_stage
from flywheel.store import manifest
from flywheel.store.schema import metric_row

# Where `preference.weight` is above 0 and the stores have no pair; the training goes on without that loss.
_NO_PAIRS = "preference.weight has no effect: no preference pair in the newest iterations (sft.window: {window})"


def train_checkpoint(
    ctx: StageContext,
    store_name: str,
    begin: Path,
    folder: Path,
    settings: SupervisedSettings,
    weights: dict[str, float] | None = None,
    demonstrations: float = 0.0,
    preference: PreferenceSettings | None = None,
) -> dict[str, Any]:
    """Train a checkpoint on a store's steps mixed with general data; the new model is named after the stage.

    ctx: of the stage. store_name: `ct` or `sft`. begin: folder of the checkpoint to start from. folder: of the shard,
    for the training state and the screens. settings: block `ct` or `sft`. weights: weight of a step in the mix, by the
    source of its trajectory; None: 1 for all. demonstrations: share of the agent steps that are people's, from the
    store `ct`. preference: block `preference`, to train on pairs too; None: no pairs. Returns JSON values: `losses` per
    step, `trained` (trajectory id -> samples and pairs drawn from it), `begin` (name of the start model), `used` (agent
    samples), `samples` (all), `left_out` (too long), `pairs` (draws of pairs), `preference_pairs` (available pairs;
    None where no preference loss is asked for). Raises DataError for a missing or damaged manifest or promotion, and as
    `MixtureDataset.draw`, `load_preference_pairs`, `Encoder.from_folder`, `put_servers_to_sleep` and
    `train_supervised`.
    """
    # Imported here because they import torch, which reading the pipeline does not need.
    from flywheel.policy.client.publishers import put_servers_to_sleep
    from flywheel.policy.encoding import Encoder
    from flywheel.training.data import MixtureDataset, load_preference_pairs
    from flywheel.training.preference import PairedDataset, PreferenceTrainer
    from flywheel.training.sft import train_supervised

    read = manifest.read_manifest(ctx.ws, ctx.iteration)
    encoder = Encoder.from_folder(begin, max_image_side=ctx.settings.policy.max_image_side)
    dataset = MixtureDataset.draw(
        ctx.ws,
        read,
        store_name,
        encoder,
        ctx.settings,
        settings,
        folder,
        mix_seed=ctx.seed("mix", store_name),
        order_seed=ctx.seed("order", store_name),
        weights=weights,
        demonstrations=demonstrations,
    )

    paired, of_pairs, pairs = None, Counter(), None
    if preference and preference.weight:
        pairs = load_preference_pairs(ctx.ws, read, encoder, ctx.settings, folder)
        if not pairs:
            ctx.report(_NO_PAIRS.format(window=ctx.settings.sft.window))
    if pairs:
        paired = PairedDataset(dataset, pairs, preference, settings.max_repeats, ctx.seed("pairs"))
        of_pairs = paired.trajectory_samples

    def on_metric(metric) -> None:
        done, total = metric["step"], metric["steps"]
        ctx.report_part(f"step {done} of {total}, loss {metric['loss']:.3f}", done, total)

    asyncio.run(put_servers_to_sleep(ctx.settings.policy))
    losses = train_supervised(
        begin,
        ctx.ws.model(ctx.iteration, ctx.stage),
        paired or dataset,
        settings=settings,
        state_folder=folder,
        adapter=ctx.settings.adapter,
        seed=ctx.seed("adapter"),
        on_metric=on_metric,
        trainer=PreferenceTrainer if paired else None,
    )
    return {
        "losses": losses,
        "trained": dict(sorted((dataset.trajectory_samples + of_pairs).items())),
        "begin": ctx.model_name(begin),
        "used": dataset.n_agent,
        "samples": len(dataset.examples),
        "left_out": dataset.left_out,
        "pairs": of_pairs.total(),
        "preference_pairs": None if pairs is None else len(pairs),
    }


def write_training_record(ctx: StageContext, result: dict[str, Any], datasets: Sequence[str]) -> StageResult:
    """Write the lineage of a checkpoint that a stage trained; return it with the loss curve and the mix as metrics.

    ctx: of that stage. result: what `train_checkpoint` returned. datasets: names, as in lineage, of the stores that it
    drew from. Raises as `StageContext.write_lineage`.
    """
    out = ctx.ws.model(ctx.iteration, ctx.stage)
    links = ctx.write_lineage(out, [result["begin"]], datasets=datasets, trajectories=result["trained"])
    losses = result["losses"]
    curve = [metric_row("loss", loss, step=step) for step, loss in enumerate(losses, 1)]
    tail = max(1, len(losses) // 10)
    share = result["used"] / result["samples"]
    figures = (*curve, metric_row("agent_fraction", share, n=result["samples"]))
    summary = {
        "samples": result["samples"],
        "from trajectories": len(result["trained"]),
        "loss": f"{fmean(losses[:tail]):.3f} -> {fmean(losses[-tail:]):.3f}",
    }
    if (pairs := result.get("preference_pairs")) is not None:
        figures += (metric_row("preference_pairs", pairs),)
        summary["pairs, kept and rejected"] = result["pairs"] or _NO_PAIRS.format(window=ctx.settings.sft.window)
    if result.get("left_out"):
        summary["left out, too long for the prompt"] = result["left_out"]
    return StageResult((links,), figures, summary)


def _work(ctx: StageContext, folder: Path) -> dict:
    s, begin, preference = ctx.settings.sft, ctx.ws.model(ctx.iteration, "ct"), ctx.settings.preference
    return train_checkpoint(ctx, "sft", begin, folder, s, demonstrations=s.demonstrations, preference=preference)


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    read = manifest.read_manifest(ctx.ws, ctx.iteration)
    drawn = read.datasets("sft")
    if ctx.settings.sft.demonstrations or result.get("pairs"):
        drawn += read.datasets("ct")
    return write_training_record(ctx, result, drawn)


STAGE = single_shard_stage(
    "sft",
    reads=(Record("manifest"), Checkpoint("ct")),
    writes=(Checkpoint("sft"), "lineage"),
    settings=("seed", "policy", "language_model", "adapter", "sft", "preference"),
    work=_work,
    finish=_finish,
    needs=(TRAINING,),
)
