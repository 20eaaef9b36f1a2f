"""Train policy and value model on episodes, in each process of RL: samples, gradient steps, value pretraining."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.config import RlSettings, Settings
from flywheel.envs.base import INTERFACES, Task
from flywheel.policy.client.language_model import open_summarizer
from flywheel.policy.devices import count_parallel_passes
from flywheel.policy.encoding import EncodedSequence, Encoder
from flywheel.policy.guided_decoding import AnswerConstraint, open_constraint
from flywheel.rewards.shaping import reward_as_earned, reward_at_end, shape_rewards
from flywheel.rollout.async_pool import EpisodeOutcome
from flywheel.rollout.episode import Episode, PromptHistory
from flywheel.training.data import Example, build_agent_examples
from flywheel.training.distributed import engine as engines
from flywheel.training.modeling.policy_forward import EncodedExample, MicroBatch, PolicyForward, freeze_vision_tower
from flywheel.training.modeling.trained_policy import computes_in_bfloat16, load_trained_policy, save_trained_policy
from flywheel.training.rl.algorithm import Algorithm, ScoredTrajectory, get_algorithm
from flywheel.training.rl.losses import PolicyTerms, TokenBatch, explained_variance, value_loss
from flywheel.utils.errors import TrainingError

# The value model: a small head on the hidden states of the policy's trunk, which the value loss does not train. (VC-PPO
# and VAPO train a copy of the whole policy: on the embedded model it explains less, in seven times the CPU time.) In
# addition to the hidden states it gets two inputs that the policy does not have: the score of the state, and the share
# of the step budget that is left (an asymmetric critic: Pinto et al. 2018; time limits: Pardo et al. 2018). In long
# episodes the hidden states alone predict almost nothing (docs/measurements/rl.md#the-value-model).

UNKNOWN_FEATURE = 0.5  # value of a feature that is not known
_FEATURE_SCALE = 10.0  # factor of the extra features: at 1 a few gradient steps learn nothing from them


@dataclass(frozen=True)
class ValueFeatures:
    """Hold the value model's extra inputs for the state before a step.

    score: of that state, 0 to 1. left: share of the step budget that is left, 1 at the first step.
    """

    score: float = UNKNOWN_FEATURE
    left: float = UNKNOWN_FEATURE

    def append_to(self, hidden: Tensor) -> Tensor:
        """Append these features to the hidden states of one step: [tokens, width] -> [tokens, width + 2].

        Returns the input of `ValueModel`.
        """
        return torch.cat([hidden, hidden.new_tensor(astuple(self)).expand(len(hidden), -1)], dim=-1)


class ValueModel(nn.Module):
    """Predict V, the expected sum of rewards from a response token on; before training it is 0."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        width = policy.get_output_embeddings().in_features
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width + len(fields(ValueFeatures)), width), nn.GELU(), nn.Linear(width, 1))
        nn.init.zeros_(self.head[-1].weight)
        nn.init.zeros_(self.head[-1].bias)

    def forward(self, read: Tensor) -> Tensor:
        """Return values [...]. read: [..., width + 2], as `ValueFeatures.append_to` returns it."""
        hidden, features = read.tensor_split([self.norm.normalized_shape[0]], dim=-1)
        scaled = _FEATURE_SCALE * (features - UNKNOWN_FEATURE)
        return self.head(torch.cat([self.norm(hidden), scaled], dim=-1)).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, read: Tensor) -> np.ndarray:
        """Compute values [...] of `read` [..., width + 2] without gradient, in float64."""
        return self(read).double().cpu().numpy()


