"""Contexts to tensors: exact tokens, padding, packing, and the model folder they belong to."""

from __future__ import annotations

import copy
import io
import shutil

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from flywheel.agent.prompt import Image, Message, build_context
from flywheel.config import PolicySettings
from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.scene import SceneQuestion
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder, PatchExtractor, collate_sequences
from flywheel.policy.model import load_model, make_tiny_model, save_checkpoint, train_tokenizer
from flywheel.training.pretrain.batches import IGNORED, QuestionCollator
from flywheel.utils.errors import BadInput, ModelError

ANSWER = "Thought: I click the red tile.\nAction: click(point='<point>52 31</point>')"


def png(width: int, height: int, seed: int = 0) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def encoder():
    return Encoder.new(train_tokenizer(vocabulary.tokenizer_corpus()))


@pytest.fixture(scope="module")
def model():
    return make_tiny_model(0).eval()


@pytest.fixture
def folder(model, encoder, tmp_path):
    return save_checkpoint(model, encoder, tmp_path / "model")


def test_a_prompt_is_qwens_chat_form_with_the_image_expanded(encoder):
    encoded = encoder.encode((Message("user", (Image(png(224, 224)), "Click the red tile.")),))
    text = encoder.tokenizer.decode(encoded.input_ids)
    pads = "<|image_pad|>" * 49
    assert text == (
        f"<|im_start|>user\n<|vision_start|>{pads}<|vision_end|>Click the red tile.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert encoded.mm_token_type_ids.sum() == 49
    assert encoded.image_grid_thw.tolist() == [[1, 14, 14]]
    assert encoded.pixel_values.shape == (196, 3 * 2 * 16 * 16)


def test_an_action_takes_few_tokens_and_each_digit_one(encoder):
    ids = encoder.encode_text(ANSWER)
    assert len(ids) == 16
    assert encoder.tokenizer.convert_ids_to_tokens(ids)[9:14] == ["5", "2", "Ġ", "3", "1"]
    assert ids[-1] == encoder.end_id


@pytest.mark.parametrize("text", [ANSWER, "Ünïcödé 漢字 🙂", "type(content='a\\n')", "  two  spaces\n\n", "0 12 345"])
def test_text_is_decoded_as_it_was_encoded(encoder, text):
    assert encoder.decode(encoder.encode_text(text)) == text


def test_text_cannot_spell_control_tokens(encoder):
    encoded = encoder.encode((Message("user", ("<|im_end|><|image_pad|>",)),))
    assert (encoded.input_ids == encoder.image_id).sum() == 0
    assert (encoded.input_ids == encoder.end_id).sum() == 1
    assert encoder.encode_text("a<|im_end|>b").count(encoder.end_id) == 1


@pytest.mark.parametrize("size", [(640, 480), (1280, 720), (100, 300), (224, 224)])
def test_other_screens_are_resized_to_the_models_size(encoder, model, size):
    encoded = encoder.encode((Message("user", (Image(png(*size)), "Go.")),))
    assert encoded.image_grid_thw.prod() == len(encoded.pixel_values) <= 280
    assert encoded.mm_token_type_ids.sum() * 4 == len(encoded.pixel_values)
    with torch.no_grad():
        assert torch.isfinite(model(**collate_sequences([encoded], "left")).logits).all()


def test_a_broken_screen_is_refused(encoder):
    with pytest.raises(BadInput, match="not an image"):
        encoder.encode((Message("user", (Image(b"no picture"),)),))


def test_padding_does_not_change_what_the_model_says(encoder, model):
    short = encoder.encode((Message("user", (Image(png(224, 224)), "Go.")),))
    long = encoder.encode((Message("user", (Image(png(224, 224, 1)), "Click the red tile on the board.")),))
    text = encoder.encode((Message("user", ("No screen.",)),))
    with torch.no_grad():
        alone = model(**collate_sequences([short], "right")).logits[0]
        right = model(**collate_sequences([long, short, text], "right"))
        left = model(**collate_sequences([long, short, text], "left"))
    assert torch.allclose(right.logits[1, : len(short)], alone, atol=1e-4)
    assert torch.allclose(left.logits[1, -len(short) :], alone, atol=1e-4)


@pytest.mark.parametrize("size", [(224, 224), (1, 1), (320, 320), (37, 411), (1280, 720), (224, 225)])
def test_pixels_are_the_image_processors(encoder, size):
    """Bit for bit, whatever the size; with other means for each channel too."""
    rng = np.random.default_rng(0)
    pictures = [Picture.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)) for _ in range(2)]
    other = copy.deepcopy(encoder.images)
    other.image_mean, other.image_std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    other.size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
    for images in (encoder.images, other):
        wanted = images(images=pictures, return_tensors="np")
        pixels, grid = PatchExtractor(images).patches(pictures)
        np.testing.assert_array_equal(pixels, wanted["pixel_values"])
        np.testing.assert_array_equal(grid, wanted["image_grid_thw"])
        assert (pixels.dtype, grid.dtype) == (np.float32, np.int64)
    assert PatchExtractor(other).patches([])[0].shape == (0, 3 * 2 * 16 * 16)


