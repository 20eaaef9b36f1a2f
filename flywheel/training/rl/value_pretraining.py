"""Value pretraining (VC-PPO section 3.2, VAPO section 4.1): the policy stays fixed, V learns Monte Carlo returns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flywheel.settings import Rl
from flywheel.training.rl.experience import Experience, StepSample, step_samples
from flywheel.training.rl.learner import Learner
from flywheel.training.rl.ppo import explained_variance
from flywheel.training.rl.update import value_update

_PATIENCE = 10  # steps without a better held-out figure before it stops: more would overfit
_TASKS = 12  # where there are as many, whole tasks are held out


@dataclass(frozen=True)
class Pretraining:
    """steps: of the weights that were kept. loss, explained_variance: theirs, on held-out trajectories (NaN where all
    their returns are the same)."""

    steps: int
    loss: float
    explained_variance: float

    def better(self, other: Pretraining) -> bool:
        """By the share of the held-out returns' variance that is explained, a constant error counted as unexplained:
        1 - 2 loss / variance. So the loss decides; `explained_variance` forgives an offset, and would keep V = 0."""
        return self.loss < other.loss


def pretrain_value(learner: Learner, batch: Sequence[Experience], rl: Rl, seed: int) -> Pretraining:
    """Train the value model for rl.value_pretraining_steps gradient steps at most, each on all tokens; keep the weights
    that explain most of the variance of the returns of the quarter of the trajectories that is held out.

    Whole tasks are held out where there are enough of them: episodes of one task begin with the same screen, whose
    return V could know by heart. A quarter of a few tasks, though, often has no variance to explain. Raises
    TrainingError as `experience.turns` does.
    """
    monte_carlo = rl.model_copy(update={"lambda_critic": 1.0})
    every, _ = step_samples(batch, learner, monte_carlo)
    train, held_out = _parted(every, np.random.default_rng(seed))
    best, kept = _measure(learner, held_out, 0), copy.deepcopy(learner.value.state_dict())
    for step in range(1, rl.value_pretraining_steps + 1):
        value_update(learner, train, rl)
        now = _measure(learner, held_out, step)
        if now.better(best):
            best, kept = now, copy.deepcopy(learner.value.state_dict())
        elif step - best.steps == _PATIENCE:
            break
    learner.value.load_state_dict(kept)
    return best


def _parted(every: Sequence[StepSample], rng: np.random.Generator) -> tuple[list[StepSample], list[StepSample]]:
    """(to train on, held out); the same turns in both where there are fewer than four trajectories."""
    tasks = list(dict.fromkeys(turn.task_id for turn in every))
    trajectories = list(dict.fromkeys(turn.sample.trajectory_id for turn in every))
    by_task = len(tasks) >= _TASKS
    names = tasks if by_task else trajectories
    apart = set(rng.permutation(names)[: len(names) // 4].tolist())
    inside = [(turn.task_id if by_task else turn.sample.trajectory_id) in apart for turn in every]
    train = [turn for turn, out in zip(every, inside, strict=True) if not out]
    return train, [turn for turn, out in zip(every, inside, strict=True) if out] or train


def _measure(learner: Learner, held_out: Sequence[StepSample], step: int) -> Pretraining:
    read = torch.cat([turn.value_input for turn in held_out])
    values = learner.value.evaluate(read).double().cpu().numpy()
    returns = np.concatenate([turn.returns for turn in held_out])
    return Pretraining(step, float(np.mean((values - returns) ** 2) / 2), explained_variance(values, returns))
