"""Compute the logits of a few rows by a large model on a CPU, from an output layer that is kept in bfloat16.

A step of a large model on a CPU takes as long as its weights take to be read, and of a small one of the large models,
0.5 billion parameters with a vocabulary of 150,000, a quarter of them is the output layer. Where its checkpoint is in
bfloat16, as most are, half of that is enough for the same numbers; adapters never change it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.policy.devices import is_small_model
from flywheel.policy.inference.compiled_code import open_kernels

MOST_ROWS = 8  # with more, arithmetic takes longer than reading


class BfloatOutputLayer:
    """Hold an output layer without a bias in bfloat16, and multiply by it.

    packed: its weights, as `cpu_kernels_bfloat16.pack_blocks` returns them. outputs: of its rows. threads: that share a
    product.
    """

    def __init__(self, packed: np.ndarray, outputs: int, threads: int) -> None:
        from flywheel.policy.inference import cpu_kernels_bfloat16

        self._kernels, self._packed, self._outputs = cpu_kernels_bfloat16, packed, outputs
        self._ends = [len(packed) * part // threads for part in range(threads + 1)]
        self._pool = ThreadPoolExecutor(threads, "policy-output")

    @classmethod
    def open(cls, model: PreTrainedModel) -> BfloatOutputLayer | None:
        """Return the output layer of `model` in bfloat16; None where that is no help.

        model: with weights in float32 on a CPU. It is no help for a small model, weights that bfloat16 does not hold, a
        bias, a machine without compiled code. A product is shared by as many threads as the caller computes with.
        """
        head = model.get_output_embeddings()
        if is_small_model(model) or type(head) is not nn.Linear or head.bias is not None or open_kernels() is None:
            return None
        from flywheel.policy.inference.cpu_kernels_bfloat16 import pack_blocks

        packed = pack_blocks(head.weight.detach().numpy())
        return None if packed is None else cls(packed, head.out_features, torch.get_num_threads())

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states: float32 [rows, size] -> [rows, vocabulary]."""
        x = hidden.contiguous().numpy()
        blocks, _, width = self._packed.shape
        found = np.empty((len(x), blocks * width), np.float32)
        parts = zip(self._ends, self._ends[1:], strict=False)
        done = [self._pool.submit(self._kernels.multiply, x, self._packed, found, *part) for part in parts]
        for one in done:
            one.result()
        return torch.from_numpy(found)[:, : self._outputs]
