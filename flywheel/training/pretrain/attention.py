"""Attention as pretraining on a CPU wants it: quicker than the library's there, and open to losses on where it looks.

On two cores with bfloat16 instructions a masked attention by two matrix products around a softmax is half again as
quick as by the library's fused kernel, whose gradient is slow for heads this narrow; and the screens of a batch are
attended to at once rather than one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface, PreTrainedModel

from flywheel.training.pretrain.patches import quick_patches

NAME = "pretraining"


@dataclass
class CapturedQK:
    """What one layer's attention was given. query, key: [batch, heads, length, width], with their rotary positions."""

    query: torch.Tensor
    key: torch.Tensor
    scaling: float


@dataclass
class Captured:
    """layers: those of the language model that are listened to. found: what they attended by."""

    layers: tuple[int, ...]
    screens: int
    found: dict[int, CapturedQK] = field(default_factory=dict)


_captured: Captured | None = None


@contextmanager
def capture_attention(layers: tuple[int, ...], screens: int) -> Iterator[dict[int, CapturedQK]]:
    """For one forward pass over `screens` screens of one size: keeps what the language model's `layers` attend by.

    One pass at a time in a process.
    """
    global _captured
    _captured = Captured(layers, screens)
    try:
        yield _captured.found
    finally:
        _captured = None


def install(model: PreTrainedModel) -> None:
    """Make a Qwen3-VL attend in this way; it must then be called inside `capture_attention`."""
    model.set_attn_implementation(NAME)
    quick_patches(model)


def screen_lengths(patches: int) -> torch.Tensor:
    """The `cu_seqlens` that hand all screens' patches to `_attend` at once, which parts them."""
    return torch.tensor([0, patches], dtype=torch.int32)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """[batch, heads, length, width] each -> [batch, length, heads, width]. attention_mask: bool, or none."""
    assert _captured is not None
    if not hasattr(module, "layer_idx"):  # the vision tower: all screens in one row
        query, key, value = (_parted(part, _captured.screens) for part in (query, key, value))
    elif module.layer_idx in _captured.layers:
        _captured.found[module.layer_idx] = CapturedQK(query, key, scaling)
    scores = torch.matmul(query * scaling, key.transpose(-1, -2)).float()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -1e9)
    mixed = torch.matmul(scores.softmax(-1).to(value.dtype), value).transpose(1, 2)
    return (mixed if hasattr(module, "layer_idx") else mixed.flatten(0, 1)[None]).contiguous(), None


def _parted(rows: torch.Tensor, screens: int) -> torch.Tensor:
    """[1, heads, screens x patches, width] -> [screens, heads, patches, width]."""
    return rows[0].unflatten(1, (screens, -1)).transpose(0, 1)


AttentionInterface.register(NAME, _attend)
