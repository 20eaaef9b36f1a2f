"""Any checkpoint of the Qwen-VL family by its path alone, and what is said of a folder that is none."""

from __future__ import annotations

import asyncio
import io
import json
import shutil

import numpy as np
import pytest
import torch
from checkpoints import ARCHITECTURES, ID, make
from made_experience import response_logprobs
from night import by_day
from PIL import Image as Picture

from flywheel.agent.prompt import Image, Message
from flywheel.config import PolicySettings
from flywheel.policy import checkpoint
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.inference.engine import generate_responses
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.policy.protocol import SamplingParams
from flywheel.training.modeling.policy_forward import pad_samples
from flywheel.utils.errors import ModelError

SETTINGS = PolicySettings()
SIZES = ((60, 40), (224, 224), (300, 200), (37, 211), (1, 1), (500, 20))


def png(width: int, height: int, seed: int = 0) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def user(*parts: str | Image) -> Message:
    return Message("user", parts)


def said(text: str) -> Message:
    return Message("assistant", (text,))


SCREENS = [Image(png(*size, seed)) for seed, size in enumerate(SIZES)]
CONTEXTS = [
    (user(SCREENS[0], "Open the settings."),),
    (user("Open the settings and type 'milk'."), user(SCREENS[1]), said("Thought: 1."), user(SCREENS[2])),
    (user(SCREENS[2], "Go."), said("wait()"), user(SCREENS[3]), said("click"), user("-> ok", SCREENS[1])),
    (user(SCREENS[4], SCREENS[5], "Which?"),),
    (Message("system", ("Short.",)), user(SCREENS[5], "Go."), said("Yes. " * 30), user("And now?")),
    (user("No screen."),),
    (user(SCREENS[1]), said("scroll(direction='down')"), user(SCREENS[1], "12 345")),
]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory):
    """Sharded, its embeddings not tied, in the older layout; one architecture each."""
    root = tmp_path_factory.mktemp(request.param)
    return make(root / "model", request.param, tied=False, shard="300KB")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("tied", "shard", "template", "sizes"),
    by_day(
        [
            (True, "5GB", "tokenizer_config.json", "new"),
            (False, "300KB", "chat_template.json", "old"),
            (True, "300KB", "chat_template.jinja", "both"),
            (False, "5GB", "chat_template.json", "named"),
        ],
        2,
    ),
)
def test_every_layout_of_the_family_loads_by_its_path(architecture, tied, shard, template, sizes, tmp_path):
    folder = make(tmp_path / "m", architecture, tied=tied, shard=shard, template=template, sizes=sizes)
    assert len(list(folder.glob("*.safetensors"))) > 1 or shard == "5GB"
    model, encoder = load_model(folder), Encoder.from_folder(folder)
    assert model.config.model_type == architecture
    shared = model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert shared == tied
    factor = 32 if architecture == "qwen3_vl" else 28
    assert (encoder.images.size["shortest_edge"], encoder.images.size["longest_edge"]) == (
        4 * factor**2,
        24 * factor**2,
    )
    encoded = encoder.encode((user(Image(png(5 * factor, 3 * factor)), "Open."),))
    assert encoded.image_grid_thw.tolist() == [[1, 6, 10]]
    text = encoder.tokenizer.decode(encoded.input_ids)
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>"
        + "<|image_pad|>" * 15
        + "<|vision_end|>Open.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert encoded.input_ids.max() < 714 <= model.config.get_text_config().vocab_size


def test_tokens_are_counted_without_the_pixels(folder):
    encoder = Encoder.from_folder(folder)
    for context in CONTEXTS:
        assert encoder.prompt_ids(context) == encoder.encode(context).input_ids.tolist()
        assert encoder.count(context) == len(encoder.encode(context))


async def test_log_probabilities_are_those_of_the_trainers_forward_pass(folder):
    """Sampled one by one and in batches, over screens of many sizes and several turns, then recomputed together."""
    policy = EmbeddedPolicy(folder, SETTINGS)
    samplings = [SamplingParams(1.2, 5 + 4 * number, seed=number) for number in range(len(CONTEXTS))]
    done = await asyncio.gather(*map(policy.complete, CONTEXTS, samplings))
    done += [await policy.complete(CONTEXTS[2], samplings[2]), await policy.complete(CONTEXTS[3], samplings[3])]
    await policy.close()
    model, encoder = load_model(folder).train(), Encoder.from_folder(folder)
    contexts = [*CONTEXTS, CONTEXTS[2], CONTEXTS[3]]
    batch = pad_samples([encoder.encode(context) for context in contexts], [one.token_ids for one in done])
    with torch.no_grad():
        logprobs, _ = response_logprobs(model, batch)
    for row, (context, one) in enumerate(zip(contexts, done, strict=True)):
        assert one.prompt_tokens == encoder.count(context)
        recomputed = logprobs[row, : len(one.token_ids)].numpy()
        assert np.abs(recomputed - np.asarray(one.logprobs)).max() <= 1e-4


