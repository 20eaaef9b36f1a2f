"""The trainer: packed or padded, split or in another order it takes the same steps; it starts again where it was; what
cannot be trained on is named."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from lamp_env import small_model
from made_experience import made_up

from flywheel.config import RlSettings
from flywheel.policy.model import load_model
from flywheel.training.rl.trainer import (
    Learner,
    estimate_step_samples,
    policy_learning_rate,
    pretrain_value,
    train_step,
    update_value,
)
from flywheel.utils.errors import TrainingError

RL = RlSettings(minibatch=64, actor_lr=1e-3, critic_lr=1e-3, positive_nll=0.1, warmup=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("update") / "model", project)


@pytest.fixture(scope="module")
def batch(folder):
    return made_up(folder, RL)


def fresh(folder, rl: RlSettings = RL) -> Learner:
    return Learner(load_model(folder), rl, 0)


def update(made: Learner, batch, rl: RlSettings = RL, seed: int = 1) -> dict[str, float]:
    return train_step(made, estimate_step_samples(batch, made, rl)[0], rl, seed)


def each(batch, change):
    """The batch with every sample changed."""
    return [replace(e, samples=tuple(map(change, e.samples))) for e in batch]


def moments(made: Learner) -> list[torch.Tensor]:
    """Adam's first moments after one step: the gradient, scaled."""
    return [state["exp_avg"] for state in made.actor.state_dict()["state"].values()]


@pytest.fixture(scope="module")
def whole(folder, batch):
    made = fresh(folder)
    return update(made, batch), moments(made)


