"""From episodes to PPO's training samples: shaped rewards, values, GAE per trajectory, and only then the cut.

One forward pass of the policy as it is gives both the hidden states that V reads and the old log-probabilities. They
are computed again, though the rollout recorded them, in batches that do not depend on how requests met in the
rollout: so a run can be repeated exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.agent.digests import open_summarizer
from flywheel.evaluation.evaluate import grade
from flywheel.policy.encoding import Encoded, Encoder
from flywheel.reward.shaping import Shaping, shape
from flywheel.rollout.episode import Episode
from flywheel.rollout.history import step_context
from flywheel.sandbox.env import Task
from flywheel.settings import Rl, Settings
from flywheel.training.forward import batch_of, by_length, response_hidden
from flywheel.training.gae import estimate
from flywheel.training.ppo import token_logprobs
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
    """One training sample: a step with the advantages, value targets, values and log-probabilities (under the policy
    that sampled, at its temperature) of its tokens, [response], and the hidden states that V reads, [response, width].

    natural_logprobs: at temperature 1, to be compared with the recorded ones.
    """

    sample: Sample
    advantages: np.ndarray
    returns: np.ndarray
    values: np.ndarray
    old_logprobs: np.ndarray
    natural_logprobs: np.ndarray
    hidden: Tensor
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
    summarizer = open_summarizer(settings)
    samples = agent_samples(
        [episode.trajectory], episode.steps, episode.images, encoder, settings.policy, parse_errors=True,
        summarizer=summarizer,
    )  # fmt: skip
    # A goal that was reached is an end, also where the limit came in the same step.
    cut_off = episode.trajectory["status"] != "completed" and not result.v
    beyond = None
    if cut_off and settings.rl.bootstrap:
        context = step_context(
            task.instruction, episode.steps, episode.images, episode.last_screen, settings.policy,
            count=encoder.count, summarizer=summarizer,
        )  # fmt: skip
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
    batch: Sequence[Experience], policy: PreTrainedModel, value: ValueModel, rl: Rl, *, bootstrap: bool = True
) -> tuple[list[Turn], float]:
    """Values, decoupled length-adaptive GAE over each whole trajectory, then one turn a step; and the mean horizon.

    bootstrap: false for Monte Carlo returns of value pretraining, where V has no meaning yet.
    """
    read = iter(_read(policy, [s for e in batch for s in e.samples], rl.micro_batch, rl.temperature))
    result, horizons = [], []
    ends = _values_beyond(policy, value, batch, rl.micro_batch) if bootstrap else {}
    for experience in batch:
        hidden, logprobs, natural = zip(*(next(read) for _ in experience.samples), strict=True)
        values = value.evaluate(torch.cat(hidden)).double().numpy()
        last = np.cumsum([len(part) for part in hidden])
        rewards = np.zeros_like(values)
        rewards[last - 1] = experience.rewards
        got = estimate(
            rewards, values, np.ones(len(values), dtype=bool), gamma=rl.gamma, lambda_critic=rl.lambda_critic,
            alpha=rl.alpha, bootstrap=ends.get(experience.trajectory_id, 0.0),
        )  # fmt: skip
        horizons.append(got.horizon)
        pieces = zip(*(np.split(part, last[:-1]) for part in (got.advantages, got.returns, values)), strict=True)
        result += [
            Turn(sample, *piece, *logs, states, experience.success)
            for sample, piece, *logs, states in zip(experience.samples, pieces, logprobs, natural, hidden, strict=True)
        ]
    return result, float(np.mean(horizons))


@torch.no_grad()
def _read(
    policy: PreTrainedModel, samples: Sequence[Sample], size: int, temperature: float
) -> list[tuple[Tensor, np.ndarray, np.ndarray]]:
    """Of each sample's response the hidden states [response, width] and the log-probabilities [response], at the
    temperature and at 1."""
    result: list = [None] * len(samples)
    for rows in by_length([len(sample) for sample in samples], size):
        batch = batch_of([samples[i].context for i in rows], [samples[i].response for i in rows])
        hidden = response_hidden(policy.base_model, batch)
        logits = policy.get_output_embeddings()(hidden)
        logprobs, natural = (token_logprobs(logits / t, batch.ids)[0].numpy() for t in (temperature, 1.0))
        for place, i in enumerate(rows):
            n = len(samples[i].response)
            result[i] = (hidden[place, :n].clone(), logprobs[place, :n].copy(), natural[place, :n].copy())
    return result


@torch.no_grad()
def _values_beyond(
    policy: PreTrainedModel, value: ValueModel, batch: Sequence[Experience], size: int
) -> dict[str, float]:
    """V of the state that a cut-off trajectory would have gone on from, by trajectory_id."""
    cut = [(e.trajectory_id, e.beyond) for e in batch if e.beyond is not None]
    result = {}
    for rows in by_length([len(context) for _, context in cut], size):
        # One placeholder token: V is read where it would be predicted, and it is not fed to the model.
        padded = batch_of([cut[i][1] for i in rows], [(0,)] * len(rows))
        found = value(response_hidden(policy.base_model, padded))[:, 0].tolist()
        result |= {cut[i][0]: v for i, v in zip(rows, found, strict=True)}
    return result