class Learner(engines.TrainState):
    """Hold the policy and the value model in training, with their optimisers.

    reader: runs the policy. value: value model on the policy's trunk; None where the algorithm needs none. actor,
    critic: the engines that step policy and value model. version: number of RL steps taken, the version of the newest
    weights. gradient_steps: number of the policy's gradient steps.
    """

    counters = ("version", "gradient_steps")

    def __init__(
        self,
        policy: PreTrainedModel,
        rl: RlSettings,
        seed: int,
        algorithm: Algorithm | None = None,
        constraint: AnswerConstraint | None = None,
        bfloat16: bool = False,
    ) -> None:
        """Put `policy`, the network on its device, into training, with a value model where the algorithm needs one.

        rl: block `rl`. seed: of the value model's first weights. algorithm: None: that of rl.algorithm. constraint:
        guided decoding of the samples' answers, if any. bfloat16: compute the policy's products in it. Raises BadInput
        for an unknown algorithm, TrainingError and ModelError as `open_engine`.
        """
        self.algorithm = algorithm or get_algorithm(rl.algorithm)
        self.policy = policy.train()
        at_once = count_parallel_passes(policy)
        keeps = freeze_vision_tower(policy, rl)
        self.reader = PolicyForward(policy, constraint, keeps_screens=keeps, at_once=at_once, bfloat16=bfloat16)
        self.actor: engines.TrainingEngine = engines.open_engine(self.reader, rl, at_once)
        self.value: ValueModel | None = None
        modules, steppers = {"policy": policy}, {"policy": self.actor}
        if self.algorithm.needs_value:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.value = ValueModel(policy).to(next(policy.parameters()).device)
            self.critic: engines.TrainingEngine = engines.TorchEngine(self.value, rl)  # too small for ZeRO
            modules["value"], steppers["value"] = self.value, self.critic
        self.version = self.gradient_steps = 0
        super().__init__(modules, steppers)


# Episodes become training samples in four steps: shaped rewards, values, advantages per trajectory, the cut into steps.
#
# The denominator of the policy's ratio is the log-probability that the policy recorded when it sampled the token, at
# the sampling temperature. It belongs to the weights that sampled this token, so a trajectory that several weight
# versions sampled needs nothing more. One forward pass of the present policy gives the hidden states that V reads, and
# recomputes the log-probabilities. For samples of the newest weights both must agree (`mismatch`). For older samples
# the difference shows how far the policy has moved (`drift`), and the recomputed ones are the centre of the clipping.


@dataclass(frozen=True)
class Experience:
    """Hold one trajectory to train on, with its rewards.

    samples, rewards, value_features: of each step of its own. score, success (V = 1): of the episode's outcome.

    bootstrap_context: prompt of the step that would have followed, for a truncated trajectory; else None. later: score
    that is then missing in the rewards. start: names where within a success it began; "" for the task's beginning.
    think_lengths: tokens of each step's thought. interface: of its task. replayed: advantage of each step, of a
    trajectory that was trained on before (`replay.ReplayBuffer`); () for one of this batch.
    """

    trajectory_id: str
    samples: tuple[Example, ...]
    rewards: tuple[float, ...]
    value_features: tuple[ValueFeatures, ...]
    score: float
    success: bool
    bootstrap_context: EncodedSequence | None
    task_id: str = ""
    start: str = ""
    think_lengths: tuple[int, ...] = ()
    interface: str = ""
    later: float = 0.0
    replayed: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepSample:
    """Hold one training sample of RL: a step with advantages, value targets and log-probabilities of its tokens.

    advantages, returns (the targets), values: [response]. old_logprobs: as sampled, at the sampling temperature.
    on_policy: whether the present weights sampled the step. proximal: log-probabilities under the present weights;
    equal to old_logprobs if `on_policy`. logprob_diff: [response], |recomputed - sampled log-probability|, recomputed
    with the present weights. value_input: input of the value model, [response, width + 2]. returns, values,
    value_input: None without a value model. item: the sample in the form for micro-batches.
    """

    experience: Experience
    sample: Example
    advantages: np.ndarray
    returns: np.ndarray | None
    values: np.ndarray | None
    old_logprobs: np.ndarray
    proximal: np.ndarray
    logprob_diff: np.ndarray
    on_policy: bool
    value_input: Tensor | None
    item: EncodedExample


def build_experiences(
    episodes: Sequence[Episode],
    outcomes: Sequence[EpisodeOutcome],
    tasks: Mapping[str, Task],
    encoder: Encoder,
    settings: Settings,
) -> list[Experience]:
    """Build the experience of each episode that has a step of its own, sorted by trajectory_id.

    outcomes: one per episode, in order. tasks: by task_id. encoder: of the policy. settings: of the prompts (block
    `policy`) and of the rewards (block `rl`). Raises DataError for a step that has neither screen nor observation,
    BadInput as `build_context` and `Encoder.encode`.
    """
    pairs = [(episode, outcome) for episode, outcome in zip(episodes, outcomes, strict=True) if episode.own_steps]
    return [
        _build_experience(episode, outcome, tasks[episode.trajectory.task_id], encoder, settings)
        for episode, outcome in sorted(pairs, key=lambda pair: pair[0].id)
    ]


