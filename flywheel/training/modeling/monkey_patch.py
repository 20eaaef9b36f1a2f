"""Patch a Qwen-VL model to read packed batches and to train faster."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from flywheel.policy.devices import install_window_attention, is_cuda
from flywheel.training.modeling import attention
from flywheel.training.modeling.attention import AttentionPlan

# Last layer of the language model, computed for the tokens alone that predict a response.
#
# All other tokens are needed there as keys and values only, and most tokens of a prompt with a screen are such.


def last_layer_skips_prompt(trunk: nn.Module) -> bool:
    """Tell whether the last layer may skip tokens: deepstack adds to all tokens after the layers that it reaches."""
    levels = getattr(trunk.config.vision_config, "deepstack_visual_indexes", ())
    return len(levels) < len(trunk.language_model.layers)


def patch_last_layer(trunk: nn.Module) -> None:
    """Make a base model of the Qwen-VL family that is given `last` and `predicting` give out those tokens alone."""
    if last_layer_skips_prompt(trunk):
        layer = trunk.language_model.layers[-1]
        layer.forward = MethodType(_last_layer_forward, layer)  # bound, so that a copy of the model has its own


def _last_layer_forward(
    layer: nn.Module,
    hidden_states: Tensor,
    *,
    last: AttentionPlan | None = None,
    predicting: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """[1, tokens, width] -> [1, responses, width]. Without `last` it is the library's layer.

    last: who attends to whom among the tokens `predicting`, int64 [responses].
    """
    if last is None:
        return type(layer).forward(layer, hidden_states, **kwargs)
    mixed, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs | {"plan": last})
    kept = hidden_states.index_select(1, predicting) + mixed.index_select(1, predicting)
    return kept + layer.mlp(layer.post_attention_layernorm(kept))


# RMSNorm with a gradient written out: in float32 on a CPU a quarter of the time of the library's five operations.


def patch_rms_norms(model: PreTrainedModel) -> None:
    """Make the language model of the Qwen-VL family norm so; elsewhere and in other types it stays the library's."""
    for module in model.base_model.language_model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_rms_norm_forward, module)  # bound, so that a copy of the model has its own


def _rms_norm_forward(norm: nn.Module, hidden_states: Tensor) -> Tensor:
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


# Patch embedding of the vision tower as one matrix product, for still pictures.
#
# A still picture's frames are all alike, so the kernel can be summed over them; and the kernel's size is its stride, so
# the convolution is a product. On a CPU its gradient takes a sixth of the convolution's time. The weights stay in
# place; `StillPatchEmbedding` in `policy/inference/fused_layers.py` does the same for a model that only infers.


def patch_patch_embedding(model: PreTrainedModel) -> None:
    """Make a model of the Qwen-VL family embed the patches of pictures (not of videos) by one matrix product."""
    embed = model.base_model.visual.patch_embed
    if isinstance(embed.proj, nn.Conv3d) and embed.proj.kernel_size == embed.proj.stride:
        embed.forward = MethodType(_patch_embedding_forward, embed)  # bound, so that a copy of the model has its own


def _patch_embedding_forward(embed: nn.Module, patches: Tensor) -> Tensor:
    """[patches, channels x frames x side x side] -> [patches, size]."""
    convolution = embed.proj
    frames = convolution.kernel_size[0]
    still = patches.view(len(patches), convolution.in_channels, frames, -1)[:, :, 0].flatten(1)
    weight = convolution.weight.sum(2).flatten(1)
    return nn.functional.linear(still.to(weight.dtype), weight, convolution.bias)


# All patches together.

SUPPORTED_MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def patch_for_training(model: PreTrainedModel) -> bool:
    """Make a model of the Qwen-VL family able to read packs; what its other passes give is the library's. False where
    it is of another family: then samples are padded."""
    if model.config.model_type not in SUPPORTED_MODEL_TYPES:
        return False
    model.set_attn_implementation(attention.PACKED_ATTENTION)
    if is_cuda(next(model.parameters()).device):
        install_window_attention(model)
    patch_patch_embedding(model)
    patch_rms_norms(model)
    patch_last_layer(model.base_model)
    return True
