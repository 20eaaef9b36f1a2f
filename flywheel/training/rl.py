"""Synchronous PPO in real environments for one domain (section 2.5): roll out, score, estimate, update, repeat.

Every PPO step ends in a state on disk that holds all of the run, so a killed one goes on at the same step with the
same numbers: tasks, samples and minibatches are functions of the seed and the step, and episodes are put in order of
their identity before anything is computed from them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flywheel.errors import TrainingError
from flywheel.policy import open_policy
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import digest, load_model, save_checkpoint
from flywheel.policy.protocol import Policy
from flywheel.rollout.episode import Episode, seed_of
from flywheel.rollout.pool import Sandbox, rollout
from flywheel.sandbox.env import Task
from flywheel.sandbox.pool import open_sandbox
from flywheel.settings import Settings
from flywheel.training.experience import Experience, experiences
from flywheel.training.experience import turns as estimate_turns
from flywheel.training.update import Learner, learner, ppo_update
from flywheel.training.value_pretraining import pretrain_value

log = logging.getLogger(__name__)

OnMetric = Callable[[Mapping[str, Any]], None]
OpenSandbox = Callable[[Settings], AbstractAsyncContextManager[Sandbox]]


def train_rl(
    sft_folder: Path,
    out_folder: Path,
    domain: str,
    tasks: Sequence[Task],
    *,
    open_sandbox: OpenSandbox = open_sandbox,
    settings: Settings,
    iteration: int,
    state_folder: Path,
    on_metric: OnMetric = lambda metric: None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> list[dict[str, Any]]:
    """Train the SFT checkpoint on the domain's tasks and write the specialist to `out_folder`.

    Returns one dict of metrics a PPO step, each also given to `on_metric` as it comes: step, reward, success, entropy,
    kl, clip_fraction, mismatch, value_loss, explained_variance, response_length, rounds (steps an episode), horizon,
    episodes, crashed, rollout_s, update_s (a figure without a meaning is left out); before them one of step 0 with what
    value pretraining reached. Raises TrainingError where there are no tasks, no episode could be used, a
    loss is not finite, or rollout and training disagree. Must not be called from a running event loop.
    """
    tasks = sorted((task for task in tasks if task.domain == domain), key=lambda task: task.task_id)
    if not tasks:
        raise TrainingError("there are no tasks", where=f"rl {domain}", fix="check synthesis.domains")
    run = _Run(sft_folder, domain, tasks, settings, iteration, state_folder, on_episode)
    asyncio.run(run.train(open_sandbox, on_metric))
    save_checkpoint(run.learner.policy.eval(), run.encoder, out_folder)
    return run.metrics


class _Run:
    """The state of one RL run: what is learnt, how far it is, what was measured."""

    def __init__(
        self,
        sft_folder: Path,
        domain: str,
        tasks: Sequence[Task],
        settings: Settings,
        iteration: int,
        folder: Path,
        on_episode: Callable[[Episode], None],
    ) -> None:
        self.domain, self.tasks, self.settings, self.rl = domain, tasks, settings, settings.rl
        self.iteration, self.folder, self.on_episode = iteration, folder, on_episode
        self.encoder = Encoder.from_folder(sft_folder)
        self.learner: Learner = learner(load_model(sft_folder), settings.rl, self._seed("value"))
        self.done = -1  # -1: the value model is not pretrained yet
        self.metrics: list[dict[str, Any]] = []
        self.key = self._key(sft_folder)

    async def train(self, open_sandbox: OpenSandbox, on_metric: OnMetric) -> None:
        self._load()
        if self.done >= self.rl.steps:
            return
        policy = open_policy(self._publish(), self.settings.policy)
        try:
            async with open_sandbox(self.settings) as sandbox:
                if self.done < 0:
                    await self._pretrain(policy, sandbox)
                while self.done < self.rl.steps:
                    on_metric(await self._step(policy, sandbox))
        finally:
            await policy.close()

    async def _pretrain(self, policy: Policy, sandbox: Sandbox) -> None:
        if self.rl.value_pretraining_steps and self.rl.steps:
            chosen = self._choose("pretraining", 0, self.rl.value_pretraining_tasks)
            batch, _ = await self._collect(policy, sandbox, chosen)
            figures = await asyncio.to_thread(
                pretrain_value, self.learner, batch, self.rl, self._seed("value pretraining")
            )
            found = {f"value_pretraining_{name}": value for name, value in vars(figures).items()}
            self.metrics.append(_finite({"step": 0, "episodes": len(batch), **found}))
        self.done = 0
        self._save()

    async def _step(self, policy: Policy, sandbox: Sandbox) -> dict[str, Any]:
        started = time.monotonic()
        chosen = self._choose("train", self.done, self.rl.tasks_per_step)
        batch, episodes = await self._collect(policy, sandbox, chosen)
        collected = time.monotonic()
        figures = await asyncio.to_thread(self._update, batch)  # the event loop keeps serving the sandbox
        self.done += 1
        seconds = {"rollout_s": round(collected - started, 3), "update_s": round(time.monotonic() - collected, 3)}
        metric = _finite({"step": self.done, **_figures(batch, episodes), **figures, **seconds})
        self.metrics.append(metric)
        self._save()
        if self.done < self.rl.steps:
            await policy.load(self._publish())
        return metric

    async def _collect(
        self, policy: Policy, sandbox: Sandbox, tasks: Sequence[Task]
    ) -> tuple[list[Experience], list[Episode]]:
        episodes = await rollout(
            tasks, self.rl.samples, policy, sandbox, iteration=self.iteration, settings=self.settings,
            temperature=self.rl.temperature, on_episode=self.on_episode,
        )  # fmt: skip
        batch = experiences(episodes, {task.task_id: task for task in tasks}, self.encoder, self.settings)
        if not batch:
            raise TrainingError("no episode could be used: every environment crashed", where=f"rl {self.domain}")
        return batch, episodes

    def _update(self, batch: Sequence[Experience]) -> dict[str, float]:
        turns, horizon = estimate_turns(batch, self.learner.policy, self.learner.value, self.rl)
        figures = ppo_update(self.learner, turns, self.rl, self._seed("minibatches", self.done))
        return figures | {"horizon": horizon}

    def _choose(self, use: str, step: int, count: int) -> list[Task]:
        """Tasks in shuffled rounds: none comes again before all have come."""
        count = min(count, len(self.tasks))
        first, chosen = step * count, []
        for position in range(first, first + count):
            turn, place = divmod(position, len(self.tasks))
            order = np.random.default_rng(self._seed(use, turn)).permutation(len(self.tasks))
            chosen.append(self.tasks[order[place]])
        return list({task.task_id: task for task in chosen}.values())  # a round's end may meet the next one's start

    def _seed(self, *names: object) -> int:
        return seed_of(self.settings.seed, self.iteration, self.domain, *names)

    # -- the state on disk --------------------------------------------------------------------------------------
    def _publish(self) -> Path:
        """The weights as a checkpoint folder, from which the policy's server takes them."""
        return save_checkpoint(self.learner.policy, self.encoder, self.folder / "policy")

    def _save(self) -> None:
        state = {name: part.state_dict() for name, part in vars(self.learner).items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".part")
        torch.save({"key": self.key, "done": self.done, "metrics": self.metrics, **state}, temporary)
        temporary.replace(self._path)

    def _load(self) -> None:
        if not self._path.is_file():
            return
        raw = torch.load(self._path, weights_only=True)
        if raw["key"] != self.key:
            return
        for name, part in vars(self.learner).items():
            part.load_state_dict(raw[name])
        self.done, self.metrics = raw["done"], raw["metrics"]
        log.info("rl %s goes on at step %d", self.domain, self.done)

    @property
    def _path(self) -> Path:
        return self.folder / "rl.pt"

    def _key(self, sft_folder: Path) -> str:
        """Names the run's inputs: the state of another run is not taken up."""
        used = [digest(sft_folder), self.domain, self.iteration, self.settings.seed, [t.task_id for t in self.tasks]]
        blocks = [getattr(self.settings, name).model_dump() for name in ("rl", "policy", "sandbox")]
        return hashlib.sha256(json.dumps([used, blocks], sort_keys=True).encode()).hexdigest()


def _finite(metric: dict[str, Any]) -> dict[str, Any]:
    """Without what has no meaning, such as the explained variance of returns that are all the same."""
    return {name: value for name, value in metric.items() if np.isfinite(value)}


def _figures(batch: Sequence[Experience], episodes: Sequence[Episode]) -> dict[str, float]:
    lengths = [len(sample.response) for experience in batch for sample in experience.samples]
    return {
        "reward": float(np.mean([sum(experience.rewards) for experience in batch])),
        "score": float(np.mean([experience.score for experience in batch])),
        "success": float(np.mean([experience.success for experience in batch])),
        "response_length": float(np.mean(lengths)),
        "rounds": float(np.mean([len(experience.samples) for experience in batch])),
        "episodes": float(len(batch)),
        "crashed": float(sum(episode.trajectory["status"] == "crashed" for episode in episodes)),
    }
