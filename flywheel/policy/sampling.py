"""Sampling: which token comes next, and a batch of prompts answered at once.

A token is drawn by the Gumbel-max rule, argmax(logits / T + g), g from the request's own generator: what is drawn
depends on the request's seed and context, and not on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.encoding import Encoded
from flywheel.policy.protocol import Sampling


@dataclass(frozen=True)
class Sampled:
    """token_ids end with the end token where it was sampled. logprobs: natural, untempered, one a token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def generator_of(sampling: Sampling, device: torch.device) -> torch.Generator | None:
    """The source of a request's random numbers; None where it needs none."""
    return torch.Generator(device).manual_seed(sampling.seed) if sampling.temperature > 0 else None


def draw(logits: Tensor, samplings: Sequence[Sampling], generators: Sequence[torch.Generator | None]) -> Tensor:
    """A token for each row: float32 logits [rows, vocabulary] -> [rows]. A row at temperature 0 takes the likeliest."""
    scale = [sampling.temperature or 1.0 for sampling in samplings]
    noisy = [row for row, generator in enumerate(generators) if generator is not None]
    if noisy:
        noise = logits.new_empty(len(noisy), logits.shape[1])
        for part, row in zip(noise, noisy, strict=True):
            torch.rand(len(part), generator=generators[row], out=part)
        noise.clamp_min_(1e-20).log_().neg_().clamp_min_(1e-20).log_().neg_()
    if set(scale) != {1.0}:
        logits = logits / logits.new_tensor(scale)[:, None]
    if noisy:
        logits = (
            logits + noise
            if len(noisy) == len(logits)
            else logits.index_add(0, torch.tensor(noisy, device=logits.device), noise)
        )
    return logits.argmax(dim=-1)


def generate(
    model: PreTrainedModel, end_id: int, prompts: Sequence[Encoded], samplings: Sequence[Sampling]
) -> list[Sampled]:
    """One response to each prompt, all in one batch. The same as the policy samples; raises what the model raises."""
    from flywheel.policy.engine import Engine, Row
    from flywheel.policy.prefix import prompt_of

    engine = Engine(model, end_id)
    rows = []
    for prompt, sampling in zip(prompts, samplings, strict=True):
        keys = [b"%d %d" % (id(prompt), number) for number in range(len(prompt.image_grid_thw))]
        rows.append(Row(prompt_of(model, prompt, end_id, keys), sampling))
    ended = engine.admit(rows)
    while engine.rows:
        ended += engine.step()
    for row in ended:
        if row.error is not None:
            raise row.error
    return [Sampled(tuple(row.token_ids), tuple(row.logprobs)) for row in rows]
