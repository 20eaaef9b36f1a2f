"""Choose attention kernels on a GPU and threads on a CPU, for inference and training."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

# A pass of a small model is many small operations, which threads share badly: on two cores, passes one after the other
# on both take 1.5 times as long as two side by side on one each. It is worse beside other work, such as browsers: each
# operation waits for the last of its threads.

_START_S = 60.0
_SMALL = 100_000_000  # parameters below which a pass over a few rows gains nothing by a second core
_MOST = 8  # parts of a batch: with smaller ones, less of what its samples share is computed once


def is_small_model(model: nn.Module) -> bool:
    """Tell whether `model` is so small that a pass over a few rows gains nothing by a second core."""
    return sum(weight.numel() for weight in model.parameters()) < _SMALL


def count_parallel_passes(model: nn.Module) -> int:
    """Count how many passes over parts of a batch are best made side by side, each on one core: the calling thread's
    share of the cores, 8 at most; 1 on a GPU and for a large `model`."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    return min(torch.get_num_threads(), _MOST) if on_cpu and is_small_model(model) else 1


def use_one_core_in_thread() -> None:
    """Let the calling thread compute on one core; threads that start later have as many as before."""
    every = torch.get_num_threads()
    _use_one_core()
    other = threading.Thread(target=torch.set_num_threads, args=(every,))
    other.start()
    other.join()


def open_pass_pool(count: int) -> ThreadPoolExecutor | None:
    """Open a pool of `count` threads with one core each; None for one, since the caller's own thread will do.

    Setting the number of threads in one thread also sets it for all that begin later. So these begin at once, and the
    number is put back.
    """
    if count < 2:
        return None
    every, begun = torch.get_num_threads(), threading.Barrier(count)
    pool = ThreadPoolExecutor(count, "policy-pass", _use_one_core)
    list(pool.map(lambda _: begun.wait(_START_S), range(count)))
    torch.set_num_threads(every)
    return pool


def release_gpu_memory() -> None:
    """Give back what this process holds of a GPU's memory and does not use."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _use_one_core() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread that never called this would take the others' number when it first computes


# On a GPU the flash kernels take half precision alone, and no mask but the causal one. So masks are left out where that
# is enough (`policy/inference/cache.py`), and the windows of a vision tower, a call each in the library, go through one
# kernel together. None of this is used on a CPU, whose passes stay as they are, bit for bit.

# The library passes all windows of a tower in one call where the name of its attention contains "flash".
WINDOW_ATTENTION = "flywheel_flash_tower"


def is_cuda(device: torch.device) -> bool:
    """Tell whether `device` is an NVIDIA GPU."""
    return device.type == "cuda"


def supports_flash_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether torch's flash attention kernels run on `device` in `dtype`: on a GPU, in bfloat16 or float16."""
    return is_cuda(device) and dtype in (torch.bfloat16, torch.float16)


def enable_tf32(device: torch.device) -> None:
    """Let this process multiply float32 matrices on a GPU in TF32 (factors of 10 bits, sums of 23), from now on.

    device: for one that is no GPU nothing happens. Training is three times as fast, and log-probabilities move by an
    eighteenth of what bfloat16 moves them (docs/measurements/scaling.md). NVIDIA_TF32_OVERRIDE=0 forbids it.
    """
    if is_cuda(device):
        torch.backends.cuda.matmul.allow_tf32 = True  # torch fails where a library asks for it the new way as well


def install_window_attention(model: PreTrainedModel) -> None:
    """Replace, in place, the vision attention of a Qwen-VL `model` by one that works window by window."""
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
    """Compute attention within windows, as the library calls it: [1, heads, patches, width] each -> [1, patches, heads,
    width].

    cu_seq_lens_q: int32 [windows + 1], where each window begins, and the end. max_length_q: patches of the longest.
    """
    if supports_flash_attention(query.device, query.dtype):
        ends, longest = cu_seq_lens_q.to(torch.int32), int(max_length_q)
        rows = (part.squeeze(0).transpose(0, 1).contiguous() for part in (query, key, value))  # [patches, heads, width]
        return varlen_attn(*rows, ends, ends, longest, longest, scale=scaling).unsqueeze(0), None
    return window_attention_by_length(query, key, value, cu_seq_lens_q.tolist(), scaling), None


def window_attention_by_length(query: Tensor, key: Tensor, value: Tensor, ends: list[int], scaling: float) -> Tensor:
    """Compute the same in any type: windows of one length are a batch. ends: where each begins, and the end.

    query, key, value: [1, heads, patches, width] each. scaling: of the scores. Returns [1, patches, heads, width].
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
