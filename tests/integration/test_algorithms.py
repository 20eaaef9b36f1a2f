"""Algorithms as modules: what each must give, and a third one that trains by being registered, with no other change."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from algorithms import Rloo
from lamp_env import Lamps, settings, small_model, task
from made_experience import made_up
from safetensors.torch import load_file

from flywheel.config import RlSettings
from flywheel.policy.model import load_model
from flywheel.rewards.scorers import verifier
from flywheel.training.rl import algorithm
from flywheel.training.rl.algorithm import ALGORITHMS, ScoredTrajectory
from flywheel.training.rl.losses import TokenBatch
from flywheel.training.rl.run import train_rl
from flywheel.training.rl.trainer import Learner, estimate_step_samples, train_step
from flywheel.utils.errors import BadInput

NAMES = ["ppo", "grpo", "rloo"]


@pytest.fixture(autouse=True)
def third(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "rloo", Rloo())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("algorithms") / "model", project)


def test_names_are_the_files_and_what_was_registered():
    assert set(algorithm.list_algorithms()) == set(NAMES)
    for name in NAMES:
        assert algorithm.get_algorithm(name) is ALGORITHMS[name]
    with pytest.raises(BadInput, match=r"no algorithm 'pp' \(rl\.algorithm\); known are grpo, ppo, rloo"):
        algorithm.get_algorithm("pp")


@pytest.mark.parametrize("name", NAMES)
def test_each_token_of_each_step_gets_an_advantage(name):
    rng, lengths, made = np.random.default_rng(0), [(3, 1), (2,), (4, 4, 4), (1,)], algorithm.get_algorithm(name)
    batch = [
        ScoredTrajectory(
            f"task{number // 2}",
            tuple(rng.normal(size=len(some)).tolist()),
            some,
            tuple(rng.normal(size=n) for n in some) if made.needs_value else (),
        )
        for number, some in enumerate(lengths)
    ]
    found = made.advantages(batch, RlSettings())
    assert [tuple(map(len, one.advantages)) for one in found] == lengths
    assert [tuple(map(len, one.returns)) for one in found] == (lengths if made.needs_value else [()] * 4)
    every = np.concatenate([part for one in found for part in one.advantages])
    assert np.isfinite(every).all()
    assert np.ptp(every) > 0


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_of_parts_add_up_to_the_minibatchs(name):
    torch.manual_seed(0)
    n, made = 12, algorithm.get_algorithm(name)
    old = -torch.rand(n)
    logprobs = (old + 0.3 * torch.randn(n)).requires_grad_()
    successful = torch.arange(n) % 3 == 0
    whole = TokenBatch(logprobs, old, old.clone(), torch.randn(n), torch.rand(n), successful, n, int(successful.sum()))

    def cut(first: int, last: int) -> TokenBatch:
        parts = {f.name: getattr(whole, f.name) for f in fields(whole)}
        return replace(whole, **{k: v[first:last] for k, v in parts.items() if isinstance(v, torch.Tensor)})

    def losses(*parts: TokenBatch):
        got = [made.loss(part, RlSettings(positive_nll=0.1)) for part in parts]
        total = sum(loss for loss, _ in got)
        (gradient,) = torch.autograd.grad(total, logprobs)
        return total.detach(), gradient, sum((terms for _, terms in got[1:]), start=got[0][1])

    (one, gradient, terms), (two, added, summed) = losses(whole), losses(cut(0, 5), cut(5, 6), cut(6, n))
    torch.testing.assert_close(one, two)
    torch.testing.assert_close(gradient, added)
    assert terms.tokens == summed.tokens == n
    assert terms.loss == pytest.approx(summed.loss, rel=1e-5)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_step_makes_likelier_what_was_better(folder, name):
    """Over all tokens, advantage times the change of the log-probability is above 0."""
    rl = RlSettings(
        algorithm=name, actor_lr=1e-3, warmup=0, positive_nll=0.0, minibatch=64, max_logprob_diff_on_policy=100
    )
    made, batch = Learner(load_model(folder), rl, 0), made_up(folder, rl)
    assert (made.value is not None) == algorithm.get_algorithm(name).needs_value
    cut, horizon = estimate_step_samples(batch, made, rl)
    figures = train_step(made, cut, rl, 1)
    # What V explains, and how far a reward reaches, are figures of algorithms that have V.
    assert ("value_loss" in figures, np.isfinite(horizon)) == (made.value is not None,) * 2
    made.version = 0  # so that the same samples are read as fresh ones
    again, _ = estimate_step_samples(
        [replace(e, samples=tuple(replace(s, version=9) for s in e.samples)) for e in batch], made, rl
    )
    moved = [(one.advantages * (two.proximal - one.old_logprobs)).sum() for one, two in zip(cut, again, strict=True)]
    assert sum(moved) > 0


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_third_algorithm_trains_by_its_name_alone(folder, tmp_path, monkeypatch, processes):
    scores = np.random.default_rng(0)  # so that trajectories of one task differ
    monkeypatch.setattr(verifier, "score_final_state", lambda task, state: float(scores.random()))
    rl = {
        "algorithm": "rloo",
        "steps": 2,
        "tasks_per_step": 2,
        "group_size": 2,
        "actor_lr": 1e-3,
        "max_staleness": 0,
        "format_penalty": 0.1,
        "length_buffer": 2,
        "processes": processes,
    }
    done = train_rl(
        folder,
        tmp_path / "out",
        "games",
        [task(number, max_steps=2) for number in range(4)],
        settings=settings(rl=rl, policy={"max_new_tokens": 9, "timeout_s": 60}),
        iteration=1,
        state_folder=tmp_path / "state",
        open_environments=Lamps.open,
    )
    assert [row["step"] for row in done.curve] == [1, 2]  # no step 0: there is no V to pretrain
    assert all("value_loss" not in row and "horizon" not in row for row in done.curve)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_frozen_tower_stays_as_it_is_and_reads_each_screen_once(folder):
    rl = RlSettings(freeze_vision=True, actor_lr=1e-3, warmup=0, epochs=2, max_logprob_diff_on_policy=100)
    made, batch = Learner(load_model(folder), rl, 0), made_up(folder, rl)
    before = {name: weights.clone() for name, weights in made.policy.state_dict().items()}
    train_step(made, estimate_step_samples(batch, made, rl)[0], rl, 1)
    moved = {name for name, weights in made.policy.state_dict().items() if not torch.equal(weights, before[name])}
    assert moved
    assert not [name for name in moved if ".visual." in name]
    screens = {sample.context.pixel_values.tobytes() for one in batch for sample in one.samples}
    assert made.reader.vision.encoded == len(screens)
