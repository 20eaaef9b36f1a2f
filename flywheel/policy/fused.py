"""The kernels that a GPU has beside those of a CPU: which are taken, by device and type, for answering and training.

The flash kernels take half precision alone, and no mask but the causal one. So masks are left out where causality says
it all (`policy.cache`), and the windows of a vision tower, a call each in the library, go through one kernel together.
On a CPU nothing of this is taken: its passes stay as they are, bit for bit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

# The library hands a tower's windows over together where the name of its attention has the word "flash".
TOWER = "flywheel_flash_tower"


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def takes_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's flash kernels run there."""
    return on_gpu(device) and dtype in (torch.bfloat16, torch.float16)


def take_tensor_cores(device: torch.device) -> None:
    """From here on this process multiplies float32 matrices on a GPU by its tensor cores: TF32, whose factors have 10
    bits and whose sums have 23. Training is three times as fast, and log-probabilities move by a seventeenth of what
    bfloat16 moves them (docs/scaling.md). NVIDIA_TF32_OVERRIDE=0 forbids it."""
    if on_gpu(device):
        torch.backends.cuda.matmul.allow_tf32 = True  # torch fails where a library asks for it the new way as well


def fuse_tower(model: PreTrainedModel) -> None:
    """Make a model of the Qwen-VL family attend in the windows of its screens by `attend_in_windows`."""
    model.set_attn_implementation({"vision_config": TOWER})


def attend_in_windows(
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
    """[1, heads, patches, width] each -> [1, patches, heads, width]. cu_seq_lens_q: int32 [windows + 1], where each
    window begins, and the end; max_length_q: patches of the longest."""
    if takes_flash(query.device, query.dtype):
        ends, longest = cu_seq_lens_q.to(torch.int32), int(max_length_q)
        rows = (part.squeeze(0).transpose(0, 1).contiguous() for part in (query, key, value))  # [patches, heads, width]
        return varlen_attn(*rows, ends, ends, longest, longest, scale=scaling).unsqueeze(0), None
    return windows_by_length(query, key, value, cu_seq_lens_q.tolist(), scaling), None


def windows_by_length(query: Tensor, key: Tensor, value: Tensor, ends: list[int], scaling: float) -> Tensor:
    """The same for any type: windows of one length are a batch, and there are four lengths at most a screen (inner,
    last column, last row, corner)."""
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


AttentionInterface.register(TOWER, attend_in_windows)
