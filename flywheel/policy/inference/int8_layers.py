"""Run linear layers in 8-bit integers on a CPU (W8A8).

Each row of a weight, and each input vector, is rounded to 255 steps from minus its largest size to its largest size, so
a token's result does not depend on what else is in the batch. Products are summed in 32-bit integers, without rounding.
The kernels are oneDNN's, by the operations that torch.compile uses for quantized models. Inputs are unsigned with an
offset: for signed ones oneDNN runs its reference code, which is hundreds of times slower (torch 2.13, AVX-512).
"""

from __future__ import annotations

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
        """Round a matrix. weight: float32 [out, in]. bias: float32 [out]. Raises ModelError for a weight that is not
        finite."""
        weight = weight.detach()
        if not weight.isfinite().all():
            raise ModelError("a weight is not finite", where=_WHERE, fix="choose another checkpoint")
        self._steps = (weight.abs().amax(dim=1) / _TOP).clamp_min(_LEAST)
        self._whole = (weight / self._steps[:, None]).round_().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(self._whole, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = bias

    def to_numpy(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounded weights, int8 [out, in], and the value of a step of each row, float32 [out]."""
        return self._whole.numpy(), self._steps.numpy()

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: float32 [..., in] -> float32 [..., out], the bias added in float32."""
        size = x.abs().amax(dim=-1, keepdim=True).clamp_min_(_LEAST)
        whole = (x * (_TOP / size)).round_().add_(_OFFSET).to(torch.uint8)
        y = torch.ops.onednn.qlinear_pointwise(
            whole,
            1 / _TOP,
            _OFFSET,
            self._packed,
            self._steps,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return y.mul_(size) if self._bias is None else torch.addcmul(self._bias, y, size)


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
    """Run the language model over tokens with the products of its layers in 8-bit integers; norms, attention and
    residuals are in float32. The layers' float weights are given up."""

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
    """Replace the layers of `model` by such of 8-bit integers, in place; it can then only infer. The output layer and
    the patch projection stay float32.

    Returns the pass that runs its language model; None where `TextPass` does not know the model. Raises ModelError as
    `require_int8_kernel`, and for a model that is not float32 on a CPU or has weights that are not finite.
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
    """Make sure that products of 8-bit integers are computed as such, exactly, by a kernel of their own.

    Raises ModelError where torch has no such operation on this machine, where a product differs from its value in whole
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
    if _shortest_s(lambda: ours(inputs)) > _SLOWEST * _shortest_s(lambda: floats(inputs)):
        raise ModelError("8-bit integers are slower than floats on this machine", where=_WHERE, fix=_FIX)


def _shortest_s(work: Callable[[], object]) -> float:
    """Return the shortest of five times that `work` takes this thread and those that it uses, in seconds."""
    found = []
    for _ in range(6):  # the first warms up
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found[1:])
