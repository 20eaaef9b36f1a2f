"""Choose attention kernels and precision on a GPU, tell small models, and release a GPU's unused memory."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

_SMALL = 100_000_000  # parameters below which a pass over a few rows gains nothing from a second core
_MOST = 8  # parts that a batch is split into: a prefix that several samples share is computed once for each part


def is_small_model(model: nn.Module) -> bool:
    """Tell whether `model` is so small that a forward pass over a few rows gains nothing from a second core.

    Small: fewer than 100 million parameters.
    """
    return sum(weight.numel() for weight in model.parameters()) < _SMALL


def count_parallel_passes(model: nn.Module) -> int:
    """Return how many parts of a batch are best computed in parallel, on one core each.

    That is the number of the calling thread's torch threads, 8 at most; 1 where `model` is on a GPU, or large (100
    million parameters or more).
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    return min(torch.get_num_threads(), _MOST) if on_cpu and is_small_model(model) else 1


def release_gpu_memory() -> None:
    """Release the GPU memory that torch has cached in this process and does not use."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# On a GPU the flash kernels take half precision only, and no mask other than the causal one. So masks are left out
# where the causal one is enough (`policy/inference/cache.py`), and all windows of a vision tower go through one kernel
# call, where the library makes one call per window. A CPU uses none of this, and its results stay equal bit for bit.

# The library passes all windows of a tower in one call if the name of the attention function contains "flash".
WINDOW_ATTENTION = "flywheel_flash_tower"


def is_cuda(device: torch.device) -> bool:
    """Tell whether `device` is an NVIDIA GPU."""
    return device.type == "cuda"


def supports_flash_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether torch's flash attention kernels run on `device` in `dtype`: on a GPU, in bfloat16 or float16."""
    return is_cuda(device) and dtype in (torch.bfloat16, torch.float16)


def enable_tf32(device: torch.device) -> None:
    """Let this process multiply float32 matrices in TF32 from here on, if `device` is a GPU.

    TF32 has factors with 10 bits of mantissa, sums with 23. Training is three times as fast, and log-probabilities
    change by an eighteenth of what bfloat16 changes them (docs/measurements/scaling.md). NVIDIA_TF32_OVERRIDE=0 in the
    environment forbids TF32.
    """
    if is_cuda(device):
        torch.backends.cuda.matmul.allow_tf32 = True  # torch raises where a library sets the newer fp32_precision too


def install_window_attention(model: PreTrainedModel) -> None:
    """Let the vision tower of a Qwen-VL `model` compute all its windows in one call, by `window_attention`.

    The model is changed in place.
    """
    model.set_attn_implementation({"vision_config": WINDOW_ATTENTION})


def window_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention within windows; the library calls it as an attention function.

    query, key, value: [1, heads, patches, width] each. cu_seq_lens_q: int32 [windows + 1], the first patch of each
    window, then the number of patches. max_length_q: patches of the longest window. scaling: factor of the scores.
    Returns [1, patches, heads, width], and None for the attention weights.
    """
    if supports_flash_attention(query.device, query.dtype):
        ends, longest = cu_seq_lens_q.to(torch.int32), int(max_length_q)
        rows = (part.squeeze(0).transpose(0, 1).contiguous() for part in (query, key, value))  # [patches, heads, width]
        return varlen_attn(*rows, ends, ends, longest, longest, scale=scaling).unsqueeze(0), None
    return window_attention_by_length(query, key, value, cu_seq_lens_q.tolist(), scaling), None


def window_attention_by_length(query: Tensor, key: Tensor, value: Tensor, ends: list[int], scaling: float) -> Tensor:
    """Compute attention within windows in any dtype and on any device, with windows of equal length as one batch.

    query, key, value: [1, heads, patches, width] each. ends: the first patch of each window, then the number of
    patches. scaling: factor of the scores. Returns [1, patches, heads, width].
    """
    starts: dict[int, list[int]] = {}
    for start, stop in pairwise(ends):
        if stop > start:
            starts.setdefault(stop - start, []).append(start)
    mixed = torch.empty_like(query[0].transpose(0, 1))  # [patches, heads, width]
    for length, firsts in starts.items():
        places = torch.tensor(firsts, device=query.device)[:, None] + torch.arange(length, device=query.device)
        rows = (part[0][:, places].transpose(0, 1) for part in (query, key, value))  # [windows, heads, length, width]
        done = scaled_dot_product_attention(*rows, scale=scaling)
        mixed = mixed.index_copy(0, places.flatten(), done.transpose(1, 2).flatten(0, 1))
    return mixed[None]


AttentionInterface.register(WINDOW_ATTENTION, window_attention)
