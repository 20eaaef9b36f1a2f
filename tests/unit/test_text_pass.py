"""The layers in few operations give the library's numbers, for each of the models they know, and leave others alone."""

from __future__ import annotations

import pytest
import torch
from checkpoints import ARCHITECTURES, ID, make
from test_engine import Checkpoint, finish, rows_of, same

from flywheel.policy.inference.fused_layers import TextPass
from flywheel.policy.model import load_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_those_of_the_librarys_layers(architecture, tmp_path):
    """Prompts with and without screens, of several lengths, that join late and leave early."""
    folder = make(tmp_path / architecture, architecture)
    found = []
    for frozen in (True, False):
        checkpoint = Checkpoint(folder, frozen)
        assert (checkpoint.text_pass is not None) == frozen
        engine = checkpoint.engine()
        rows = rows_of(checkpoint, 12)
        ended = engine.admit(rows[:5])
        for row in rows[5:]:
            ended += engine.step() + engine.admit([row])
        finish(engine, ended)
        found.append(rows)
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_model_keeps_its_numbers_and_has_them_once(architecture, tmp_path):
    folder = make(tmp_path / architecture, architecture)
    model, joined = load_model(folder), load_model(folder)
    TextPass(joined)
    for (name, weight), other in zip(model.named_parameters(), joined.parameters(), strict=True):
        assert torch.equal(weight, other), name
    attention = joined.base_model.language_model.layers[0].self_attn
    three = [getattr(attention, f"{name}_proj").weight for name in "qkv"]
    assert len({weight.untyped_storage().data_ptr() for weight in three}) == 1
    ids = torch.arange(10, 60)[None]
    with torch.inference_mode():
        torch.testing.assert_close(joined(input_ids=ids).logits, model(input_ids=ids).logits)


def test_an_image_token_without_a_screen_is_a_token(tmp_path):
    """The engine never feeds one that was sampled, and a pass of text alone asks nothing of screens."""
    checkpoint = Checkpoint(make(tmp_path / "m", "qwen3_vl"))
    ids = torch.tensor([[5, ID["<|image_pad|>"], 9]])
    held = checkpoint.engine()._key_values(1, 3)
    with torch.inference_mode():
        mask = held.at([0], 3, 3, torch.device("cpu"))
        hidden = checkpoint.text_pass(ids, torch.arange(3).expand(3, 1, -1), mask, held)
    assert hidden.shape == (1, 3, checkpoint.model.config.text_config.hidden_size)
    assert hidden.isfinite().all()


def test_a_model_that_it_does_not_know_is_left_to_the_library(tmp_path):
    folder = make(tmp_path / "m", "qwen2_5_vl")
    assert TextPass.knows(load_model(folder))
    assert not TextPass.knows(load_model(folder, dtype="bfloat16"))
    windowed = load_model(folder)
    windowed.config.get_text_config().use_sliding_window = True
    assert not TextPass.knows(windowed)
    strange = load_model(folder)
    layers = strange.base_model.language_model.layers
    layers[1] = type("MoeDecoderLayer", (type(layers[1]),), {})(strange.config.get_text_config(), 1)
    assert not TextPass.knows(strange)