def _build_experience(
    episode: Episode, outcome: EpisodeOutcome, task: Task, encoder: Encoder, settings: Settings
) -> Experience:
    policy = settings.policy
    summarizer = open_summarizer(settings)
    samples = build_agent_examples(
        [episode.trajectory], episode.steps, episode.images, encoder, policy, parse_errors=True, summarizer=summarizer
    )
    # Encoded here, once, as several passes and processes read them.
    samples = [replace(sample, prompt=sample.context) for sample in samples]
    # A trajectory that reached its goal has ended by itself, also if it reached a limit in the same step.
    cut_off = episode.trajectory.status != "completed" and not outcome.success
    ends_in_value, beyond = settings.rl.bootstrap and get_algorithm(settings.rl.algorithm).needs_value, None
    if cut_off and ends_in_value:
        history = PromptHistory(task.instruction, episode.images, policy, count=encoder.count, summarizer=summarizer)
        history.follow(episode.steps)
        beyond = encoder.encode(history.context(episode.last_screen, observation=episode.last_observation))
    # A bootstrap stands for the rewards after a truncation (`ppo.estimate_advantages`), an outcome at the end included.
    later = outcome.score if beyond is not None and not settings.rl.reward_progress else 0.0
    own, first = episode.own_steps, episode.trajectory.start_step or 0
    scores = [step.state_score for step in own]
    if settings.rl.reward_progress:
        earned = reward_as_earned(outcome.score, scores)
    else:
        earned = reward_at_end(outcome.score - later, len(samples))
    lengths = [len(sample.response) for sample in samples]
    broken = [bool(step.parse_error) for step in own]
    rewards = shape_rewards(earned, lengths, broken, settings, task.max_steps)
    features = []
    for step, score in enumerate(scores, first):
        left = 1 - step / task.max_steps if task.max_steps else UNKNOWN_FEATURE
        features.append(ValueFeatures(UNKNOWN_FEATURE if score is None else score, left))
    thoughts = tuple(len(encoder.encode_text(step.thought or "")) - 1 for step in own)
    return Experience(
        episode.id,
        tuple(samples),
        rewards,
        tuple(features),
        outcome.score,
        outcome.success,
        beyond,
        task.task_id,
        f"{episode.trajectory.parent_id or task.task_id}@{first}" if first else "",
        thoughts,
        task.interface,
        later,
    )


def estimate_step_samples(
    batch: Sequence[Experience], learner: Learner, rl: RlSettings
) -> tuple[list[StepSample], float]:
    """Estimate values and advantages over each whole trajectory, and cut them into training samples, one per step.

    batch: whole trajectories, at least one. learner: whose policy, value model and algorithm are used. rl: block `rl`.
    Returns the samples, and the mean horizon in tokens (NaN where the algorithm has none). Raises TrainingError, naming
    trajectory and step, for an empty batch, a trajectory or step without a trainable token, a reward or log-probability
    that is not finite, and a step without log-probabilities; PolicyError as `PolicyForward.encode_example`.
    """
    if not batch:
        raise TrainingError("the batch is empty", where="RL", fix="check the rollout's log for what became of it")
    for experience in batch:
        _check_experience(experience)
    items = [[learner.reader.encode_example(s.context, s.response) for s in experience.samples] for experience in batch]
    # A placeholder token: V is read at the position that would predict it, and it is not fed to the model.
    valued = learner.value is not None
    cut = [number for number, experience in enumerate(batch) if valued and experience.bootstrap_context is not None]
    beyond = [learner.reader.encode_example(batch[number].bootstrap_context, (0,), sampled=False) for number in cut]
    states = iter(_read_policy(learner, [*(item for some in items for item in some), *beyond], rl))
    mine = [[next(states) for _ in some] for some in items]
    ends = {
        number: float(learner.value.evaluate(ValueFeatures(batch[number].score, 0.0).append_to(hidden)[0]))
        for number, (hidden, _, _) in zip(cut, states, strict=True)
    }
    rewarded, rows = [], []
    for number, (experience, some, states_of) in enumerate(zip(batch, items, mine, strict=True)):
        read, values = [None] * len(some), ()
        if valued:
            told = zip(experience.value_features, states_of, strict=True)
            read = [features.append_to(hidden) for features, (hidden, _, _) in told]
            values = tuple(map(learner.value.evaluate, read))
        lengths = tuple(len(item.response) for item in some)
        later = experience.later if number in ends else 0.0
        rewarded.append(
            ScoredTrajectory(
                experience.task_id,
                experience.rewards,
                lengths,
                values,
                bootstrap=ends.get(number, 0.0),
                outcome=later,
                start=experience.start,
            )
        )
        rows.append(list(zip(experience.samples, some, states_of, read, strict=True)))
    estimates = learner.algorithm.advantages(rewarded, rl)
    result = []
    for experience, mine, one, got in zip(batch, rows, rewarded, estimates, strict=True):
        for row, (sample, item, (_, *logs), read) in enumerate(mine):
            fresh = sample.version in (None, learner.version)
            old, apart = _sampled_logprobs(sample, *logs, fresh, rl)
            result.append(
                StepSample(
                    experience,
                    sample,
                    got.advantages[row],
                    got.returns[row] if valued else None,
                    one.values[row] if valued else None,
                    old,
                    old if fresh else logs[0],
                    apart,
                    fresh,
                    read,
                    item,
                )
            )
    return result, float(np.mean([got.horizon for got in estimates]))


