"""Value pretraining (VC-PPO, VAPO; section 2.5.4): the policy stays fixed, V learns Monte Carlo returns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.settings import Rl
from flywheel.training.experience import Experience, Turn, turns
from flywheel.training.ppo import explained_variance
from flywheel.training.update import Learner, value_update

_PATIENCE = 3  # checks without a better held-out loss before it stops: more steps would overfit
_CHECK_EVERY = 2  # gradient steps


@dataclass(frozen=True)
class Pretraining:
    """steps: of the weights that were kept. loss, explained_variance: theirs, on held-out trajectories."""

    steps: int
    loss: float
    explained_variance: float


def pretrain_value(learner: Learner, batch: Sequence[Experience], rl: Rl, seed: int) -> Pretraining:
    """Train the value model for rl.value_pretraining_steps gradient steps at most; keep the weights with the lowest
    loss on the quarter of the trajectories that is held out."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(batch))
    # Trajectories, not tasks, are few here; at least one is held out where there are two.
    apart = max(1, len(batch) // 4) if len(batch) > 1 else 0
    held_out = [batch[i] for i in sorted(order[:apart])] or list(batch)
    train = [batch[i] for i in sorted(order[apart:])]
    monte_carlo = rl.model_copy(update={"lambda_critic": 1.0})
    turns_train, _ = turns(train, learner.value, monte_carlo, bootstrap=False)
    best = _measure(learner, held_out, monte_carlo, 0)
    kept, stale = _state(learner), 0
    waiting: list[int] = []
    for step in range(1, rl.value_pretraining_steps + 1):
        if len(waiting) < rl.minibatch:
            waiting += rng.permutation(len(turns_train)).tolist()
        value_update(learner, [turns_train[i] for i in waiting[: rl.minibatch]], rl)
        del waiting[: rl.minibatch]
        if step % _CHECK_EVERY and step < rl.value_pretraining_steps:
            continue
        now = _measure(learner, held_out, monte_carlo, step)
        if now.loss < best.loss:
            best, kept, stale = now, _state(learner), 0
        elif (stale := stale + 1) == _PATIENCE:
            break
    learner.value.load_state_dict(kept)
    return best


def _measure(learner: Learner, held_out: Sequence[Experience], rl: Rl, step: int) -> Pretraining:
    got, _ = turns(held_out, learner.value, rl, bootstrap=False)
    values, returns = _all(got, "values"), _all(got, "returns")
    return Pretraining(step, float(np.mean((values - returns) ** 2) / 2), explained_variance(values, returns))


def _all(got: Sequence[Turn], name: str) -> np.ndarray:
    return np.concatenate([getattr(turn, name) for turn in got])


def _state(learner: Learner) -> dict:
    return copy.deepcopy(learner.value.state_dict())
