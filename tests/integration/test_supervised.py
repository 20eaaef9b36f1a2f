"""CT and SFT: they learn, they resume to the same weights, they refuse what cannot be trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from lamp_env import LEFT, RIGHT, screen, settings, small_model
from made_experience import needs_deepspeed, response_logprobs
from night import by_day
from safetensors.torch import load_file

from flywheel.agent.prompt import build_context
from flywheel.config import SupervisedSettings
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model
from flywheel.training.data import Example, ShuffledDataset, plan_batches
from flywheel.training.modeling.policy_forward import pad_samples
from flywheel.training.sft import SupervisedTrainer, cosine_learning_rate, train_supervised
from flywheel.utils.errors import TrainingError

S = settings()
BLOCK = SupervisedSettings(lr=3e-3, batch=4, save_every=2)


@pytest.fixture(scope="module")
def base(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("model") / "base", project)


@pytest.fixture(scope="module")
def samples(base) -> list[Example]:
    encoder = Encoder.from_folder(base)
    made = []
    for i in range(24):
        side, text = (("left", LEFT), ("right", RIGHT))[i % 2]
        context = encoder.encode(build_context("Click the lamp.", (), screen(side, i // 8), S.policy))
        made.append(Example(context, tuple(encoder.encode_text(text)), None, f"t{i:02d}", 0, "games"))
    return made


def train(base, folder, samples, *, seed=5, **more):
    arguments = {"settings": BLOCK, "state_folder": folder / "state"} | more
    dataset = ShuffledDataset(samples, arguments["settings"].batch, seed)
    return train_supervised(base, folder / "out", dataset, **arguments)


def test_learns_and_reports(base, samples, tmp_path):
    seen = []
    losses = train(base, tmp_path, samples * 3, on_metric=seen.append)
    assert losses == [metric["loss"] for metric in seen]
    assert len(losses) == 18
    assert losses[-1] < 0.5 * losses[0]
    assert seen[-1]["probability"] > seen[0]["probability"]
    model = load_model(tmp_path / "out")
    assert checkpoint_digest(tmp_path / "out") != checkpoint_digest(base)
    with torch.no_grad():
        batch = pad_samples([s.context for s in samples], [s.response for s in samples])
        logprobs, _ = response_logprobs(model, batch)
    assert float(-logprobs[batch.mask].mean()) < 0.5 * losses[0]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_vision_tower_stays_as_it_is_where_it_is_frozen(base, samples, tmp_path, frozen):
    train(base, tmp_path, samples[:4], settings=BLOCK.model_copy(update={"freeze_vision": frozen}))
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "out"))
    same = {name for name in before if torch.equal(before[name], after[name])}
    vision = {name for name in before if ".visual." in name}
    assert vision
    assert (vision <= same) == frozen
    assert not same - vision


def test_a_frozen_tower_reads_each_screen_once(base, samples, tmp_path):
    dataset = ShuffledDataset(samples, BLOCK.batch, seed=5)
    trainer = SupervisedTrainer(base, dataset, BLOCK, "ct")
    once = [trainer.step(number, BLOCK.lr)[0] for number in range(len(dataset))]
    screens = {sample.context.pixel_values.tobytes() for sample in samples}
    assert trainer.reader.vision.encoded == len(screens) < len(samples)
    trainer = SupervisedTrainer(base, dataset, BLOCK, "ct")
    trainer.reader.vision = None
    again = [trainer.step(number, BLOCK.lr)[0] for number in range(len(dataset))]
    assert once == pytest.approx(again, rel=1e-3)


def test_killed_run_ends_with_the_same_weights(base, samples, tmp_path):
    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 5:
            raise Killed

    whole = train(base, tmp_path / "whole", samples)
    with pytest.raises(Killed):
        train(base, tmp_path / "killed", samples, on_metric=kill)
    assert not (tmp_path / "killed" / "out").exists()
    steps = []
    again = train(base, tmp_path / "killed", samples, on_metric=lambda metric: steps.append(metric["step"]))
    assert steps == [5, 6]  # it went on from the state of step 4
    assert again == whole
    one, two = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", pytest.param("deepspeed", marks=needs_deepspeed)])
def test_two_processes_come_to_what_one_comes_to(base, samples, tmp_path, monkeypatch, engine):
    """The two were stopped in between."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")

    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 3:
            raise Killed

    alone = train(base, tmp_path / "alone", samples)
    two = BLOCK.model_copy(update={"processes": 2, "engine": engine, "zero_stage": 3, "pack_tokens": 300})
    with pytest.raises(Killed):
        train(base, tmp_path / "two", samples, settings=two, on_metric=kill)
    steps = []
    together = train(
        base, tmp_path / "two", samples, settings=two, on_metric=lambda metric: steps.append(metric["step"])
    )
    assert steps == [3, 4, 5, 6]  # it went on from the state of step 2
    assert together == pytest.approx(alone, rel=2e-3)
    one, other = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("alone", "two"))
    assert all(torch.allclose(one[name], other[name], atol=2e-4) for name in one)


