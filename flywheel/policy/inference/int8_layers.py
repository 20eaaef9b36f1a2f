"""Run linear layers in 8-bit integers on a CPU (W8A8).

Each row of a weight, and each input vector, is rounded to 255 steps from minus its largest size to its largest size, so
a token's result does not depend on what else is in the batch. Products are summed in 32-bit integers, without rounding.
The kernels are oneDNN's, by the operations that torch.compile uses for quantized models. Inputs are unsigned with an
offset: for signed ones oneDNN runs its reference code, which is hundreds of times slower (torch 2.13, AVX-512). They
return the sums, which are multiplied by the steps here: oneDNN's kernels for one row and for several round that product
differently (AMX).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.policy.inference.fused_layers import TextPass, replace_linear_layers, replace_patch_embedding
from flywheel.utils.errors import ModelError

_TOP, _OFFSET = 127, 128  # steps to either side of zero; what zero is as an unsigned input
_LEAST = 1e-30  # of a size, so that what is all zero is not divided by zero
_SLOWEST = 4.0  # times of a product in floats that one in integers may take: with a kernel of its own it takes 0.3
_MATRICES = ("qkv", "out", "gate_up", "down")  # of `LayerWeights`
_WHERE, _FIX = "policy.quantization", "set it to none, or serve the model from another machine (policy.backend: openai)"


class Int8Matrix:
    """Hold a weight matrix in 8-bit integers, in the kernel's layout, and multiply by it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Round a matrix to 8-bit integers.

        weight: float32 [out, in]. bias: float32 [out]. Raises ModelError for a weight that is not finite.
        """
        weight = weight.detach()
        if not weight.isfinite().all():
            raise ModelError("a weight is not finite", where=_WHERE, fix="choose another checkpoint")
        self._steps = (weight.abs().amax(dim=1) / _TOP).clamp_min(_LEAST)
        self._whole = (weight / self._steps[:, None]).round_().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(self._whole, None)
        self._ones = torch.ones(len(weight))
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = bias

    def to_numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounded weights, int8 [out, in], and the value of a step of each row, float32 [out]."""
        return self._whole.numpy(), self._steps.numpy()

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: float32 [..., in] -> float32 [..., out], the bias added in float32."""
        size = x.abs().amax(dim=-1, keepdim=True).clamp_min_(_LEAST)
        whole = (x * (_TOP / size)).add_(_OFFSET + 0.5).to(torch.uint8)  # halves upwards, as the compiled code rounds
        y = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, _OFFSET, self._packed, self._ones, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        y.mul_(size / _TOP * self._steps)
        return y if self._bias is None else y.add_(self._bias)


class Int8Linear(nn.Module):
    """Run a linear layer in 8-bit integers, and the GELU that follows it, if any."""

    def __init__(self, linear: nn.Linear, gelu: str = "") -> None:
        """Take the weights of `linear`. gelu: approximation of the GELU that follows, "none" or "tanh"; "": no GELU."""
        super().__init__()
        self._matrix = Int8Matrix(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        self._gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: float32 [..., in] -> [..., out]."""
        y = self._matrix(x)
        return nn.functional.gelu(y, approximate=self._gelu) if self._gelu else y


