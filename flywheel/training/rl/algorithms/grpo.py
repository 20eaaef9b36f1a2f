"""Define GRPO: PPO's loss on advantages relative to a task's other trajectories, without V (DeepSeekMath 4.1.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from torch import Tensor

from flywheel.config import RlSettings
from flywheel.training.rl.algorithm import ALGORITHMS, ScoredTrajectory, TurnEstimates
from flywheel.training.rl.losses import PolicyTerms, TokenBatch, clipped_loss
from flywheel.utils.errors import TrainingError

# Group-relative advantages (GRPO, DeepSeekMath 2024, section 4.1.2): the group's mean is the baseline.

_EPSILON = 1e-6  # as in verl; TRL adds 1e-4


def group_relative_advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], normalization: str = "std"
) -> np.ndarray:
    """Compute the advantage of each trajectory over its group: A_i = (R_i - mean) / (deviation + 1e-6).

    It counts for all tokens of trajectory i. With `normalization` "none" A_i = R_i - mean of the group's others
    (leave-one-out, RLOO: Ahmadian et al. 2024).

    The deviation is the sample's (n - 1), as in torch's `std` and so in TRL and verl, to be comparable with them; the
    paper does not specify it. For a group of four it is 1.155 times the population's.

    rewards: R_i, total reward of each trajectory. groups: group of each trajectory, such as its task_id. normalization:
    a value of rl.advantage_normalization. A group with equal rewards, or with one trajectory, gets 0. Returns float64
    [trajectories]. Raises TrainingError for a reward that is not finite.
    """
    every = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(every).all():
        raise TrainingError(
            f"the reward of trajectory {int(np.flatnonzero(~np.isfinite(every))[0])} is not finite", where="GRPO"
        )
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, name in enumerate(groups):
        members[name].append(number)
    result = np.zeros(len(every))
    for rows in members.values():
        mine = every[rows]
        if normalization == "none":
            result[rows] = (mine - mine.mean()) * len(mine) / max(len(mine) - 1, 1)
        elif len(mine) > 1 and (deviation := mine.std(ddof=1)) > 1e-8:
            result[rows] = (mine - mine.mean()) / (deviation + _EPSILON)
    return result


class Grpo:
    """Run GRPO (an `Algorithm`): advantages are relative to the group, without a value model."""

    whole_groups = True
    needs_value = False

    def advantages(self, batch: Sequence[ScoredTrajectory], rl: RlSettings) -> list[TurnEstimates]:
        """Give all tokens of a trajectory its advantage over its group (`group_relative_advantages`).

        A group has the trajectories of one task and start. The rewards are summed, and normalised as
        rl.advantage_normalization says. Arguments, result and errors as of `Algorithm.advantages`.
        """
        groups = [(one.task_id, one.start) for one in batch]
        rewards = [sum(one.rewards) for one in batch]
        relative = group_relative_advantages(rewards, groups, rl.advantage_normalization)
        return [
            TurnEstimates(tuple(np.full(tokens, advantage) for tokens in one.lengths))
            for one, advantage in zip(batch, relative, strict=True)
        ]

    def loss(self, part: TokenBatch, rl: RlSettings) -> tuple[Tensor, PolicyTerms]:
        """Return `clipped_loss`, as `Algorithm.loss`."""
        return clipped_loss(part, rl)


ALGORITHMS["grpo"] = Grpo()