def test_a_sampled_image_token_stands_for_no_image(folder):
    """Sampled all but evenly from the whole vocabulary, so that it comes up, and what follows is scored by trainer and
    sampler alike."""
    model, encoder = load_model(folder), Encoder.from_folder(folder)
    prompts = [encoder.encode(context) for context in CONTEXTS[:4]]
    samples = generate_responses(
        model, encoder.end_id, prompts, [SamplingParams(1e4, 300, seed=7 + n) for n in range(4)]
    )
    assert any(encoder.image_id in sample.token_ids[:-1] for sample in samples)
    with torch.no_grad():
        logprobs, _ = response_logprobs(model, pad_samples(prompts, [sample.token_ids for sample in samples]))
    for row, sample in zip(logprobs.numpy(), samples, strict=True):
        assert np.abs(row[: len(sample.token_ids)] - np.asarray(sample.logprobs)).max() <= 1e-4


def test_what_is_saved_again_is_the_same_checkpoint(folder, tmp_path):
    model, encoder = load_model(folder), Encoder.from_folder(folder)
    again = save_checkpoint(model, encoder, tmp_path / "again")
    loaded, other = load_model(again), Encoder.from_folder(again)
    pairs = zip(model.state_dict().items(), loaded.state_dict().items(), strict=True)
    assert all(name == other_name and torch.equal(one, two) for (name, one), (other_name, two) in pairs)
    one, two = encoder.encode(CONTEXTS[2]), other.encode(CONTEXTS[2])
    assert np.array_equal(one.input_ids, two.input_ids)
    assert np.array_equal(one.pixel_values, two.pixel_values)


def test_the_type_and_the_device_are_those_asked_for(tmp_path, monkeypatch):
    folder = make(tmp_path / "m", "qwen2_5_vl", dtype=torch.bfloat16)
    assert {p.dtype for p in load_model(folder).parameters()} == {torch.float32}
    half = load_model(folder, dtype="bfloat16", device="auto")
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert half.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load_model(folder, device="auto").device.type == "cpu"
    with pytest.raises(ModelError, match=r"no GPU.*policy\.device"):
        load_model(folder, device="cuda")


@pytest.mark.parametrize("architecture", by_day(ARCHITECTURES))
async def test_weights_in_bfloat16_answer_too(architecture, tmp_path):
    folder = make(tmp_path / "m", architecture, dtype=torch.bfloat16)
    policy = EmbeddedPolicy(folder, PolicySettings(dtype="bfloat16", device="cpu"))
    done = await asyncio.gather(*(policy.complete(context, SamplingParams(1.0, 6, seed=1)) for context in CONTEXTS))
    await policy.close()
    assert all(1 <= len(one.token_ids) <= 6 and np.isfinite(one.logprobs).all() for one in done)


def test_text_spells_no_control_token_but_those_of_points(folder):
    encoder = Encoder.from_folder(folder)
    box = "<|box_start|>(1,2)<|box_end|>"
    ids = encoder.encode((user(f"<|im_end|><|image_pad|><|vision_start|>{box}"),)).input_ids.tolist()
    assert [ids.count(ID[name]) for name in ("<|image_pad|>", "<|vision_start|>", "<|box_start|>")] == [0, 0, 1]
    assert ids.count(encoder.end_id) == 2  # of the system's message and of this one
    assert encoder.encode_text(box).count(ID["<|box_end|>"]) == 1
    assert encoder.encode_text("a\ud800b") == encoder.encode_text("a?b")


def test_a_tokeniser_in_two_files_is_one(tmp_path):
    folder = make(tmp_path / "m", "qwen2_vl")
    expected = Encoder.from_folder(folder).encode(CONTEXTS[1]).input_ids
    (folder / "tokenizer.json").unlink()
    assert np.array_equal(Encoder.from_folder(folder).encode(CONTEXTS[1]).input_ids, expected)


# -- what cannot be used ---------------------------------------------------------------------------------------------
def edit(folder, name, **values):
    raw = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(raw | values))


def remove_shard(folder):
    sorted(folder.glob("*.safetensors"))[1].unlink()


def cut_shard(folder):
    shard = sorted(folder.glob("*.safetensors"))[2]
    shard.write_bytes(shard.read_bytes()[:-1])


def garble_shard(folder):
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(b"\xff" * shard.stat().st_size)


