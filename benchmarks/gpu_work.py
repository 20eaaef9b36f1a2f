"""What a pass over a Qwen2.5-VL costs at the least: floating-point operations and bytes of memory, by its shape.

A multiplication and an addition are two operations. Counted are matrix products and attention; of bytes the language
model's weights, once a pass, the keys and values that are read, and in training gradients and optimiser. So the shares
of a machine's limits (MFU, MBU) are lower bounds of how busy it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForImageTextToText, PreTrainedConfig

from flywheel.training.modeling.policy_forward import PackedBatch

HALF, SINGLE = 2, 4  # bytes of a number
TRAINED = 4 * SINGLE  # bytes of a trained parameter: itself, its gradient, AdamW's two means
SHARDED = 6 * SINGLE  # under ZeRO: its own copy of the weights, and a buffer of gradients, beside them


@dataclass(frozen=True)
class Work:
    """flops: floating-point operations. bytes: read from and written to memory."""

    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True)
class Parameters:
    """How many numbers: of the vision tower, of one layer of the language model, of all else (embeddings, head)."""

    tower: int
    layer: int
    rest: int

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Parameters:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        tower, layer, whole = (
            sum(parameter.numel() for parameter in part.parameters())
            for part in (model.base_model.visual, model.base_model.language_model.layers[0], model)
        )
        return cls(tower, layer, whole - tower - layer * config.text_config.num_hidden_layers)


def layer_products(config: PreTrainedConfig) -> int:
    """Numbers of the matrices that one layer multiplies a token by."""
    text = config.text_config
    size, kept = text.hidden_size, text.hidden_size // text.num_attention_heads * text.num_key_value_heads
    return 2 * size * size + 2 * size * kept + 3 * size * text.intermediate_size


def read_weights(config: PreTrainedConfig) -> int:
    """Numbers of the language model that every pass reads: all but the table of embeddings."""
    text = config.text_config
    return text.num_hidden_layers * layer_products(config) + text.hidden_size * text.vocab_size


def language(config: PreTrainedConfig, tokens: int, pairs: int, predicted: int) -> float:
    """Operations of the language model. pairs: of a token and one that it sees, itself included. predicted: tokens
    whose successor's logits are computed."""
    text = config.text_config
    products = 2 * text.num_hidden_layers * layer_products(config) * tokens
    attention = 4 * text.num_hidden_layers * text.hidden_size * pairs
    return products + attention + 2 * text.hidden_size * text.vocab_size * predicted


def causal_pairs(lengths: Iterable[int]) -> int:
    return sum(length * (length + 1) // 2 for length in lengths)


def tower(config: PreTrainedConfig, rows: int, columns: int) -> float:
    """Operations of the vision tower on a screen of rows x columns patches."""
    vision, patches = config.vision_config, rows * columns
    size, whole = vision.hidden_size, len(vision.fullatt_block_indexes)
    side = vision.window_size // vision.patch_size
    seen = whole * patches**2 + (vision.depth - whole) * _squares(rows, side) * _squares(columns, side)
    layer = 4 * size * size + 3 * size * vision.intermediate_size
    embed = vision.in_channels * vision.patch_size**2 * size  # a still picture's frames are one
    merged = size * vision.spatial_merge_size**2
    merge = (merged * merged + merged * vision.out_hidden_size) / vision.spatial_merge_size**2
    return 2 * patches * (embed + vision.depth * layer + merge) + 4 * size * seen


def _squares(length: int, side: int) -> int:
    """Of a length cut into pieces of `side` and a rest, the sum of the pieces' squares."""
    return length // side * side**2 + (length % side) ** 2


def prefill(config: PreTrainedConfig, lengths: Sequence[int], grids: Sequence[tuple[int, int]], passes: int) -> Work:
    """Prompts of these lengths, screens of (rows, columns) patches, in half precision; each gets its first token."""
    operations = language(config, sum(lengths), causal_pairs(lengths), len(lengths))
    operations += sum(tower(config, rows, columns) for rows, columns in grids)
    return Work(operations, passes * HALF * read_weights(config))


def decode(config: PreTrainedConfig, lengths: Sequence[int]) -> Work:
    """A token for each row, in half precision. lengths: of what each sees, the token itself included."""
    text = config.text_config
    kept = text.hidden_size // text.num_attention_heads * text.num_key_value_heads
    held = 2 * text.num_hidden_layers * kept * sum(lengths)
    operations = language(config, len(lengths), sum(lengths), len(lengths))
    return Work(operations, HALF * (read_weights(config) + held))


def packs(
    config: PreTrainedConfig, parts: Sequence[PackedBatch], backward: bool, freeze_vision: bool, adapter: bool = False
) -> float:
    """Operations of passes over packs, as they are computed: what is shared once, and in the last layer what predicts
    alone. A gradient costs twice its pass, with a frozen base under an `adapter` once; what checkpointing computes
    again, and the adapter's own small products, are not counted."""
    text, total, passes = config.text_config, 0.0, 1 if not backward else 2 if adapter else 3
    for part in parts:
        pairs, last = (sum(int(group.mask.sum()) for group in plan.groups) for plan in (part.plan, part.last))
        seen = sum(tower(config, *screen.grid[1:]) for screen in part.screens)
        predicted = len(part.targets)
        spared = 6 * text.hidden_size * text.intermediate_size * (part.tokens - predicted)
        spared += 4 * text.hidden_size * (pairs - last)
        total += passes * (language(config, part.tokens, pairs, predicted) - spared)
        total += (1 if freeze_vision or not backward else 3) * seen
    return total


def step_bytes(trained: int, frozen: int, passes: int) -> float:
    """A gradient step in single precision: each pass reads the weights forwards and backwards and writes gradients;
    then AdamW reads weight, gradient and two means, and writes all but the gradient."""
    return SINGLE * (passes * (3 * trained + frozen) + 7 * trained)


def adapter_bytes(frozen: int, passes: int) -> float:
    """A gradient step of an adapter: each pass reads the base, in half precision, twice forwards and once backwards."""
    return HALF * passes * 3 * frozen


def layers_that_fit(
    config: PreTrainedConfig, memory: float, tokens: int, patches: int, *, freeze_vision: bool, each: int = TRAINED
) -> int:
    """Layers of the language model that can be trained in `memory` bytes, one at least: an estimate, a tenth to spare.

    tokens, patches: of the largest pass, whose values are kept for the gradient, about ten of a layer's width and four
    of its inner one for each. each: bytes of a trained parameter.
    """

    def kept(part: PreTrainedConfig) -> int:
        return SINGLE * (10 * part.hidden_size + 4 * part.intermediate_size)

    found = Parameters.of(config)
    vision = SINGLE * found.tower
    if not freeze_vision:
        vision = each * found.tower + kept(config.vision_config) * config.vision_config.depth * patches
    room = 0.9 * memory - vision - each * found.rest
    layer = each * found.layer + kept(config.text_config) * tokens
    return max(1, min(config.text_config.num_hidden_layers, int(room // layer)))
