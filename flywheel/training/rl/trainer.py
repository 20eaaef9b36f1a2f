"""Take the gradient steps of RL in each training process, value pretraining included."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flywheel.config import RlSettings, Settings
from flywheel.envs.base import INTERFACES
from flywheel.policy.encoding import Encoder
from flywheel.policy.guided_decoding import open_constraint
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.training.distributed.engine import pad_microbatches_across_ranks, take_gradient_step
from flywheel.training.modeling.policy_forward import MicroBatch
from flywheel.training.rl.algorithm import Algorithm
from flywheel.training.rl.experience import Experience, StepSample, estimate_step_samples
from flywheel.training.rl.learner import Learner
from flywheel.training.rl.losses import PolicyTerms, TokenBatch, explained_variance, value_loss
from flywheel.utils.errors import TrainingError


def policy_learning_rate(step: int, rl: RlSettings) -> float:
    """Return the learning rate of the policy's gradient step `step`, from 0: a linear rise over rl.warmup steps."""
    return rl.actor_lr * min(1.0, (step + 1) / (rl.warmup + 1))


def train_step(learner: Learner, turns: Sequence[StepSample], rl: RlSettings, seed: int) -> dict[str, float]:
    """Train the policy for rl.epochs passes over the turns, and V, where there is one, for rl.critic_epochs.

    `learner` is then of the next version. seed: of the minibatches.

    Returns token-level means: policy_loss, kl, entropy, clip_fraction, truncated_fraction (importance weights that were
    held), value_loss, explained_variance (of V before the update; of the turns of each interface by itself too, where
    tasks say theirs: explained_variance_<interface>); mismatch (|log-probability recomputed - sampled| of
    tokens that the newest weights sampled), drift (of those that older ones did), stale_fraction (their share),
    grad_norm (mean), learning_rate (the policy's last), tokens (trained).

    Raises TrainingError for an empty batch, a mismatch over rl.max_logprob_diff_on_policy (rollout and training
    disagree on the prompts, the tokens or the weights), a drift over rl.max_logprob_diff_off_policy, and a loss or
    gradient that is not finite.
    """
    if not turns:
        raise TrainingError("the batch is empty", where="RL")
    figures = _check_logprob_agreement(turns, rl)
    rng, total, norms, rate = np.random.default_rng(seed), PolicyTerms(), [], 0.0
    for part in _draw_minibatches([t.task_id for t in turns], rl.epochs, rl.minibatch, rl.minibatch_by, rng):
        rate = policy_learning_rate(learner.gradient_steps, rl)
        terms, norm = _update_policy(learner, [turns[i] for i in part], rl, rate)
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
        "tokens": float(len(_concatenate(turns, "advantages"))),
    }
    if learner.value is not None:
        names = [str(number) for number in range(len(turns))]
        parts = _draw_minibatches(names, rl.critic_epochs, rl.minibatch, "turn", rng)
        losses = [update_value(learner, [turns[i] for i in part], rl) for part in parts]
        figures |= {"value_loss": float(np.mean(losses)), "explained_variance": _turns_explained_variance(turns)}
        for name in INTERFACES:
            if mine := [turn for turn in turns if turn.interface == name]:
                figures[f"explained_variance_{name}"] = _turns_explained_variance(mine)
    learner.version += 1
    return figures


def _turns_explained_variance(turns: Sequence[StepSample]) -> float:
    return explained_variance(_concatenate(turns, "values"), _concatenate(turns, "returns"))