def replay_step_samples(replayed: Sequence[Experience], learner: Learner, rl: RlSettings) -> list[StepSample]:
    """Make samples of turns that were trained on before, with the advantages and log-probabilities of that time.

    replayed: of `ReplayBuffer.read`. learner: whose policy is trained. rl: block `rl`. The ratio is the present
    policy's over the one that sampled them, clipped as PPO does. Raises TrainingError as `estimate_step_samples`, and
    where the log-probabilities at the sampling temperature are not known.
    """
    found = []
    for experience in replayed:
        _check_experience(experience)
        for sample, advantage in zip(experience.samples, experience.replayed, strict=True):
            logs = sample.sampled_logprobs or (sample.logprobs if rl.temperature == 1 else None)
            if not logs:
                where = f"trajectory {experience.trajectory_id}, step {sample.step}"
                what = f"its log-probabilities at temperature {rl.temperature:g} were not recorded"
                raise TrainingError(what, where=where, fix="set rl.temperature to 1 or rl.replay_fraction to 0")
            old, advantages = np.asarray(logs, dtype=np.float32), np.full(len(logs), advantage)
            item = learner.reader.encode_example(sample.context, sample.response)
            none = np.zeros(len(logs), dtype=np.float32)
            found.append(StepSample(experience, sample, advantages, None, None, old, old, none, False, None, item))
    return found


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
            finite = int(np.isfinite(logs).sum())
            if not len(logs) == len(sample.response) == finite:
                what = f"{len(sample.response)} tokens, {finite} log-probabilities that are finite"
                raise TrainingError(what, where=step)


