"""Train on episodes of RL in each training process: value model, samples, gradient steps, value pretraining."""

from __future__ import annotations

import copy
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

# The value model: a small head on the hidden states of the policy's trunk, which its loss does not train. (VC-PPO and
# VAPO train a copy of the whole policy: on the embedded model it explains less, in seven times the processor time.)
# Beside the hidden states it gets what the policy does not: the score of the state, and the share of the step budget
# that is left (an asymmetric critic: Pinto et al. 2018; time limits: Pardo et al. 2018). In long episodes the hidden
# states alone predict next to nothing (docs/measurements/rl.md#the-value-model).

UNKNOWN_FEATURE = 0.5  # stands for a number that is not known
_FEATURE_SCALE = 10.0  # of the extra features: at 1 a few gradient steps learn nothing from them


@dataclass(frozen=True)
class ValueFeatures:
    """What the environment says of the state that a step began with. score: of the state, 0 to 1. left: the share of
    the task's steps that may still be made, 1 at the first."""

    score: float = UNKNOWN_FEATURE
    left: float = UNKNOWN_FEATURE

    def append_to(self, hidden: Tensor) -> Tensor:
        """Append this to hidden states [tokens, width] of one step: `ValueModel` reads these, [tokens, width + 2]."""
        return torch.cat([hidden, hidden.new_tensor(astuple(self)).expand(len(hidden), -1)], dim=-1)


class ValueModel(nn.Module):
    """V of the state before each response token: what the rewards from there on are expected to sum to, at first 0."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        width = policy.get_output_embeddings().in_features
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width + len(fields(ValueFeatures)), width), nn.GELU(), nn.Linear(width, 1))
        nn.init.zeros_(self.head[-1].weight)
        nn.init.zeros_(self.head[-1].bias)

    def forward(self, read: Tensor) -> Tensor:
        """Return values [...] of what `ValueFeatures.append_to` makes of hidden states, [..., width + 2]."""
        hidden, features = read.tensor_split([self.norm.normalized_shape[0]], dim=-1)
        scaled = _FEATURE_SCALE * (features - UNKNOWN_FEATURE)
        return self.head(torch.cat([self.norm(hidden), scaled], dim=-1)).squeeze(-1)

    @torch.no_grad()
    def evaluate(self, read: Tensor) -> np.ndarray:
        """Compute values [...] of `read` [..., width + 2] without gradient, in float64."""
        return self(read).double().cpu().numpy()


class Learner(engines.TrainState):
    """Hold what RL trains.

    reader: the policy as training reads it. value: on the policy's trunk; None where the algorithm needs none. actor,
    critic: the engines that step policy and value model. version: RL steps taken, which names the newest weights;
    gradient_steps: the policy's.
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
        """policy: the network, on its device. seed: of the value model's first weights. algorithm: None: the one that
        rl.algorithm names. constraint: what the samples' answers were held to. bfloat16: type of the policy's products.
        Raises BadInput for an algorithm that there is not, TrainingError where DeepSpeed is asked for and not
        installed."""
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
            self.critic: engines.TrainingEngine = engines.TorchEngine(self.value, rl)  # too small to be shared out
            modules["value"], steppers["value"] = self.value, self.critic
        self.version = self.gradient_steps = 0
        super().__init__(modules, steppers)