def _check_logprob_agreement(turns: Sequence[StepSample], rl: RlSettings) -> dict[str, float]:
    """How far the recomputed log-probabilities are from the sampled ones, of fresh and of stale tokens."""
    fresh, stale = ([turn for turn in turns if turn.on_policy is kind] for kind in (True, False))
    found = {
        "stale_fraction": sum(len(turn.logprob_diff) for turn in stale) / sum(len(turn.logprob_diff) for turn in turns)
    }
    for name, some, setting, fix in (
        ("mismatch", fresh, "max_logprob_diff_on_policy", "rollout and training must use the same prompts and weights"),
        ("drift", stale, "max_logprob_diff_off_policy", "lower rl.max_staleness or the learning rate"),
    ):
        if some:
            found[name] = float(_concatenate(some, "logprob_diff").mean())
            if not found[name] <= getattr(rl, setting):
                worst = max(some, key=lambda turn: float(turn.logprob_diff.mean())).sample
                raise TrainingError(
                    f"recomputed log-probabilities differ from the sampled ones by {found[name]:.4f} on average, "
                    f"most in trajectory {worst.trajectory_id}, step {worst.step}",
                    where=f"rl.{setting}",
                    fix=fix,
                )
    return found


def update_value(learner: Learner, turns: Sequence[StepSample], rl: RlSettings) -> float:
    """Take one gradient step of the value model on all tokens of the turns; returns its loss."""
    engine, tokens = learner.critic, sum(len(turn.returns) for turn in turns)

    def loss_of(mine: Sequence[StepSample]) -> tuple[Tensor, tuple[()]]:
        read = torch.cat([turn.value_input for turn in mine])
        returns = torch.from_numpy(_concatenate(mine, "returns")).float().to(read.device)
        values = engine.forward(read)
        return value_loss(values, returns, torch.ones_like(returns, dtype=torch.bool), tokens=tokens), ()

    parts = [turns[start :: engine.size] for start in range(min(engine.size, len(turns)))]
    what = f"V in step {learner.version + 1}"
    (loss,), _ = take_gradient_step(
        engine, pad_microbatches_across_ranks(parts, engine), loss_of, rl.critic_lr, what=what, where="RL"
    )
    return loss


