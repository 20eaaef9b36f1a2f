"""Generalised advantage estimation over the trainable tokens of one whole trajectory.

Sources: GAE (Schulman et al. 2016); decoupled lambdas (VC-PPO 2025); length-adaptive lambda (VAPO 2025), as used in
section 2.5.4 of the UI-TARS-2 report. Computed per trajectory first, cut into training samples afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flywheel.errors import TrainingError


@dataclass(frozen=True)
class LengthAdaptive:
    """lam: lambda_policy. horizon: 1 / (1 - gamma lam), how many trainable tokens a reward reaches back."""

    lam: float
    horizon: float


@dataclass(frozen=True)
class Estimate:
    """Arrays of shape [tokens], 0 at observation tokens. returns: the value model's targets."""

    advantages: np.ndarray
    returns: np.ndarray
    horizon: float


def length_adaptive(length: int, alpha: float, gamma: float = 1.0) -> LengthAdaptive:
    """lambda_policy = max(0, 1 - 1 / (alpha l)), l = trainable tokens of the whole trajectory (VAPO, eq. 7).

    The horizon is then alpha l tokens (gamma 1): 5% of the trajectory at the report's alpha of 0.05.
    """
    lam = max(0.0, 1.0 - 1.0 / (alpha * length)) if length else 0.0
    return LengthAdaptive(lam, 1.0 / (1.0 - gamma * lam))


def gae(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, *, gamma: float, lam: float, bootstrap: float = 0.0
) -> np.ndarray:
    """A_i = sum_k (gamma lam)^k delta_{i+k}, delta_i = r_i + gamma V_{i+1} - V_i; i + 1 is the next trainable token.

    rewards, values: [tokens]; what they hold at observation tokens is never read, so it may be NaN.
    mask: [tokens], true at trainable tokens. bootstrap: V behind the last token; 0 where the trajectory really
    ended, the value of what would have followed where a limit cut it off. Returns [tokens], 0 at observation tokens.
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


def estimate(
    rewards: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    *,
    gamma: float,
    lambda_critic: float,
    alpha: float,
    bootstrap: float = 0.0,
) -> Estimate:
    """Decoupled GAE of one trajectory: the policy's advantages with the length-adaptive lambda, the value model's
    targets (advantage + value) with lambda_critic. Shapes as in `gae`. Raises TrainingError where a number that is
    read is not finite."""
    mask = np.asarray(mask, dtype=bool)
    read = (np.asarray(rewards, dtype=np.float64)[mask], np.asarray(values, dtype=np.float64)[mask], bootstrap)
    if not all(np.isfinite(part).all() for part in read):
        raise TrainingError("a reward or value at a trainable token is not finite", where="GAE")
    adaptive = length_adaptive(int(mask.sum()), alpha, gamma)
    advantages = gae(rewards, values, mask, gamma=gamma, lam=adaptive.lam, bootstrap=bootstrap)
    returns = gae(rewards, values, mask, gamma=gamma, lam=lambda_critic, bootstrap=bootstrap)
    returns[mask] += read[1]
    return Estimate(advantages, returns, adaptive.horizon)
