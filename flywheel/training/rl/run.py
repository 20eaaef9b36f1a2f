"""Train RL in real environments for one domain (section 2.5): take a batch, update, publish the weights, repeat.

One step, in order, with the file of each part (paths within flywheel/; files without a folder are in this one):

 1. draw tasks, informative ones more often                   curriculum.py
 2. collect their episodes until a batch is complete          rollout/async_pool.py
 3. turn each outcome into rewards, step by step              rewards/shaping.py, trainer.py: build_experiences
 4. send the batch to every training process                  training/distributed/worker_group.py, trainer.py
 5. run the policy: log-probabilities, hidden states          training/modeling/policy_forward.py
 6. compute V from the hidden states                          trainer.py: ValueModel
 7. estimate advantages and V's targets by trajectory         algorithms/ppo.py or algorithms/grpo.py
 8. cut them into turns; check log-probabilities              trainer.py: estimate_step_samples
 9. compute the algorithm's loss on minibatches of turns      trainer.py, algorithms/, losses.py
10. sum and clip gradients; step the policy, then V           training/distributed/engine.py: take_gradient_step
11. save the state, so that a kill costs one step             training/distributed/engine.py: TrainState
12. publish the new weights, and let the pool continue        _RLRun._step below

Rollouts are asynchronous (`rollout/async_pool.py`): the event loop plays further episodes while a thread trains on a
batch, within rl.max_staleness. With rl.max_staleness 0 it waits, and the run is synchronous.

Trainer and pool save their states at every step, so a killed run resumes at the same step with the same batch. Tasks,
samples and minibatches depend only on the seed and on earlier draws, and episodes are sorted before they are used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import INTERFACES, Task, decide_verdict
from flywheel.envs.registry import EnvProvider, OpenEnvProvider, open_environments
from flywheel.evaluation.evaluator import JudgedEpisode, judge_episode
from flywheel.evaluation.reward_audit import RewardAudit, is_audited
from flywheel.evaluation.reward_variance import measure_groups
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.publishers import put_servers_to_sleep
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import PolicyBackend
from flywheel.rewards.scorer import VERIFIER, ScorerSet, ScoringInput, reward_settings
from flywheel.rollout.async_pool import AsyncRolloutPool, EpisodeBatch, RolloutLog, RolloutPlan
from flywheel.rollout.episode import Episode, derive_seed
from flywheel.rollout.starts import KnownSuccess
from flywheel.training.distributed.worker_group import WorkerGroup
from flywheel.training.rl.algorithm import get_algorithm
from flywheel.training.rl.curriculum import Curriculum, PastOutcomes, ShuffledTasks
from flywheel.training.rl.groups import DrawFreshTask, GroupChooser, start_metrics
from flywheel.training.rl.replay import ReplayBuffer, ReplayedTurns
from flywheel.training.rl.trainer import Experience, RLTrainer, build_experiences, count_replayed
from flywheel.utils import processes
from flywheel.utils.errors import BadInput, FlywheelError, TrainingError

log = logging.getLogger(__name__)

T = TypeVar("T")
OnMetric = Callable[[Mapping[str, Any]], None]

_STATE_FORMAT = 9  # format of the saved state: a state of another format is not resumed
# Settings that change a run's duration and not what it trains on: they may differ in a resumed run.
_FREE_SETTINGS = {
    "adapter": set(),
    "rl": {"batch_timeout_s", "threads", "processes", "device", "min_live_groups"},
    "policy": {
        *("backend", "endpoint", "model", "key_variable", "device"),
        *("max_num_seqs", "max_queue_size", "cache_mb", "timeout_s", "retries", "sleeps_while_training"),
    },
}


def hash_run_inputs(
    settings: Settings,
    sft_folder: Path,
    domain: str,
    iteration: int,
    tasks: Sequence[Task],
    prior: PastOutcomes | None,
    successes: Sequence[KnownSuccess] = (),
) -> str:
    """Hash all that an RL run depends on, to 64 hex digits, so that the saved state of another run is not resumed.

    The arguments are those of `train_rl`. tasks, successes: by their ids alone. Raises ModelError as
    `checkpoint_digest`, BadInput for an environment that is not known or wrong settings of it.
    """
    names = [task.task_id for task in tasks] + [one.trajectory_id for one in successes]
    used = [_STATE_FORMAT, checkpoint_digest(sft_folder), domain, iteration, settings.seed, names]
    blocks = [getattr(settings, name).model_dump(exclude=free) for name, free in _FREE_SETTINGS.items()]
    blocks += [registry.find_backend(name).identity(settings) for name in sorted({task.environment for task in tasks})]
    return hashlib.sha256(json.dumps([used, blocks, repr(prior)], sort_keys=True).encode()).hexdigest()


@contextmanager
def open_trainer_thread(settings: Settings) -> Iterator[ThreadPoolExecutor]:
    """Open the trainer's single thread within the block, and leave the other cores to the policy.

    The thread has a team of OpenMP threads, as many as `count_trainer_threads` of these `settings`; torch's number of
    threads is lowered meanwhile.
    """
    every = torch.get_num_threads()
    trainer = count_trainer_threads(settings, every)
    torch.set_num_threads(max(1, every - trainer) if trainer < every else every)  # for threads that start after this
    try:
        with ThreadPoolExecutor(1, "trainer", torch.set_num_threads, (trainer,)) as thread:
            yield thread
    finally:
        torch.set_num_threads(every)


def count_trainer_threads(settings: Settings, every: int) -> int:
    """Return the number of OpenMP threads that the trainer gets by `settings`. every: all of this process.

    Two Python threads that each have a full team of OpenMP threads slow each other down, even if only one of them
    works. So if the policy runs on the CPU of this process too, the trainer gets half of them, or rl.threads.
    """
    policy = settings.policy
    beside = policy.backend == "transformers" and (
        policy.device == "cpu" or (policy.device == "auto" and not torch.cuda.is_available())
    )
    return settings.rl.threads or (max(1, every // 2) if beside else every)


def drop_non_finite(metric: dict[str, Any]) -> dict[str, Any]:
    """Return `metric` without values that are not finite, such as the explained variance of equal returns."""
    return {name: value for name, value in metric.items() if np.isfinite(value)}


def episode_metrics(batch: Sequence[Experience]) -> dict[str, float]:
    """Compute the metrics of a batch's episodes: means of reward, score, success, lengths and rounds, and their number.

    For each interface of the tasks also reward_<interface> and success_<interface>. Rewards, scores and successes are
    those of true starts alone, and are left out where there is none; success_restored is of the others.
    """
    true = [experience for experience in batch if not experience.start]
    restored = [experience.success for experience in batch if experience.start]
    lengths = [len(sample.response) for experience in batch for sample in experience.samples]
    found = {
        "response_length": float(np.mean(lengths)),
        "think_length": float(np.mean([length for experience in batch for length in experience.think_lengths])),
        "rounds": float(np.mean([len(experience.samples) for experience in batch])),
        "episodes": float(len(batch)),
    }
    if true:
        found["reward"] = float(np.mean([sum(experience.rewards) for experience in true]))
        found["score"] = float(np.mean([experience.score for experience in true]))
        found["success"] = float(np.mean([experience.success for experience in true]))
    if restored:
        found["success_restored"] = float(np.mean(restored))
    for name in INTERFACES:
        if mine := [experience for experience in true if experience.interface == name]:
            found[f"reward_{name}"] = float(np.mean([sum(experience.rewards) for experience in mine]))
            found[f"success_{name}"] = float(np.mean([experience.success for experience in mine]))
    return found


def success_by_world(batch: EpisodeBatch) -> dict[str, float]:
    """Compute success_<world>: the share of successes among the episodes that began at their task's beginning."""
    found: dict[str, list[bool]] = defaultdict(list)
    for (ticket, episode), outcome in zip(batch.episodes, batch.outcomes, strict=True):
        if not episode.trajectory.start_step:
            found[ticket.task.world].append(outcome.success)
    return {f"success_{world}": float(np.mean(each)) for world, each in sorted(found.items())}


