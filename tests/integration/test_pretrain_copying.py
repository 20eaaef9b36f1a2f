"""Pretraining teaches the base to copy out of texts: what repeats what, the losses, and a run."""

from __future__ import annotations

import random
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from pretraining import lines, undrawn

from flywheel.envs.screens import layouts, vocabulary
from flywheel.envs.screens.layouts import SceneQuestion
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, make_tiny_model, train_tokenizer
from flywheel.training.pretrain import batches, objectives
from flywheel.training.pretrain import pretrainer as module
from flywheel.training.pretrain.batches import IGNORED, QuestionCollator
from flywheel.training.pretrain.pretrainer import PretrainRecipe, run_pretraining
from flywheel.utils.errors import BadInput


@pytest.fixture(scope="module")
def encoder():
    return Encoder.new(train_tokenizer(vocabulary.tokenizer_corpus()), layouts.SCENE_SIDE)


def test_what_is_repeated_is_what_was_said_before():
    rng = random.Random(4)
    for text, names in (batches.draw_copy_text(rng) for _ in range(300)):
        assert names
        for length, starts in names:
            assert len(starts) >= 2
            assert len({text[start : start + length] for start in starts}) == 1
            assert all(before + length <= after for before, after in pairwise(starts))


def test_a_token_of_a_name_knows_the_tokens_that_hold_the_same_letter(encoder):
    """Behind a space and behind a quote a name is cut into other tokens."""
    text = "folder jetena, then 'jetena' =jetena"
    starts = (7, 21, 30)
    batch = batches.collate_copy_texts(
        encoder, [batches.CopyText(text, (batches.NameOccurrences(6, starts),)), batches.CopyText("a", ())]
    )
    told = encoder.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert batch.ids.shape == (2, len(told))
    assert batch.repeats.shape == (2, len(told), len(told))
    for token, (start, _) in enumerate(told):
        found = [told[source] for source in batch.repeats[0, token].nonzero().flatten().tolist()]
        earlier = [begin for begin in starts if begin + 6 <= start]
        within = next((start - begin for begin in starts if begin <= start < begin + 6), None)
        assert len(found) == (len(earlier) if within is not None else 0)
        for (begins, ends), begin in zip(found, earlier, strict=False):
            assert begins <= begin + within < ends
    assert not batch.repeats[1].any()
    assert (batch.ids[1, 1:] == 0).all()


def test_what_is_typed_repeats_the_instruction_in_its_thought_and_its_action(encoder):
    question = SceneQuestion("type", "Type xq.", "Thought: I type xq.\nAction: type(content='xq')", copied="xq")
    packed = QuestionCollator(encoder, 224).pack(np.zeros((1, 224, 224, 3), np.uint8), [[question, question]])
    pairs = packed.repeats[0].nonzero().tolist()
    said = [encoder.tokenizer.decode(packed.inputs["input_ids"][0, token]) for token, _ in pairs]
    assert "".join(dict(zip([token for token, _ in pairs], said, strict=True)).values()).replace(" ", "") == "xq" * 4
    seen = packed.inputs["attention_mask"][0, 0]
    assert all(source < token and seen[token - 1, source] for token, source in pairs)
    assert all(packed.labels[0, token] != IGNORED for token, _ in pairs)


def test_the_copying_loss_is_low_where_heads_look_at_the_source_and_at_the_token_before(encoder, monkeypatch):
    """Five tokens, the fourth of which repeats the second, or any of two."""
    repeats = torch.zeros(1, 5, 5, dtype=torch.bool)
    repeats[0, 3, 1] = True
    ids = torch.tensor([[9, 7, 8, 7, 6]])
    model = make_tiny_model(5)
    objectives.install_attention(model)
    places = 10 * torch.eye(8)[None, None, :5].expand(1, 6, -1, -1)

    def loss(first, layer, repeats=repeats):
        """first, layer: how many places before it each token looks. Before the fourth that is the second, where 1."""

        @contextmanager
        def told(layers, screens):
            yield {
                objectives.PREVIOUS_TOKEN_LAYER: objectives.CapturedQK(places, places.roll(first, 3), 1.0),
                objectives.POINTING_LAYER: objectives.CapturedQK(places, places.roll(layer, 3), 1.0),
            }

        monkeypatch.setattr(objectives, "capture_attention", told)
        found = objectives.compute_copying_losses(model, batches.CopyBatch(ids, repeats))
        return found.aids["copying"].item(), found.right

    monkeypatch.setattr(objectives, "_captured", objectives.Captured((), 0))
    assert loss(1, 1) == (pytest.approx(0, abs=1e-3), 1.0)
    assert loss(1, 0) == (pytest.approx(100, abs=1), 0.0)
    assert loss(0, 1) == (pytest.approx(100, abs=1), 1.0)
    either = repeats.clone()
    either[0, 3, 2] = True
    assert loss(1, 0, either) == (pytest.approx(0, abs=1e-3), 1.0)


@pytest.mark.exhaustive
def test_a_base_learns_to_copy_and_its_sight_and_words_rest(tmp_path, monkeypatch):
    for name, value in (("BATCH", 4), ("QUESTIONS", 2), ("WARMUP", 2)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "stream_scene_chunks", undrawn)
    monkeypatch.setattr(module, "COPYING_BATCH", 2)
    monkeypatch.setattr(module, "TEXTS", 8)
    run = {"seed": 3, "seeing": 0, "report_every": 1, "evaluate_every": 100, "held_out": 1, "chunk": 16}
    base = run_pretraining(PretrainRecipe(tmp_path / "base", steps=1, **run))
    copies = run_pretraining(PretrainRecipe(tmp_path / "copies", steps=12, copying=True, start=base, **run))
    said = [line for line in lines(tmp_path / "copies") if "answers" in line]
    assert said[-1]["copying"] < 0.9 * said[0]["copying"]
    assert said[-1]["copies"] < said[0]["copies"]
    before, after = load_model(base).state_dict(), load_model(copies).state_dict()
    same = {name for name, weights in before.items() if torch.equal(weights, after[name])}
    assert {name for name in before if "visual" in name or "embed_tokens" in name} <= same
    assert "model.language_model.layers.2.self_attn.q_proj.weight" not in same


def test_only_a_base_that_sees_learns_to_copy(tmp_path):
    with pytest.raises(BadInput, match="add --init-from MODEL --vision-steps 0"):
        run_pretraining(PretrainRecipe(tmp_path, copying=True))
