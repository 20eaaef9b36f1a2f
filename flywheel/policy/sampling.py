"""Sampling from the model: a batch of prompts in, tokens with their log-probabilities out.

A token is drawn by the Gumbel-max rule, argmax(logits / T + g), g from the request's own generator: what is drawn
depends on the request's seed and context, and not on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from flywheel.policy.encoding import Encoded, collate
from flywheel.policy.protocol import Sampling


@dataclass(frozen=True)
class Sampled:
    """token_ids end with the end token where it was sampled. logprobs: natural, untempered, one a token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@torch.inference_mode()
def generate(
    model: PreTrainedModel, end_id: int, prompts: Sequence[Encoded], samplings: Sequence[Sampling]
) -> list[Sampled]:
    """One response to each prompt. The prompts are padded on the left and share one key-value cache."""
    batch = collate(prompts, "left")
    mask = batch["attention_mask"]
    positions, _ = model.model.get_rope_index(
        batch["input_ids"],
        batch["mm_token_type_ids"],
        image_grid_thw=batch.get("image_grid_thw"),
        attention_mask=mask,
    )
    following = positions.amax(dim=(0, 2)) + 1  # [batch]: an image spans fewer positions than tokens
    cache = DynamicCache(config=model.config.get_text_config())
    output = model(**batch, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1)

    generators = [torch.Generator().manual_seed(sampling.seed) for sampling in samplings]
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    active = list(range(len(prompts)))  # the prompt of each row that is still in the batch
    while True:
        logits = output.logits[:, -1].float()
        natural = logits.log_softmax(dim=-1)
        chosen = torch.stack(
            [draw(row, samplings[number], generators[number]) for row, number in zip(logits, active, strict=True)]
        )
        values = natural.gather(1, chosen[:, None])[:, 0].tolist()
        going = []
        for row, (number, token, value) in enumerate(zip(active, chosen.tolist(), values, strict=True)):
            tokens[number].append(token)
            logprobs[number].append(value)
            if token != end_id and len(tokens[number]) < samplings[number].max_new_tokens:
                going.append(row)
        if not going:
            break
        if len(going) < len(active):
            rows = torch.tensor(going)
            cache.batch_select_indices(rows)
            mask, following, chosen = mask[rows], following[rows], chosen[rows]
            active = [active[row] for row in going]
        mask = torch.cat([mask, mask.new_ones(len(active), 1)], dim=1)
        output = model(
            input_ids=chosen[:, None],
            attention_mask=mask,
            position_ids=following.expand(3, -1)[:, :, None],
            past_key_values=cache,
            use_cache=True,
        )
        following = following + 1
    return [Sampled(tuple(ids), tuple(values)) for ids, values in zip(tokens, logprobs, strict=True)]


def draw(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> torch.Tensor:
    """A token: logits [vocabulary] -> []."""
    if sampling.temperature == 0:
        return logits.argmax()
    uniform = torch.rand(logits.shape, generator=generator).clamp_min(1e-20)
    gumbel = -torch.log((-torch.log(uniform)).clamp_min(1e-20))
    return (logits / sampling.temperature + gumbel).argmax()