def group_metrics(batch: EpisodeBatch) -> dict[str, float]:
    """Compute `measure_groups` of the batch's groups that began at their task's beginning.

    What begins within a success is half solved, so it is left out.
    """
    groups: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for (request, episode), outcome in zip(batch.episodes, batch.outcomes, strict=True):
        if not episode.trajectory.start_step:
            groups[request.group].append((outcome.score, outcome.success))
    return measure_groups(groups.values())


@dataclass(frozen=True)
class RLResult:
    """Hold the outcome of an RL run.

    curve: metrics of each step. curriculum: `Curriculum.table`. dropped_starts: number of starts within a success that
    could not be reached, by reason. trajectories: trajectory_id -> number of samples that the policy was trained on
    (steps x rl.epochs), in the order of training. weights: weights[k] is the digest of the weights after k steps, which
    acted then.
    """

    curve: list[dict[str, Any]]
    curriculum: list[dict[str, Any]]
    trajectories: dict[str, int]
    weights: list[str]
    dropped_starts: dict[str, int] = field(default_factory=dict)


def train_rl(
    sft_folder: Path,
    out_folder: Path,
    domain: str,
    tasks: Sequence[Task],
    *,
    open_environments: OpenEnvProvider = open_environments,
    settings: Settings,
    iteration: int,
    state_folder: Path,
    prior: PastOutcomes | None = None,
    successes: Sequence[KnownSuccess] = (),
    draw_fresh: DrawFreshTask | None = None,
    on_metric: OnMetric = lambda metric: None,
    on_task: Callable[[Task], None] = lambda task: None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    on_judged: Callable[[JudgedEpisode], None] = lambda judged: None,
    stop: Callable[[], bool] = lambda: False,
) -> RLResult:
    """Train the SFT checkpoint on the domain's tasks and write the specialist to `out_folder`.

    sft_folder: the checkpoint. out_folder: replaced where it exists. domain: tasks of other domains in `tasks` are
    ignored; "": all are used. open_environments: opens the tasks' environments. settings: of the workspace. iteration:
    number in the rows of the episodes. state_folder: of the saved state, from which a killed run resumes; the state of
    another run is ignored, and the caller deletes the folder. prior: outcomes before the run, for the curriculum.
    successes: that episodes can begin within (`rl.restored_start_fraction`). draw_fresh: draws a group's fresh contents
    where `rl.fresh_tasks` is set; None: the drawn tasks are played. on_metric: called with the curve's
    dict of each step (from 1) of this call. on_task: called with each of these tasks before it is played, again where a
    run resumes. on_episode: called with each episode that ends, whether it is used or not. on_judged: called, possibly
    from another thread, with each scored episode; one that crashed is not scored. stop: called after each step; True
    ends the run as if rl.steps were reached.

    Returns the outcome of the run: its curve, the curriculum's table, the samples trained on by trajectory, the
    weights' digest after each step, and the starts that were dropped, by reason. The curve has one dict per step: step,
    reward, score, success, success_<world>, reward_<interface> and success_<interface> of tasks with an interface (all
    of true starts), with restored starts also success_restored, dropped_starts (so far) and `groups.start_metrics`,
    with groups `measure_groups`, where others than the verifier pay and `rl.audit_fraction` is set those of
    `RewardAudit.add`, with replay replayed_turns, response_length and think_length (tokens per step), rounds (steps per
    episode), episodes, metrics of the gradient step, of the rollout pool and of the curriculum, horizon, rollout_s
    (seconds of waiting for the batch), update_s. Values that are not finite are left out. If the algorithm needs a
    value model and rl.value_pretraining_steps is not 0, a dict of step 0 comes first, with episodes and value
    pretraining's metrics.

    Raises TrainingError where there are no tasks, no episode can be used, no batch is complete in time, every
    environment crashes, a scorer fails, a loss is not finite, rollout and training disagree, the saved state is
    damaged or does not fit, with `rl.audit_stops` where the reward pays what the verifier calls failed, DeepSpeed
    is set and not installed, or a training process ends or times out (on the nodes of a cluster WorkerLost, and
    ClusterError where a node cannot take part); PolicyError where the policy fails; ModelError for a checkpoint
    that cannot be used; BadInput for an unknown algorithm, scorer or back-end, their settings, an endpoint that is
    not an address, a server whose log-probabilities do not fit the settings, and a prompt that cannot be built (a
    broken screen, or instruction and screen above policy.max_context_tokens); EnvError where a back-end cannot be
    opened, EnvTimeout where it does not open or close in time; DataError for a finished episode whose file is
    broken; DiskFull. The saved state remains: called again, the run resumes. Must not be called from a running
    event loop.
    """
    tasks = sorted((task for task in tasks if domain in ("", task.domain)), key=lambda task: task.task_id)
    if not tasks:
        raise TrainingError("there are no tasks", where=f"rl {domain}", fix="check synthesis.domains")
    _check_rl_settings(settings)
    with open_trainer_thread(settings) as thread:
        draw_fresh = draw_fresh if settings.rl.fresh_tasks else None
        given = (prior, successes, draw_fresh, on_task, on_episode, on_judged, thread)
        run = _RLRun(sft_folder, domain, tasks, settings, iteration, state_folder, *given)
        try:
            processes.run_until_sigterm(run.train(open_environments, on_metric, stop))
            thread.submit(run.workers.call, "write", out_folder).result()
        finally:
            thread.submit(run.workers.close).result()
    dropped = dict(run.planner.dropped) if run.planner else {}
    return RLResult(run.metrics, run.curriculum.table(), run.trajectories, run.weights, dropped)


