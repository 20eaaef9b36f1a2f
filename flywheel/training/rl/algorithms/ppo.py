"""Define PPO with a value model: decoupled, length-adaptive GAE over whole trajectories (section 2.5.4; VC-PPO, VAPO).

Sources of the advantages: GAE (Schulman et al. 2016); decoupled lambdas (VC-PPO 2025); length-adaptive lambda (VAPO
2025), as used in section 2.5.4 of the UI-TARS-2 report. They are first estimated over the trainable tokens of a whole
trajectory, and then cut into training samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from flywheel.config import RlSettings
from flywheel.training.rl.algorithm import ALGORITHMS, ScoredTrajectory, TurnEstimates
from flywheel.training.rl.losses import PolicyTerms, TokenBatch, clipped_loss
from flywheel.utils.errors import TrainingError


@dataclass(frozen=True)
class LengthAdaptive:
    """Hold the lambda of a trajectory's advantages, and how far a reward reaches back with it.

    lam: the lambda of the policy's advantages. horizon: 1 / (1 - gamma lam), in trainable tokens.
    """

    lam: float
    horizon: float


@dataclass(frozen=True)
class AdvantageEstimate:
    """Hold the advantages and the value model's targets of one trajectory.

    advantages, returns (the targets): [tokens], 0 at observation tokens. horizon: as in `LengthAdaptive`.
    """

    advantages: np.ndarray
    returns: np.ndarray
    horizon: float


def length_adaptive_lambda(length: int, alpha: float, gamma: float = 1.0) -> LengthAdaptive:
    """Compute lambda_policy = max(0, 1 - 1 / (alpha l)), l = `length`, trainable tokens of a trajectory (VAPO, eq. 7).

    With gamma 1 the horizon is alpha l tokens, at least one: 5% of the trajectory at the report's alpha of 0.05.
    """
    lam = max(0.0, 1.0 - 1.0 / (alpha * length)) if length else 0.0
    return LengthAdaptive(lam, 1.0 / (1.0 - gamma * lam))


def compute_gae(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, *, gamma: float, lam: float, bootstrap: float = 0.0
) -> np.ndarray:
    """Compute A_i = sum_k (gamma lam)^k delta_{i+k}, delta_i = r_i + gamma V_{i+1} - V_i, over trainable tokens i.

    rewards, values: [tokens]; entries at observation tokens are not read and may be NaN. mask: [tokens], True at
    trainable tokens. bootstrap: V after the last token of a truncated trajectory; 0 for one that ended by itself.
    Returns float64 [tokens], 0 at observation tokens.
    """
    mask = np.asarray(mask, dtype=bool)
    r = np.asarray(rewards, dtype=np.float64)[mask]
    v = np.asarray(values, dtype=np.float64)[mask]
    deltas = r + gamma * np.append(v[1:], bootstrap) - v
    running, kept = 0.0, np.empty_like(deltas)
    for i in range(len(deltas) - 1, -1, -1):
        running = deltas[i] + gamma * lam * running
        kept[i] = running
    result = np.zeros(mask.shape, dtype=np.float64)
    result[mask] = kept
    return result


def estimate_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    *,
    gamma: float,
    lambda_critic: float,
    alpha: float,
    lambda_policy: float | None = None,
    bootstrap: float = 0.0,
    outcome: float = 0.0,
) -> AdvantageEstimate:
    """Estimate the advantages of one trajectory by decoupled GAE.

    Returns the policy's advantages with the length-adaptive lambda (or a fixed lambda_policy), and the value model's
    targets (advantage + value) with lambda_critic. Shapes as in `compute_gae`. alpha: of `length_adaptive_lambda`. For
    a truncated trajectory the advantages end in `bootstrap`, V after the last token, and the targets in `outcome`, the
    score earned by then: targets that end in V itself would not determine V (at gamma 1 any constant would satisfy
    them). Both are 0 for a trajectory that ended by itself, whose outcome is among the rewards. Raises TrainingError
    where a reward or value at a trainable token is not finite, and where no token is trainable.
    """
    mask = np.asarray(mask, dtype=bool)
    read = (np.asarray(rewards, float)[mask], np.asarray(values, float)[mask], bootstrap, outcome)
    if not all(np.isfinite(part).all() for part in read):
        raise TrainingError("a reward or value at a trainable token is not finite", where="GAE")
    if not mask.any():
        raise TrainingError("no token is trainable", where="GAE")
    adaptive = length_adaptive_lambda(int(mask.sum()), alpha, gamma)
    if lambda_policy is not None:
        adaptive = LengthAdaptive(lambda_policy, 1.0 / max(1.0 - gamma * lambda_policy, 1.0 / int(mask.sum())))
    advantages = compute_gae(rewards, values, mask, gamma=gamma, lam=adaptive.lam, bootstrap=bootstrap)
    earned = np.array(rewards, dtype=np.float64)
    earned[np.flatnonzero(mask)[-1]] += outcome
    returns = compute_gae(earned, values, mask, gamma=gamma, lam=lambda_critic)
    returns[mask] += read[1]
    return AdvantageEstimate(advantages, returns, adaptive.horizon)


def estimate_turns(rewards: Sequence[float], values: Sequence[np.ndarray], **rates: float | None) -> TurnEstimates:
    """Estimate advantages and value targets over a whole trajectory, then cut them into turns, the training samples.

    rewards: [turns], given at each turn's last token. values: one array per turn, [its response tokens]. rates: keyword
    arguments of `estimate_advantages`. Estimates of single turns would differ: a turn's reward would not reach the
    turns before it. Raises TrainingError as `estimate_advantages`.
    """
    whole, ends = np.concatenate(values), np.cumsum([len(part) for part in values])
    spread = np.zeros(len(whole))
    spread[ends - 1] = rewards
    got = estimate_advantages(spread, whole, np.ones(len(whole), dtype=bool), **rates)
    cut = (tuple(np.split(part, ends[:-1])) for part in (got.advantages, got.returns))
    return TurnEstimates(*cut, got.horizon)


class Ppo:
    """Run PPO (an `Algorithm`) with a value model and decoupled, length-adaptive GAE (section 2.5.4)."""

    whole_groups = False
    needs_value = True

    def advantages(self, batch: Sequence[ScoredTrajectory], rl: RlSettings) -> list[TurnEstimates]:
        """Estimate each trajectory by `estimate_turns`, then normalise over the batch if rl.normalise is set.

        Arguments, result and errors as of `Algorithm.advantages`.
        """
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
        """Return `clipped_loss`, as `Algorithm.loss`."""
        return clipped_loss(part, rl)


def normalise_advantages(estimates: Sequence[TurnEstimates]) -> list[TurnEstimates]:
    """Normalise advantages to mean 0 and standard deviation 1 over all tokens of all `estimates`.

    Where all are equal they stay unchanged.
    """
    every = np.concatenate([turn for estimate in estimates for turn in estimate.advantages])
    mean, deviation = every.mean(), every.std()
    if deviation < 1e-8:
        return list(estimates)
    return [
        replace(estimate, advantages=tuple((turn - mean) / deviation for turn in estimate.advantages))
        for estimate in estimates
    ]


ALGORITHMS["ppo"] = Ppo()