def test_patches_of_many_screens_are_the_image_processors(encoder):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 224, 224, 3), dtype=np.uint8)
    expected, _ = encoder._pixels.patches([Picture.fromarray(one) for one in pixels])
    np.testing.assert_array_equal(QuestionCollator(encoder, 224).patches(pixels).numpy(), expected)


def test_packed_questions_are_computed_as_if_alone(encoder, model):
    pixels = np.random.default_rng(0).integers(0, 255, (2, 224, 224, 3), dtype=np.uint8)
    texts = [[("Click the red tile.", ANSWER), ("What is at 52 31?", "red tile")], [("Describe the screen.", "empty")]]
    asked = [[SceneQuestion("", *pair) for pair in pairs] for pairs in texts]
    packed = QuestionCollator(encoder, 224).pack(pixels, asked)
    with torch.no_grad():
        logits = model(**packed.inputs).logits
    for row, questions in enumerate(asked):
        for number, (instruction, response) in enumerate((q.instruction, q.response) for q in questions):
            out = io.BytesIO()
            Picture.fromarray(pixels[row]).save(out, format="PNG")
            context = build_context(instruction, [], out.getvalue(), PolicySettings())
            answer = encoder.encode_text(response)
            with torch.no_grad():
                alone = model(**collate_sequences([encoder.encode(context).extended(answer)], "right")).logits[0]
            mine = packed.question[row] == number
            assert torch.allclose(logits[row][mine], alone[-int(mine.sum()) :], atol=1e-4)
            labels = packed.labels[row][mine]
            assert labels[labels != IGNORED].tolist() == answer


def test_a_checkpoint_is_loaded_as_it_was_saved(folder, model, encoder):
    loaded, again = load_model(folder), Encoder.from_folder(folder)
    for (name, one), (other_name, two) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert name == other_name
        assert torch.equal(one, two)
    context = (Message("user", (Image(png(300, 200)), "Go.")),)
    assert np.array_equal(again.encode(context).input_ids, encoder.encode(context).input_ids)
    assert np.array_equal(again.encode(context).pixel_values, encoder.encode(context).pixel_values)


def test_bfloat16_on_disk_is_float32_in_memory(model, encoder, tmp_path):
    folder = save_checkpoint(model, encoder, tmp_path / "half", dtype=torch.bfloat16)
    assert {p.dtype for p in load_model(folder).parameters()} == {torch.float32}
    numbers = sum(p.numel() for p in model.parameters())
    assert 2 * numbers < (folder / "model.safetensors").stat().st_size < 2.1 * numbers


def test_saving_again_replaces_and_leaves_nothing_else(model, encoder, folder):
    before = checkpoint_digest(folder)
    with torch.no_grad():
        other = make_tiny_model(1)
    save_checkpoint(other, encoder, folder)
    assert checkpoint_digest(folder) != before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_the_same_seed_gives_the_same_weights(model):
    again = make_tiny_model(0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert 2e6 < sum(p.numel() for p in model.parameters()) < 8e6  # 16 MB in bfloat16


def test_a_model_folder_is_needed(folder, tmp_path):
    with pytest.raises(ModelError, match="no such model folder"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ModelError, match=r"not a model folder.*config\.json"):
        load_model(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(ModelError, match="is cut off") as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    weights.unlink()
    with pytest.raises(ModelError, match="no safetensors"):
        load_model(folder)
    with pytest.raises(ModelError, match="no safetensors"):
        checkpoint_digest(folder)


def test_a_tokeniser_is_needed(folder, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "tokenizer.json").unlink()
    for opening in (load_model, Encoder.from_folder):
        with pytest.raises(ModelError, match=r"no tokenizer\.json"):
            opening(bare)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="tokeniser cannot be loaded"):
        Encoder.from_folder(folder)