class Int8TextPass(TextPass):
    """Run the language model over tokens with the products of its layers in 8-bit integers.

    Norms, attention and residuals are in float32. The layers' float weights are given up.
    """

    quantized = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._matrices = [
            {name: Int8Matrix(getattr(one, name), one.qkv_bias if name == "qkv" else None) for name in _MATRICES}
            for one in self.layers
        ]
        for layer in model.base_model.language_model.layers:
            for module in layer.modules():
                if isinstance(module, nn.Linear):  # on no device: without memory, but of the same number of parameters
                    module.weight = nn.Parameter(module.weight.to("meta"), requires_grad=False)
        self.layers = [
            replace(one, **{name: getattr(one, name).to("meta") for name in _MATRICES}) for one in self.layers
        ]

    def whole(self, number: int, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a matrix of a layer, as `Int8Matrix.to_numpy`. number: of the layer. name: as in `product`."""
        return self._matrices[number][name].to_numpy()

    def product(self, x: Tensor, number: int, name: str) -> Tensor:
        """Multiply as `TextPass.product`."""
        return self._matrices[number][name](x)


def quantize_for_inference(model: PreTrainedModel) -> TextPass | None:
    """Replace the layers of `model` by layers of 8-bit integers, in place, so that it can only infer; return its pass.

    The output layer and the patch projection stay float32. The pass runs its language model; None where `TextPass` does
    not know the model. Raises ModelError as `require_int8_kernel`, and for a model that is not float32 on a CPU or has
    weights that are not finite.
    """
    first = next(model.parameters())
    if (first.device.type, first.dtype) != ("cpu", torch.float32):
        what, fix = (
            "w8a8 is for float32 on a CPU",
            "set it to none, or policy.device to cpu and policy.dtype to float32",
        )
        raise ModelError(what, where=_WHERE, fix=fix)
    require_int8_kernel()
    replace_patch_embedding(model)
    known = TextPass.knows(model)
    text = {model.base_model.language_model} if known else set()
    replace_linear_layers(model, Int8Linear, {model.get_output_embeddings(), *text})
    return Int8TextPass(model) if known else None


@cache
def require_int8_kernel() -> None:
    """Raise ModelError unless this machine computes products of 8-bit integers exactly, by a kernel of their own.

    It is raised where torch has no such operation on this machine, where a product differs from its value in whole
    numbers (a kernel that saturates, or one that silently computes in floats), and where it takes `_SLOWEST` times as
    long as one in floats.
    """
    # The largest values of one sign: sums of two of their products need more than 16 bits. All steps are exactly 1.
    x = torch.full((3, 64), float(_TOP))
    x[1, ::2] = 0.0
    x[2] = torch.arange(64) * 2.0 - 63.0
    x[:, -1] = _TOP
    weight = torch.full((8, 64), float(_TOP))
    weight[1::2] *= -1
    weight[2] = x[2]
    expected = x.double() @ weight.double().T
    try:
        matrix = Int8Matrix(weight)
        found, rounded = matrix(x).double(), matrix(x.where(x != 0, 0.4)).double()
    except (AttributeError, RuntimeError) as error:
        what = f"torch has no product of 8-bit integers on this machine: {str(error).splitlines()[0]:.100}"
        raise ModelError(what, where=_WHERE, fix=_FIX) from None
    if not torch.allclose(found, expected, rtol=1e-6, atol=0.01):
        raise ModelError("this processor's kernel for 8-bit integers is not exact (no VNNI?)", where=_WHERE, fix=_FIX)
    if not torch.allclose(rounded, expected, rtol=1e-6, atol=0.01):  # what lies between two steps is rounded
        raise ModelError("torch computes 8-bit products in floats on this machine", where=_WHERE, fix=_FIX)
    large, inputs = torch.ones(512, 512), torch.ones(32, 512)
    ours, floats = Int8Matrix(large), nn.Linear(512, 512, bias=False).requires_grad_(False)
    if not _is_fast_enough(lambda: ours(inputs), lambda: floats(inputs)):
        raise ModelError("8-bit integers are slower than floats on this machine", where=_WHERE, fix=_FIX)


def _is_fast_enough(ours: Callable[[], object], floats: Callable[[], object]) -> bool:
    """Tell whether `ours` takes at most `_SLOWEST` times as long as `floats`, by the shortest of up to 40 times each.

    They are taken by turns until that is seen, since a busy machine interrupts either.
    """
    shortest = [math.inf, math.inf]
    for turn in range(41):
        for which, work in enumerate((ours, floats)):
            begin = time.perf_counter()
            work()
            if turn:  # the first warms up
                shortest[which] = min(shortest[which], time.perf_counter() - begin)
        if turn >= 5 and shortest[0] <= _SLOWEST * shortest[1]:
            return True
    return False
