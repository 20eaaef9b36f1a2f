"""Value pretraining (VC-PPO, VAPO; section 2.5.4): the policy stays fixed, V learns Monte Carlo returns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flywheel.settings import Rl
from flywheel.training.experience import Experience, Turn, turns
from flywheel.training.ppo import explained_variance
from flywheel.training.update import Learner, value_update

_PATIENCE = 10  # steps without a better held-out loss before it stops: more would overfit


@dataclass(frozen=True)
class Pretraining:
    """steps: of the weights that were kept. loss, explained_variance: theirs, on held-out trajectories."""

    steps: int
    loss: float
    explained_variance: float


def pretrain_value(learner: Learner, batch: Sequence[Experience], rl: Rl, seed: int) -> Pretraining:
    """Train the value model for rl.value_pretraining_steps gradient steps at most, each on all tokens; keep the weights
    with the lowest loss on the quarter of the trajectories that is held out."""
    monte_carlo = rl.model_copy(update={"lambda_critic": 1.0})
    every, _ = turns(batch, learner.policy, learner.value, monte_carlo, bootstrap=False)
    names = np.random.default_rng(seed).permutation([experience.trajectory_id for experience in batch])
    apart = set(names[: len(batch) // 4].tolist())
    train = [turn for turn in every if turn.sample.trajectory_id not in apart]
    held_out = [turn for turn in every if turn.sample.trajectory_id in apart] or train
    best, kept = _measure(learner, held_out, 0), copy.deepcopy(learner.value.state_dict())
    for step in range(1, rl.value_pretraining_steps + 1):
        value_update(learner, train, rl)
        now = _measure(learner, held_out, step)
        if now.loss < best.loss:
            best, kept = now, copy.deepcopy(learner.value.state_dict())
        elif step - best.steps == _PATIENCE:
            break
    learner.value.load_state_dict(kept)
    return best


def _measure(learner: Learner, held_out: Sequence[Turn], step: int) -> Pretraining:
    values = learner.value.evaluate(torch.cat([turn.hidden for turn in held_out])).double().numpy()
    returns = np.concatenate([turn.returns for turn in held_out])
    return Pretraining(step, float(np.mean((values - returns) ** 2) / 2), explained_variance(values, returns))
