"""Random checkpoints of the Qwen-VL family, laid out as the hub has them, for tests: as small as they go.

The tokeniser has Qwen's form: byte-level BPE, text normalised, single digits, the control tokens after the merges,
fewer tokens than the model has embeddings.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_vl import Qwen2VLConfig
from transformers.models.qwen3_vl import Qwen3VLConfig

ARCHITECTURES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
MERGED, ROWS = 700, 800  # entries of the BPE; embeddings of the model, more than the tokeniser uses
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ID = {token: MERGED + number for number, token in enumerate(SPECIAL)}
CORPUS = (
    "Thought: I click the red tile.\nAction: click(start_box='(12,345)')",
    "Open the settings and type 'milk'.",
    "You are a helpful assistant.",
    "system\nuser\nassistant\n",
    "scroll(direction='down') hotkey(key='ctrl c')",
)

# Qwen2-VL's, in its own order of cases: a system message is put first where there is none.
CHAT_TEMPLATE = """{% set image_count = namespace(value=0) %}{% for message in messages %}\
{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}\
{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}\
{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}\
<|vision_start|><|image_pad|><|vision_end|>\
{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator([*CORPUS, *(f"{a} {b}" for a in CORPUS for b in CORPUS)] * 3, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    # A small corpus runs out of pairs to merge: the rest are entries that no text spells.
    vocabulary = trained["vocab"] | {f"\u0120\u0120{number}": number for number in range(len(trained["vocab"]), MERGED)}
    tokenizer.model = models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in trained["merges"]])
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == list(ID.values())
    return tokenizer


def config(architecture: str, *, tied: bool = True) -> dict:
    """config.json as the hub has it: Qwen2-VL's and Qwen2.5-VL's text settings stand at the top, Qwen3-VL's below."""
    tokens = {
        "image_token_id": ID["<|image_pad|>"],
        "video_token_id": ID["<|video_pad|>"],
        "vision_start_token_id": ID["<|vision_start|>"],
        "vision_end_token_id": ID["<|vision_end|>"],
    }
    text = {
        "vocab_size": ROWS,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "bos_token_id": ID["<|endoftext|>"],
        "eos_token_id": ID["<|im_end|>"],
        "initializer_range": 0.2,
    }
    shared = {"spatial_merge_size": 2, "temporal_patch_size": 2, "depth": 2, "num_heads": 4, "initializer_range": 0.2}
    if architecture == "qwen3_vl":
        rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        vision = shared | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "patch_size": 16,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        }
        text |= {"head_dim": 16, "rope_parameters": rope, "tie_word_embeddings": tied, "model_type": "qwen3_vl_text"}
        made = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied, **tokens)
        return made.to_dict() | {"architectures": ["Qwen3VLForConditionalGeneration"]}
    scaling = {"type": "mrope", "mrope_section": [2, 3, 3]}
    if architecture == "qwen2_vl":
        vision = shared | {"embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2, "patch_size": 14, "in_chans": 3}
        name = "Qwen2VLForConditionalGeneration"
    else:
        vision = shared | {
            "hidden_size": 64,
            "intermediate_size": 96,
            "out_hidden_size": 64,
            "patch_size": 14,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
            "in_chans": 3,
        }
        name = "Qwen2_5_VLForConditionalGeneration"
    flat = text | tokens | {"rope_theta": 1e6, "rope_scaling": scaling, "tie_word_embeddings": tied}
    return flat | {"model_type": architecture, "architectures": [name], "vision_config": vision, "dtype": "bfloat16"}


def make(
    folder: Path,
    architecture: str,
    *,
    seed: int = 0,
    tied: bool = True,
    shard: str = "5GB",
    dtype: torch.dtype = torch.float32,
    template: str = "tokenizer_config.json",
    sizes: str = "old",
) -> Path:
    """A checkpoint. shard: largest file ("100KB" cuts it). template: the file that holds the chat template.

    sizes: of preprocessor_config.json: old (min_pixels, max_pixels), new (size with its two edges), both (as 2025's
    library wrote it), or named (size with the old names).
    """
    folder.mkdir(parents=True)
    raw = config(architecture, tied=tied)
    kinds = {"qwen2_vl": Qwen2VLConfig, "qwen2_5_vl": Qwen2_5_VLConfig, "qwen3_vl": Qwen3VLConfig}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(kinds[architecture].from_dict(dict(raw)))
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    (folder / "config.json").write_text(json.dumps(raw, indent=2))

    _tokenizer().save(str(folder / "tokenizer.json"))
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(merges["vocab"]))
    pairs = (" ".join(pair) if isinstance(pair, list) else pair for pair in merges["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    added = {
        str(ID[token]): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL
    }
    settings = {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": list(SPECIAL[1:]),
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    if template == "tokenizer_config.json":
        settings["chat_template"] = CHAT_TEMPLATE
    elif template == "chat_template.json":
        (folder / template).write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    elif template == "chat_template.jinja":
        (folder / template).write_text(CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    patch = 16 if architecture == "qwen3_vl" else 14
    low, high = 4 * (2 * patch) ** 2, 24 * (2 * patch) ** 2
    area = {
        "old": {"min_pixels": low, "max_pixels": high},
        "new": {"size": {"shortest_edge": low, "longest_edge": high}},
        "both": {"min_pixels": low, "max_pixels": high, "size": {"min_pixels": low, "max_pixels": high}},
        "named": {"size": {"min_pixels": low, "max_pixels": high}},
    }[sizes]
    mean, deviation = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    (folder / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "patch_size": patch,
                "temporal_patch_size": 2,
                "merge_size": 2,
                "image_mean": mean,
                "image_std": deviation,
                "image_processor_type": "Qwen2VLImageProcessor",
                "processor_class": "Qwen2VLProcessor",
                **area,
            }
        )
    )
    return folder
