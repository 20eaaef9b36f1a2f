"""PPO from end to end on a small model and a world without a browser: it learns, it resumes, it checks itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from lamp_env import LEFT, RIGHT, LampEnv, Lamps, score_lamp, screen, settings, small_model, task
from safetensors.torch import load_file

from flywheel.agent.prompt import build_context
from flywheel.config import SupervisedSettings
from flywheel.evaluation.evaluator import judge_episode
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.model import load_model
from flywheel.rewards.scorer import ScorerSet
from flywheel.rewards.scorers import verifier
from flywheel.rollout.async_pool import EpisodeOutcome
from flywheel.rollout.episode import run_rollout
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.rl.run import train_rl
from flywheel.training.rl.trainer import (
    UNKNOWN_FEATURE,
    Learner,
    ValueFeatures,
    build_experiences,
    estimate_step_samples,
    pretrain_value,
    train_step,
)
from flywheel.training.sft import train_supervised
from flywheel.utils.errors import TrainingError

RL = {
    "steps": 3,
    "tasks_per_step": 8,
    "group_size": 4,
    "minibatch": 16,
    "actor_lr": 2e-3,
    "critic_lr": 2e-3,
    "value_pretraining_steps": 20,
    "value_pretraining_tasks": 4,
    "positive_nll": 0.0,
    "deterministic": True,
    "max_staleness": 0,
}
S = settings(rl=RL)
TASKS = [task(n, max_steps=2) for n in range(8)]


@pytest.fixture(scope="module")
def sft(tmp_path_factory, project):
    """A checkpoint that has learnt the grammar and clicks left or right at random."""
    folder = tmp_path_factory.mktemp("ppo")
    base = small_model(folder / "base", project)
    encoder = Encoder.from_folder(base)
    samples = []
    for i in range(16):
        context = encoder.encode(build_context("Click the lamp.", (), screen(("left", "right")[i % 2]), S.policy))
        response = tuple(encoder.encode_text((LEFT, RIGHT)[i // 2 % 2]))
        samples.append(Example(context, response, None, f"t{i:02d}", 0, "games"))
    block = SupervisedSettings(lr=5e-3, batch=16)
    dataset = ShuffledDataset(samples * 60, block.batch, seed=1)
    train_supervised(base, folder / "sft", dataset, settings=block, state_folder=folder / "state")
    return folder / "sft"


@pytest.fixture(autouse=True)
def lamp_verifier(monkeypatch):
    monkeypatch.setattr(verifier, "score_final_state", score_lamp)


def outcomes(episodes, tasks):
    results = [judge_episode(tasks[one.trajectory.task_id], one, ScorerSet(S)).result for one in episodes]
    return [EpisodeOutcome(0, result.score, result.v) for result in results]


def train(sft, folder, chosen=S, **more):
    arguments = {"open_environments": Lamps.open, "settings": chosen, "iteration": 1, "state_folder": folder / "state"}
    return train_rl(sft, folder / "out", "games", TASKS, **arguments | more)


@pytest.mark.exhaustive
def test_success_rises(sft, tmp_path):
    """One click, and it must be the left one."""
    tasks = [task(n, max_steps=1, side="left") for n in range(8)]
    chosen = settings(rl={**RL, "steps": 5, "actor_lr": 5e-4, "critic_lr": 2e-4})
    metrics = train_rl(
        sft,
        tmp_path / "out",
        "games",
        tasks,
        open_environments=Lamps.open,
        settings=chosen,
        iteration=1,
        state_folder=tmp_path / "state",
    ).curve
    assert [m["step"] for m in metrics] == [0, 1, 2, 3, 4, 5]
    pretraining, *metrics = metrics
    assert pretraining["value_pretraining_loss"] >= 0
    assert metrics[-1]["success"] > metrics[0]["success"] + 0.25
    assert all(m["mismatch"] < 1e-4 for m in metrics)  # what is trained on is what was sampled
    assert all(0 <= m["clip_fraction"] <= 1 and m["entropy"] > 0 and m["crashed"] == 0 for m in metrics)
    assert load_model(tmp_path / "out")


@pytest.mark.exhaustive
def test_killed_run_goes_on_with_the_same_numbers(sft, tmp_path):
    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 2:
            raise Killed

    def comparable(metrics):
        # Requests meet in other batches each time, which moves the sampled log-probabilities by rounding alone.
        timed = ("rollout_s", "update_s", "utilisation", "mismatch")
        return [{k: v for k, v in m.items() if k not in timed} for m in metrics]

    few = settings(rl={**RL, "tasks_per_step": 4, "group_size": 2, "value_pretraining_steps": 5})
    whole = train(sft, tmp_path / "whole", few)
    with pytest.raises(Killed):
        train(sft, tmp_path / "killed", few, on_metric=kill)
    seen = []
    again = train(sft, tmp_path / "killed", few, on_metric=lambda m: seen.append(m["step"]))
    assert seen == [3]
    assert comparable(again.curve) == comparable(whole.curve)
    assert (again.trajectories, again.weights) == (whole.trajectories, whole.weights)
    episodes = sum(metric["episodes"] for metric in whole.curve if metric["step"])
    assert len(whole.trajectories) == episodes
    taken = sum(metric["rounds"] * metric["episodes"] for metric in whole.curve if metric["step"])
    assert sum(whole.trajectories.values()) == pytest.approx(taken * few.rl.epochs), "each step, once an epoch"
    # Those that acted: the checkpoint's own, then one a step, but for the last step's, which the result holds.
    assert len(set(whole.weights)) == 3
    assert whole.weights[0] == checkpoint_digest(sft)
    assert checkpoint_digest(tmp_path / "whole" / "out") not in whole.weights
    one, two = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_no_steps_hands_the_checkpoint_on(sft, tmp_path):
    handed = train(sft, tmp_path, settings(rl={**RL, "steps": 0}))
    assert (handed.curve, handed.trajectories) == ([], {})
    one, two = (load_file(folder / "model.safetensors") for folder in (sft, tmp_path / "out"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_no_task_of_the_domain(sft, tmp_path):
    with pytest.raises(TrainingError, match=r"there are no tasks \(rl sites\)"):
        train_rl(sft, tmp_path / "out", "sites", TASKS, settings=S, iteration=1, state_folder=tmp_path)


def test_every_environment_crashed(sft, tmp_path):
    class Broken(Lamps):
        def __init__(self):
            super().__init__(lambda lease: LampEnv(crash_at=0))

    one_try = settings(rl={**RL, "value_pretraining_tasks": 2, "group_size": 1}, rollout={"retries": 0})
    with pytest.raises(TrainingError, match="every environment crashed"):
        train(sft, tmp_path, one_try, open_environments=Broken.open)


class Decided(LampEnv):
    """Whatever is done is right, or nothing is."""

    def __init__(self, hits: bool) -> None:
        super().__init__()
        self.hits = hits

    async def step(self, action):
        await super().step(action)
        self.hit = self.hits
        return self._result(terminated=self.hit)


class Counted(LampEnv):
    """Nothing that is done is right; each click adds a quarter to the score that the environment tells."""

    async def step(self, action):
        found = await super().step(action)
        self.hit = False
        return self._result() if found.terminated else found

    def _result(self, terminated=False):
        found = super()._result(terminated)
        return replace(found, info=found.info | {"score": self.clicks / 4})


async def collect(sft, chosen=S, tasks=TASKS, lamps=None):
    policy = EmbeddedPolicy(sft, chosen.policy)
    try:
        episodes = await run_rollout(
            tasks, 2, policy, lamps or Lamps(), iteration=0, settings=chosen, temperature=chosen.rl.temperature
        )
        by_id = {t.task_id: t for t in tasks}
        return episodes, build_experiences(episodes, outcomes(episodes, by_id), by_id, policy.encoder, chosen)
    finally:
        await policy.close()


async def test_experience_is_rewarded_at_the_last_token_of_a_step(sft):
    episodes, batch = await collect(sft)
    assert [e.trajectory_id for e in batch] == [e.id for e in episodes]
    for episode, got in zip(episodes, batch, strict=True):
        hit = '"hit": true' in episode.trajectory.final_state
        assert got.success is hit
        assert (got.bootstrap_context is None) is hit  # cut off where it failed: the limit is no end of the task
        assert len(got.samples) == len(got.rewards) == len(episode.steps)
        assert got.rewards[-1] == pytest.approx(float(hit), abs=0.2)
    made = Learner(load_model(sft), S.rl, 0)
    # V is 0 everywhere at first and the critic's lambda is 1: every return is the sum of rewards to come.
    cut, horizon = estimate_step_samples(batch, made, S.rl)
    assert horizon > 1
    by_id = {}
    for turn in cut:
        by_id.setdefault(turn.sample.trajectory_id, []).append(turn)
    for got in batch:
        for i, turn in enumerate(by_id[got.trajectory_id]):
            assert turn.returns == pytest.approx(np.full(len(turn.returns), sum(got.rewards[i:])), abs=1e-6)
            assert len(turn.advantages) == len(turn.sample.response)


async def test_a_score_that_the_environment_tells_is_rewarded_as_it_grows_and_told_to_v(sft):
    rewards = {}
    for progress in (False, True):
        chosen = settings(rl={**RL, "reward_progress": progress, "format_penalty": 0.0, "length_buffer": 0})
        _, batch = await collect(sft, chosen, lamps=Lamps(lambda lease: Counted()))
        whole = [one for one in batch if len(one.samples) == 2]
        assert {one.value_features for one in whole} == {(ValueFeatures(0.0, 1.0), ValueFeatures(0.25, 0.5))}
        assert {(one.score, one.later) for one in whole} == {(0.0, 0.0)}
        (rewards[progress],) = {one.rewards for one in whole}
    # Its verifier, which decides, says 0 in the end: what was earned is taken back with the last step.
    assert rewards == {False: (0.0, 0.0), True: (0.25, -0.25)}
    _, batch = await collect(sft)  # an environment that tells nothing before the end
    assert {told.score for one in batch for told in one.value_features} == {UNKNOWN_FEATURE}


async def test_cut_off_the_policy_ends_in_the_value_of_the_last_screen_and_v_in_the_outcome(sft):
    _, batch = await collect(sft, lamps=Lamps(lambda lease: Decided(lease % 2 == 0)))
    rl = S.rl.model_copy(update={"lambda_policy": 1.0, "normalise": False})
    made = Learner(load_model(sft), rl, 0)
    with torch.no_grad():
        made.value.head[-1].bias.fill_(0.5)
    batch = [replace(one, later=0.25) if one.bootstrap_context is not None else one for one in batch]
    # V is 1/2 everywhere and lambda 1: an advantage is what is to come less 1/2.
    ends = {
        turn.sample.trajectory_id: (turn.advantages[-1], turn.returns[-1])
        for turn in estimate_step_samples(batch, made, rl)[0]
    }
    assert {one.bootstrap_context is not None for one in batch} == {True, False}
    for one in batch:
        advantage, target = ends[one.trajectory_id]
        followed, earned = (0.5, 0.25) if one.bootstrap_context is not None else (0.0, 0.0)
        assert advantage == pytest.approx(one.rewards[-1] + followed - 0.5)
        assert target == pytest.approx(one.rewards[-1] + earned)
    # The setting turns it off: then nothing lies beyond, and the outcome is the verifier's.
    _, batch = await collect(sft, settings(rl={**RL, "bootstrap": False}))
    assert all(e.bootstrap_context is None for e in batch)


async def test_value_pretraining_fits_returns_and_leaves_the_policy(sft):
    _, batch = await collect(sft)
    rl = S.rl.model_copy(update={"value_pretraining_steps": 30})
    made = Learner(load_model(sft), rl, 0)
    before = {name: tensor.clone() for name, tensor in made.policy.state_dict().items()}
    returns = np.concatenate([t.returns for t in estimate_step_samples(batch, made, rl)[0]])
    got = pretrain_value(made, batch, rl, seed=3)
    assert got.steps > 0
    assert got.loss < float(np.mean(returns**2) / 2)  # better than V = 0
    assert all(torch.equal(before[name], tensor) for name, tensor in made.policy.state_dict().items())


async def test_disagreement_of_rollout_and_training_stops_the_run(sft):
    _, batch = await collect(sft)
    other = Learner(load_model(sft), S.rl, 0)
    with torch.no_grad():
        for parameter in other.policy.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    with pytest.raises(TrainingError, match="recomputed log-probabilities differ"):
        train_step(other, estimate_step_samples(batch, other, S.rl)[0], S.rl, seed=1)


async def test_crashed_episodes_are_not_trained_on(sft):
    encoder = Encoder.from_folder(sft)
    policy = EmbeddedPolicy(sft, S.policy)
    lamps = Lamps(lambda lease: LampEnv(crash_at=0 if lease % 2 else None))
    chosen = settings(rl=RL, rollout={"retries": 0})
    try:
        episodes = await run_rollout(TASKS, 1, policy, lamps, iteration=0, settings=chosen, temperature=1.0)
    finally:
        await policy.close()
    crashed = {e.id for e in episodes if e.trajectory.status == "crashed"}
    by_id = {t.task_id: t for t in TASKS}
    kept = build_experiences(episodes, outcomes(episodes, by_id), by_id, encoder, chosen)
    assert crashed
    assert {e.trajectory_id for e in kept} == {e.id for e in episodes} - crashed
