"""Answering, for `benchmarks/gpu.py`: prompts and tokens by the engine alone, then whole requests to the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_limits import Place, Timed, free, timed
from gpu_shape import contexts
from gpu_work import Work, decode, prefill

from flywheel.agent.context import Context
from flywheel.policy.embedded import EmbeddedPolicy
from flywheel.policy.engine import PREFILL_TOKENS, Row
from flywheel.policy.loaded import Loaded
from flywheel.policy.prefix import Prompt, prompt_of
from flywheel.policy.protocol import Sampling
from flywheel.settings import Policy

DTYPE = "bfloat16"


def answering(place: Place, batch: int) -> Iterator[dict[str, Any]]:
    """batch: requests, a screen each, none like another."""
    model = place.checkpoint(place.layers)
    settings = Policy(
        dtype=DTYPE, device=place.device.type, batch=batch, cache_mb=0, constrained="never", timeout_s=600
    )
    asked = contexts(place.shape, batch)
    samplings = [Sampling(max_new_tokens=place.shape.new_tokens, seed=n, ignore_end=True) for n in range(batch)]
    loaded = Loaded.open(model, settings, "random weights")
    prompts = [_prompt(loaded, context, b"%d" % number) for number, context in enumerate(asked)]
    engine = loaded.engine(settings)

    config, steps = loaded.model.config, place.shape.new_tokens - 1
    lengths = [len(prompt) for prompt in prompts]
    filled = prefill(config, lengths, [prompt.screens[0].grid[1:] for prompt in prompts], _passes(lengths))
    stepped = sum((decode(config, [n + step for n in lengths]) for step in range(1, steps + 1)), Work(0, 0))
    facts = {"batch": batch, "layers": place.layers, "layers_of": place.shape.layers}

    for _ in range(2):  # the first call of a kernel takes its time
        rows = [Row(prompt, sampling) for prompt, sampling in zip(prompts, samplings, strict=True)]
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


def _prompt(loaded: Loaded, context: Context, key: bytes) -> Prompt:
    return prompt_of(loaded.model, loaded.encoder.encode(context), loaded.encoder.end_id, [key])


async def _requests(
    place: Place, policy: EmbeddedPolicy, asked: Sequence[Context], samplings: Sequence[Sampling]
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
