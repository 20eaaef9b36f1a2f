"""Sampling: which token comes next, and a batch of prompts answered at once.

A token is drawn by the inverse of the distribution function, at one number from the request's own generator: what is
drawn depends on the request's seed and context, and not on what else is in the batch. The numbers are drawn on the CPU,
so that a seed means the same on a GPU.
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


def generator_of(sampling: Sampling) -> torch.Generator | None:
    """The source of a request's random numbers; None where it needs none."""
    return torch.Generator().manual_seed(sampling.seed) if sampling.temperature > 0 else None


def draw(logits: Tensor, samplings: Sequence[Sampling], generators: Sequence[torch.Generator | None]) -> Tensor:
    """A token for each row: float32 logits [rows, vocabulary] -> [rows]. A row at temperature 0 takes the likeliest."""
    chosen = logits.argmax(dim=-1)
    noisy = [row for row, generator in enumerate(generators) if generator is not None]
    if noisy:
        tempered = logits[noisy] / logits.new_tensor([[samplings[row].temperature] for row in noisy])
        up_to = tempered.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        at = torch.stack([torch.rand(1, generator=generators[row], dtype=torch.float64) for row in noisy])
        found = torch.searchsorted(up_to, at.to(logits.device) * up_to[:, -1:], right=True)
        chosen[noisy] = found[:, 0].clamp_max(logits.shape[1] - 1)  # past the end where the logits are not finite
    return chosen


def generate(
    model: PreTrainedModel, end_id: int, prompts: Sequence[Encoded], samplings: Sequence[Sampling]
) -> list[Sampled]:
    """One response to each prompt, all in one batch. The same as the policy samples; raises what the model raises."""
    from flywheel.policy.engine import InferenceEngine, Row
    from flywheel.policy.prefix import prompt_of

    engine = InferenceEngine(model, end_id)
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
