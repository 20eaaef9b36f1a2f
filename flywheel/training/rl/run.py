"""RL in real environments for one domain (section 2.5): take a batch, update, publish the weights, repeat.

One step, in order, each line with the file to read:

 1. tasks are drawn by what is still to be learnt of them       curriculum.py
 2. their episodes stream in, until a batch is whole            rollout/stream.py, rollout/rollout_log.py
 3. an outcome becomes rewards, step by step                    reward/shaping.py, experience.py (experiences)
 4. every process of the trainer gets the batch                 parallel/workers.py, trainer.py
 5. the policy is read: log-probabilities, hidden states        forward/policy_forward.py
 6. V is read from the hidden states                            value.py
 7. whole trajectories get advantages and V's targets           algorithms/ppo.py, gae.py; algorithms/grpo.py, group.py
 8. and are cut into turns, the samples, held against theirs    experience.py (step_samples), update.py (_agreement)
 9. minibatches of turns get the algorithm's loss               update.py, algorithms/, ppo.py
10. gradients are added up, cut, and move the policy, then V    parallel/engine.py (gradient_step), zero.py
11. all of it goes to disk, so that a kill costs one step       training/state.py, learner.py
12. the new weights are published, and the pool goes on         _Run._step below

Rollouts stream (`rollout.stream`): while a batch is trained on, in a thread of its own, the event loop goes on acting,
within rl.max_staleness. At 0 it waits, and the run is the synchronous one.

Every step ends in a state on disk that holds all of the trainer, and the pool keeps its own (`rollout/rollout_log.py`),
so a killed run goes on at the same step with the same batch. Tasks, samples and minibatches are functions of the seed
and of what was drawn before, and episodes are put in order before anything is computed from them.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from flywheel import termination
from flywheel.environments.env import Task
from flywheel.environments.router import Environments, OpenEnvironments, open_environments
from flywheel.errors import BadInput, FlywheelError, TrainingError
from flywheel.evaluation.evaluate import judge
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Policy
from flywheel.rollout.episode import Episode, seed_of
from flywheel.rollout.rollout_log import RolloutLog, RolloutPlan
from flywheel.rollout.stream import EpisodeBatch, Pool
from flywheel.scoring.panel import Panel
from flywheel.settings import Settings
from flywheel.training.parallel.workers import WorkerGroup
from flywheel.training.rl.algorithm import find
from flywheel.training.rl.curriculum import Curriculum, PastOutcomes, Shuffled
from flywheel.training.rl.experience import Experience, experiences
from flywheel.training.rl.figures import by_interface, by_world, finite, of_episodes
from flywheel.training.rl.run_key import run_key
from flywheel.training.rl.threads import trainer_thread
from flywheel.training.rl.trainer import RLTrainer

log = logging.getLogger(__name__)

T = TypeVar("T")
OnMetric = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Result:
    """curve: figures of each step. curriculum: `Curriculum.table`. trajectories: ids of those that the policy was
    trained on, in the order of the steps. weights: digests of those that acted, [k]: after k steps.
    """

    curve: list[dict[str, Any]]
    curriculum: list[dict[str, Any]]
    trajectories: list[str]
    weights: list[str]


def train_rl(
    sft_folder: Path,
    out_folder: Path,
    domain: str,
    tasks: Sequence[Task],
    *,
    open_environments: OpenEnvironments = open_environments,
    settings: Settings,
    iteration: int,
    state_folder: Path,
    prior: PastOutcomes | None = None,
    on_metric: OnMetric = lambda metric: None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train the SFT checkpoint on the domain's tasks (of all domains where it is empty) and write the specialist to
    `out_folder`.

    The curve has one dict a step, each also given to `on_metric` as it comes: step, reward, score, success and
    success_<world>, reward_<interface> and success_<interface> of tasks that say theirs, response_length, rounds
    (steps an episode), episodes, those of `train_step` and of `Pool.batch`, the curriculum's, horizon, rollout_s
    (waited for the batch), update_s (a figure without a meaning is left out); before them one of step 0 with what
    value pretraining reached.

    prior: what the curriculum knows before the run. on_episode: called with each episode as it ends, used or not. stop:
    asked after each step; true ends the run as if rl.steps were reached.

    Raises TrainingError where there are no tasks, no episode could be used, no batch comes in time, every environment
    crashes, a scorer fails, a loss is not finite, or rollout and training disagree; PolicyError where the policy
    fails; BadInput for a server whose log-probabilities do not go with the settings. What was finished by then is kept:
    called again, the run goes on. Must not be called from a running loop.
    """
    tasks = sorted((task for task in tasks if domain in ("", task.domain)), key=lambda task: task.task_id)
    if not tasks:
        raise TrainingError("there are no tasks", where=f"rl {domain}", fix="check synthesis.domains")
    _check(settings)
    with trainer_thread(settings) as thread:
        run = _Run(sft_folder, domain, tasks, settings, iteration, state_folder, prior, on_episode, thread)
        try:
            termination.run(run.train(open_environments, on_metric, stop))
            thread.submit(run.workers.call, "write", out_folder).result()
        finally:
            thread.submit(run.workers.close).result()
    return Result(run.metrics, run.curriculum.table(), run.trajectories, run.weights)