# Episodes become training samples by shaped rewards, values, advantages per trajectory, then the cut into steps.
#
# The denominator of the policy's ratio are the log-probabilities that the policy recorded when it drew the token, at
# the sampling temperature. Each token has those of the weights that drew it, so a trajectory that several weight
# versions sampled needs nothing more. One forward pass of the present policy gives the hidden states that V reads, and
# the same log-probabilities once more: on samples of the newest weights the two must agree (`mismatch`); on older ones
# they show how far the policy has moved on (`drift`), and the step's own move is clipped around them.


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
    sample as the model reads it.
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
    """Build what is trained on of each episode that has a step, sorted by trajectory_id.

    outcomes: of each episode. tasks: by task_id. encoder: of the policy. Raises DataError for a step without its screen
    or any observation, BadInput as `build_context` and `Encoder.encode`.
    """
    pairs = [(episode, outcome) for episode, outcome in zip(episodes, outcomes, strict=True) if episode.steps]
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
    # Encoded now: passes over them, and processes that read them, are several.
    samples = [replace(sample, prompt=sample.context) for sample in samples]
    # A goal that was reached is an end, also where the limit came in the same step.
    cut_off = episode.trajectory.status != "completed" and not outcome.success
    ends_in_value, beyond = settings.rl.bootstrap and get_algorithm(settings.rl.algorithm).needs_value, None
    if cut_off and ends_in_value:
        history = PromptHistory(task.instruction, episode.images, policy, count=encoder.count, summarizer=summarizer)
        history.follow(episode.steps)
        beyond = encoder.encode(history.context(episode.last_screen, observation=episode.last_observation))
    # What follows a cut-off trajectory is in the bootstrap (`ppo.estimate_advantages`), and so is an outcome at an end.
    later = outcome.score if beyond is not None and not settings.rl.reward_progress else 0.0
    scores = [step.state_score for step in episode.steps]
    if settings.rl.reward_progress:
        earned = reward_as_earned(outcome.score, scores)
    else:
        earned = reward_at_end(outcome.score - later, len(samples))
    lengths = [len(sample.response) for sample in samples]
    broken = [bool(step.parse_error) for step in episode.steps]
    rewards = shape_rewards(earned, lengths, broken, settings, task.max_steps)
    features = []
    for step, score in enumerate(scores):
        left = 1 - step / task.max_steps if task.max_steps else UNKNOWN_FEATURE
        features.append(ValueFeatures(UNKNOWN_FEATURE if score is None else score, left))
    thoughts = tuple(len(encoder.encode_text(step.thought or "")) - 1 for step in episode.steps)
    return Experience(
        episode.id,
        tuple(samples),
        rewards,
        tuple(features),
        outcome.score,
        outcome.success,
        beyond,
        task.task_id,
        thoughts,
        task.interface,
        later,
    )


def estimate_step_samples(
    batch: Sequence[Experience], learner: Learner, rl: RlSettings
) -> tuple[list[StepSample], float]:
    """Estimate values and advantages over each whole trajectory, as the learner's algorithm has them.

    batch: whole trajectories, one at least. They are then cut into one turn a step. Returns the samples, and the mean
    horizon in tokens (NaN where the algorithm has none). Raises TrainingError, naming trajectory and step, for an empty
    batch, a trajectory or step without a trainable token, a reward or log-probability that is not finite, and a step
    whose log-probabilities nobody knows.
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
                experience.task_id, experience.rewards, lengths, values, bootstrap=ends.get(number, 0.0), outcome=later
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
    """Return the learning rate of the policy's gradient step `step`, from 0: a linear rise over rl.warmup steps."""
    return rl.actor_lr * min(1.0, (step + 1) / (rl.warmup + 1))


def train_step(learner: Learner, turns: Sequence[StepSample], rl: RlSettings, seed: int) -> dict[str, float]:
    """Train the policy for rl.epochs passes over the turns, and V, where there is one, for rl.critic_epochs.

    turns: of `estimate_step_samples`. `learner` is then of the next version. seed: of the minibatches. Returns
    token-level means: policy_loss, kl, entropy, clip_fraction, truncated_fraction (importance weights that were held),
    value_loss, explained_variance (of V before the update; of the turns of each interface by itself too); mismatch
    (|log-probability recomputed - sampled| of tokens that the newest weights sampled), drift (of those that older ones
    did), stale_fraction (their share), grad_norm (mean), learning_rate (the policy's last), tokens (trained).

    Raises TrainingError for an empty batch, a mismatch over rl.max_logprob_diff_on_policy (rollout and training
    disagree on the prompts, the tokens or the weights), a drift over rl.max_logprob_diff_off_policy, and a loss or
    gradient that is not finite.
    """
    if not turns:
        raise TrainingError("the batch is empty", where="RL")
    figures = _check_logprob_agreement(turns, rl)
    rng, total, norms, rate = np.random.default_rng(seed), PolicyTerms(), [], 0.0
    for part in _draw_minibatches([t.experience.task_id for t in turns], rl.epochs, rl.minibatch, rl.minibatch_by, rng):
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
            if mine := [turn for turn in turns if turn.experience.interface == name]:
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
    """Take one gradient step of the value model on all tokens of the turns; returns its loss.

    Raises TrainingError where the loss or its gradient is not finite.
    """
    engine, tokens = learner.critic, sum(len(turn.returns) for turn in turns)

    def loss_of(mine: Sequence[StepSample]) -> tuple[Tensor, tuple[()]]:
        read = torch.cat([turn.value_input for turn in mine])
        returns = torch.from_numpy(_concatenate(mine, "returns")).float().to(read.device)
        values = engine.forward(read)
        return value_loss(values, returns, torch.ones_like(returns, dtype=torch.bool), tokens=tokens), ()

    parts = [turns[start :: engine.size] for start in range(min(engine.size, len(turns)))]
    what = f"V in step {learner.version + 1}"
    (loss,), _ = engines.take_gradient_step(
        engine, engines.pad_microbatches_across_ranks(parts, engine), loss_of, rl.critic_lr, what=what, where="RL"
    )
    return loss


