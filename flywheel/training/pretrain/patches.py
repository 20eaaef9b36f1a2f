"""The patch projection of a vision tower as one matrix product, for training on still pictures.

A still picture's frames are all alike, so the kernel can be summed over them; and the kernel's size is its stride, so
the convolution is a product. On a CPU its gradient takes a sixth of the convolution's. The weights stay where they are:
`policy.frozen.StillPatches` is the same for a model that only infers.
"""

from __future__ import annotations

from types import MethodType

from torch import Tensor, nn
from transformers import PreTrainedModel


def quick_patches(model: PreTrainedModel) -> None:
    """Make a model of the Qwen-VL family project the patches of pictures (not of videos) so."""
    embed = model.base_model.visual.patch_embed
    if isinstance(embed.proj, nn.Conv3d) and embed.proj.kernel_size == embed.proj.stride:
        embed.forward = MethodType(_project, embed)  # bound, so that a copy of the model has its own


def _project(embed: nn.Module, patches: Tensor) -> Tensor:
    """[patches, channels x frames x side x side] -> [patches, size]."""
    convolution = embed.proj
    frames = convolution.kernel_size[0]
    still = patches.view(len(patches), convolution.in_channels, frames, -1)[:, :, 0].flatten(1)
    weight = convolution.weight.sum(2).flatten(1)
    return nn.functional.linear(still.to(weight.dtype), weight, convolution.bias)
