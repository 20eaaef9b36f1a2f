"""A model made ready to infer, and to do nothing else: the same numbers, sooner. Its checkpoint is not affected."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.policy.fused import fuse_tower, on_gpu
from flywheel.policy.text_pass import TextPass

ROWS = 512  # in a matrix product, about: what the weights' layout is chosen for. Few rows lose nothing by it


class StillPatches(nn.Module):
    """The patch projection for still pictures, as one matrix product.

    A still picture's frames are all alike, so the kernel can be summed over them; and kernel and stride are equal, so
    the convolution is a product. On a CPU it takes a third of the library's time and rounds no worse.
    """

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        folded = convolution.weight.detach().float().sum(dim=2).flatten(1).to(convolution.weight.dtype)
        self.register_buffer("weight", folded, persistent=False)  # [size, channels x patch x patch]
        self.bias = convolution.bias

    def forward(self, patches: Tensor) -> Tensor:
        """[patches, channels, frames, side, side] -> [patches, size]."""
        return nn.functional.linear(patches[:, :, 0].flatten(1), self.weight, self.bias)


class PackedLinear(nn.Module):
    """A linear layer whose weights lie as oneDNN wants them, with the GELU that follows it, if one does.

    The library's layer has them put in order anew at every call. This one takes a fifth off the time of a pass.
    """

    def __init__(self, linear: nn.Linear, gelu: str = "") -> None:
        """gelu: how it is approximated, "none" or "tanh"; empty: none follows."""
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias
        self._after = ("gelu", [], gelu) if gelu else ("none", [], "")

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self._after)


def freeze(model: PreTrainedModel) -> TextPass | None:
    """Put the modules above into a model that will only infer, and only from pictures. Returns what takes its language
    model's place, where that is known."""
    embed = model.base_model.visual.patch_embed
    if isinstance(embed.proj, nn.Conv3d) and embed.proj.kernel_size == embed.proj.stride:
        embed.proj = StillPatches(embed.proj)
    first = next(model.parameters())
    if on_gpu(first.device):
        fuse_tower(model)
    known = TextPass.knows(model)
    if first.device.type == "cpu" and first.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        _pack(model, model.base_model.language_model if known else None)
    return TextPass(model) if known else None


def _pack(module: nn.Module, but: nn.Module | None) -> None:
    for name, child in list(module.named_children()):
        if child is but:
            continue
        if type(child) is nn.Linear:
            gelu = _gelu(getattr(module, "act_fn", None)) if name == "linear_fc1" else ""
            setattr(module, name, PackedLinear(child, gelu))
            if gelu:
                module.act_fn = nn.Identity()
        else:
            _pack(child, but)


def _gelu(activation: nn.Module | None) -> str:
    if isinstance(activation, nn.GELU):
        return activation.approximate
    return "tanh" if type(activation).__name__ == "GELUTanh" else ""
