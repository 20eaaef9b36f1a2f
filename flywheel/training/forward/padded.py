"""The one forward pass of SFT, PPO and the value model: hidden states at the response's tokens alone.

The vocabulary's logits are computed only where a response token is predicted; the prompt (most of it the screen)
needs none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from flywheel.policy.encoding import Encoded, collate


@dataclass(frozen=True)
class PaddedTokens:
    """Sequences (prompt and response), padded right. ids, mask: [batch, longest response]; positions: of the hidden
    state that predicts each response token."""

    inputs: dict[str, Tensor]
    ids: Tensor
    mask: Tensor
    positions: Tensor

    def to(self, device: torch.device) -> PaddedTokens:
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return PaddedTokens(inputs, self.ids.to(device), self.mask.to(device), self.positions.to(device))


def batch_of(prompts: Sequence[Encoded], responses: Sequence[Sequence[int]]) -> PaddedTokens:
    """Prompts and their responses as one batch; every response has at least one token."""
    longest = max(len(response) for response in responses)
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros(ids.shape, dtype=bool)
    positions = np.zeros_like(ids)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        n = len(response)
        ids[row, :n], mask[row, :n] = response, True
        positions[row, :n] = np.arange(len(prompt) - 1, len(prompt) - 1 + n)
    # The last response token predicts nothing that is trained on: leave it out.
    items = [fed(prompt, response[:-1]) for prompt, response in zip(prompts, responses, strict=True)]
    return PaddedTokens(collate(items, "right"), *(torch.from_numpy(part) for part in (ids, mask, positions)))


def fed(prompt: Encoded, response: Sequence[int]) -> Encoded:
    """The prompt and a response as the model reads them.

    A model at the start of its training may sample the image token, for which there is no image: what follows it is
    conditioned on the token before it instead, while its own log-probability is still the one that is computed.
    """
    images = prompt.input_ids[prompt.mm_token_type_ids == 1]
    kept: list[int] = []
    for token in response:
        is_image = len(images) > 0 and token == images[0]
        kept.append((kept[-1] if kept else int(prompt.input_ids[-1])) if is_image else token)
    return prompt.extended(kept)


def response_hidden(trunk: nn.Module, batch: PaddedTokens) -> Tensor:
    """Hidden states [batch, longest response, hidden] from which the response's tokens are predicted."""
    hidden = trunk(**batch.inputs, use_cache=False).last_hidden_state
    return hidden.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Indices cut into batches of `size` of similar length: little padding."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    for start in range(0, len(order), size):
        yield order[start : start + size]
