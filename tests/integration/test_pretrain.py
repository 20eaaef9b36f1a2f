"""Pretraining of the base: it runs on drawn screens, stops, resumes, and leaves a checkpoint that loads."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest
import torch
from pretraining import lines, undrawn

from flywheel.envs.screens import layouts, vocabulary
from flywheel.envs.screens.scene import SceneBox, SceneText
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import VOCABULARY_SIZE, load_model, make_tiny_model, train_tokenizer
from flywheel.training.pretrain import objectives
from flywheel.training.pretrain import pretrainer as module
from flywheel.training.pretrain.batches import (
    CHARACTERS,
    IGNORED,
    READING_SKILLS,
    AttentionTargets,
    QuestionCollator,
    build_naming_targets,
    build_placing_targets,
    build_reading_targets,
    build_spelling_targets,
    compute_cell_shares,
)
from flywheel.training.pretrain.pretrainer import (
    ACCURACY_WINDOW,
    KindAccuracy,
    PretrainRecipe,
    draw_scene_kinds,
    run_pretraining,
)
from flywheel.utils.errors import BadInput, ModelError, TrainingError


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "SEEING_BATCH", 4)
    monkeypatch.setattr(module, "QUESTIONS", 2)
    monkeypatch.setattr(module, "WARMUP", 2)


@pytest.fixture(scope="module")
def encoder():
    return Encoder.new(train_tokenizer(vocabulary.tokenizer_corpus()), layouts.SCENE_SIDE)


def processes(count):
    return module.OPTIMIZER.model_copy(update={"processes": count})


@pytest.mark.exhaustive
def test_it_trains_stops_resumes_and_leaves_a_checkpoint(small, tmp_path, monkeypatch):
    run = {
        "out": tmp_path,
        "seed": 3,
        "seeing": 3,
        "report_every": 1,
        "evaluate_every": 100,
        "held_out": 1,
        "chunk": 16,
    }
    first = checkpoint_digest(run_pretraining(PretrainRecipe(steps=1, **run)))
    monkeypatch.setattr(module, "stream_scene_chunks", undrawn)
    folder = run_pretraining(PretrainRecipe(steps=8, **run))
    said = lines(tmp_path)
    told = [line for line in said if "answers" in line]
    assert [line["step"] for line in told] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [line["answers"] > 0 for line in told] == [False] * 3 + [True] * 5  # at first it only sees
    assert told[-1]["naming"] < told[1]["naming"]
    assert told[-1]["answers"] < told[3]["answers"]
    assert said[-1]["evaluation"]["key"]["n"] >= 1
    assert checkpoint_digest(folder) != first
    assert load_model(folder).config.text_config.vocab_size == VOCABULARY_SIZE
    assert Encoder.from_folder(folder).encode_text("click")


@pytest.mark.exhaustive
def test_a_finished_run_takes_no_further_step(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "stream_scene_chunks", undrawn)
    monkeypatch.setattr(module, "evaluate_grounding", lambda *_, **__: {})
    recipe = PretrainRecipe(tmp_path, seed=3, steps=2, seeing=1, report_every=1, chunk=16)
    folder = run_pretraining(recipe)
    digest, said = checkpoint_digest(folder), lines(tmp_path)
    shutil.rmtree(folder)  # as if killed before it was written
    assert checkpoint_digest(run_pretraining(recipe)) == digest
    assert lines(tmp_path) == said
    assert torch.load(tmp_path / "state.pt", weights_only=True)["state"]["counters"]["step"] == 2


def test_a_state_of_an_earlier_version_is_refused_and_left(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "stream_scene_chunks", undrawn)
    torch.save({"model": {}, "step": 9000}, tmp_path / "state.pt")
    before = (tmp_path / "state.pt").read_bytes()
    with pytest.raises(BadInput, match=r"of an earlier version \(.*state\.pt\)"):
        run_pretraining(PretrainRecipe(tmp_path, seed=3, steps=1, chunk=16))
    assert (tmp_path / "state.pt").read_bytes() == before


@pytest.mark.exhaustive
def test_two_processes_train_one_model(tmp_path):
    """Real screens; both must end at the same step, and one line is written for both."""
    run = {"seed": 3, "report_every": 1, "evaluate_every": 100, "held_out": 1, "steps": 2, "seeing": 1, "chunk": 32}
    folder = run_pretraining(PretrainRecipe(out=tmp_path / "a", optimizer=processes(2), **run))
    assert [line["step"] for line in lines(tmp_path / "a") if "answers" in line] == [1, 2]
    assert checkpoint_digest(folder) == checkpoint_digest(
        run_pretraining(PretrainRecipe(out=tmp_path / "b", optimizer=processes(2), **run))
    )


def test_a_loss_that_is_not_finite_ends_the_run(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "stream_scene_chunks", undrawn)
    true = objectives.compute_digit_weights
    monkeypatch.setattr(objectives, "compute_digit_weights", lambda *given: true(*given) * float("nan"))
    with pytest.raises(TrainingError, match=r"the loss of step 0 is nan \(pretraining\)"):
        run_pretraining(PretrainRecipe(tmp_path, seed=3, steps=2, seeing=0, chunk=16))


def test_the_quick_attention_is_the_librarys(encoder):
    """In float32, over packed rows of unequal lengths."""
    rng = random.Random(0)
    drawn = [layouts.draw_scene(kind, 2, rng, 100) for kind in layouts.SCENE_KINDS]
    pixels = np.random.default_rng(0).integers(0, 255, (len(drawn), 224, 224, 3), dtype=np.uint8)
    packed = QuestionCollator(encoder, 224).pack(
        pixels, [scene.questions[: 2 + i % 3] for i, scene in enumerate(drawn)]
    )
    plain, quick = make_tiny_model(5).eval(), make_tiny_model(5).eval()
    objectives.install_attention(quick)
    with torch.no_grad():
        wanted = plain.model(**packed.inputs, use_cache=False)[0]
        inputs = dict(packed.inputs)
        patches, grid = inputs.pop("pixel_values"), inputs["image_grid_thw"]
        with objectives.capture_attention((2,), len(grid)) as heard:
            images = quick.model.get_image_features(
                patches, grid, cu_seqlens=objectives.make_screen_lengths(len(patches))
            )
            found = quick.model(**inputs, mm_encoder_outputs={"image": images}, use_cache=False)[0]
    answers = packed.labels != IGNORED
    torch.testing.assert_close(found[answers], wanted[answers], atol=2e-5, rtol=1e-4)
    assert heard[2].query.shape == (len(drawn), 6, packed.labels.shape[1], 32)


def test_the_pointing_loss_is_low_where_the_heads_look_at_the_thing(encoder):
    """Two screens of 49 image tokens, one look each: all of it on the right cell, then on a wrong one."""
    target = torch.zeros(2, 49)
    target[0, 3], target[1, 40:42] = 1, 0.5
    looks = AttentionTargets(torch.tensor([0, 1]), torch.tensor([60, 55]), target, slice(4, 53))
    query, key = torch.zeros(2, 6, 70, 32), torch.zeros(2, 6, 70, 32)
    query[..., 0] = 100
    key[0, :, 4 + 3, 0] = 1
    key[1, :, 4 + 40 : 4 + 42, 0] = 1
    loss, right = objectives._pointing_loss(objectives.CapturedQK(query, key, 1.0), looks)
    assert loss.item() == pytest.approx(np.log(2) / 2, abs=1e-4)  # the second is shared by two cells
    assert right == 1.0
    key[0, :, 4 + 3, 0], key[0, :, 4 + 9, 0] = 0, 1
    loss, right = objectives._pointing_loss(objectives.CapturedQK(query, key, 1.0), looks)
    assert loss.item() == pytest.approx((100 + np.log(2)) / 2, rel=1e-3)
    assert right == 0.5


def test_looks_stand_before_each_digit_and_before_what_is_read(encoder):
    """The token after a look is a digit of the point, any of a reading, or the first of a judgement."""
    rng = random.Random(1)
    drawn = [layouts.draw_scene(kind, 3, rng, 100) for kind in layouts.SCENE_KINDS]
    pixels = np.zeros((len(drawn), 224, 224, 3), dtype=np.uint8)
    packed = QuestionCollator(encoder, 224).pack(pixels, [scene.questions for scene in drawn])
    ids = packed.inputs["input_ids"]
    following = encoder.tokenizer.convert_ids_to_tokens(ids[packed.looks.row, packed.looks.position + 1].tolist())
    asked = [question for scene in drawn for question in scene.questions]
    points = sum(len(question.boxes) for question in asked)
    read = sum(
        len(encoder.encode_text(question.response)) - 1 if question.skill in READING_SKILLS else 1
        for question in asked
        if question.seen is not None
    )
    assert len(following) == 4 * points + read
    assert sum(token.isdigit() for token in following) >= 4 * points
    torch.testing.assert_close(packed.looks.cells.sum(1), torch.ones(len(following)))
    assert (ids[:, packed.looks.screen] == encoder.image_id).all()


def test_a_box_is_shared_out_among_the_cells_it_covers():
    shares = compute_cell_shares(SceneBox(16, 0, 32, 32), 224, 7).reshape(7, 7)
    assert shares[0, :2].tolist() == [0.5, 0.5]
    assert shares.sum() == 1


def test_the_digits_of_a_point_weigh_by_their_place(encoder):
    ids = torch.tensor([encoder.tokenizer("at 12 34, 5", add_special_tokens=False)["input_ids"]])
    digits = torch.tensor(encoder.tokenizer.convert_tokens_to_ids([str(digit) for digit in range(10)]))
    shown = encoder.tokenizer.convert_ids_to_tokens(ids[0].tolist())
    weights = dict(zip(shown, objectives.compute_digit_weights(ids, digits)[0].tolist(), strict=True))
    assert [weights[d] for d in "12345"] == [
        objectives.TENS_WEIGHT,
        objectives.UNITS_WEIGHT,
        objectives.TENS_WEIGHT,
        objectives.UNITS_WEIGHT,
        1,
    ]


def test_each_image_token_names_what_it_shows_in_proportion(encoder):
    shown = [
        [("red star", SceneBox(0, 0, 64, 32)), ("blue", SceneBox(72, 0, 24, 32)), ("mug", SceneBox(64, 0, 8, 32))],
        [],
    ]
    ids, weights = build_naming_targets(encoder, shown, 224, 7)
    assert ids.shape[0] == weights.shape[0] == 2 * 49
    assert weights.sum().item() == pytest.approx(1)
    assert weights[:3].sum().item() == pytest.approx(0.5)  # the three cells that are not empty
    said = [
        {encoder.decode([token]).strip(): share.item() for token, share in zip(*row, strict=True) if share > 0}
        for row in zip(ids, weights * 6, strict=True)
    ]
    blank = encoder.decode(encoder.tokenizer(" empty")["input_ids"]).strip()
    assert said[0] == said[1] == pytest.approx({"red": 0.5, "star": 0.5})
    assert said[2] == pytest.approx({"blue": 0.75, "mug": 0.25})
    assert all("".join(row) == blank for row in said[3:])


def test_each_image_token_tells_the_centre_of_what_it_shows_most_of():
    shown = [[("star", SceneBox(0, 0, 64, 32)), ("blue", SceneBox(72, 0, 24, 32)), ("mug", SceneBox(64, 0, 8, 32))], []]
    places = build_placing_targets(shown, 224, 7)
    assert places.shape == (2 * 49, 4)
    assert places[0].tolist() == places[1].tolist() == [1, 4, 0, 7]  # (32, 16) of 224
    assert places[2].tolist() == [3, 7, 0, 7]
    assert (places[3:] == IGNORED).all()
    aids = objectives.AuxiliaryHeads(8, 8)
    with torch.no_grad():
        aids.place.weight.zero_()
        aids.place.bias.copy_(torch.nn.functional.one_hot(torch.tensor([1, 4, 0, 7]), 10).flatten() * 50)
    features = torch.zeros(len(places), 8)
    assert aids.placing(features[:2], places[:2]).item() == pytest.approx(0, abs=1e-6)
    assert aids.placing(features[:3], places[:3]).item() == pytest.approx(50 * (1 / 3) * 6 / 12, rel=1e-3)
    assert aids.placing(features[3:], places[3:]).item() == 0


def test_each_patch_tells_the_characters_whose_middles_stand_in_it():
    """A patch of 16 pixels has four slots; patches come in blocks of two by two, as the vision tower has them."""
    text = SceneText("a7", (SceneBox(14, 20, 4, 10), SceneBox(19, 20, 4, 10)))  # middles (16, 25) and (21, 25)
    slots = build_spelling_targets([[text], []], 224, 14, 2)
    assert slots.shape == (2 * 196, 4)
    assert slots[3].tolist() == [CHARACTERS["a"], CHARACTERS["7"], 0, 0]  # right and lower in the first block
    assert slots.count_nonzero() == 2
    outside = SceneText("b", (SceneBox(-20, 20, 4, 10),))
    assert build_spelling_targets([[outside]], 224, 14, 2).count_nonzero() == 0


def test_each_image_token_tells_the_letters_of_the_text_it_shows_most_of():
    long = SceneText("abcdefghij", tuple(SceneBox(4 * i, 8, 4, 16) for i in range(10)))  # 40 x 16: two cells
    short = SceneText("42", (SceneBox(40, 8, 8, 16), SceneBox(48, 8, 8, 16)))
    told = build_reading_targets([[long, short], []], 224, 7)
    assert told.shape == (2 * 49, 8)
    assert told[0].tolist() == [CHARACTERS[c] for c in "abcdefgh"]
    assert told[1].tolist() == [CHARACTERS["4"], CHARACTERS["2"], 0, 0, 0, 0, 0, 0]
    assert (told[2:] == IGNORED).all()


def test_the_loss_of_characters_counts_blanks_for_a_tenth():
    wanted = torch.tensor([[1, 0], [IGNORED, IGNORED]])
    logits = torch.zeros(2, 2 * 37)
    logits[0, 1] = 50  # the character is right; of the blank nothing is known
    assert objectives._character_loss(logits, wanted).item() == pytest.approx(0.1 * np.log(37) / 1.1, rel=1e-4)
    assert objectives._character_loss(logits[1:], wanted[1:]).item() == 0


def test_what_is_read_weighs_more_than_a_token_of_an_action(encoder):
    rng = random.Random(1)
    scene = layouts.draw_scene("texts", 2, rng, 100)
    packed = QuestionCollator(encoder, 224).pack(np.zeros((1, 224, 224, 3), np.uint8), [scene.questions])
    spoken = packed.question[packed.read].unique().tolist()
    assert spoken == [i for i, question in enumerate(scene.questions) if question.skill in READING_SKILLS]
    assert (packed.labels[packed.read] != IGNORED).all()


def test_the_rate_warms_up_stays_and_cools_down(tmp_path):
    training = module.Pretrainer(PretrainRecipe(tmp_path, steps=1000, seeing=0))
    rates = {}
    for step in (0, 99, 199, 500, 749, 875, 999):
        training.step = step
        rates[step] = training._schedule()
    assert rates == pytest.approx({0: 1 / 200, 99: 0.5, 199: 1, 500: 1, 749: 1, 875: 0.5, 999: 0.05})


def test_what_cannot_be_run_is_refused_before_it_begins(tmp_path):
    with pytest.raises(BadInput, match="3 processes do not share 8 screens evenly"):
        run_pretraining(PretrainRecipe(tmp_path / "out", optimizer=processes(3)))
    with pytest.raises(ModelError, match="no such model folder"):
        run_pretraining(PretrainRecipe(tmp_path / "out", start=tmp_path / "nowhere", optimizer=processes(2)))
    assert not (tmp_path / "out").exists()


def test_a_run_that_only_sees_keeps_its_rate(tmp_path):
    for steps in (900, 1000):
        training = module.Pretrainer(PretrainRecipe(tmp_path, steps=steps, seeing=1000))
        training.step = 800
        assert training._schedule() == 1


def test_all_kinds_and_levels_are_shown_and_success_is_told_by_kind():
    shown = draw_scene_kinds(2000, random.Random(0))
    assert set(shown) == {(kind, level) for kind in layouts.SCENE_KINDS for level in range(1, layouts.SCENE_LEVELS + 1)}
    assert sum(level >= 3 for _, level in shown) > 1200
    tally = KindAccuracy()
    tally.note("shapes", ACCURACY_WINDOW // 2, ACCURACY_WINDOW - 1)
    assert not tally.success
    tally.note("shapes", 0, 1)
    assert tally.success == {"shapes": 0.5}
    tally.note("shapes", 5, 5)
    assert tally.success == {"shapes": 0.5}
    assert (tally.hits["shapes"], tally.asked["shapes"]) == (5, 5)