@pytest.mark.parametrize(
    "change",
    [
        {"pack_tokens": 150},
        {"pack_tokens": 0, "micro_batch": 64},
        {"pack_tokens": 0, "micro_batch": 3},
        {"minibatch_by": "turn"},
    ],
    ids=["small packs", "padded", "padded micro-batches", "any mixture"],
)
def test_how_a_minibatch_is_cut_changes_nothing(folder, batch, whole, change):
    rl = RL.model_copy(update=change)
    made = fresh(folder, rl)
    assert update(made, batch, rl) == pytest.approx(whole[0], rel=1e-3, abs=1e-5)
    for one, two in zip(moments(made), whole[1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)


def test_order_of_the_trajectories_changes_nothing(folder, batch, whole):
    made = fresh(folder)
    assert update(made, batch[::-1]) == pytest.approx(whole[0], rel=1e-3, abs=1e-5)
    for one, two in zip(moments(made), whole[1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-6)


def test_figures(whole):
    figures, _ = whole
    assert figures["mismatch"] < 1e-4
    assert figures["stale_fraction"] == 0
    assert "drift" not in figures
    assert figures["clip_fraction"] == 0  # the first step: every ratio is 1
    assert figures["kl"] == pytest.approx(0, abs=1e-6)
    assert figures["grad_norm"] > 0


def test_what_v_explains_of_each_interface(folder, batch):
    half = [replace(one, interface=("gui", "sdk")[number % 2]) for number, one in enumerate(batch)]
    cut, _ = estimate_step_samples(half, made := fresh(folder), RL)
    update_value(made, cut, RL)
    cut, _ = estimate_step_samples(half, made, RL)
    figures = train_step(made, cut, RL, 1)
    for name in ("gui", "sdk"):
        mine = [
            turn for turn in cut if turn.sample.trajectory_id in {e.trajectory_id for e in half if e.interface == name}
        ]
        returns = np.concatenate([turn.returns for turn in mine])
        left = returns - np.concatenate([turn.values for turn in mine])
        assert figures[f"explained_variance_{name}"] == pytest.approx(1 - left.var() / returns.var())
    assert "explained_variance_both" not in figures


def test_the_ratio_is_against_what_was_sampled(folder, batch):
    """Tokens that were sampled with half the probability have weight 2: held where the advantage is good, counted by
    the KL, and not clipped, for the step itself has not moved yet."""
    doubled = each(
        batch, lambda s: replace(s, version=-1, sampled_logprobs=tuple(v - math.log(2) for v in s.sampled_logprobs))
    )
    rl = RL.model_copy(update={"max_logprob_diff_off_policy": 1.0})
    figures = update(fresh(folder, rl), doubled, rl)
    assert figures["stale_fraction"] == 1
    assert figures["drift"] == pytest.approx(math.log(2), abs=1e-3)
    assert "mismatch" not in figures
    assert figures["kl"] == pytest.approx(2 - 1 - math.log(2), abs=1e-3)
    assert 0.1 < figures["truncated_fraction"] < 0.9
    assert figures["clip_fraction"] == 0
    with pytest.raises(TrainingError, match=r"differ from the sampled ones by 0.69.*rl.max_logprob_diff_off_policy"):
        update(fresh(folder), doubled)


def test_one_wrong_step_among_fresh_ones_is_named(folder, batch):
    wrong = replace(batch[2].samples[0], sampled_logprobs=tuple(v - 30 for v in batch[2].samples[0].sampled_logprobs))
    broken = [*batch[:2], replace(batch[2], samples=(wrong, *batch[2].samples[1:])), *batch[3:]]
    with pytest.raises(
        TrainingError, match=r"most in trajectory trajectory02, step 0 \(rl.max_logprob_diff_on_policy\)"
    ):
        update(fresh(folder), broken)


def test_versions_tell_fresh_from_stale(folder, batch):
    """A trajectory that two weight versions sampled: each step is held against its own."""
    mixed = each(batch, lambda s: replace(s, version=s.step % 2))
    made = fresh(folder)
    made.version = 1
    by_step = {turn.sample.step % 2: turn.on_policy for turn in estimate_step_samples(mixed, made, RL)[0]}
    assert by_step == {0: False, 1: True}
    figures = update(made, mixed)
    assert made.version == 2
    assert 0 < figures["stale_fraction"] < 1
    assert {"mismatch", "drift"} <= figures.keys()


def test_log_probabilities_at_one_alone(folder, batch):
    """A server that says only those: recomputed while its weights are at hand, refused afterwards."""
    untold = each(batch, lambda s: replace(s, sampled_logprobs=(), logprobs=(-1.0,) * len(s.response)))
    made = fresh(folder)
    told = estimate_step_samples(batch, made, RL)[0]
    for one, two in zip(estimate_step_samples(untold, made, RL)[0], told, strict=True):
        assert one.old_logprobs == pytest.approx(two.old_logprobs, abs=1e-5)
    made.version = 1
    old = each(untold, lambda s: replace(s, version=0))
    with pytest.raises(TrainingError, match=r"older weights sampled it at temperature 0\.5"):
        estimate_step_samples(old, made, RL)


def test_group_relative_advantages_need_no_value_model(folder, batch):
    rl = RL.model_copy(update={"algorithm": "grpo"})
    made = fresh(folder, rl)
    assert made.value is None
    cut, horizon = estimate_step_samples(batch, made, rl)
    assert math.isnan(horizon)
    of = {e.trajectory_id: sum(e.rewards) for e in batch}
    for turn in cut:
        mine, all_of_task = (
            of[turn.sample.trajectory_id],
            [of[e.trajectory_id] for e in batch if e.task_id == turn.experience.task_id],
        )
        spread = np.std(all_of_task, ddof=1)
        expected = (mine - np.mean(all_of_task)) / (spread + 1e-6) if spread > 1e-8 else 0.0
        assert turn.advantages == pytest.approx(np.full(len(turn.sample.response), expected))
    figures = train_step(made, cut, rl, 1)
    assert "value_loss" not in figures
    assert set(made.state_dict()["modules"]) == {"policy"}


def test_state_holds_all(folder, batch, tmp_path):
    """Two steps are the same as one, a state through a file, and one more: bit for bit."""
    rl = RL.model_copy(update={"max_logprob_diff_on_policy": 100})  # the batch is of the weights before the first step
    straight, first = fresh(folder, rl), fresh(folder, rl)
    update(straight, batch, rl)
    expected = update(straight, batch, rl, seed=2)
    update(first, batch, rl)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Learner(load_model(folder), rl, 99)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert (second.version, second.gradient_steps) == (1, 1)
    assert update(second, batch, rl, seed=2) == expected
    for one, two in ((straight.policy, second.policy), (straight.value, second.value)):
        assert all(torch.equal(tensor, two.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_weights_that_do_not_fit(folder, batch):
    made = fresh(folder)
    state = made.state_dict()
    weights = state["modules"]
    name = "model.language_model.norm.weight"
    with pytest.raises(TrainingError, match=rf"policy's {name} is 64, the saved one 63 \(the saved state\)"):
        made.load_state_dict(state | {"modules": weights | {"policy": weights["policy"] | {name: torch.zeros(63)}}})
    with pytest.raises(TrainingError, match="is not among the saved weights"):
        made.load_state_dict(state | {"modules": weights | {"value": {}}})
    with pytest.raises(TrainingError, match="the saved state"):
        made.load_state_dict(state | {"engines": state["engines"] | {"policy": {"state": {}, "param_groups": []}}})


@pytest.mark.parametrize("engine", ["policy", "value"])
def test_a_state_of_another_engine_changes_nothing(folder, engine):
    made, other = fresh(folder), fresh(folder).state_dict()
    before = made.state_dict()
    other["modules"] = {name: {key: one + 1 for key, one in held.items()} for name, held in other["modules"].items()}
    other["engines"]["policy"]["param_groups"][0]["lr"] = 0.5
    other["engines"][engine] = {"stage": 1, "size": 2, "files": {}}  # ZeRO's
    with pytest.raises(TrainingError, match=r"the saved optimiser is not of engine torch"):
        made.load_state_dict(other)
    after = made.state_dict()
    assert after["engines"] == before["engines"]
    for name, held in before["modules"].items():
        assert all(torch.equal(after["modules"][name][key], one) for key, one in held.items())


def test_warmup():
    rl = RlSettings(actor_lr=1.0, warmup=3)
    assert [policy_learning_rate(step, rl) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert policy_learning_rate(0, RlSettings(actor_lr=1.0, warmup=0)) == 1.0


def test_value_pretraining_keeps_the_best_on_held_out_tasks(folder):
    batch = made_up(folder, RL, trajectories=16, seed=3)
    made = fresh(folder)
    before = {name: tensor.clone() for name, tensor in made.policy.state_dict().items()}
    got = pretrain_value(made, batch, RL.model_copy(update={"value_pretraining_steps": 25}), seed=2)
    assert 0 < got.steps < 25  # here more overfits
    assert all(torch.equal(before[name], tensor) for name, tensor in made.policy.state_dict().items())
    for steps in range(got.steps + 1):  # as many steps end in the same weights, fewer in worse; V = 0 is the first
        shorter = fresh(folder)
        found = pretrain_value(shorter, batch, RL.model_copy(update={"value_pretraining_steps": steps}), seed=2)
        assert found.steps <= steps
        assert (found.loss > got.loss) == (steps < got.steps)
    assert all(
        torch.equal(tensor, made.value.state_dict()[name]) for name, tensor in shorter.value.state_dict().items()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: replace(e, samples=(), rewards=()), r"no trainable token \(trajectory trajectory00\)"),
        (lambda e: _first(e, response=()), r"no trainable token \(trajectory trajectory00, step 0\)"),
        (
            lambda e: replace(e, rewards=(math.nan, *e.rewards[1:])),
            r"the reward is nan \(trajectory trajectory00, step 0\)",
        ),
        (lambda e: _first(e, sampled_logprobs=()), "no log-probabilities as sampled"),
        (
            lambda e: _first(e, sampled_logprobs=(math.nan,) * len(e.samples[0].response)),
            "0 log-probabilities that are",
        ),
        (lambda e: _first(e, sampled_logprobs=(-1.0,)), "tokens, 1 log-probabilities"),
    ],
)
def test_what_cannot_be_trained_on_is_named(folder, batch, change, message):
    with pytest.raises(TrainingError, match=message):
        estimate_step_samples([change(batch[0]), *batch[1:]], fresh(folder), RL)


def _first(experience, **change):
    return replace(experience, samples=(replace(experience.samples[0], **change), *experience.samples[1:]))


def test_an_empty_batch_is_named(folder):
    made = fresh(folder)
    with pytest.raises(TrainingError, match="the batch is empty"):
        estimate_step_samples([], made, RL)
    with pytest.raises(TrainingError, match="the batch is empty"):
        train_step(made, [], RL, 1)


def test_weights_that_give_no_number_stop_the_step_by_name(folder, batch):
    made = fresh(folder)
    cut = estimate_step_samples(batch, made, RL)[0]
    with torch.no_grad():
        made.policy.model.language_model.norm.weight.fill_(math.nan)
    with pytest.raises(TrainingError, match=r"the loss of the policy in step 1, gradient step 1 is nan \(RL\)"):
        train_step(made, cut, RL, 1)
    broken = [replace(turn, returns=turn.returns * math.nan) for turn in cut]
    made = fresh(folder)
    with pytest.raises(TrainingError, match=r"the loss of V in step 1 is nan"):
        update_value(made, broken, RL)
