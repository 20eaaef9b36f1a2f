"""Checkpoints of a large model's shape with random weights, for `benchmarks/gpu.py`: nothing is downloaded."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from flywheel.agent.prompt import Context, Image, Message
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import SPECIAL_TOKENS, save_checkpoint, train_tokenizer

_SIDES = {"shortest_edge": 56 * 56, "longest_edge": 12_845_056}  # pixels of a screen, as Qwen2.5-VL has them


@dataclass(frozen=True)
class Shape:
    """text, vision: of Qwen2.5-VL's configuration, without the text's layers. screen: (width, height) in pixels.
    batch: requests answered together. new_tokens: of an answer. samples: of a training step. matmul, copy: side of the
    matrices and bytes of the block by which the machine's limits are measured."""

    layers: int
    text: dict
    vision: dict
    screen: tuple[int, int]
    batch: int
    new_tokens: int
    samples: int
    matmul: int
    copy: int
    tied: bool = False


SHAPES = {
    "qwen2.5-vl-7b": Shape(
        28,
        {
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128_000,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        (1280, 720),
        batch=16,
        new_tokens=64,
        samples=4,
        matmul=8192,
        copy=1 << 31,
    ),
    "qwen2.5-vl-0.5b": Shape(  # the text of Qwen2.5-0.5B, and a tower to match: there is no such checkpoint
        24,
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
        },
        {
            "depth": 8,
            "hidden_size": 512,
            "intermediate_size": 1368,
            "num_heads": 8,
            "out_hidden_size": 896,
            "fullatt_block_indexes": [3, 7],
        },
        (448, 336),
        batch=4,
        new_tokens=48,
        samples=6,
        matmul=1024,
        copy=1 << 28,
        tied=True,
    ),
    "tiny": Shape(
        2,
        {
            "vocab_size": 2048,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        },
        {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 4,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        (140, 112),
        batch=3,
        new_tokens=5,
        samples=2,
        matmul=256,
        copy=1 << 20,
    ),
}


def configuration(shape: Shape, layers: int) -> Qwen2_5_VLConfig:
    """With `layers` layers of the language model; the vision tower is whole."""
    ids = {name.strip("<|>"): number for number, name in enumerate(SPECIAL_TOKENS)}
    return Qwen2_5_VLConfig(
        text_config=shape.text
        | {
            "num_hidden_layers": layers,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": shape.tied,
            "eos_token_id": ids["im_end"],
            "bos_token_id": None,
            "pad_token_id": ids["endoftext"],
        },
        vision_config=shape.vision
        | {
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "tokens_per_second": 2,
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=shape.tied,
    )


def new_encoder() -> Encoder:
    """The project's own small tokeniser, and Qwen2.5-VL's way with screens."""
    images = Qwen2VLImageProcessorPil(patch_size=14, merge_size=2, temporal_patch_size=2, size=_SIDES)
    return Encoder(train_tokenizer(["Click the button. Type the name of row 7 into the field."]), images)


def write_checkpoint(folder: Path, shape: Shape, layers: int, device: torch.device) -> Path:
    """Random weights, drawn on the device, in bfloat16."""
    torch.manual_seed(0)
    with device:
        model = AutoModelForImageTextToText.from_config(configuration(shape, layers), dtype=torch.bfloat16)
    return save_checkpoint(model, new_encoder(), folder, dtype=torch.bfloat16)


def contexts(shape: Shape, count: int) -> list[Context]:
    """A screen and a task each, no two alike."""
    rng, (width, height) = np.random.default_rng(0), shape.screen
    made = []
    for number in range(count):
        blocks = rng.integers(0, 255, (height // 28, width // 28, 3), dtype=np.uint8)
        out = io.BytesIO()
        Picture.fromarray(blocks).resize((width, height), Picture.Resampling.NEAREST).save(out, format="PNG")
        made.append((Message("user", (Image(out.getvalue()), f"Click the button of row {number}.")),))
    return made


def answers(encoder: Encoder, count: int, tokens: int) -> list[tuple[int, ...]]:
    """Token ids that no model has said: ordinary ones, drawn at random."""
    rng = np.random.default_rng(1)
    return [tuple(row) for row in rng.integers(len(SPECIAL_TOKENS), len(encoder.tokenizer), (count, tokens)).tolist()]