def _update_policy(
    learner: Learner, turns: Sequence[StepSample], rl: RlSettings, rate: float
) -> tuple[PolicyTerms, float]:
    """One gradient step of the policy, over parts of the minibatch; its sums, and the gradient's norm."""
    engine, tokens = learner.actor, sum(len(turn.advantages) for turn in turns)
    successful_tokens = sum(len(turn.advantages) for turn in turns if turn.success)

    def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float, ...]]:
        some = [turns[member] for member in part.members]
        _, entropy, logprobs = engine.forward(part, rl.temperature)
        old, proximal, advantages = (
            _float_tensor(_concatenate(some, name), logprobs) for name in ("old_logprobs", "proximal", "advantages")
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

    parts = pad_microbatches_across_ranks(
        learner.reader.split_into_micro_batches([turn.item for turn in turns], rl, engine.shares), engine
    )
    what = f"the policy in step {learner.version + 1}, gradient step {learner.gradient_steps + 1}"
    (_, *sums), norm = take_gradient_step(engine, parts, loss_of, rate, what=what, where="RL")
    learner.gradient_steps += 1
    return PolicyTerms(*sums), norm


def _float_tensor(rows: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).float().to(like.device)


def _draw_minibatches(
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


def _concatenate(turns: Sequence[StepSample], name: str) -> np.ndarray:
    return np.concatenate([getattr(turn, name) for turn in turns])


# Value pretraining (VC-PPO section 3.2, VAPO section 4.1): the policy stays fixed, V learns Monte Carlo returns.

_PATIENCE = 10  # steps without a better held-out figure before it stops: more would overfit
_MIN_TASKS = 12  # where there are as many, whole tasks are held out


@dataclass(frozen=True)
class ValuePretraining:
    """Hold the best weights of value pretraining so far.

    steps: of the weights that were kept. loss, explained_variance: theirs, on held-out trajectories (NaN where all
    their returns are the same).
    """

    steps: int
    loss: float
    explained_variance: float

    def better(self, other: ValuePretraining) -> bool:
        """Tell whether this one explains more of the held-out returns' variance, with a constant error counted as
        unexplained.

        It compares 1 - 2 loss / variance, so the loss decides; `explained_variance` forgives an offset, and would
        choose V = 0.
        """
        return self.loss < other.loss


def pretrain_value(learner: Learner, batch: Sequence[Experience], rl: RlSettings, seed: int) -> ValuePretraining:
    """Train the value model for rl.value_pretraining_steps gradient steps at most, each on all tokens; keep the weights
    that explain most of the variance of the returns of the quarter of the trajectories that is held out.

    Whole tasks are held out where there are enough of them: episodes of one task begin with the same screen, whose
    return V could know by heart. A quarter of a few tasks, though, often has no variance to explain. Raises
    TrainingError as `experience.turns` does.
    """
    monte_carlo = rl.model_copy(update={"lambda_critic": 1.0})
    every, _ = estimate_step_samples(batch, learner, monte_carlo)
    train, held_out = _split_held_out(every, np.random.default_rng(seed))
    best, kept = _measure_value(learner, held_out, 0), copy.deepcopy(learner.value.state_dict())
    for step in range(1, rl.value_pretraining_steps + 1):
        update_value(learner, train, rl)
        now = _measure_value(learner, held_out, step)
        if now.better(best):
            best, kept = now, copy.deepcopy(learner.value.state_dict())
        elif step - best.steps == _PATIENCE:
            break
    learner.value.load_state_dict(kept)
    return best


def _split_held_out(every: Sequence[StepSample], rng: np.random.Generator) -> tuple[list[StepSample], list[StepSample]]:
    """(to train on, held out); the same turns in both where there are fewer than four trajectories."""
    tasks = list(dict.fromkeys(turn.task_id for turn in every))
    trajectories = list(dict.fromkeys(turn.sample.trajectory_id for turn in every))
    by_task = len(tasks) >= _MIN_TASKS
    names = tasks if by_task else trajectories
    apart = set(rng.permutation(names)[: len(names) // 4].tolist())
    inside = [(turn.task_id if by_task else turn.sample.trajectory_id) in apart for turn in every]
    train = [turn for turn, out in zip(every, inside, strict=True) if not out]
    return train, [turn for turn, out in zip(every, inside, strict=True) if out] or train


def _measure_value(learner: Learner, held_out: Sequence[StepSample], step: int) -> ValuePretraining:
    read = torch.cat([turn.value_input for turn in held_out])
    values = learner.value.evaluate(read).double().cpu().numpy()
    returns = np.concatenate([turn.returns for turn in held_out])
    return ValuePretraining(step, float(np.mean((values - returns) ** 2) / 2), explained_variance(values, returns))


class RLTrainer:
    """All processes that train together (`workers`) make the same calls; the first one alone writes files."""

    def __init__(self, folder: Path, settings: Settings, seed: int, algorithm: Algorithm) -> None:
        """folder: the checkpoint it begins with. seed: of the value model's first weights."""
        self.rl, self.encoder = settings.rl, Encoder.from_folder(folder)
        policy = load_model(folder, device=self.rl.device)
        constraint = open_constraint(self.encoder, policy.config, settings.policy)
        self.learner = Learner(policy, self.rl, seed, algorithm, constraint)

    def fit_value(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Value pretraining; its figures."""
        found = pretrain_value(self.learner, batch, self.rl, seed)
        return {f"value_pretraining_{name}": value for name, value in vars(found).items()}

    def update(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Take one RL step on the batch; returns its figures, and the horizon."""
        found, horizon = estimate_step_samples(batch, self.learner, self.rl)
        return train_step(self.learner, found, self.rl, seed) | {"horizon": horizon}

    def write(self, folder: Path) -> None:
        """Write the policy's weights as a checkpoint folder."""
        with self.learner.gathered():
            if self.learner.first:
                save_checkpoint(self.learner.policy, self.encoder, folder)

    def save(self, path: Path, about: dict[str, Any]) -> None:
        self.learner.save(path, about)

    def load(self, path: Path, key: str) -> dict[str, Any] | None:
        return self.learner.load(path, key)