def _update_policy(
    learner: Learner, turns: Sequence[StepSample], rl: RlSettings, rate: float
) -> tuple[PolicyTerms, float]:
    """One gradient step of the policy, over parts of the minibatch; its sums, and the gradient's norm."""
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
    (_, *sums), norm = engines.take_gradient_step(engine, parts, loss_of, rate, what=what, where="RL")
    learner.gradient_steps += 1
    return PolicyTerms(*sums), norm


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
    """Hold the best weights of value pretraining so far. steps: of these weights. loss, explained_variance: theirs, on
    held-out trajectories (NaN where all their returns are the same)."""

    steps: int
    loss: float
    explained_variance: float


def pretrain_value(learner: Learner, batch: Sequence[Experience], rl: RlSettings, seed: int) -> ValuePretraining:
    """Train the value model for rl.value_pretraining_steps gradient steps at most, each on all tokens; keep the weights
    that explain most of the variance of the returns of the quarter of the trajectories that is held out.

    Whole tasks are held out where there are enough of them: episodes of one task begin with the same screen, whose
    return V could know by heart. A quarter of a few tasks, though, often has no variance to explain. Raises
    TrainingError as `estimate_step_samples` does.
    """
    monte_carlo = rl.model_copy(update={"lambda_critic": 1.0})
    every, _ = estimate_step_samples(batch, learner, monte_carlo)
    train, held_out = _split_held_out(every, np.random.default_rng(seed))
    best, kept = _measure_value(learner, held_out, 0), copy.deepcopy(learner.value.state_dict())
    for step in range(1, rl.value_pretraining_steps + 1):
        update_value(learner, train, rl)
        now = _measure_value(learner, held_out, step)
        # What is explained with a constant error counted as unexplained is 1 - 2 loss / variance, so the loss decides;
        # `explained_variance` forgives an offset, and would choose V = 0.
        if now.loss < best.loss:
            best, kept = now, copy.deepcopy(learner.value.state_dict())
        elif step - best.steps == _PATIENCE:
            break
    learner.value.load_state_dict(kept)
    return best


def _split_held_out(every: Sequence[StepSample], rng: np.random.Generator) -> tuple[list[StepSample], list[StepSample]]:
    """(to train on, held out); the same turns in both where there are fewer than four trajectories."""
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
    """What each training process of RL does. All of them make the same calls; the first one alone writes files."""

    def __init__(self, folder: Path, settings: Settings, seed: int, algorithm: Algorithm) -> None:
        """folder: the checkpoint it begins with. seed: of the value model's first weights, and of a new adapter. Raises
        as `Learner`, and ModelError for a checkpoint that cannot be loaded or whose answers cannot be constrained as
        asked."""
        self.rl = settings.rl
        self.encoder = Encoder.from_folder(folder, max_image_side=settings.policy.max_image_side)
        self.begun = folder
        # The ratio compares probabilities of the same weights, of which dropout would make others.
        adapter = settings.adapter.model_copy(update={"dropout": 0.0})
        policy = load_trained_policy(folder, self.rl, adapter, seed)
        constraint = open_constraint(self.encoder, policy.config, settings.policy)
        super().__init__(policy, self.rl, seed, algorithm, constraint, computes_in_bfloat16(self.rl, adapter))

    def fit_value(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Pretrain the value model (`pretrain_value`, whose errors it raises); returns its figures."""
        found = pretrain_value(self, batch, self.rl, seed)
        return {f"value_pretraining_{name}": value for name, value in vars(found).items()}

    def update(self, batch: Sequence[Experience], seed: int) -> dict[str, float]:
        """Take one RL step on the batch; returns the figures of `train_step`, and the horizon. Raises as it does, and
        as `estimate_step_samples`."""
        found, horizon = estimate_step_samples(batch, self, self.rl)
        return train_step(self, found, self.rl, seed) | {"horizon": horizon}

    def write(self, folder: Path) -> None:
        """Write the policy's weights, or its adapter, to `folder`. Raises DiskFull."""
        with self.gathered():
            if self.first:
                save_trained_policy(self.policy, self.encoder, self.begun, folder)
