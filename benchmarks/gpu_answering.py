"""Answering, for `benchmarks/gpu.py`: prompts and tokens by the engine alone, then whole requests to the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_limits import Place, Timed, free, timed
from gpu_shape import contexts
from gpu_work import Work, decode, prefill

from flywheel.agent.prompt import Context
from flywheel.config import PolicySettings
from flywheel.policy.inference.cache import EncodedPrompt, make_prompt
from flywheel.policy.inference.embedded import EmbeddedPolicy, LoadedCheckpoint
from flywheel.policy.inference.engine import PREFILL_TOKENS, BatchRow
from flywheel.policy.protocol import SamplingParams

DTYPE = "bfloat16"


def answering(place: Place, batch: int) -> Iterator[dict[str, Any]]:
    """batch: requests, a screen each, none like another."""
    model = place.checkpoint(place.layers)
    settings = PolicySettings(
        dtype=DTYPE, device=place.device.type, max_num_seqs=batch, cache_mb=0, guided_decoding="never", timeout_s=600
    )
    asked = contexts(place.shape, batch)
    samplings = [SamplingParams(max_new_tokens=place.shape.new_tokens, seed=n, ignore_end=True) for n in range(batch)]
    loaded = LoadedCheckpoint.open(model, settings, "random weights")
    prompts = [_prompt(loaded, context, b"%d" % number) for number, context in enumerate(asked)]
    engine = loaded.engine(settings)

    config, steps = loaded.model.config, place.shape.new_tokens - 1
    lengths = [len(prompt) for prompt in prompts]
    filled = prefill(config, lengths, [prompt.screens[0].grid[1:] for prompt in prompts], _passes(lengths))
    stepped = sum((decode(config, [n + step for n in lengths]) for step in range(1, steps + 1)), Work(0, 0))
    facts = {"batch": batch, "layers": place.layers, "layers_of": place.shape.layers}

    for _ in range(2):  # the first call of a kernel takes its time
        rows = [BatchRow(prompt, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]
        before = engine.counts.prefilled
        with timed(place.device) as first:
            engine.admit(rows)
        begun = engine.counts.tokens
        with timed(place.device) as later:
            for _ in range(steps):
                engine.step()
    yield place.limits.line("prefill", DTYPE, engine.counts.prefilled - before, filled, first, **facts)
    yield place.limits.line("decode", DTYPE, engine.counts.tokens - begun, stepped, later, **facts)
    del loaded, engine, rows
    free()

    tokens, whole = asyncio.run(_requests(place, EmbeddedPolicy(model, settings), asked, samplings))
    yield place.limits.line("answers", DTYPE, tokens, filled + stepped, whole, **facts)
    free()


def _prompt(loaded: LoadedCheckpoint, context: Context, key: bytes) -> EncodedPrompt:
    return make_prompt(loaded.model, loaded.encoder.encode(context), loaded.encoder.end_id, [key])


async def _requests(
    place: Place, policy: EmbeddedPolicy, asked: Sequence[Context], samplings: Sequence[SamplingParams]
) -> tuple[int, Timed]:
    """(new tokens, how long it took) of requests that come at once, their screens' encoding included."""
    for _ in range(2):
        with timed(place.device) as found:
            done = await asyncio.gather(*map(policy.complete, asked, samplings))
    await policy.close()
    return sum(len(one.token_ids) for one in done), found


def _passes(lengths: Sequence[int]) -> int:
    """How often the weights are read for prompts of one length, or nearly."""
    return -(-len(lengths) // max(1, PREFILL_TOKENS // max(lengths)))
