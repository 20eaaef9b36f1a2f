"""The value model: a small head on the hidden states of the policy's trunk, which it reads and does not train.

VC-PPO and VAPO train a copy of the whole policy. Measured on the embedded model (96 episodes, value pretraining): the
head explained 0.05 of the held-out variance after 5 s of processor time, features included, the copy 0.01 after 35 s;
and the same forward pass gives the old policy's log-probabilities.

Beside the hidden states it is told what the policy is not: the score of the state, and how much of the step budget is
left (an asymmetric critic: Pinto et al. 2018; of time limits: Pardo et al. 2018). Of long episodes the hidden states
alone say next to nothing; docs/rl.md has the figures.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

UNTOLD = 0.5
"""Stands for a number that is not known."""
_SCALE = 10.0  # of what is told, so that a few gradient steps can learn of it: at 1 they learn nothing


@dataclass(frozen=True)
class Told:
    """What the environment says of the state that a step began with. score: of the state, 0 to 1. left: the share of
    the task's steps that may still be made, 1 at the first."""

    score: float = UNTOLD
    left: float = UNTOLD

    def beside(self, hidden: Tensor) -> Tensor:
        """What `ValueModel` reads: hidden states [tokens, width] of one step, and this, [tokens, width + 2]."""
        return torch.cat([hidden, hidden.new_tensor(astuple(self)).expand(len(hidden), -1)], dim=-1)


class ValueModel(nn.Module):
    """V of the state before each response token: what the rewards from there on are expected to sum to.

    Its last layer begins as zeros, so the first value is 0 everywhere.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        width = policy.get_output_embeddings().in_features
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width + len(fields(Told)), width), nn.GELU(), nn.Linear(width, 1))
        nn.init.zeros_(self.head[-1].weight)
        nn.init.zeros_(self.head[-1].bias)

    def forward(self, read: Tensor) -> Tensor:
        """read: [..., width + 2], of `Told.beside` on hidden states from which a response token is predicted. Returns
        values [...]."""
        hidden, told = read.tensor_split([self.norm.normalized_shape[0]], dim=-1)
        return self.head(torch.cat([self.norm(hidden), _SCALE * (told - UNTOLD)], dim=-1)).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, read: Tensor) -> Tensor:
        """Values without gradient."""
        return self(read)
