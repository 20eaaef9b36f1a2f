"""Train RL in real environments for one domain (section 2.5): take a batch, update, publish the weights, repeat.

One step, in order, each line with the file to read (in flywheel/; without a folder: beside this one):

 1. draw tasks by what is still to be learnt of them          curriculum.py
 2. collect their episodes until a batch is whole             rollout/async_pool.py
 3. turn each outcome into rewards, step by step              rewards/shaping.py, trainer.py: build_experiences
 4. send the batch to every training process                  training/distributed/worker_group.py, trainer.py
 5. read the policy: log-probabilities, hidden states         training/modeling/policy_forward.py
 6. read V from the hidden states                             trainer.py: ValueModel
 7. give whole trajectories advantages and V's targets        algorithms/ppo.py or algorithms/grpo.py
 8. cut them into turns; check log-probabilities              trainer.py: estimate_step_samples
 9. compute the algorithm's loss on minibatches of turns      trainer.py, algorithms/, losses.py
10. add up and clip gradients; step the policy, then V        training/distributed/engine.py: take_gradient_step
11. save all of it, so that a kill costs one step             training/distributed/engine.py: TrainState
12. publish the new weights, and let the pool go on           _RLRun._step below

Rollouts stream (`rollout/async_pool.py`): the event loop goes on acting while a thread trains on a batch, within
rl.max_staleness. At 0 it waits, and the run is the synchronous one.

The trainer saves its state at every step, and the pool its own, so a killed run resumes at the same step with the same
batch. Tasks, samples and minibatches are functions of the seed and of what was drawn before, and episodes are put in
order before anything is computed from them.
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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import INTERFACES, Task
from flywheel.envs.registry import EnvProvider, OpenEnvProvider, open_environments
from flywheel.evaluation.evaluator import JudgedEpisode, judge_episode
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.publishers import put_servers_to_sleep
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import PolicyBackend
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.async_pool import AsyncRolloutPool, EpisodeBatch, RolloutLog, RolloutPlan
from flywheel.rollout.episode import Episode, derive_seed
from flywheel.training.distributed.worker_group import WorkerGroup
from flywheel.training.rl.algorithm import get_algorithm
from flywheel.training.rl.curriculum import Curriculum, PastOutcomes, ShuffledTasks
from flywheel.training.rl.trainer import Experience, RLTrainer, build_experiences
from flywheel.utils import processes
from flywheel.utils.errors import BadInput, FlywheelError, TrainingError

log = logging.getLogger(__name__)

T = TypeVar("T")
OnMetric = Callable[[Mapping[str, Any]], None]

_STATE_FORMAT = 6  # of the state on disk: another one is not resumed
# Settings that change how long a run takes, and not what it trains on: a resumed run may have others.
_FREE_SETTINGS = {
    "adapter": set(),
    "rl": {"batch_timeout_s", "threads", "processes", "device"},
    "policy": {
        *("backend", "endpoint", "model", "key_variable", "device"),
        *("max_num_seqs", "max_queue_size", "cache_mb", "timeout_s", "retries", "sleeps_while_training"),
    },
}


def hash_run_inputs(
    settings: Settings, sft_folder: Path, domain: str, iteration: int, tasks: Sequence[Task], prior: PastOutcomes | None
) -> str:
    """Hash all inputs that the run depends on: the saved state of another run is not resumed."""
    names = [task.task_id for task in tasks]
    used = [_STATE_FORMAT, checkpoint_digest(sft_folder), domain, iteration, settings.seed, names]
    blocks = [getattr(settings, name).model_dump(exclude=free) for name, free in _FREE_SETTINGS.items()]
    blocks += [registry.find_backend(name).identity(settings) for name in sorted({task.environment for task in tasks})]
    return hashlib.sha256(json.dumps([used, blocks, repr(prior)], sort_keys=True).encode()).hexdigest()


@contextmanager
def open_trainer_thread(settings: Settings) -> Iterator[ThreadPoolExecutor]:
    """Open the one thread of the trainer's arithmetic, with a team of OpenMP threads; the policy has the others."""
    every = torch.get_num_threads()
    trainer = count_trainer_threads(settings, every)
    torch.set_num_threads(max(1, every - trainer) if trainer < every else every)  # of threads that begin now
    try:
        with ThreadPoolExecutor(1, "trainer", torch.set_num_threads, (trainer,)) as thread:
            yield thread
    finally:
        torch.set_num_threads(every)


