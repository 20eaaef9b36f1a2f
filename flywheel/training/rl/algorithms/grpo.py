"""GRPO: PPO's loss on advantages relative to the task's other trajectories; no value model (DeepSeekMath 4.1.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from flywheel.settings import Rl
from flywheel.training.rl.algorithm import ALGORITHMS, Rewarded
from flywheel.training.rl.gae import TurnEstimates
from flywheel.training.rl.group import group_relative
from flywheel.training.rl.ppo import PolicyTerms, TokenBatch, clipped_loss


class Grpo:
    whole_groups = True
    needs_value = False

    def advantages(self, batch: Sequence[Rewarded], rl: Rl) -> list[TurnEstimates]:
        relative = group_relative([sum(one.rewards) for one in batch], [one.task_id for one in batch])
        return [
            TurnEstimates(tuple(np.full(tokens, advantage) for tokens in one.lengths))
            for one, advantage in zip(batch, relative, strict=True)
        ]

    def loss(self, part: TokenBatch, rl: Rl) -> tuple[Tensor, PolicyTerms]:
        return clipped_loss(part, rl)


ALGORITHMS["grpo"] = Grpo()