def _check(settings: Settings) -> None:
    """What can be known to fail is refused before hours of rollouts."""
    rl = settings.rl
    find(rl.algorithm)
    if settings.policy.backend == "openai" and rl.temperature != 1 and rl.max_staleness:
        raise BadInput(
            f"a server tells log-probabilities at temperature 1 alone, and rl.temperature is {rl.temperature:g}: for "
            "what older weights sampled there is no ratio",
            where="rl.max_staleness",
            fix="set rl.temperature to 1 or rl.max_staleness to 0",
        )


class _Run:
    """The state of one RL run: what is learnt, how far it is, what it used, what was measured. thread: everything of
    torch is done on it."""

    def __init__(
        self,
        sft_folder: Path,
        domain: str,
        tasks: Sequence[Task],
        settings: Settings,
        iteration: int,
        folder: Path,
        prior: PastOutcomes | None,
        on_episode: Callable[[Episode], None],
        thread: ThreadPoolExecutor,
    ) -> None:
        self.domain, self.tasks, self.settings, self.rl = domain, tasks, settings, settings.rl
        self.algorithm = find(self.rl.algorithm)
        self.by_id = {task.task_id: task for task in tasks}
        self.iteration, self.folder, self.on_episode, self.thread = iteration, folder, on_episode, thread
        self.encoder, self.panel = Encoder.from_folder(sft_folder), Panel(settings)
        self.curriculum = Curriculum(tasks, settings.rl, self._seed("curriculum"), prior)
        self.done = -1  # -1: the value model is not pretrained yet
        self.metrics: list[dict[str, Any]] = []
        self.trajectories: list[str] = []
        self.weights: list[str] = []
        self.key = run_key(settings, sft_folder, domain, iteration, tasks, prior)
        begin = partial(copy_context().run, self._open_workers, sft_folder)  # a cluster may say where (`begun_by`)
        self.workers: WorkerGroup[RLTrainer] = thread.submit(begin).result()

    def _open_workers(self, sft_folder: Path) -> WorkerGroup[RLTrainer]:
        make = partial(RLTrainer, sft_folder, self.settings, self._seed("value"), self.algorithm)
        return WorkerGroup(make, self.rl.processes, torch.get_num_threads(), self.rl.batch_timeout_s, "rl.processes")

    async def train(self, open_environments: OpenEnvironments, on_metric: OnMetric, stop: Callable[[], bool]) -> None:
        await self._on_thread(self._load)
        if self.done < 0 and not self._pretrains:
            self.done = 0
        rollout_log = self._rollout_log("pool", self.curriculum, self._plan(), max(self.done, 0))
        if self.done >= self.rl.steps:
            return
        policy = open_policy(await self._on_thread(self._publish), self._answering())
        try:
            async with open_environments(self.settings, self.tasks) as environments:
                found = await self._for_value(policy, environments) if self.done < 0 else None
                async with self._pool(rollout_log, policy, environments) as pool:
                    if found:
                        pool.begin()  # the policy stays as it is: its first batch is gathered while V learns
                        await self._pretrain(found)
                    while self.done < self.rl.steps:
                        on_metric(await self._step(pool, policy))
                        if stop():
                            break
        finally:
            await policy.close()

    async def _for_value(self, policy: Policy, environments: Environments) -> EpisodeBatch:
        """Episodes for value pretraining."""
        count = min(self.rl.value_pretraining_tasks, len(self.tasks)) * self.rl.samples
        behind = self._plan().batches * self._plan().batch  # numbers that no episode of the run itself comes to
        plan = RolloutPlan(self.rl.samples, count, 1, 0, self._seed("pretraining"), first=behind)
        source = Shuffled(self.tasks, self._seed("pretraining", 0))
        async with self._pool(self._rollout_log("pretraining", source, plan, 0), policy, environments) as pool:
            return await pool.batch()

    async def _pretrain(self, batch: EpisodeBatch) -> None:
        with self._named(0, "value pretraining"):
            found = await self._on_thread(self._experiences, batch)
            figures = await self._on_thread(self.workers.call, "fit_value", found, self._seed("value pretraining"))
        self.metrics.append(finite({"step": 0, "episodes": float(len(batch.episodes)), **figures}))
        self.done = 0
        await self._on_thread(self._save)
        shutil.rmtree(self.folder / "pretraining")

    async def _step(self, pool: Pool, policy: Policy) -> dict[str, Any]:
        """One training step. The state is saved before the pool forgets the batch: a kill between them gives the
        batch neither twice nor never."""
        started = time.monotonic()
        batch = await pool.batch()
        collected = time.monotonic()
        with self._named(batch.step + 1):
            figures = await self._on_thread(self._update, batch)
        self.done += 1
        self.trajectories += [episode.id for _, episode in batch.episodes if episode.steps]
        seconds = {"rollout_s": round(collected - started, 3), "update_s": round(time.monotonic() - collected, 3)}
        metric = finite(
            {"step": self.done, **by_world(batch), **batch.figures, **figures, **self.curriculum.figures(), **seconds}
        )
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

    # -- on the trainer's thread ----------------------------------------------------------------------------------
    async def _on_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(work, *arguments))

    def _experiences(self, batch: EpisodeBatch) -> list[Experience]:
        episodes = [episode for _, episode in batch.episodes]
        found = experiences(episodes, batch.outcomes, self.by_id, self.encoder, self.settings)
        if not found:
            raise TrainingError(
                f"none of {len(batch.episodes)} episodes has a step", fix="a task must not be over as it begins"
            )
        return found

    def _update(self, batch: EpisodeBatch) -> dict[str, float]:
        found = self._experiences(batch)
        figures = self.workers.call("update", found, self._seed("minibatches", self.done))
        return figures | of_episodes(found) | by_interface(found)

    # -- what it is made of ---------------------------------------------------------------------------------------
    @property
    def _pretrains(self) -> bool:
        return bool(self.rl.value_pretraining_steps and self.rl.steps and self.algorithm.needs_value)

    def _plan(self) -> RolloutPlan:
        rl = self.rl
        return RolloutPlan(
            rl.samples,
            rl.tasks_per_step * rl.samples,
            rl.steps,
            rl.max_staleness,
            self._seed("train"),
            self.algorithm.whole_groups,
        )

    def _rollout_log(self, name: str, source: Curriculum | Shuffled, plan: RolloutPlan, version: int) -> RolloutLog:
        return RolloutLog(self.folder / name, self.key, source, self.by_id, plan, version)

    def _pool(self, rollout_log: RolloutLog, policy: Policy, environments: Environments) -> Pool:
        # What reads more than the state (a judge, a reward model) takes its time: the episodes go on meanwhile.
        slow = not self.panel.needs(self.domain) <= {"final_state"}
        return Pool(
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
        result = judge(task, episode, self.panel).result
        return result.score, result.v

    def _answering(self):
        """The policy's settings. What a request is answered together with moves its numbers by rounding."""
        alone = {"batch": 1, "cache_mb": 0}
        return self.settings.policy.model_copy(update=alone if self.rl.deterministic else {})

    def _seed(self, *names: object) -> int:
        return seed_of(self.settings.seed, self.iteration, self.domain, *names)

    # -- the state on disk ----------------------------------------------------------------------------------------
    def _publish(self) -> Path:
        """Where the policy's server takes the newest weights from."""
        folder = self.folder / "policy"
        self.workers.call("write", folder)
        self.weights[max(self.done, 0) :] = [digest(folder)]
        return folder

    def _save(self) -> None:
        about = {
            "key": self.key,
            "done": self.done,
            "metrics": self.metrics,
            "trajectories": self.trajectories,
            "weights": self.weights,
        }
        self.workers.call("save", self._path, about)

    def _load(self) -> None:
        found = self.workers.call("load", self._path, self.key)
        if found:
            self.done, self.metrics = found["done"], found["metrics"]
            self.trajectories, self.weights = found["trajectories"], found["weights"]
            log.info("rl %s goes on at step %d", self.domain, self.done)

    @property
    def _path(self) -> Path:
        return self.folder / "rl.pt"
