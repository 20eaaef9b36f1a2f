"""PPO with a value model: decoupled, length-adaptive GAE over whole trajectories (section 2.5.4; VC-PPO, VAPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from flywheel.config import RlSettings
from flywheel.training.rl.algorithm import ALGORITHMS, ScoredTrajectory
from flywheel.training.rl.gae import TurnEstimates, estimate_turns
from flywheel.training.rl.losses import PolicyTerms, TokenBatch, clipped_loss


class Ppo:
    whole_groups = False
    needs_value = True

    def advantages(self, batch: Sequence[ScoredTrajectory], rl: RlSettings) -> list[TurnEstimates]:
        found = [
            estimate_turns(
                one.rewards,
                one.values,
                gamma=rl.gamma,
                lambda_critic=rl.lambda_critic,
                alpha=rl.gae_lambda_alpha,
                lambda_policy=rl.lambda_policy,
                bootstrap=one.bootstrap,
                outcome=one.outcome,
            )
            for one in batch
        ]
        return normalise_advantages(found) if rl.normalise else found

    def loss(self, part: TokenBatch, rl: RlSettings) -> tuple[Tensor, PolicyTerms]:
        return clipped_loss(part, rl)


def normalise_advantages(estimates: Sequence[TurnEstimates]) -> list[TurnEstimates]:
    """Normalise advantages to mean 0 and deviation 1 over all tokens; unchanged where all are the same."""
    every = np.concatenate([turn for estimate in estimates for turn in estimate.advantages])
    mean, deviation = every.mean(), every.std()
    if deviation < 1e-8:
        return list(estimates)
    return [
        replace(estimate, advantages=tuple((turn - mean) / deviation for turn in estimate.advantages))
        for estimate in estimates
    ]


ALGORITHMS["ppo"] = Ppo()