@pytest.mark.exhaustive
def test_a_run_goes_on_with_another_number_of_processes(base, samples, tmp_path):
    """The state is that of the training, not of the processes that happened to do it."""

    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 5:
            raise Killed

    whole = train(base, tmp_path / "whole", samples)
    with pytest.raises(Killed):
        train(base, tmp_path / "two", samples, on_metric=kill)
    two, steps = BLOCK.model_copy(update={"processes": 2}), []
    again = train(base, tmp_path / "two", samples, settings=two, on_metric=lambda metric: steps.append(metric["step"]))
    assert steps == [5, 6]
    assert again == pytest.approx(whole, rel=2e-3)


def test_state_of_another_run_is_not_taken_up(base, samples, tmp_path):
    class Killed(Exception):
        pass

    def kill(metric):
        if metric["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train(base, tmp_path, samples, on_metric=kill)
    steps = []
    train(base, tmp_path, samples, seed=6, on_metric=lambda metric: steps.append(metric["step"]))
    assert steps[0] == 1


def test_no_samples_is_an_error(base, tmp_path):
    with pytest.raises(TrainingError, match="no samples"):
        train(base, tmp_path, [])


def test_loss_that_is_not_finite_stops_and_leaves_no_model(base, samples, tmp_path):
    broken = [replace(s, prompt=replace(s.context, pixel_values=s.context.pixel_values * np.nan)) for s in samples]
    with pytest.raises(TrainingError, match="the loss of step 1 is nan"):
        train(base, tmp_path, broken)
    assert not (tmp_path / "out").exists()


def test_plan_uses_each_sample_once_in_random_batches():
    batches = plan_batches(10, 4, seed=1)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(i for batch in batches for i in batch) == list(range(10))
    assert batches == plan_batches(10, 4, seed=1) != plan_batches(10, 4, seed=2)


def test_schedule_warms_up_and_decays_to_a_tenth():
    block = SupervisedSettings(lr=1.0, warmup=0.1)
    rates = [cosine_learning_rate(step, 100, block) for step in range(100)]
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_loss_is_the_mean_over_response_tokens(base, samples, tmp_path):
    """That of a first step, from log-probabilities that the padded pass gives."""
    few = [samples[0], replace(samples[1], response=samples[1].response * 2), samples[2]]
    with torch.no_grad():
        batch = pad_samples([s.context for s in few], [s.response for s in few])
        logprobs, _ = response_logprobs(load_model(base), batch)
    assert train(base, tmp_path, few)[0] == pytest.approx(float(-logprobs[batch.mask].mean()), abs=1e-5)


@pytest.mark.parametrize("parts", by_day([{"pack_tokens": 200}, {"pack_tokens": 0, "micro_batch": 3}]))
def test_how_a_batch_is_cut_changes_rounding_alone(base, samples, tmp_path, parts):
    whole = train(base, tmp_path / "whole", samples)
    cut = train(base, tmp_path / "cut", samples, settings=BLOCK.model_copy(update=parts))
    assert cut == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("frozen", by_day([True, False]))
def test_passes_side_by_side_change_rounding_alone(base, samples, tmp_path, frozen):
    """And nothing at all from one run to the next."""
    block, found, every = BLOCK.model_copy(update={"freeze_vision": frozen}), {}, torch.get_num_threads()
    try:
        for name, cores in (("one", 1), ("three", 3), ("again", 3)):
            torch.set_num_threads(cores)
            losses = train(base, tmp_path / name, samples[:12], settings=block)
            found[name] = losses, load_file(tmp_path / name / "out" / "model.safetensors")
    finally:
        torch.set_num_threads(every)
    (alone, weights), (beside, others), (again, same) = found.values()
    assert beside == again
    assert all(torch.equal(others[name], same[name]) for name in same)
    assert beside == pytest.approx(alone, rel=1e-4)
    assert all(torch.allclose(others[name], weights[name], atol=1e-4) for name in weights)


def test_padding_and_company_do_not_change_a_sequence(base, samples):
    """What the loss sees of a sample is the same alone and in a batch with longer ones."""
    model = load_model(base)
    longer = replace(samples[1], response=samples[1].response * 2)
    with torch.no_grad():
        alone, _ = response_logprobs(model, pad_samples([samples[0].context], [samples[0].response]))
        both, _ = response_logprobs(
            model, pad_samples([longer.context, samples[0].context], [longer.response, samples[0].response])
        )
    torch.testing.assert_close(both[1, : alone.shape[1]], alone[0], rtol=1e-4, atol=1e-5)


def test_sampled_image_token_does_not_break_the_batch(base, samples):
    """A raw model may sample it; its log-probability is the one under the same prompt."""
    image = int(samples[0].context.input_ids[samples[0].context.mm_token_type_ids == 1][0])
    model = load_model(base)
    with torch.no_grad():
        odd, _ = response_logprobs(model, pad_samples([samples[0].context], [(image, 20, 21)]))
        alone, _ = response_logprobs(model, pad_samples([samples[0].context], [(image,)]))
    assert torch.isfinite(odd).all()
    assert float(odd[0, 0]) == pytest.approx(float(alone[0, 0]), abs=1e-5)
