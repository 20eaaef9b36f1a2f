"""Run a small language model on a CPU by kernels that numba compiles (`cpu_kernels*.py`), where both allow it."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from flywheel.policy.devices import is_small_model
from flywheel.policy.guided_decoding import every_token
from flywheel.policy.inference.cache import KVCache, ScreenFeatures
from flywheel.policy.inference.compiled_code import open_kernels
from flywheel.policy.inference.fused_layers import PackedLinear, TextPass

_TABLE = 512  # positions that the table of rotary angles grows by


class CompiledPass:
    """Run the language model over new tokens of several rows; what else is in the batch changes no row's results.

    The weights are copied as they are when this is made: make another after they have changed.
    """

    takes_several = True  # a row may get several tokens, and each row another number of them

    def __init__(
        self, model: PreTrainedModel, text_pass: TextPass, kernels: ModuleType, int8: ModuleType | None = None
    ) -> None:
        self._kernels, self._text = kernels, text_pass
        self._run_layers = int8.run_layers if int8 else kernels.run_layers
        layers, pack = text_pass.layers, kernels.pack_blocks
        one = layers[0]
        self.heads, self.key_heads, self.head = text_pass.heads, text_pass.key_heads, text_pass.head
        self._epsilon, self._image_id = np.float32(text_pass.epsilon), text_pass.image_id
        self._embed = text_pass.embed.weight.detach().numpy()
        bias = [
            np.zeros(len(one.qkv), np.float32) if part.qkv_bias is None else _array(part.qkv_bias) for part in layers
        ]
        factors = [
            np.ones((self.heads + self.key_heads, self.head), np.float32)
            if part.head_norm is None
            else _array(part.head_norm)
            for part in layers
        ]

        def packed(name: str) -> Any:
            if int8 is None:
                return np.stack([pack(_array(getattr(part, name))) for part in layers])
            matrices = [text_pass.whole(number, name) for number in range(len(layers))]
            return tuple(map(np.stack, zip(*(int8.pack_blocks(*one) for one in matrices), strict=True)))

        self._weights = (
            np.stack([_array(part.before) for part in layers]),
            packed("qkv"),
            np.stack(bias),
            np.stack(factors),
            one.head_norm is not None,
            packed("out"),
            np.stack([_array(part.after) for part in layers]),
            packed("gate_up"),
            packed("down"),
            text_pass.inner,
            self._epsilon,
        )
        self._norm = _array(text_pass.norm)
        head = model.get_output_embeddings()
        self._head = pack(_array(head.weight))
        self._vocabulary = text_pass.vocabulary
        self._every = every_token(self._vocabulary)
        self._cos = self._sin = np.empty((0, self.head), np.float32)
        self._none = np.empty(0, np.int64), np.empty((0, 0, self._embed.shape[1]), np.float32)

    @classmethod
    def open(cls, model: PreTrainedModel, text_pass: TextPass | None) -> CompiledPass | None:
        """Return the pass of `model`, with its present weights; None where compiled code cannot run it, or is no help.

        That is for a large model, an output layer with a bias, angles that depend on a prompt's length, 8-bit integers
        on a processor without AVX-512 VNNI, a machine that cannot compile. text_pass: of `optimise_for_inference`.
        """
        if text_pass is None or not is_small_model(model) or not text_pass.static_positions:
            return None
        head = model.get_output_embeddings()
        if not isinstance(head, (torch.nn.Linear, PackedLinear)) or head.bias is not None:
            return None
        kernels = open_kernels()
        if kernels is None or not text_pass.quantized:
            return cls(model, text_pass, kernels) if kernels else None
        try:
            from flywheel.policy.inference import cpu_kernels_int8
        except ImportError:
            return None
        return cls(model, text_pass, kernels, cpu_kernels_int8)

    def prefill(
        self,
        ids: Sequence[Tensor],
        positions: Sequence[Tensor],
        starts: Sequence[int],
        held: KVCache,
        screens: Sequence[ScreenFeatures],
    ) -> Tensor:
        """Run the model over the new tokens of prompts, and append to the KV cache.

        ids: of each row [tokens]. positions: of each row [3, tokens]. starts: tokens of each row in the cache. held:
        the cache. screens: features for the image tokens of `ids`, row after row. Returns the hidden states after the
        last layer at each row's last token, [rows, size].
        """
        every, shown, deeper = torch.cat(tuple(ids)), *self._none
        x = self._embed[every.numpy()]
        if screens:
            first, *deep = (torch.cat(level) for level in zip(*screens, strict=True))
            shown = torch.nonzero(every == self._image_id)[:, 0].numpy()
            x[shown] = first.numpy()
            if deep:
                deeper = torch.stack(deep).numpy()
        cos, sin = self._text.rotary(torch.empty(0), torch.cat(tuple(positions), dim=1)[:, None])
        counts = [len(one) for one in ids]
        return self._run(x, counts, starts, cos[0].numpy(), sin[0].numpy(), held, shown, deeper)

    def extend(
        self,
        ids: Sequence[Sequence[int]],
        positions: Sequence[int],
        starts: Sequence[int],
        held: KVCache,
        wanted: Sequence[int],
    ) -> Tensor:
        """Run the model over the newest tokens of answers, and append to the KV cache.

        ids: of each row, at least one. positions: of each row's first. wanted: of how many of each row's last tokens
        the hidden states are returned, row after row. The rest as in `prefill`.
        """
        counts = [len(one) for one in ids]
        at = [position + n for position, count in zip(positions, counts, strict=True) for n in range(count)]
        if (most := max(at)) >= len(self._cos):
            self._make_table(most + 1)
        x = self._embed[[token for one in ids for token in one]]
        return self._run(x, counts, starts, self._cos[at], self._sin[at], held, *self._none, wanted)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states: float32 [rows, size] -> [rows, vocabulary]."""
        found = np.empty((len(hidden), len(self._head) * self._kernels.BLOCK), np.float32)
        self._kernels.multiply(hidden.contiguous().numpy(), self._head, found)
        return torch.from_numpy(found)[:, : self._vocabulary]

    def draw(
        self,
        logits: Tensor,
        allowed: Sequence[np.ndarray | None],
        temperatures: Sequence[float],
        random: Sequence[float],
    ) -> list[tuple[int, float, float]]:
        """Sample a token for each row; return (token, log-probability at temperature 1, and at the row's) of each.

        logits: of this class. allowed: `AnswerState.allowed`, or None where all tokens are. temperatures: 0 is greedy.
        random: in [0, 1).
        """
        chosen, logprobs = np.empty(len(logits), np.int64), np.empty((len(logits), 2))
        masks = np.stack([self._every if mask is None else mask for mask in allowed])
        values = np.ascontiguousarray(logits.numpy())  # has a stride where its last block is filled up
        self._kernels.draw_tokens(values, masks, np.array(temperatures, float), np.array(random), chosen, logprobs)
        return [(token, *both) for token, both in zip(chosen.tolist(), logprobs.tolist(), strict=True)]

    def _run(
        self,
        x: np.ndarray,
        counts: Sequence[int],
        starts: Sequence[int],
        cos: np.ndarray,
        sin: np.ndarray,
        held: KVCache,
        shown: np.ndarray,
        deeper: np.ndarray,
        wanted: Sequence[int] = (),
    ) -> Tensor:
        if len(counts) == len(x):  # one token each: a step
            rows = last = np.arange(len(x))
            places = np.array(starts)
        else:
            rows = np.repeat(np.arange(len(counts)), counts)
            places = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
            ends = np.cumsum(counts)
            last = ends - 1
            if any(number > 1 for number in wanted):
                last = np.concatenate([np.arange(end - number, end) for end, number in zip(ends, wanted, strict=True)])
        buffer = held.buffer(self.key_heads, self.head).numpy()
        self._run_layers(x, rows, places, cos, sin, buffer, *self._weights, shown, deeper)
        hidden = np.empty((len(last), x.shape[1]), np.float32)
        self._kernels.norm_rows(x, last, self._norm, self._epsilon, hidden)
        return torch.from_numpy(hidden)

    def _make_table(self, length: int) -> None:
        length = -(-length // _TABLE) * _TABLE
        cos, sin = self._text.rotary(torch.empty(0), torch.arange(length).expand(3, 1, -1))
        self._cos, self._sin = cos[0].numpy(), sin[0].numpy()


def _array(weight: Tensor) -> np.ndarray:
    weight = weight.detach()
    return (weight.to_dense() if weight.layout == torch._mkldnn else weight).numpy()
