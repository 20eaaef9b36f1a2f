"""RMSNorm with a gradient written out: in float32 on a CPU a quarter of the time of the library's five operations."""

from __future__ import annotations

from types import MethodType

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel


def quick_norms(model: PreTrainedModel) -> None:
    """Make the language model of the Qwen-VL family norm so; elsewhere and in other types it stays the library's."""
    for module in model.base_model.language_model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_normed, module)  # bound, so that a copy of the model has its own


def _normed(norm: nn.Module, hidden_states: Tensor) -> Tensor:
    tensors = (hidden_states, norm.weight)
    if all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors):
        return RmsNorm.apply(hidden_states, norm.weight, norm.variance_epsilon)
    return type(norm).forward(norm, hidden_states)


class RmsNorm(torch.autograd.Function):
    """x / sqrt(mean x^2 + eps) * weight, over the last axis."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        both = gradient * normed
        along = (both @ weight).unsqueeze(-1)  # what x would gain by growing as it is: norming takes it away
        of_x = (gradient * weight).addcmul_(normed, along, value=-1 / normed.shape[-1]).mul_(scale)
        return of_x, both.flatten(0, -2).sum(0), None
