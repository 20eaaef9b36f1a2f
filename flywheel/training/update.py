"""Gradient steps of PPO: the policy's and the value model's, over minibatches of turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.errors import TrainingError
from flywheel.settings import Rl
from flywheel.training.experience import Turn
from flywheel.training.forward import Batch, batch_of, by_length, response_logprobs
from flywheel.training.patches import quick_patches
from flywheel.training.ppo import PolicyTerms, explained_variance, policy_loss, positive_nll, value_loss
from flywheel.training.value import ValueModel


@dataclass(frozen=True)
class Learner:
    """What is trained: the policy, the value model, and their optimisers."""

    policy: PreTrainedModel
    value: ValueModel
    actor: torch.optim.Optimizer
    critic: torch.optim.Optimizer


def learner(policy: PreTrainedModel, rl: Rl, seed: int) -> Learner:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        quick_patches(policy)
        value = ValueModel(policy)
    return Learner(
        policy.train(), value,
        torch.optim.AdamW(policy.parameters(), lr=rl.actor_lr, weight_decay=0.0),
        torch.optim.AdamW(value.parameters(), lr=rl.critic_lr, weight_decay=0.0),
    )  # fmt: skip


def normalised(turns: Sequence[Turn]) -> list[Turn]:
    """Advantages of all turns to mean 0 and deviation 1 over their tokens; unchanged where all are the same."""
    every = np.concatenate([turn.advantages for turn in turns])
    mean, deviation = every.mean(), every.std()
    if deviation < 1e-8:
        return list(turns)
    return [replace(turn, advantages=(turn.advantages - mean) / deviation) for turn in turns]


def ppo_update(learner: Learner, turns: Sequence[Turn], rl: Rl, seed: int) -> dict[str, float]:
    """rl.epochs passes of the policy and rl.critic_epochs of the value model over the turns; returns token-level means.

    The log-probabilities computed by training must be those that the rollout recorded: raises TrainingError where they
    differ by more than rl.max_mismatch on average (they disagree on the prompts, the tokens or the weights).
    """
    values, returns, natural = (_all(turns, name) for name in ("values", "returns", "natural_logprobs"))
    mismatch = float(np.abs(natural - np.concatenate([turn.sample.logprobs for turn in turns])).mean())
    if not mismatch <= rl.max_mismatch:
        raise TrainingError(
            f"recomputed log-probabilities differ from the sampled ones by {mismatch:.4f} on average",
            where="rl.max_mismatch", fix="rollout and training must use the same prompts and weights",
        )  # fmt: skip
    trained = normalised(turns) if rl.normalise else list(turns)
    rng, total = np.random.default_rng(seed), PolicyTerms()
    for part in _minibatches(len(trained), rl.epochs, rl.minibatch, rng):
        total += _policy_step(learner, [trained[i] for i in part], rl)
    value_losses = [
        value_update(learner, [turns[i] for i in part], rl)
        for part in _minibatches(len(turns), rl.critic_epochs, rl.minibatch, rng)
    ]
    means = total.means()
    return {
        "policy_loss": means["loss"], "kl": means["kl"], "entropy": means["entropy"],
        "clip_fraction": means["clipped"], "mismatch": mismatch, "value_loss": float(np.mean(value_losses)),
        "explained_variance": explained_variance(values, returns),
    }  # fmt: skip


def value_update(learner: Learner, turns: Sequence[Turn], rl: Rl) -> float:
    """One gradient step of the value model; returns its loss."""
    returns = torch.from_numpy(_all(turns, "returns")).float()
    values = learner.value(torch.cat([turn.hidden for turn in turns]))
    loss = value_loss(values, returns, torch.ones(len(returns), dtype=torch.bool), tokens=len(returns))
    learner.critic.zero_grad(set_to_none=True)
    loss.backward()
    _step(learner.critic, learner.value, rl.max_grad_norm, float(loss.detach()))
    return float(loss.detach())


def _policy_step(learner: Learner, turns: Sequence[Turn], rl: Rl) -> PolicyTerms:
    """One gradient step of the policy."""
    tokens = sum(len(turn.returns) for turn in turns)
    positive_tokens = sum(len(turn.returns) for turn in turns if turn.success)
    learner.actor.zero_grad(set_to_none=True)
    terms, loss_sum = PolicyTerms(), 0.0
    for rows in by_length([len(turn.sample) for turn in turns], rl.micro_batch):
        part = [turns[i] for i in rows]
        batch = _batch(part)
        logprobs, entropy = response_logprobs(learner.policy, batch, rl.temperature)
        loss, got = policy_loss(
            logprobs, _padded([t.old_logprobs for t in part]), _padded([t.advantages for t in part]), batch.mask,
            eps_low=rl.eps_low, eps_high=rl.eps_high, tokens=tokens, entropy=entropy,
        )  # fmt: skip
        if rl.positive_nll:
            success = torch.tensor([t.success for t in part])
            loss = loss + rl.positive_nll * positive_nll(logprobs, batch.mask, success, tokens=positive_tokens)
        loss.backward()
        terms, loss_sum = terms + got, loss_sum + float(loss.detach())
    _step(learner.actor, learner.policy, rl.max_grad_norm, loss_sum)
    return terms


def _step(optimizer: torch.optim.Optimizer, model: torch.nn.Module, max_norm: float, loss: float) -> None:
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not (math.isfinite(loss) and torch.isfinite(norm)):
        raise TrainingError(
            f"the loss is {loss}, its gradient {float(norm)}", where="PPO", fix="lower the learning rates"
        )
    optimizer.step()


def _minibatches(n: int, epochs: int, size: int, rng: np.random.Generator) -> Iterator[list[int]]:
    for _ in range(epochs):
        order = rng.permutation(n).tolist()
        for start in range(0, n, size):
            yield order[start : start + size]


def _all(turns: Sequence[Turn], name: str) -> np.ndarray:
    return np.concatenate([getattr(turn, name) for turn in turns])


def _batch(turns: Sequence[Turn]) -> Batch:
    return batch_of([t.sample.context for t in turns], [t.sample.response for t in turns])


def _padded(rows: Sequence[Sequence[float] | np.ndarray]) -> Tensor:
    longest = max(len(row) for row in rows)
    result = np.zeros((len(rows), longest), dtype=np.float32)
    for target, row in zip(result, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(result)