def count_trainer_threads(settings: Settings, every: int) -> int:
    """Count the threads of the trainer's arithmetic, of `every` that there are.

    Two Python threads that each drive a full team of OpenMP threads make both slow, even where only one of them is at
    work: so trainer and policy share the cores where the policy is on them too.
    """
    policy = settings.policy
    beside = policy.backend == "transformers" and (
        policy.device == "cpu" or (policy.device == "auto" and not torch.cuda.is_available())
    )
    return settings.rl.threads or (max(1, every // 2) if beside else every)


def drop_non_finite(metric: dict[str, Any]) -> dict[str, Any]:
    """Without what has no meaning, such as the explained variance of returns that are all the same."""
    return {name: value for name, value in metric.items() if np.isfinite(value)}


def episode_metrics(batch: Sequence[Experience]) -> dict[str, float]:
    """Compute the figures of a batch's episodes: means of reward, score, success, lengths and rounds, and their number.

    Of tasks that say how they may be done also reward_<interface> and success_<interface>.
    """
    lengths = [len(sample.response) for experience in batch for sample in experience.samples]
    found = {
        "reward": float(np.mean([sum(experience.rewards) for experience in batch])),
        "score": float(np.mean([experience.score for experience in batch])),
        "success": float(np.mean([experience.success for experience in batch])),
        "response_length": float(np.mean(lengths)),
        "think_length": float(np.mean([length for experience in batch for length in experience.think_lengths])),
        "rounds": float(np.mean([len(experience.samples) for experience in batch])),
        "episodes": float(len(batch)),
    }
    for name in INTERFACES:
        if mine := [experience for experience in batch if experience.interface == name]:
            found[f"reward_{name}"] = float(np.mean([sum(experience.rewards) for experience in mine]))
            found[f"success_{name}"] = float(np.mean([experience.success for experience in mine]))
    return found


def success_by_world(batch: EpisodeBatch) -> dict[str, float]:
    """Compute success_<world>: the share of the batch's episodes in each that succeeded."""
    found: dict[str, list[bool]] = defaultdict(list)
    for (ticket, _), outcome in zip(batch.episodes, batch.outcomes, strict=True):
        found[ticket.task.world].append(outcome.success)
    return {f"success_{world}": float(np.mean(each)) for world, each in sorted(found.items())}


@dataclass(frozen=True)
class RLResult:
    """Hold the outcome of an RL run.

    curve: figures of each step. curriculum: `Curriculum.table`. trajectories: ids of those that the policy was trained
    on, in the order of the steps -> samples that it took of each: its steps, rl.epochs times. weights: digests of those
    that acted, [k]: after k steps.
    """

    curve: list[dict[str, Any]]
    curriculum: list[dict[str, Any]]
    trajectories: dict[str, int]
    weights: list[str]


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
    on_metric: OnMetric = lambda metric: None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    on_judged: Callable[[JudgedEpisode], None] = lambda judged: None,
    stop: Callable[[], bool] = lambda: False,
) -> RLResult:
    """Train the SFT checkpoint on the domain's tasks and write the specialist to `out_folder`.

    sft_folder: the checkpoint. out_folder: replaced where it is there. domain: whose tasks are taken of `tasks`; "":
    all. open_environments: opens what the tasks need. settings: of the workspace. iteration: stands in the episodes'
    rows. state_folder: of all that a killed run resumes from; the state of another run is not taken up, and the caller
    deletes it. prior: what the curriculum knows before the run. on_metric: called with the curve's dict of each step
    from 1 on that is taken in this call. on_episode: called with each episode as it ends, used or not; on_judged:
    with each that did not crash once it is scored, also from another thread. stop: asked
    after each step; true ends the run as if rl.steps were reached.

    The curve has one dict a step: step, reward, score, success and success_<world>, reward_<interface> and
    success_<interface> of tasks that have one, response_length and think_length (tokens a step), rounds (steps an
    episode), episodes, the figures of the gradient step, of the rollout pool and of the curriculum, horizon, rollout_s
    (waited for the batch), update_s (a figure without a meaning is left out). Where the algorithm needs V and
    rl.value_pretraining_steps is not 0, one of step 0 precedes them, with episodes and what value pretraining reached.

    Raises TrainingError where there are no tasks, no episode could be used, no batch comes in time, every environment
    crashes, a scorer fails, a loss is not finite, rollout and training disagree, the saved state is damaged or does not
    fit, DeepSpeed is asked for and not installed, or a training process ends or is late (on the nodes of a cluster
    WorkerLost, and ClusterError where a node cannot take part); PolicyError where the policy fails; ModelError for a
    checkpoint that cannot be used; BadInput for an unknown algorithm, scorer or back-end, their settings, an endpoint
    that is not an address, a server whose log-probabilities do not go with the settings, and what the policy cannot be
    shown (a broken screen, or instruction and screen above policy.max_context_tokens); EnvError where a back-end cannot
    be opened, EnvTimeout where it does not open or close in time; DataError for a finished episode whose file is
    broken; DiskFull. What was finished by then stays: called again, the run goes on. Must not be called from a running
    loop.
    """
    tasks = sorted((task for task in tasks if domain in ("", task.domain)), key=lambda task: task.task_id)
    if not tasks:
        raise TrainingError("there are no tasks", where=f"rl {domain}", fix="check synthesis.domains")
    _check_rl_settings(settings)
    with open_trainer_thread(settings) as thread:
        run = _RLRun(sft_folder, domain, tasks, settings, iteration, state_folder, prior, on_episode, on_judged, thread)
        try:
            processes.run_until_sigterm(run.train(open_environments, on_metric, stop))
            thread.submit(run.workers.call, "write", out_folder).result()
        finally:
            thread.submit(run.workers.close).result()
    return RLResult(run.metrics, run.curriculum.table(), run.trajectories, run.weights)


def _check_rl_settings(settings: Settings) -> None:
    """What can be known to fail is refused before hours of rollouts."""
    rl = settings.rl
    get_algorithm(rl.algorithm)
    if settings.policy.backend == "openai" and rl.temperature != 1 and rl.max_staleness:
        raise BadInput(
            f"a server tells log-probabilities at temperature 1 alone, and rl.temperature is {rl.temperature:g}: for "
            "what older weights sampled there is no ratio",
            where="rl.max_staleness",
            fix="set rl.temperature to 1 or rl.max_staleness to 0",
        )


@dataclass(eq=False)
class _RLRun:
    """The state of one RL run. thread: everything of torch is done on it."""

    sft_folder: Path
    domain: str
    tasks: Sequence[Task]
    settings: Settings
    iteration: int
    folder: Path
    prior: PastOutcomes | None
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
        self.panel = ScorerSet(self.settings)
        self.curriculum = Curriculum(tasks, self.rl, self._seed("curriculum"), self.prior)
        self.key = hash_run_inputs(self.settings, self.sft_folder, self.domain, self.iteration, tasks, self.prior)
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
        rollout_log = RolloutLog(self.folder / "pool", self.key, self.curriculum, self.by_id, self._plan(), at)
        if self.done >= self.rl.steps:
            return
        # What a request is answered together with moves its numbers by rounding.
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
                        pool.fill()  # the policy stays as it is: its first batch is gathered while V learns
                        await self._pretrain(found)
                    while self.done < self.rl.steps:
                        on_metric(await self._step(pool, policy))
                        if stop():
                            break
        finally:
            await policy.close()

    async def _for_value(self, policy: PolicyBackend, environments: EnvProvider) -> EpisodeBatch:
        """Episodes for value pretraining."""
        count = min(self.rl.value_pretraining_tasks, len(self.tasks)) * self.rl.group_size
        behind = self._plan().batches * self._plan().batch  # numbers that no episode of the run itself comes to
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
        """One training step. The state is saved before the pool forgets the batch: a kill gives it once."""
        started = time.monotonic()
        batch = await pool.next_batch()
        collected = time.monotonic()
        with self._named(batch.step + 1):
            await put_servers_to_sleep(self.settings.policy)
            figures = await self._on_thread(self._update, batch)
        self.done += 1
        used = (episode for _, episode in batch.episodes if episode.steps)
        self.trajectories |= {episode.id: len(episode.steps) * self.rl.epochs for episode in used}
        figures = {"step": self.done} | success_by_world(batch) | batch.figures | figures | self.curriculum.figures()
        seconds = {"rollout_s": round(collected - started, 3), "update_s": round(time.monotonic() - collected, 3)}
        metric = drop_non_finite(figures | seconds)
        self.metrics.append(metric)
        await self._on_thread(self._save)
        if self.done < self.rl.steps:
            folder = await self._on_thread(self._publish)
            pool.announce(self.weights[self.done], self.done)
            with self._named(self.done, "its weights"):
                await policy.load(folder)
        pool.advance()
        return metric

    @contextmanager
    def _named(self, *place: object) -> Iterator[None]:
        """Errors say the run and its step."""
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
        found = build_experiences(episodes, batch.outcomes, self.by_id, self.encoder, self.settings)
        if not found:
            what = f"none of {len(batch.episodes)} episodes has a step"
            raise TrainingError(what, fix="a task must not be over as it begins")
        return found

    def _update(self, batch: EpisodeBatch) -> dict[str, float]:
        found = self._experiences(batch)
        figures = self.workers.call("update", found, self._seed("minibatches", self.done))
        return figures | episode_metrics(found)

    def _plan(self) -> RolloutPlan:
        rl, seed = self.rl, self._seed("train")
        batch = rl.tasks_per_step * rl.group_size
        return RolloutPlan(rl.group_size, batch, rl.steps, rl.max_staleness, seed, self.algorithm.whole_groups)

    def _pool(self, rollout_log: RolloutLog, policy: PolicyBackend, environments: EnvProvider) -> AsyncRolloutPool:
        # What reads more than the state (a judge, a reward model) takes its time: the episodes go on meanwhile.
        slow = not self.panel.needs(self.domain) <= {"final_state"}
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

    def _grade(self, task: Task, episode: Episode) -> tuple[float, bool]:
        judged = judge_episode(task, episode, self.panel)
        self.on_judged(judged)
        return judged.result.score, judged.result.v

    def _seed(self, *names: object) -> int:
        return derive_seed(self.settings.seed, self.iteration, self.domain, *names)

    def _publish(self) -> Path:
        """Where the policy's server takes the newest weights from."""
        folder = self.folder / "policy"
        self.workers.call("write", folder)
        self.weights[max(self.done, 0) :] = [checkpoint_digest(folder)]
        return folder

    def _save(self) -> None:
        names = ("key", "done", "metrics", "trajectories", "weights")
        self.workers.call("save", self.folder / "rl.pt", {name: getattr(self, name) for name in names})

    def _load(self) -> None:
        found = self.workers.call("load", self.folder / "rl.pt", self.key)
        if found:
            self.done, self.metrics = found["done"], found["metrics"]
            self.trajectories, self.weights = found["trajectories"], found["weights"]
            log.info("rl %s goes on at step %d", self.domain, self.done)
