"""Gradient steps of RL: the policy's by its algorithm's loss, and the value model's, over minibatches of turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple

import numpy as np
import torch
from torch import Tensor

from flywheel.environments.env import INTERFACES
from flywheel.errors import TrainingError
from flywheel.settings import Rl
from flywheel.training.forward.policy_forward import MicroBatch
from flywheel.training.parallel.engine import gradient_step, rounds
from flywheel.training.rl.experience import StepSample
from flywheel.training.rl.learner import Learner
from flywheel.training.rl.ppo import PolicyTerms, TokenBatch, explained_variance, value_loss


def policy_rate(step: int, rl: Rl) -> float:
    """Learning rate of the policy's gradient step number `step`, from 0: a linear rise over rl.warmup steps."""
    return rl.actor_lr * min(1.0, (step + 1) / (rl.warmup + 1))


def train_step(learner: Learner, turns: Sequence[StepSample], rl: Rl, seed: int) -> dict[str, float]:
    """rl.epochs passes of the policy and rl.critic_epochs of the value model, where there is one, over the turns;
    `learner` is then of the next version.

    Returns token-level means: policy_loss, kl, entropy, clip_fraction, truncated_fraction (importance weights that were
    held), value_loss, explained_variance (of V before the update; of the turns of each interface by itself too, where
    tasks say theirs: explained_variance_<interface>); mismatch (|log-probability recomputed - sampled| of
    tokens that the newest weights sampled), drift (of those that older ones did), stale_fraction (their share),
    grad_norm (mean), learning_rate (the policy's last), tokens (trained).

    Raises TrainingError for an empty batch, a mismatch over rl.max_mismatch (rollout and training disagree on the
    prompts, the tokens or the weights), a drift over rl.max_drift, and a loss or gradient that is not finite.
    """
    if not turns:
        raise TrainingError("the batch is empty", where="RL")
    figures = _agreement(turns, rl)
    rng, total, norms, rate = np.random.default_rng(seed), PolicyTerms(), [], 0.0
    for part in _minibatches([t.task_id for t in turns], rl.epochs, rl.minibatch, rl.minibatch_by, rng):
        rate = policy_rate(learner.gradient_steps, rl)
        terms, norm = _policy_step(learner, [turns[i] for i in part], rl, rate)
        total, norms = total + terms, [*norms, norm]
    means = total.means()
    figures |= {
        "policy_loss": means["loss"],
        "kl": means["kl"],
        "entropy": means["entropy"],
        "clip_fraction": means["clipped"],
        "truncated_fraction": means["truncated"],
        "grad_norm": float(np.mean(norms)),
        "learning_rate": rate,
        "tokens": float(len(_all(turns, "advantages"))),
    }
    if learner.value is not None:
        names = [str(number) for number in range(len(turns))]
        parts = _minibatches(names, rl.critic_epochs, rl.minibatch, "turn", rng)
        losses = [value_update(learner, [turns[i] for i in part], rl) for part in parts]
        figures |= {"value_loss": float(np.mean(losses)), "explained_variance": _explained(turns)}
        for name in INTERFACES:
            if mine := [turn for turn in turns if turn.interface == name]:
                figures[f"explained_variance_{name}"] = _explained(mine)
    learner.version += 1
    return figures


def _explained(turns: Sequence[StepSample]) -> float:
    return explained_variance(_all(turns, "values"), _all(turns, "returns"))


