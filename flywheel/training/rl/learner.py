"""Hold what RL trains: the policy, the value model on its trunk, their optimisers and counters."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.config import RlSettings
from flywheel.policy.devices import count_parallel_passes
from flywheel.policy.guided_decoding import AnswerConstraint
from flywheel.training.distributed.engine import TorchEngine, TrainingEngine, open_engine
from flywheel.training.distributed.train_state import TrainState
from flywheel.training.modeling.policy_forward import PolicyForward, freeze_vision_tower
from flywheel.training.rl import algorithm as algorithms
from flywheel.training.rl.algorithm import Algorithm

# The value model: a small head on the hidden states of the policy's trunk, which its loss does not train.
#
# VC-PPO and VAPO train a copy of the whole policy. Measured on the embedded model (96 episodes, value pretraining): the
# head explained 0.05 of the held-out variance after 5 s of processor time, features included, the copy 0.01 after 35 s;
# and the same forward pass gives the old policy's log-probabilities.
#
# Beside the hidden states it gets what the policy does not: the score of the state, and the share of the step budget
# that is left (an asymmetric critic: Pinto et al. 2018; time limits: Pardo et al. 2018). In long episodes the hidden
# states alone predict next to nothing (docs/measurements/rl.md#the-value-model).

UNKNOWN_FEATURE = 0.5
"""Stands for a number that is not known."""
_FEATURE_SCALE = 10.0  # of the extra features: at 1 a few gradient steps learn nothing from them


@dataclass(frozen=True)
class ValueFeatures:
    """What the environment says of the state that a step began with. score: of the state, 0 to 1. left: the share of
    the task's steps that may still be made, 1 at the first."""

    score: float = UNKNOWN_FEATURE
    left: float = UNKNOWN_FEATURE

    def append_to(self, hidden: Tensor) -> Tensor:
        """Append this to hidden states [tokens, width] of one step: `ValueModel` reads these, [tokens, width + 2]."""
        return torch.cat([hidden, hidden.new_tensor(astuple(self)).expand(len(hidden), -1)], dim=-1)


class ValueModel(nn.Module):
    """V of the state before each response token: what the rewards from there on are expected to sum to.

    Its last layer begins as zeros, so the first value is 0 everywhere.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        width = policy.get_output_embeddings().in_features
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width + len(fields(ValueFeatures)), width), nn.GELU(), nn.Linear(width, 1))
        nn.init.zeros_(self.head[-1].weight)
        nn.init.zeros_(self.head[-1].bias)

    def forward(self, read: Tensor) -> Tensor:
        """Return values [...]. read: [..., width + 2], of `ValueFeatures.append_to` on hidden states from which a
        response token is predicted."""
        hidden, features = read.tensor_split([self.norm.normalized_shape[0]], dim=-1)
        return self.head(torch.cat([self.norm(hidden), _FEATURE_SCALE * (features - UNKNOWN_FEATURE)], dim=-1)).squeeze(
            -1
        )

    @torch.no_grad()
    def evaluate(self, read: Tensor) -> Tensor:
        """Compute values without gradient."""
        return self(read)


class Learner(TrainState):
    """Hold what RL trains.

    reader: the policy as training reads it. value: on the policy's trunk; None where the algorithm needs none. actor,
    critic: the engines that step policy and value model. version: RL steps taken, which names the newest weights;
    gradient_steps: the policy's.
    """

    counters = ("version", "gradient_steps")

    def __init__(
        self,
        policy: PreTrainedModel,
        rl: RlSettings,
        seed: int,
        algorithm: Algorithm | None = None,
        constraint: AnswerConstraint | None = None,
    ) -> None:
        """seed: of the value model's first weights. algorithm: without it the one that rl.algorithm names. constraint:
        what the samples' answers were held to."""
        self.algorithm = algorithm or algorithms.get_algorithm(rl.algorithm)
        self.policy = policy.train()
        at_once = count_parallel_passes(policy)
        self.reader = PolicyForward(policy, constraint, keeps_screens=freeze_vision_tower(policy, rl), at_once=at_once)
        self.actor: TrainingEngine = open_engine(self.reader, rl, at_once)
        self.value: ValueModel | None = None
        modules, engines = {"policy": policy}, {"policy": self.actor}
        if self.algorithm.needs_value:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.value = ValueModel(policy).to(next(policy.parameters()).device)
            self.critic: TrainingEngine = TorchEngine(self.value, rl)  # too small to be shared out
            modules["value"], engines["value"] = self.value, self.critic
        self.version = self.gradient_steps = 0
        super().__init__(modules, engines)
