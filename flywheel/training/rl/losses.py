"""Compute the losses of RL as pure functions on token arrays (section 2.5.4).

Sources: PPO (Schulman et al. 2017); clip-higher and the token-level mean (DAPO 2025); the positive-example term
(VAPO 2025); section 2.5.4 of the UI-TARS-2 report. For tokens of older weights: the decoupled objective (Hilton et al.
2021; AReaL 2025). For tokens of negative advantage that have become likelier: dual clip (Ye et al. 2020, "Mastering
Complex Control in MOBA Games", equation 5).

Every mean is over the trainable tokens of the GLOBAL batch: a loss takes their number in the whole batch, `tokens`, and
sums over its own tokens. So losses and gradients of micro-batches add up to those of the batch, however it is split,
ordered or padded.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from flywheel.config import RlSettings

_FARTHEST = 20.0  # bound of |log rho|: exp could overflow, and 0 x inf would make the gradient NaN


@dataclass(frozen=True)
class PolicyTerms:
    """Hold sums of the policy loss's terms over trainable tokens, for the metrics of a step.

    They are not divided by the number of tokens, so that micro-batches' sums add up. kl: divergence of the sampling
    policy from the new one, estimator r - 1 - log r (Schulman's k3). clipped: tokens whose gradient the clipping
    removed. truncated: tokens whose importance weight was bounded.
    """

    tokens: float = 0.0
    loss: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    truncated: float = 0.0
    entropy: float = 0.0

    def __add__(self, other: PolicyTerms) -> PolicyTerms:
        return PolicyTerms(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def means(self) -> dict[str, float]:
        """Return the means over tokens, by name."""
        n = max(self.tokens, 1.0)
        return {f.name: getattr(self, f.name) / n for f in fields(self) if f.name != "tokens"}


@dataclass(frozen=True)
class TokenBatch:
    """Hold the trainable tokens of one micro-batch, as arrays [tokens].

    logprobs: under the weights in training, with gradient. old_logprobs: as sampled. proximal: under the weights before
    this RL step. entropy: without gradient. successful: whether the token's trajectory succeeded. tokens,
    successful_tokens: their numbers in the whole minibatch, over all its micro-batches and processes.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    proximal: Tensor
    advantages: Tensor
    entropy: Tensor
    successful: Tensor
    tokens: int
    successful_tokens: int


def clipped_loss(part: TokenBatch, rl: RlSettings) -> tuple[Tensor, PolicyTerms]:
    """Compute PPO's loss of a micro-batch, plus rl.positive_nll times `positive_nll` (VAPO).

    Returns the loss (a scalar) and the terms of `policy_loss`. rl: block `rl`, with eps_low, eps_high and dual_clip.
    """
    every = torch.ones_like(part.logprobs, dtype=torch.bool)
    loss, terms = policy_loss(
        part.logprobs,
        part.old_logprobs,
        part.advantages,
        every,
        eps_low=rl.eps_low,
        eps_high=rl.eps_high,
        tokens=part.tokens,
        dual_clip=rl.dual_clip,
        proximal=part.proximal,
        entropy=part.entropy,
    )
    if rl.positive_nll:
        likelier = positive_nll(part.logprobs, every, part.successful, tokens=part.successful_tokens)
        loss = loss + rl.positive_nll * likelier
    return loss, terms


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    tokens: int,
    dual_clip: float = 3.0,
    proximal: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, PolicyTerms]:
    """Compute PPO's clipped loss, with dual clip and importance weights for tokens that older weights sampled.

    It is -sum w L / tokens, L = min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), but at least dual_clip A where A <
    0; rho = exp(logprobs - proximal), w = exp(proximal - old_logprobs), bounded by 1 + eps_high where A > 0 and by
    dual_clip elsewhere.

    All arrays have one shape, such as [batch, length] of a padded batch or [tokens] of a pack; entries outside `mask`
    may be anything, NaN included. old_logprobs: of each token under the weights that sampled it, which may differ
    between tokens. proximal: under the weights before this RL step; None: old_logprobs, so w = 1: plain PPO. entropy:
    for the terms only. tokens: number of trainable tokens of the global batch. Returns the loss to minimise (a scalar
    with gradient) and the terms (detached).
    """
    # Masked before anything is computed: 0 * NaN would be NaN, in the loss and in its gradient.
    new, old, adv = logprobs[mask], old_logprobs[mask], advantages[mask]
    near = old if proximal is None else proximal[mask]
    ratio = _ratio(new, near)
    free, clipped = ratio * adv, ratio.clamp(1 - eps_low, 1 + eps_high) * adv
    weight = _ratio(near, old)
    held = torch.minimum(weight, torch.where(adv > 0, 1 + eps_high, dual_clip))
    least = torch.minimum(free, clipped)
    bounded = torch.where(adv < 0, torch.maximum(least, dual_clip * adv), least)
    loss = -(held * bounded).sum() / tokens
    with torch.no_grad():
        terms = PolicyTerms(
            tokens=float(new.numel()),
            loss=float(loss) * tokens,
            kl=float((_ratio(new, old) - 1 - (new - old)).sum()),
            clipped=float(((clipped < free) | (bounded > least)).sum()),
            truncated=float((held < weight).sum()),
            entropy=float(entropy[mask].sum()) if entropy is not None else 0.0,
        )
    return loss, terms


def _ratio(new: Tensor, old: Tensor) -> Tensor:
    return torch.exp((new - old).clamp(-_FARTHEST, _FARTHEST))


def positive_nll(logprobs: Tensor, mask: Tensor, positive: Tensor, *, tokens: int) -> Tensor:
    """Compute VAPO's L_NLL: -sum log pi / tokens over the trainable tokens of successful samples.

    logprobs, mask: of one shape, as of `policy_loss`. positive: [batch] where these are [batch, length], else of their
    shape; True for samples (tokens) of successful trajectories. tokens: trainable tokens of successful samples in the
    global batch; if 0, the loss is 0.
    """
    chosen = logprobs[mask & (positive if positive.ndim == mask.ndim else positive[:, None])]
    return -chosen.sum() / max(tokens, 1)


def value_loss(values: Tensor, returns: Tensor, mask: Tensor, *, tokens: int) -> Tensor:
    """Compute the value model's loss, sum (V - R)^2 / (2 tokens) over the tokens of `mask`: a scalar with gradient.

    values (V), returns (R), mask: of one shape. tokens: number of trainable tokens of the global batch, at least one.
    """
    return 0.5 * (values[mask] - returns[mask]).square().sum() / tokens


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """Compute 1 - Var(R - V) / Var(R): the share of the returns' variance that the values explain.

    values (V), returns (R): [tokens] each. NaN where all returns are equal.
    """
    spread = float(np.var(returns))
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else float("nan")
