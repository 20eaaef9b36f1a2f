"""From episodes to PPO's training samples: shaped rewards, values, GAE per trajectory, and only then the cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.evaluation.evaluate import grade
from flywheel.policy.encoding import Encoded, Encoder
from flywheel.reward.shaping import Shaping, shape
from flywheel.rollout.episode import Episode
from flywheel.rollout.history import step_context
from flywheel.sandbox.env import Task
from flywheel.settings import Rl, Settings
from flywheel.training.forward import batch_of, by_length
from flywheel.training.gae import estimate
from flywheel.training.samples import Sample, agent_samples
from flywheel.training.value import ValueModel


@dataclass(frozen=True)
class Experience:
    """One trajectory. samples, rewards: of each step. score: the verifier's; success: V = 1.

    beyond: the context that would have come next where a limit cut the trajectory off, else None.
    """

    trajectory_id: str
    samples: tuple[Sample, ...]
    rewards: tuple[float, ...]
    score: float
    success: bool
    beyond: Encoded | None


@dataclass(frozen=True)
class Turn:
    """One training sample: a step with the advantages and value targets of its tokens, [response]."""

    sample: Sample
    advantages: np.ndarray
    returns: np.ndarray
    values: np.ndarray
    success: bool


def experiences(
    episodes: Sequence[Episode], tasks: Mapping[str, Task], encoder: Encoder, settings: Settings
) -> list[Experience]:
    """Sorted by trajectory_id. Crashed episodes have no outcome and are left out; tasks: by task_id."""
    shaping = Shaping(
        settings.rl.format_penalty,
        settings.policy.max_new_tokens,
        settings.rl.length_buffer,
        settings.rl.length_penalty,
    )
    kept = sorted((e for e in episodes if e.steps), key=lambda episode: episode.id)
    return [_experience(e, tasks[e.trajectory["task_id"]], encoder, settings, shaping) for e in kept]


def _experience(episode: Episode, task: Task, encoder: Encoder, settings: Settings, shaping: Shaping) -> Experience:
    result = grade(task, episode)
    samples = agent_samples(
        [episode.trajectory], episode.steps, episode.images, encoder, settings.policy, parse_errors=True
    )
    # A goal that was reached is an end, also where the limit came in the same step.
    cut_off = episode.trajectory["status"] != "completed" and not result.v
    beyond = None
    if cut_off and settings.rl.bootstrap:
        context = step_context(task.instruction, episode.steps, episode.images, episode.last_screen, settings.policy)
        beyond = encoder.encode(context)
    rewards = shape(
        # What follows a cut-off trajectory, its outcome with it, is in the bootstrap.
        0.0 if beyond is not None else result.score,
        [len(sample.response) for sample in samples],
        [bool(row.get("parse_error")) for row in episode.steps],
        shaping,
    )
    return Experience(episode.id, tuple(samples), rewards, result.score, result.v, beyond)


def turns(
    batch: Sequence[Experience], value: ValueModel, rl: Rl, *, bootstrap: bool = True
) -> tuple[list[Turn], float]:
    """Values, decoupled length-adaptive GAE over each whole trajectory, then one turn a step; and the mean horizon.

    bootstrap: false for Monte Carlo returns of value pretraining, where V has no meaning yet.
    """
    per_step = _values(value, [s for e in batch for s in e.samples], rl.micro_batch)
    beyond = [e.beyond for e in batch if e.beyond is not None] if bootstrap else []
    ends = iter(_first_values(value, beyond, rl.micro_batch))
    result, horizons, at = [], [], 0
    for experience in batch:
        lengths = [len(sample.response) for sample in experience.samples]
        values = np.concatenate(per_step[at : at + len(lengths)])
        at += len(lengths)
        rewards = np.zeros_like(values)
        rewards[np.cumsum(lengths) - 1] = experience.rewards
        got = estimate(
            rewards, values, np.ones(len(values), dtype=bool), gamma=rl.gamma, lambda_critic=rl.lambda_critic,
            alpha=rl.alpha, bootstrap=next(ends) if bootstrap and experience.beyond is not None else 0.0,
        )  # fmt: skip
        horizons.append(got.horizon)
        cuts = np.cumsum(lengths)[:-1]
        pieces = zip(*(np.split(part, cuts) for part in (got.advantages, got.returns, values)), strict=True)
        result += [Turn(s, *piece, experience.success) for s, piece in zip(experience.samples, pieces, strict=True)]
    return result, float(np.mean(horizons))


def _values(value: ValueModel, samples: Sequence[Sample], size: int) -> list[np.ndarray]:
    """V at each response token of each sample."""
    result: list[np.ndarray] = [np.zeros(0)] * len(samples)
    for rows in by_length([len(sample) for sample in samples], size):
        batch = batch_of([samples[i].context for i in rows], [samples[i].response for i in rows])
        for i, row in zip(rows, value.evaluate(batch).double().numpy(), strict=True):
            result[i] = row[: len(samples[i].response)]
    return result


def _first_values(value: ValueModel, contexts: Sequence[Encoded], size: int) -> list[float]:
    """V of the state at the end of each context, before any response."""
    result = [0.0] * len(contexts)
    for rows in by_length([len(context) for context in contexts], size):
        # One placeholder token: V is read where it would be predicted, and it is not fed to the model.
        batch = batch_of([contexts[i] for i in rows], [(0,)] * len(rows))
        for i, row in zip(rows, value.evaluate(batch)[:, 0].tolist(), strict=True):
            result[i] = row
    return result
