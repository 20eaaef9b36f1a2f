"""Replay of rare successes: which turns, how many of a gradient step, and with which advantage and ratio."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from lamp_env import LEFT, RIGHT, Lamps, Scripted, settings, task

from flywheel.config import RlSettings
from flywheel.policy.encoding import Encoder
from flywheel.rollout.async_pool import EpisodeBatch, EpisodeOutcome, EpisodeRequest
from flywheel.rollout.episode import run_rollout
from flywheel.training.data import Example
from flywheel.training.rl import trainer
from flywheel.training.rl.losses import PolicyTerms
from flywheel.training.rl.replay import ReplayBuffer
from flywheel.training.rl.trainer import Experience, StepSample, ValueFeatures, count_replayed, replay_step_samples
from flywheel.utils.errors import DataError, TrainingError


@pytest.fixture
def batch():
    """Four episodes of two tasks, each of three steps; all but the first succeed."""
    tasks = [task(n, max_steps=3) for n in (0, 2)]
    said = iter([LEFT, LEFT, RIGHT] * 4)
    policy, playing = Scripted(lambda context, sampling: next(said)), {"iteration": 1, "temperature": 1.0}
    # One place, so that each episode has its three texts.
    one = settings(rollout={"max_concurrent": 1})
    played = asyncio.run(run_rollout(tasks, 2, policy, Lamps(), settings=one, **playing))
    assert [len(episode.steps) for episode in played] == [3] * 4
    by_id = {one.task_id: one for one in tasks}
    requests = [
        EpisodeRequest(n, n // 2, by_id[episode.trajectory.task_id], n % 2, n, drawn=f"d{episode.trajectory.task_id}")
        for n, episode in enumerate(played)
    ]
    outcomes = tuple(EpisodeOutcome(0, float(n > 0), n > 0) for n in range(4))
    return EpisodeBatch(0, tuple(zip(requests, played, strict=True)), outcomes, {})


def buffer_of(folder, batch):
    found = ReplayBuffer(folder)
    advantages = {episode.id: [-0.5, 0.0, 1.5 + n] for n, (_, episode) in enumerate(batch.episodes)}
    found.add(batch, advantages)
    return found


def test_turns_of_positive_advantage_of_seldom_solved_tasks_are_drawn(tmp_path, batch):
    found, names = buffer_of(tmp_path, batch), [episode.id for _, episode in batch.episodes]
    assert [entry["id"] for entry in found.entries] == names[1:]  # the first failed
    rare = found.entries[0]["task"]
    rates = {entry["task"]: 0.75 for entry in found.entries} | {rare: 0.25}
    wanted = [entry for entry in found.entries if entry["task"] == rare]
    chosen = found.choose(99, rates.get, 3)
    assert [(one.trajectory_id, one.turns, one.advantages) for one in chosen] == sorted(
        (entry["id"], (2,), (entry["advantages"][2],)) for entry in wanted
    )
    assert found.choose(0, rates.get, 3) == found.choose(9, lambda name: None, 3) == []
    assert found.choose(9, lambda name: 0.5, 3) == []  # not below a half
    one = found.choose(1, lambda name: 0.0, 3)
    assert one == found.choose(1, lambda name: 0.0, 3)
    assert len(one) == 1


def test_kept_episodes_come_back_with_their_log_probabilities(tmp_path, batch, project):
    found, encoder = buffer_of(tmp_path, batch), Encoder.from_folder(project / "models" / "base")
    (one,) = found.choose(1, lambda name: 0.0, 3)
    (experience,) = found.read([one], encoder, settings())
    (sample,) = experience.samples
    (played,) = (episode for _, episode in batch.episodes if episode.id == one.trajectory_id)
    assert (sample.step, sample.response, sample.logprobs) == (2, played.steps[2].token_ids, played.steps[2].logprobs)
    assert (experience.replayed, experience.success) == (one.advantages, False)


def test_files_that_no_entry_names_go_and_a_lost_one_is_told(tmp_path, batch, project):
    found = buffer_of(tmp_path, batch)
    (tmp_path / "t-of-a-killed-attempt.zip").write_bytes(b"")
    gone = found.entries.pop(0)
    found.sweep()
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(entry["id"] for entry in found.entries)
    found.entries.append(gone)
    chosen = [one for one in found.choose(9, lambda name: 0.0, 3) if one.trajectory_id == gone["id"]]
    with pytest.raises(DataError, match="the episode cannot be read"):
        found.read(chosen, Encoder.from_folder(project / "models" / "base"), settings())


def sample_of(name, tokens=2, logprobs=(-0.5, -0.25)):
    example = Example(None, tuple(range(tokens)), logprobs, name, 0, "games")
    return Experience(name, (example,), (0.0,), (ValueFeatures(),), 1.0, False, None, name, replayed=(2.5,))


class Reader:
    """Items are what was asked for."""

    def encode_example(self, context, response):
        return response


def test_a_replayed_turn_has_its_ratio_to_the_weights_that_sampled_it(monkeypatch):
    monkeypatch.setattr(Example, "context", property(lambda self: None))
    learner = SimpleNamespace(reader=Reader())
    (turn,) = replay_step_samples([sample_of("t1")], learner, RlSettings(temperature=1.0))
    assert turn.old_logprobs.tolist() == turn.proximal.tolist() == [-0.5, -0.25]
    assert turn.advantages.tolist() == [2.5, 2.5]
    assert (turn.returns, turn.value_input) == (None, None)
    with pytest.raises(TrainingError, match=r"temperature 0\.5 were not recorded.*trajectory t1, step 0"):
        replay_step_samples([sample_of("t1")], learner, RlSettings(temperature=0.5))


@pytest.mark.parametrize(("fraction", "kept", "wanted"), [(0.25, 9, [(6, 2), (6, 2), (4, 1)]), (0.5, 3, [(4, 3)] * 4)])
def test_each_minibatch_has_its_share_of_replayed_turns(monkeypatch, fraction, kept, wanted):
    """16 turns in minibatches of 8: of a quarter, 6 of the batch and 2 replayed; of half, no more than there are."""
    seen = []

    def update(learner, turns, rl, rate):
        again = [turn for turn in turns if turn.experience.replayed]
        seen.append((len(turns) - len(again), len(again)))
        assert len({id(turn) for turn in again}) == len(again)
        return PolicyTerms(), 0.0

    monkeypatch.setattr(trainer, "_update_policy", update)
    none = np.zeros(2)

    def turns(count, replayed):
        experience = SimpleNamespace(task_id="t", replayed=replayed, interface="")
        return [
            StepSample(experience, None, none, None, None, none, none, none, True, None, None) for _ in range(count)
        ]

    rl = RlSettings(replay_fraction=fraction, minibatch=8)
    learner = SimpleNamespace(value=None, version=0, gradient_steps=0)
    figures = trainer.train_step(learner, turns(16, ()), rl, 1, turns(kept, (1.0,)))
    assert seen == wanted
    assert figures["tokens"] == 32
    assert count_replayed(24, RlSettings(replay_fraction=0.25)) == 8
