"""An algorithm from outside: importable by the processes that train with it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from flywheel.training.rl.algorithm import TurnEstimates
from flywheel.training.rl.losses import PolicyTerms


class Rloo:
    """REINFORCE; the baseline is the mean of the task's other trajectories (Ahmadian et al. 2024)."""

    whole_groups = True
    needs_value = False

    def advantages(self, batch, rl):
        groups = defaultdict(list)
        for one in batch:
            groups[one.task_id].append(sum(one.rewards))
        found = []
        for one in batch:
            mine, every = sum(one.rewards), groups[one.task_id]
            advantage = mine - (sum(every) - mine) / max(1, len(every) - 1) if len(every) > 1 else 0.0
            found.append(TurnEstimates(tuple(np.full(tokens, advantage) for tokens in one.lengths)))
        return found

    def loss(self, part, rl):
        loss = -(part.advantages * part.logprobs).sum() / part.tokens
        return loss, PolicyTerms(tokens=float(len(part.logprobs)), loss=float(loss.detach()) * part.tokens)