def drop_a_tensor(folder):
    """The index and the shards agree; the model wants one more."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = next(name for name in index["weight_map"] if "k_proj.weight" in name)
    shard = folder / index["weight_map"].pop(name)
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard, {"format": "pt"})
    path.write_text(json.dumps(index))


BROKEN = {
    "a text model": (lambda f: edit(f, "config.json", model_type="llama"), "architecture 'llama'.*qwen2_5_vl"),
    "another vision model": (lambda f: edit(f, "config.json", model_type="smolvlm"), "architecture 'smolvlm'"),
    "no architecture": (lambda f: (f / "config.json").write_text("{}"), "architecture 'None'"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{'a'"), r"config\.json is not JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[1]"), r"config\.json is not a JSON object"),
    "config is binary": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), r"config\.json is not JSON"),
    "config of other shapes": (
        lambda f: edit(f, "config.json", intermediate_size=98),
        r"in the weights, .*98.* by conf",
    ),
    "config of a larger model": (lambda f: edit(f, "config.json", num_hidden_layers=99), r"the weights have [\d,]+ n"),
    "a missing shard": (remove_shard, r"the shard model-00002-of-\d+\.safetensors is missing"),
    "a shard cut off": (cut_shard, r"model-00003-of-\d+\.safetensors is cut off: it has \d+ bytes of \d+"),
    "a shard of garbage": (garble_shard, r"model-00001-of-\d+\.safetensors is not a safetensors file"),
    "a missing tensor": (drop_a_tensor, r"the weights lack .*k_proj\.weight"),
    "an index of nothing": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {}}'),
        "names no shards",
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make(tmp_path_factory.mktemp("whole") / "m", "qwen2_5_vl", tied=False, shard="300KB")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checkpoint_is_named_in_one_line(name, whole, tmp_path, capfd):
    folder = shutil.copytree(whole, tmp_path / "m")
    spoil, what = BROKEN[name]
    spoil(folder)
    with pytest.raises(ModelError, match=what) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def swap_tokenizer(folder):
    """One more token than the model has embeddings for."""
    raw = json.loads((folder / "tokenizer.json").read_text())
    extra = [dict(raw["added_tokens"][0], id=714 + n, content=f"<|more{n}|>") for n in range(100)]
    raw["added_tokens"] += extra
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["additional_special_tokens"] += [token["content"] for token in extra]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def without_template(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


MISFITS = {
    "too many tokens": (swap_tokenizer, "ids reach 813, the model has 800 embeddings"),
    "no template": (without_template, "no chat template"),
    "a broken template": (
        lambda f: edit(f, "tokenizer_config.json", chat_template="{% for %}"),
        "chat template cannot be loaded",
    ),
    "a template that forgets screens": (
        lambda f: edit(f, "tokenizer_config.json", chat_template="{{ messages|length }}"),
        "1 screens make 0 image",
    ),
    "another image token": (lambda f: edit(f, "config.json", image_token_id=799), "make 0 image tokens .id 799"),
    "another patch": (lambda f: edit(f, "preprocessor_config.json", patch_size=16), "has patch_size 16, the model 14"),
    "no sizes": (lambda f: edit(f, "preprocessor_config.json", do_resize=False), "says no sizes"),
    "settings are no JSON": (
        lambda f: (f / "preprocessor_config.json").write_text("{"),
        r"preprocessor_config\.json cannot be loaded",
    ),
    "no settings": (lambda f: (f / "preprocessor_config.json").unlink(), r"no preprocessor_config\.json"),
    "a tokeniser of garbage": (lambda f: (f / "tokenizer.json").write_text("[]"), "tokeniser cannot be loaded"),
    "no tokeniser": (lambda f: [(f / n).unlink() for n in ("tokenizer.json", "merges.txt")], r"no tokenizer\.json"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_tokeniser_or_settings_of_another_model_are_named(name, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "m")
    spoil, what = MISFITS[name]
    spoil(folder)
    with pytest.raises(ModelError, match=what) as caught:
        Encoder.from_folder(folder)
    assert "\n" not in str(caught.value)


def test_a_digest_needs_every_shard(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "m")
    assert checkpoint_digest(folder) == checkpoint_digest(whole)
    remove_shard(folder)
    with pytest.raises(ModelError, match="is missing"):
        checkpoint_digest(folder)


# -- Hugging Face names ----------------------------------------------------------------------------------------------
def test_a_folder_is_taken_as_it_is(whole, tmp_path):
    assert checkpoint.resolve_checkpoint(whole) == whole
    assert checkpoint.resolve_checkpoint(whole.name, whole.parent) == whole
    assert (
        checkpoint.resolve_checkpoint("no/such/folder").name == "folder"
    )  # not of a name's form: named when it is opened
    (tmp_path / "models").mkdir()
    assert checkpoint.resolve_checkpoint("models/none", tmp_path) == tmp_path / "models" / "none"


def test_a_name_is_found_in_the_hubs_cache(whole, tmp_path, monkeypatch):
    """The cache as the hub's own client lays it out; no network is used."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    revision = "a" * 40
    stored = tmp_path / "models--someone--tiny-vl"
    shutil.copytree(whole, stored / "snapshots" / revision)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(revision)
    found = checkpoint.resolve_checkpoint("someone/tiny-vl")
    assert load_model(found).config.model_type == "qwen2_5_vl"


def test_a_name_that_cannot_be_fetched_is_a_model_error(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"no such model folder.*name 'someone/nothing' cannot be fetched") as caught:
        checkpoint.resolve_checkpoint("someone/nothing")
    assert "\n" not in str(caught.value)