def _agreement(turns: Sequence[StepSample], rl: Rl) -> dict[str, float]:
    """How far the recomputed log-probabilities are from the sampled ones, of fresh and of stale tokens."""
    fresh, stale = ([turn for turn in turns if turn.on_policy is kind] for kind in (True, False))
    found = {
        "stale_fraction": sum(len(turn.logprob_diff) for turn in stale) / sum(len(turn.logprob_diff) for turn in turns)
    }
    for name, some, limit, fix in (
        ("mismatch", fresh, rl.max_mismatch, "rollout and training must use the same prompts and weights"),
        ("drift", stale, rl.max_drift, "lower rl.max_staleness or the learning rate"),
    ):
        if some:
            found[name] = float(_all(some, "logprob_diff").mean())
            if not found[name] <= limit:
                worst = max(some, key=lambda turn: float(turn.logprob_diff.mean())).sample
                raise TrainingError(
                    f"recomputed log-probabilities differ from the sampled ones by {found[name]:.4f} on average, "
                    f"most in trajectory {worst.trajectory_id}, step {worst.step}",
                    where=f"rl.max_{name}",
                    fix=fix,
                )
    return found


def value_update(learner: Learner, turns: Sequence[StepSample], rl: Rl) -> float:
    """One gradient step of the value model on all tokens of the turns; returns its loss."""
    engine, tokens = learner.critic, sum(len(turn.returns) for turn in turns)

    def loss_of(mine: Sequence[StepSample]) -> tuple[Tensor, tuple[()]]:
        read = torch.cat([turn.value_input for turn in mine])
        returns = torch.from_numpy(_all(mine, "returns")).float().to(read.device)
        values = engine.forward(read)
        return value_loss(values, returns, torch.ones_like(returns, dtype=torch.bool), tokens=tokens), ()

    parts = [turns[start :: engine.size] for start in range(min(engine.size, len(turns)))]
    what = f"V in step {learner.version + 1}"
    (loss,), _ = gradient_step(engine, rounds(parts, engine), loss_of, rl.critic_lr, what=what, where="RL")
    return loss


def _policy_step(learner: Learner, turns: Sequence[StepSample], rl: Rl, rate: float) -> tuple[PolicyTerms, float]:
    """One gradient step of the policy, over parts of the minibatch; its sums, and the gradient's norm."""
    engine, tokens = learner.actor, sum(len(turn.advantages) for turn in turns)
    successful_tokens = sum(len(turn.advantages) for turn in turns if turn.success)

    def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float, ...]]:
        some = [turns[member] for member in part.members]
        _, entropy, logprobs = engine.forward(part, rl.temperature)
        old, proximal, advantages = (
            _tensor(_all(some, name), logprobs) for name in ("old_logprobs", "proximal", "advantages")
        )
        success = np.repeat([turn.success for turn in some], [len(turn.advantages) for turn in some])
        batch = TokenBatch(
            logprobs,
            old,
            proximal,
            advantages,
            entropy,
            torch.from_numpy(success).to(logprobs.device),
            tokens,
            successful_tokens,
        )
        loss, terms = learner.algorithm.loss(batch, rl)
        return loss, astuple(terms)

    parts = rounds(learner.reader.parts([turn.item for turn in turns], rl, engine.shares), engine)
    what = f"the policy in step {learner.version + 1}, gradient step {learner.gradient_steps + 1}"
    (_, *sums), norm = gradient_step(engine, parts, loss_of, rate, what=what, where="RL")
    learner.gradient_steps += 1
    return PolicyTerms(*sums), norm


def _tensor(rows: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).float().to(like.device)


def _minibatches(
    tasks: Sequence[str], epochs: int, size: int, by: str, rng: np.random.Generator
) -> Iterator[list[int]]:
    """Numbers of turns, `size` at a time, each once an epoch. tasks: of each turn.

    by task: tasks in random order, the turns of one behind one another. They share instructions and screens, which a
    pack holds once; mixed at random each minibatch would hold most of them. by turn: any order.
    """
    numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
    for _ in range(epochs):
        if by == "turn":
            order = rng.permutation(len(tasks)).tolist()
        else:
            places = rng.permutation(len(numbers))
            order = sorted(range(len(tasks)), key=lambda row: (places[numbers[tasks[row]]], row))
        for start in range(0, len(order), size):
            yield order[start : start + size]


def _all(turns: Sequence[StepSample], name: str) -> np.ndarray:
    return np.concatenate([getattr(turn, name) for turn in turns])