def _sampled_logprobs(
    sample: Example, tempered: np.ndarray, natural: np.ndarray, fresh: bool, rl: RlSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Return the denominator's log-probabilities, and |recomputed - recorded|, [response] each. tempered, natural:
    recomputed log-probabilities, at the sampling temperature and at 1. fresh: whether the present weights sampled the
    step. Raises TrainingError where the denominator is not known."""
    if sample.sampled_logprobs:
        old = np.asarray(sample.sampled_logprobs, dtype=np.float32)
        return old, np.abs(tempered - old)
    recorded = np.asarray(sample.logprobs, dtype=np.float32)
    apart = np.abs(natural - recorded)
    if rl.temperature == 1:
        return recorded, apart
    if fresh:  # the server reports only those at temperature 1, but the weights are here
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
    """Return for each item's response the hidden states [response, width] (None without a value model), and the
    log-probabilities [response] at the sampling temperature and at 1. Each process computes a part of the items."""
    found = {}
    for part, weight in engines.pad_microbatches_across_ranks(
        learner.reader.split_into_micro_batches(items, rl, learner.actor.size), learner.actor
    ):
        hidden, _, *logprobs = learner.actor.forward(part, rl.temperature, 1.0)
        ends = np.cumsum([len(items[member].response) for member in part.members])[:-1].tolist()
        if weight:
            pieces = [
                hidden.detach().float().tensor_split(ends),
                *(np.split(read.cpu().numpy(), ends) for read in logprobs),
            ]
            found |= {
                member: (state.clone() if learner.value is not None else None, tempered.copy(), natural.copy())
                for member, state, tempered, natural in zip(part.members, *pieces, strict=True)
            }
    every: dict[int, tuple] = {}
    for mine in engines.gather_across_ranks(found, learner.actor):
        every |= mine
    return [every[member] for member in range(len(items))]


def policy_learning_rate(step: int, rl: RlSettings) -> float:
    """Return the learning rate of the policy's gradient step `step` (from 0): linear warmup over rl.warmup steps."""
    return rl.actor_lr * min(1.0, (step + 1) / (rl.warmup + 1))


def train_step(
    learner: Learner, turns: Sequence[StepSample], rl: RlSettings, seed: int, replayed: Sequence[StepSample] = ()
) -> dict[str, float]:
    """Train the policy for rl.epochs passes over the turns, and V, if any, for rl.critic_epochs; return metrics.

    turns: from `estimate_step_samples`. seed: of the minibatches. replayed: from `replay_step_samples`; each minibatch
    has rl.replay_fraction of them, as far as they reach, and V and the checks none. The version of `learner` grows by
    1. Of the metrics these are means over tokens: policy_loss, kl, entropy, clip_fraction, truncated_fraction (share of
    bounded importance weights), mismatch (|log-probability recomputed - sampled| of tokens that the newest weights
    sampled), drift (the same of tokens that older weights sampled); and stale_fraction (share of the latter), grad_norm
    (mean), learning_rate (the policy's last), tokens (trained). With V also value_loss (mean over gradient steps) and
    explained_variance (of V before the update; explained_variance_<interface> for the turns of each interface).

    Raises TrainingError for an empty batch, a mismatch over rl.max_logprob_diff_on_policy (rollout and training
    disagree on the prompts, the tokens or the weights), a drift over rl.max_logprob_diff_off_policy, and a loss or
    gradient that is not finite.
    """
    if not turns:
        raise TrainingError("the batch is empty", where="RL")
    figures = _check_logprob_agreement(turns, rl)
    rng, total, norms, rate = np.random.default_rng(seed), PolicyTerms(), [], 0.0
    size = max(1, round(rl.minibatch * (1 - rl.replay_fraction))) if replayed else rl.minibatch
    again = itertools.cycle(rng.permutation(len(replayed)).tolist()) if replayed else iter(())
    for part in _draw_minibatches([t.experience.task_id for t in turns], rl.epochs, size, rl.minibatch_by, rng):
        rate = policy_learning_rate(learner.gradient_steps, rl)
        beside = min(len(replayed), count_replayed(len(part), rl))
        mixed = [*(turns[i] for i in part), *(replayed[i] for i in itertools.islice(again, beside))]
        terms, norm = _update_policy(learner, mixed, rl, rate)
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
            if mine := [turn for turn in turns if turn.experience.interface == name]:
                figures[f"explained_variance_{name}"] = _turns_explained_variance(mine)
    learner.version += 1
    return figures


def count_replayed(turns: int, rl: RlSettings) -> int:
    """Return how many replayed turns join `turns` turns of the batch, to be rl.replay_fraction of all."""
    return round(turns * rl.replay_fraction / (1 - rl.replay_fraction))


def _turns_explained_variance(turns: Sequence[StepSample]) -> float:
    return explained_variance(_concatenate(turns, "values"), _concatenate(turns, "returns"))


def _check_logprob_agreement(turns: Sequence[StepSample], rl: RlSettings) -> dict[str, float]:
    """Return stale_fraction, mismatch and drift (`train_step`). Raises TrainingError where one of the latter two is
    above its setting."""
    fresh, stale = ([turn for turn in turns if turn.on_policy is kind] for kind in (True, False))
    found = {
        "stale_fraction": sum(len(turn.logprob_diff) for turn in stale) / sum(len(turn.logprob_diff) for turn in turns)
    }
    for name, some, setting, fix in (
        ("mismatch", fresh, "max_logprob_diff_on_policy", "rollout and training must use the same prompts and weights"),
        ("drift", stale, "max_logprob_diff_off_policy", "lower rl.max_staleness or rl.actor_lr"),
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
    """Take one gradient step of the value model of `learner` on all tokens of the turns; return its loss before it.

    turns: with returns and value_input. rl: block `rl`. Raises TrainingError where the loss or its gradient is not
    finite.
    """
    engine, tokens = learner.critic, sum(len(turn.returns) for turn in turns)

    def loss_of(mine: Sequence[StepSample]) -> tuple[Tensor, tuple[()]]:
        read = torch.cat([turn.value_input for turn in mine])
        returns = torch.from_numpy(_concatenate(mine, "returns")).float().to(read.device)
        values = engine.forward(read)
        return value_loss(values, returns, torch.ones_like(returns, dtype=torch.bool), tokens=tokens), ()

    parts = [turns[start :: engine.size] for start in range(min(engine.size, len(turns)))]
    what = f"V in step {learner.version + 1}"
    parts = engines.pad_microbatches_across_ranks(parts, engine)
    (loss,), _ = engines.take_gradient_step(
        engine, parts, loss_of, rl.critic_lr, what=what, where="RL", rate_name="rl.critic_lr"
    )
    return loss


def _update_policy(
    learner: Learner, turns: Sequence[StepSample], rl: RlSettings, rate: float
) -> tuple[PolicyTerms, float]:
    """Take one gradient step of the policy on a minibatch; return the sums of its terms, and the gradient's norm."""
    engine, tokens = learner.actor, sum(len(turn.advantages) for turn in turns)
    successful_tokens = sum(len(turn.advantages) for turn in turns if turn.experience.success)

    def loss_of(part: MicroBatch) -> tuple[Tensor, tuple[float, ...]]:
        some = [turns[member] for member in part.members]
        _, entropy, logprobs = engine.forward(part, rl.temperature)
        old, proximal, advantages = (
            torch.from_numpy(_concatenate(some, name)).float().to(logprobs.device)
            for name in ("old_logprobs", "proximal", "advantages")
        )
        success = np.repeat([turn.experience.success for turn in some], [len(turn.advantages) for turn in some])
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

    parts = engines.pad_microbatches_across_ranks(
        learner.reader.split_into_micro_batches([turn.item for turn in turns], rl, engine.shares), engine
    )
    what = f"the policy in step {learner.version + 1}, gradient step {learner.gradient_steps + 1}"
    (_, *sums), norm = engines.take_gradient_step(
        engine, parts, loss_of, rate, what=what, where="RL", rate_name="rl.actor_lr"
    )
    learner.gradient_steps += 1
    return PolicyTerms(*sums), norm


def _draw_minibatches(
    tasks: Sequence[str], epochs: int, size: int, by: str, rng: np.random.Generator
) -> Iterator[list[int]]:
    """Yield minibatches of at most `size` turn numbers, each turn once per epoch. tasks: task_id of each turn.

    by: "turn" draws turns in random order. "task" draws tasks in random order, with a task's turns one after another:
    they share instructions and screens, which a pack holds once; in random order, each minibatch would hold most of the
    instructions and screens.
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

_PATIENCE = 10  # steps without a lower held-out loss before it stops: more would overfit
_MIN_TASKS = 12  # with so many tasks or more, whole tasks are held out


@dataclass(frozen=True)
class ValuePretraining:
    """Hold how well the best weights of value pretraining do.

    steps: gradient steps that they have had. loss, explained_variance: on held-out trajectories (explained_variance is
    NaN where all their returns are equal).
    """

    steps: int
    loss: float
    explained_variance: float


def pretrain_value(learner: Learner, batch: Sequence[Experience], rl: RlSettings, seed: int) -> ValuePretraining:
    """Train the value model of `learner` before RL, and keep its weights with the lowest loss on held-out trajectories.

    It takes at most rl.value_pretraining_steps gradient steps, each on all tokens. A quarter of the trajectories of
    `batch` is held out. Whole tasks are held out where there are enough: episodes of one task begin with the same
    screen, whose return V could memorise. With few tasks single trajectories are held out, as a quarter of the tasks
    often has no variance to explain. seed: of the split. Raises TrainingError as `estimate_step_samples`.
    """
    monte_carlo = rl.model_copy(update={"lambda_critic": 1.0})
    every, _ = estimate_step_samples(batch, learner, monte_carlo)
    train, held_out = _split_held_out(every, np.random.default_rng(seed))
    best, kept = _measure_value(learner, held_out, 0), copy.deepcopy(learner.value.state_dict())
    for step in range(1, rl.value_pretraining_steps + 1):
        update_value(learner, train, rl)
        now = _measure_value(learner, held_out, step)
        # The loss decides, as it also counts a constant error; `explained_variance` ignores one, and could choose
        # V = 0.
        if now.loss < best.loss:
            best, kept = now, copy.deepcopy(learner.value.state_dict())
        elif step - best.steps == _PATIENCE:
            break
    learner.value.load_state_dict(kept)
    return best


def _split_held_out(every: Sequence[StepSample], rng: np.random.Generator) -> tuple[list[StepSample], list[StepSample]]:
    """Split the turns into (training, held out); both have all turns where there are fewer than four trajectories."""
    whole = [turn.experience.task_id for turn in every]
    if len(set(whole)) < _MIN_TASKS:
        whole = [turn.sample.trajectory_id for turn in every]
    names = list(dict.fromkeys(whole))
    apart = set(rng.permutation(names)[: len(names) // 4].tolist())
    train = [turn for turn, name in zip(every, whole, strict=True) if name not in apart]
    return train, [turn for turn, name in zip(every, whole, strict=True) if name in apart] or train


def _measure_value(learner: Learner, held_out: Sequence[StepSample], step: int) -> ValuePretraining:
    values = learner.value.evaluate(torch.cat([turn.value_input for turn in held_out]))
    returns = _concatenate(held_out, "returns")
    return ValuePretraining(step, float(np.mean((values - returns) ** 2) / 2), explained_variance(values, returns))


class RLTrainer(Learner):
    """Train RL in one training process. All processes get the same calls; only the first one writes files."""

    def __init__(self, folder: Path, settings: Settings, seed: int, algorithm: Algorithm) -> None:
        """Load the checkpoint in `folder` for training.

        settings: of the workspace. seed: of the value model's first weights, and of a new adapter. Raises as `Learner`
        and `open_constraint`, and ModelError for a checkpoint that cannot be loaded.
        """
        self.rl = settings.rl
        self.encoder = Encoder.from_folder(folder, max_image_side=settings.policy.max_image_side)
        self.begun = folder
        # No dropout: it would change the probabilities, and so the ratio, at equal weights.
        adapter = settings.adapter.model_copy(update={"dropout": 0.0})
        policy = load_trained_policy(folder, self.rl, adapter, seed)
        constraint = open_constraint(self.encoder, policy.config, settings.policy)
        super().__init__(policy, self.rl, seed, algorithm, constraint, computes_in_bfloat16(self.rl, adapter))

    def fit_value(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Pretrain the value model (`pretrain_value`) on `batch`; return the fields of the result as metrics.

        They are named value_pretraining_<field>. seed: of the split. Raises as `pretrain_value`.
        """
        found = pretrain_value(self, batch, self.rl, seed)
        return {f"value_pretraining_{name}": value for name, value in vars(found).items()}

    def update(
        self, batch: Sequence[Experience], seed: int, replayed: Sequence[Experience] = ()
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Take one RL step on the batch; return its metrics, and each turn's mean advantage by trajectory_id.

        The metrics are those of `train_step`, with the horizon. seed: of the minibatches. replayed: turns that were
        trained on before. Raises as `train_step`, `estimate_step_samples` and `replay_step_samples`.
        """
        found, horizon = estimate_step_samples(batch, self, self.rl)
        again = replay_step_samples(replayed, self, self.rl)
        advantages: dict[str, list[float]] = defaultdict(list)
        for turn in found:
            advantages[turn.experience.trajectory_id].append(float(turn.advantages.mean()))
        return train_step(self, found, self.rl, seed, again) | {"horizon": horizon}, dict(advantages)

    def write(self, folder: Path) -> None:
        """Write the policy's weights, or its adapter, to `folder`.

        Raises DiskFull, and ModelError as `save_trained_policy`.
        """
        with self.gathered():
            if self.first:
                save_trained_policy(self.policy, self.encoder, self.begun, folder)
