"""The value model: a scalar head on a copy of the policy's trunk (VC-PPO, VAPO), so that the two do not disturb
each other's features."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.training.forward import Batch, response_hidden


class ValueModel(nn.Module):
    """V of the state before each response token: what the rewards from there on are expected to sum to.

    Begins as a copy of the policy's trunk with a head of zeros, so its first value is 0 everywhere.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        self.norm = nn.LayerNorm(policy.get_output_embeddings().in_features, elementwise_affine=False)
        self.head = nn.Linear(policy.get_output_embeddings().in_features, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        """Values [batch, longest response]."""
        return self.head(self.norm(response_hidden(self.trunk, batch))).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Values without gradient."""
        return self(batch)