def _check_rl_settings(settings: Settings) -> None:
    """Raise BadInput for settings that would fail only after hours of rollouts."""
    rl = settings.rl
    get_algorithm(rl.algorithm)
    for setting in ("max_staleness", "replay_fraction"):
        if settings.policy.backend == "openai" and rl.temperature != 1 and getattr(rl, setting):
            raise BadInput(
                f"a server tells log-probabilities at temperature 1 alone, and rl.temperature is {rl.temperature:g}: "
                "for what older weights sampled there is no ratio",
                where=f"rl.{setting}",
                fix=f"set rl.temperature to 1 or rl.{setting} to 0",
            )


@dataclass(eq=False)
class _RLRun:
    """Run one RL training. thread: runs all of the trainer's work in torch."""

    sft_folder: Path
    domain: str
    tasks: Sequence[Task]
    settings: Settings
    iteration: int
    folder: Path
    prior: PastOutcomes | None
    successes: Sequence[KnownSuccess]
    draw_fresh: DrawFreshTask | None
    on_task: Callable[[Task], None]
    on_episode: Callable[[Episode], None]
    on_judged: Callable[[JudgedEpisode], None]
    thread: ThreadPoolExecutor
    done: int = -1  # steps; -1: the value model is not pretrained yet
    metrics: list[dict[str, Any]] = field(default_factory=list)
    trajectories: dict[str, int] = field(default_factory=dict)
    weights: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rl, tasks = self.settings.rl, self.tasks
        self.algorithm = get_algorithm(self.rl.algorithm)
        self.by_id = {task.task_id: task for task in tasks}
        self.encoder = Encoder.from_folder(self.sft_folder, max_image_side=self.settings.policy.max_image_side)
        self.panel = ScorerSet(reward_settings(self.settings))
        self.audit = RewardAudit(self.rl.audit_tolerance, (f"{task.world}/{task.template}" for task in tasks))
        self.curriculum = Curriculum(tasks, self.rl, self._seed("curriculum"), self.prior)
        self.replay = ReplayBuffer(self.folder / "replay")
        self.planner: GroupChooser | None = None
        if self.draw_fresh is not None or self.rl.restored_start_fraction:
            given = {"successes": self.successes, "draw_fresh": self.draw_fresh, "on_task": self.on_task}
            self.planner = GroupChooser(self.rl, self._seed("groups"), **given)
        inputs = (self.domain, self.iteration, tasks, self.prior, self.successes)
        self.key = hash_run_inputs(self.settings, self.sft_folder, *inputs)
        make = partial(RLTrainer, self.sft_folder, self.settings, self._seed("value"), self.algorithm)
        place = copy_context()  # a cluster may say where (`use_launcher`)
        self.workers: WorkerGroup[RLTrainer] = self.thread.submit(place.run, self._open_workers, make).result()

    def _open_workers(self, make: Callable[[], RLTrainer]) -> WorkerGroup[RLTrainer]:
        return WorkerGroup(make, self.rl.processes, torch.get_num_threads(), self.rl.batch_timeout_s, "rl.processes")

    async def train(self, open_environments: OpenEnvProvider, on_metric: OnMetric, stop: Callable[[], bool]) -> None:
        await self._on_thread(self._load)
        if not (self.rl.value_pretraining_steps and self.rl.steps and self.algorithm.needs_value):
            self.done = max(self.done, 0)
        at = max(self.done, 0)
        drawing = (self.key, self.curriculum, self.by_id, self._plan(), at, self.planner)
        rollout_log = RolloutLog(self.folder / "pool", *drawing)
        if self.done >= self.rl.steps:
            return
        # The rest of its batch changes a request's log-probabilities by rounding.
        alone = {"max_num_seqs": 1, "cache_mb": 0} if self.rl.deterministic else {}
        answering = self.settings.policy.model_copy(update=alone)
        folder = await self._on_thread(self._publish)
        policy = open_policy(folder, answering)
        try:
            async with open_environments(self.settings, self.tasks) as environments:
                found = await self._for_value(policy, environments) if self.done < 0 else None
                async with self._pool(rollout_log, policy, environments) as pool:
                    if found and self.settings.policy.sleeps_while_training:
                        await self._pretrain(found)
                        await policy.load(folder)
                    elif found:
                        pool.fill()  # the policy does not change while V learns: collect the first batch meanwhile
                        await self._pretrain(found)
                    while self.done < self.rl.steps:
                        on_metric(await self._step(pool, policy))
                        if stop():
                            break
        finally:
            await policy.close()

    async def _for_value(self, policy: PolicyBackend, environments: EnvProvider) -> EpisodeBatch:
        """Collect the episodes of value pretraining."""
        count = min(self.rl.value_pretraining_tasks, len(self.tasks)) * self.rl.group_size
        behind = self._plan().batches * self._plan().batch  # sample numbers above those of the run's own episodes
        plan = RolloutPlan(self.rl.group_size, count, 1, 0, self._seed("pretraining"), first=behind)
        source = ShuffledTasks(self.tasks, self._seed("pretraining", 0))
        rollout_log = RolloutLog(self.folder / "pretraining", self.key, source, self.by_id, plan)
        async with self._pool(rollout_log, policy, environments) as pool:
            return await pool.next_batch()

    async def _pretrain(self, batch: EpisodeBatch) -> None:
        with self._named(0, "value pretraining"):
            await put_servers_to_sleep(self.settings.policy)
            found = await self._on_thread(self._experiences, batch)
            figures = await self._on_thread(self.workers.call, "fit_value", found, self._seed("value pretraining"))
        self.metrics.append(drop_non_finite({"step": 0, "episodes": float(len(batch.episodes)), **figures}))
        self.done = 0
        await self._on_thread(self._save)
        shutil.rmtree(self.folder / "pretraining")

    async def _step(self, pool: AsyncRolloutPool, policy: PolicyBackend) -> dict[str, Any]:
        """Take one training step; return its metrics. The state is saved before the pool drops the batch, so that after
        a kill the batch is neither lost nor used twice."""
        started = time.monotonic()
        batch = await pool.next_batch()
        collected = time.monotonic()
        with self._named(batch.step + 1):
            await put_servers_to_sleep(self.settings.policy)
            figures = await self._on_thread(self._update, batch)
        self.done += 1
        used = (episode for _, episode in batch.episodes if episode.own_steps)
        self.trajectories |= {episode.id: len(episode.own_steps) * self.rl.epochs for episode in used}
        figures = {"step": self.done} | success_by_world(batch) | group_metrics(batch) | batch.figures | figures
        figures |= await self._on_thread(self._audit, batch) | self.curriculum.metrics()
        if self.rl.restored_start_fraction:
            figures |= start_metrics(batch) | {"dropped_starts": float(self.planner.dropped.total())}
        seconds = {"rollout_s": round(collected - started, 3), "update_s": round(time.monotonic() - collected, 3)}
        metric = drop_non_finite(figures | seconds)
        self.metrics.append(metric)
        await self._on_thread(self._save)
        self._check_audit()
        if self.done < self.rl.steps:
            folder = await self._on_thread(self._publish)
            pool.register_weights(self.weights[self.done], self.done)
            with self._named(self.done, "its weights"):
                await policy.load(folder)
        pool.advance()
        return metric

    @contextmanager
    def _named(self, *place: object) -> Iterator[None]:
        """Add the run and `place`, its step, to errors within the block."""
        try:
            yield
        except FlywheelError as error:
            here = f"rl {self.domain}, step " + ", ".join(map(str, place))
            raise type(error)(error.what, where=", ".join(filter(None, (error.where, here))), fix=error.fix) from error

    # on the trainer's thread
    async def _on_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(work, *arguments))

    def _experiences(self, batch: EpisodeBatch) -> list[Experience]:
        episodes = [episode for _, episode in batch.episodes]
        tasks = {request.task.task_id: request.task for request, _ in batch.episodes}
        found = build_experiences(episodes, batch.outcomes, tasks, self.encoder, self.settings)
        if not found:
            what = f"none of {len(batch.episodes)} episodes has a step"
            raise TrainingError(what, fix="a task must not be over as it begins")
        return found

    def _update(self, batch: EpisodeBatch) -> dict[str, float]:
        found, seed = self._experiences(batch), self._seed("minibatches", self.done)
        chosen: list[ReplayedTurns] = []
        if self.rl.replay_fraction:
            turns = count_replayed(sum(len(one.samples) for one in found), self.rl)
            chosen = self.replay.choose(turns, self.curriculum.success_rate, self._seed("replay", self.done))
        again = self.replay.read(chosen, self.encoder, self.settings)
        figures, advantages = self.workers.call("update", found, seed, again)
        if self.rl.replay_fraction:
            for one in chosen:
                more = len(one.turns) * self.rl.epochs
                self.trajectories[one.trajectory_id] = self.trajectories.get(one.trajectory_id, 0) + more
            figures["replayed_turns"] = float(sum(len(one.turns) for one in chosen))
            self.replay.add(batch, advantages)
        return figures | episode_metrics(found)

    @cached_property
    def _verifier(self) -> ScorerSet:
        routing = self.settings.routing.model_copy(update={"scorers": {"default": [VERIFIER]}})
        return ScorerSet(self.settings.model_copy(update={"routing": routing}))

    def _audit(self, batch: EpisodeBatch) -> dict[str, float]:
        """Let the verifier judge a share of the groups that others pay; return the audit's metrics.

        A state that it cannot read is logged and counted, and does not stop a run that it does not pay.
        """
        found, unread = [], 0
        for (request, episode), outcome in zip(batch.episodes, batch.outcomes, strict=True):
            task = request.task
            if task.verifier and is_audited(request.group, self.rl.audit_fraction) and self._payers(task.domain):
                case = ScoringInput(task, episode.trajectory, episode.steps, episode.images)
                done = decide_verdict(self._verifier.score_trajectory(case)).v
                unread += done is None
                if done is not None:
                    found.append((request.group, f"{task.world}/{task.template}", outcome.success, done))
        return self.audit.add(self.done, found) | ({"audit_unread": float(unread)} if unread else {})

    def _payers(self, domain: str) -> list[str]:
        """Return who pays episodes of a domain beside the verifier."""
        return [scorer.name for scorer in self.panel.for_domain(domain) if scorer.name != VERIFIER]

    def _check_audit(self) -> None:
        """Warn where the audit finds that the reward pays what failed; raise TrainingError with `rl.audit_stops`."""
        if not self.audit.alarmed_at:
            return
        payers = sorted({name for task in self.tasks for name in self._payers(task.domain)})
        what, where = self.audit.describe(" and ".join(payers)), f"rl {self.domain}, step {self.audit.alarmed_at}"
        if self.rl.audit_stops:
            fix = "pay by the verifier, retrain what pays, or set rl.audit_stops to false"
            raise TrainingError(what, where=where, fix=fix)
        if self.audit.alarmed_at == self.done:
            log.warning("%s: %s", where, what)

    def _plan(self) -> RolloutPlan:
        rl, seed = self.rl, self._seed("train")
        batch = rl.tasks_per_step * rl.group_size
        return RolloutPlan(rl.group_size, batch, rl.steps, rl.max_staleness, seed, self.algorithm.whole_groups)

    def _pool(self, rollout_log: RolloutLog, policy: PolicyBackend, environments: EnvProvider) -> AsyncRolloutPool:
        # Scorers that need more than the final state (a judge, a reward model) are slow: episodes continue meanwhile.
        slow = self.panel.is_slow(self.domain)
        return AsyncRolloutPool(
            rollout_log,
            policy,
            environments,
            grade=self._grade,
            slow=slow,
            iteration=self.iteration,
            settings=self.settings,
            temperature=self.rl.temperature,
            where=f"rl {self.domain}",
            on_episode=self.on_episode,
        )

    def _grade(self, task: Task, episode: Episode) -> tuple[float, bool | None]:
        judged = judge_episode(task, episode, self.panel)
        self.on_judged(judged)
        return judged.result.score, decide_verdict(judged.verdicts).v

    def _seed(self, *names: object) -> int:
        return derive_seed(self.settings.seed, self.iteration, self.domain, *names)

    def _publish(self) -> Path:
        """Write the newest weights and note their digest; return the folder, from which the policy loads them."""
        folder = self.folder / "policy"
        self.workers.call("write", folder)
        self.weights[max(self.done, 0) :] = [checkpoint_digest(folder)]
        return folder

    def _save(self) -> None:
        names = ("key", "done", "metrics", "trajectories", "weights")
        state = {name: getattr(self, name) for name in names} | {"replay": self.replay.entries}
        state["audit"] = self.audit.to_state()
        self.workers.call("save", self.folder / "rl.pt", state)
        self.replay.sweep()

    def _load(self) -> None:
        found = self.workers.call("load", self.folder / "rl.pt", self.key)
        if found:
            self.done, self.metrics = found["done"], found["metrics"]
            self.trajectories, self.weights = found["trajectories"], found["weights"]
            self.replay.entries = found["replay"]
            self.audit.load_state(found["audit"])
            self._check_audit()
            log.info("rl %s goes on at step %d", self.domain, self.done)
