"""Turn episodes into training samples: shaped rewards, values, advantages per trajectory, then the cut into steps.

The denominator of the policy's ratio are the log-probabilities as sampled: those that the policy recorded when it drew
the token, at the sampling temperature. Each token has those of the weights that drew it, so a trajectory that several
weight versions sampled needs nothing more: the surrogate is a sum over tokens, and each term's denominator is its own
sampler.
One forward pass of the present policy gives the hidden states that V reads, and the same log-probabilities once more:
on samples of the newest weights the two must agree (`mismatch`); on older ones they show how far the policy has moved
on (`drift`), and the step's own move is clipped around them (`losses.policy_loss`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flywheel.config import RlSettings, Settings
from flywheel.envs.base import Task
from flywheel.policy.client.language_model import open_summarizer
from flywheel.policy.encoding import EncodedSequence, Encoder
from flywheel.rewards.shaping import ShapingConfig, reward_as_earned, reward_at_end, shape_rewards
from flywheel.rollout.episode import Episode
from flywheel.rollout.history import build_step_context
from flywheel.rollout.rollout_log import EpisodeOutcome
from flywheel.training.data import Example, build_agent_examples
from flywheel.training.distributed.engine import gather_across_ranks, pad_microbatches_across_ranks
from flywheel.training.modeling.policy_forward import EncodedExample
from flywheel.training.rl.algorithm import ScoredTrajectory, get_algorithm
from flywheel.training.rl.learner import UNKNOWN_FEATURE, Learner, ValueFeatures
from flywheel.utils.errors import TrainingError


@dataclass(frozen=True)
class Experience:
    """One trajectory. samples, rewards, value_features: of each step. score, success (V = 1): of its verdict.

    bootstrap_context: what would have come next where a limit cut the trajectory off, else None. later: what of the
    score is not among the rewards then. think_lengths: tokens of each step's thought. interface: its task's.
    """

    trajectory_id: str
    samples: tuple[Example, ...]
    rewards: tuple[float, ...]
    value_features: tuple[ValueFeatures, ...]
    score: float
    success: bool
    bootstrap_context: EncodedSequence | None
    task_id: str = ""
    think_lengths: tuple[int, ...] = ()
    interface: str = ""
    later: float = 0.0


@dataclass(frozen=True)
class StepSample:
    """One training sample: a step with the advantages, value targets and values of its tokens, [response].

    old_logprobs: as sampled, at the sampling temperature. proximal: under the weights as they are; as sampled where
    these sampled it (`on_policy`). logprob_diff: [response], |recomputed - sampled| under the weights as they are.
    value_input: what V reads, [response, width + 2]. returns, values, value_input: None where there is no V. item: the
    sample as the model reads it. interface: the task's.
    """

    sample: Example
    task_id: str
    advantages: np.ndarray
    returns: np.ndarray | None
    values: np.ndarray | None
    old_logprobs: np.ndarray
    proximal: np.ndarray
    logprob_diff: np.ndarray
    on_policy: bool
    value_input: Tensor | None
    success: bool
    item: EncodedExample
    interface: str = ""


def build_experiences(
    episodes: Sequence[Episode],
    outcomes: Sequence[EpisodeOutcome],
    tasks: Mapping[str, Task],
    encoder: Encoder,
    settings: Settings,
) -> list[Experience]:
    """Build what is trained on of each episode, sorted by trajectory_id; episodes without a step are left out.

    outcomes: of each episode, in the same order. tasks: by task_id.
    """
    shaping = ShapingConfig(
        settings.rl.format_penalty,
        settings.policy.max_new_tokens,
        settings.rl.length_buffer,
        settings.rl.length_penalty,
        settings.rl.step_penalty,
    )
    pairs = [(episode, outcome) for episode, outcome in zip(episodes, outcomes, strict=True) if episode.steps]
    return [
        _build_experience(episode, outcome, tasks[episode.trajectory.task_id], encoder, settings, shaping)
        for episode, outcome in sorted(pairs, key=lambda pair: pair[0].id)
    ]


def _build_experience(
    episode: Episode, outcome: EpisodeOutcome, task: Task, encoder: Encoder, settings: Settings, shaping: ShapingConfig
) -> Experience:
    summarizer = open_summarizer(settings)
    samples = build_agent_examples(
        [episode.trajectory],
        episode.steps,
        episode.images,
        encoder,
        settings.policy,
        parse_errors=True,
        summarizer=summarizer,
    )
    # Encoded now: passes over them, and processes that read them, are several.
    samples = [replace(sample, prompt=sample.context) for sample in samples]
    # A goal that was reached is an end, also where the limit came in the same step.
    cut_off = episode.trajectory.status != "completed" and not outcome.success
    beyond = None
    if (
        cut_off and settings.rl.bootstrap and get_algorithm(settings.rl.algorithm).needs_value
    ):  # else there is no V to end in
        context = build_step_context(
            task.instruction,
            episode.steps,
            episode.images,
            episode.last_screen,
            settings.policy,
            observation=episode.last_observation,
            count=encoder.count,
            summarizer=summarizer,
        )
        beyond = encoder.encode(context)
    # What follows a cut-off trajectory is in the bootstrap (`gae.estimate_advantages`), and so is an outcome at an end.
    later = outcome.score if beyond is not None and not settings.rl.reward_progress else 0.0
    scores = [step.state_score for step in episode.steps]
    rewards = shape_rewards(
        reward_as_earned(outcome.score, scores)
        if settings.rl.reward_progress
        else reward_at_end(outcome.score - later, len(samples)),
        [len(sample.response) for sample in samples],
        [bool(step.parse_error) for step in episode.steps],
        shaping,
        task.max_steps,
    )
    thoughts = tuple(len(encoder.encode_text(step.thought or "")) - 1 for step in episode.steps)
    return Experience(
        episode.id,
        tuple(samples),
        rewards,
        _build_value_features(scores, task.max_steps),
        outcome.score,
        outcome.success,
        beyond,
        task.task_id,
        thoughts,
        task.interface,
        later,
    )


def _build_value_features(scores: Sequence[float | None], budget: int) -> tuple[ValueFeatures, ...]:
    return tuple(
        ValueFeatures(UNKNOWN_FEATURE if score is None else score, 1 - step / budget if budget else UNKNOWN_FEATURE)
        for step, score in enumerate(scores)
    )


def estimate_step_samples(
    batch: Sequence[Experience], learner: Learner, rl: RlSettings
) -> tuple[list[StepSample], float]:
    """Estimate values and advantages over each whole trajectory, as the learner's algorithm has them.

    Then cut into one turn a step. Returns the samples, and the mean horizon in tokens (NaN where the algorithm has
    none). Raises TrainingError, naming trajectory and step, for an empty batch, a trajectory or step without a
    trainable token, a reward or log-probability that is not finite, and a step whose log-probabilities nobody knows.
    """
    if not batch:
        raise TrainingError("the batch is empty", where="RL", fix="check the rollout's log for what became of it")
    for experience in batch:
        _check_experience(experience)
    items = [[learner.reader.encode_example(s.context, s.response) for s in experience.samples] for experience in batch]
    # One placeholder token: V is read where it would be predicted, and it is not fed to the model.
    valued = learner.value is not None
    cut = [number for number, experience in enumerate(batch) if valued and experience.bootstrap_context is not None]
    beyond = [learner.reader.encode_example(batch[number].bootstrap_context, (0,), sampled=False) for number in cut]
    states = iter(_read_policy(learner, [*(item for some in items for item in some), *beyond], rl))
    mine = [[next(states) for _ in some] for some in items]
    ends = {
        number: float(_evaluate_value(learner, ValueFeatures(batch[number].score, 0.0).append_to(hidden)[0]))
        for number, (hidden, _, _) in zip(cut, states, strict=True)
    }
    read = [
        [
            told.append_to(hidden) if valued else None
            for told, (hidden, _, _) in zip(one.value_features, states_of, strict=True)
        ]
        for one, states_of in zip(batch, mine, strict=True)
    ]
    rewarded = [
        ScoredTrajectory(
            experience.task_id,
            experience.rewards,
            tuple(len(item.response) for item in some),
            tuple(_evaluate_value(learner, one) for one in read_of) if valued else (),
            bootstrap=ends.get(number, 0.0),
            outcome=experience.later if number in ends else 0.0,
        )
        for number, (experience, some, read_of) in enumerate(zip(batch, items, read, strict=True))
    ]
    estimates = learner.algorithm.advantages(rewarded, rl)
    result = []
    every = zip(batch, items, mine, read, rewarded, estimates, strict=True)
    for experience, some, states_of, read_of, one, got in every:
        for row, (sample, item, (_, *logs)) in enumerate(zip(experience.samples, some, states_of, strict=True)):
            fresh = sample.version in (None, learner.version)
            old, apart = _sampled_logprobs(sample, *logs, fresh, rl)
            result.append(
                StepSample(
                    sample,
                    experience.task_id,
                    got.advantages[row],
                    got.returns[row] if valued else None,
                    one.values[row] if valued else None,
                    old,
                    old if fresh else logs[0],
                    apart,
                    fresh,
                    read_of[row],
                    experience.success,
                    item,
                    experience.interface,
                )
            )
    return result, float(np.mean([got.horizon for got in estimates]))


def _evaluate_value(learner: Learner, read: Tensor) -> np.ndarray:
    """V [...] of what it reads, [..., width + 2]."""
    return learner.value.evaluate(read).double().cpu().numpy()


def _check_experience(experience: Experience) -> None:
    where = f"trajectory {experience.trajectory_id}"
    if not experience.samples:
        raise TrainingError("it has no trainable token", where=where, fix="leave out what has no step")
    for sample, reward in zip(experience.samples, experience.rewards, strict=True):
        step = f"{where}, step {sample.step}"
        if not sample.response:
            raise TrainingError("it has no trainable token", where=step, fix="the policy must record its tokens")
        if not np.isfinite(reward):
            raise TrainingError(f"the reward is {reward}", where=step, fix="check the scorers and rl's penalties")
        known = [logs for logs in (sample.logprobs, sample.sampled_logprobs) if logs]
        if not known:
            raise TrainingError("it has no log-probabilities as sampled", where=step, fix="RL takes the model's steps")
        for logs in known:
            if len(logs) != len(sample.response) or not np.isfinite(logs).all():
                raise TrainingError(
                    f"{len(sample.response)} tokens, {int(np.isfinite(logs).sum())} log-probabilities that are finite",
                    where=step,
                )


def _sampled_logprobs(
    sample: Example, tempered: np.ndarray, natural: np.ndarray, fresh: bool, rl: RlSettings
) -> tuple[np.ndarray, np.ndarray]:
    """The log-probabilities that the ratio is taken against, and how far the recomputed ones are from what the policy
    recorded. tempered, natural: recomputed, at the sampling temperature and at 1."""
    if sample.sampled_logprobs:
        old = np.asarray(sample.sampled_logprobs, dtype=np.float32)
        return old, np.abs(tempered - old)
    recorded = np.asarray(sample.logprobs, dtype=np.float32)
    apart = np.abs(natural - recorded)
    if rl.temperature == 1:
        return recorded, apart
    if fresh:  # a server that says only those at temperature 1; its weights are at hand
        return tempered, apart
    raise TrainingError(
        f"older weights sampled it at temperature {rl.temperature:g}, and recorded log-probabilities at 1 alone",
        where=f"trajectory {sample.trajectory_id}, step {sample.step}",
        fix="set rl.temperature to 1 or rl.max_staleness to 0",
    )


@torch.no_grad()
def _read_policy(
    learner: Learner, items: Sequence[EncodedExample], rl: RlSettings
) -> list[tuple[Tensor | None, np.ndarray, np.ndarray]]:
    """Of each item's response the hidden states [response, width], where V reads them, and the log-probabilities
    [response], at the sampling temperature and at 1. Several processes read a part each."""
    found = {}
    for part, weight in pad_microbatches_across_ranks(
        learner.reader.split_into_micro_batches(items, rl, learner.actor.size), learner.actor
    ):
        hidden, _, *logprobs = learner.actor.forward(part, rl.temperature, 1.0)
        ends = np.cumsum([len(items[member].response) for member in part.members])[:-1].tolist()
        if weight:
            pieces = [hidden.detach().tensor_split(ends), *(np.split(read.cpu().numpy(), ends) for read in logprobs)]
            found |= {
                member: (state.clone() if learner.value is not None else None, tempered.copy(), natural.copy())
                for member, state, tempered, natural in zip(part.members, *pieces, strict=True)
            }
    every = {member: read for mine in gather_across_ranks(found, learner.actor) for member, read in mine.items()}
    return [every[member] for member in range(len(items))]
