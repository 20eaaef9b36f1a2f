"""Replace a model's layers by faster ones that can only infer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from flywheel.policy.devices import install_window_attention, is_cuda
from flywheel.policy.inference.cache import KVCache, ScreenFeatures, to_encoder_outputs

# The language model's layers in few operations, on a CPU: the same arithmetic, in another order of rounding. In the
# library a layer is some fifty operations in general wrappers, for a small model half of the time of a pass.

_KNOWN = {"Qwen2VLDecoderLayer", "Qwen2_5_VLDecoderLayer", "Qwen3VLTextDecoderLayer"}


@dataclass(frozen=True)
class _Layer:
    """The weights of a layer, [out, in]; those that read the same numbers are one matrix. head_norm: what queries and
    keys are multiplied by once they are normed, [heads + key heads, head size]; None where they are not normed."""

    before: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    out: Tensor
    after: Tensor
    gate_up: Tensor
    down: Tensor


class TextPass:
    """Passes over tokens in float32. The model's weights become parts of joined ones: it must train no more."""

    def __init__(self, model: PreTrainedModel) -> None:
        text, config = model.base_model.language_model, model.config.get_text_config()
        self._embed, self._rotary, self._norm = text.embed_tokens, text.rotary_emb, text.norm.weight
        self._image_id, self._epsilon = model.config.image_token_id, config.rms_norm_eps
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._head = text.layers[0].self_attn.head_dim
        self._layers = [_weights(layer, self._heads, self._key_heads) for layer in text.layers]

    @staticmethod
    def knows(model: PreTrainedModel) -> bool:
        """Tell whether its layers are those that are computed here."""
        first, config = next(model.parameters()), model.config.get_text_config()
        return (
            (first.device.type, first.dtype) == ("cpu", torch.float32)
            and config.hidden_act == "silu"
            and not getattr(config, "use_sliding_window", False)
            and all(type(layer).__name__ in _KNOWN for layer in model.base_model.language_model.layers)
        )

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, held: KVCache, screens: Sequence[ScreenFeatures] = ()
    ) -> Tensor:
        """Hidden states at the end, [rows, width, size]. ids: [rows, width]; positions: [3, rows, width]; mask and held
        as `KeyValues.at` says. screens: what stands at the image tokens, row after row."""
        x = self._embed(ids)
        places, deeper = None, ()
        if screens:
            first, *deeper = (torch.cat(level) for level in zip(*screens, strict=True))
            places = ids == self._image_id
            x[places] = first
        cos, sin = (part[:, :, None] for part in self._rotary(x, positions))  # [rows, width, 1, head size]
        half = self._head // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        for number, layer in enumerate(self._layers):
            x = x + self._attend(layer, number, self._normed(x, layer.before), cos, sin, mask, held)
            gate, up = linear(self._normed(x, layer.after), layer.gate_up).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, layer.down)
            if number < len(deeper):
                x[places] += deeper[number]
        return self._normed(x, self._norm)

    def _attend(
        self, layer: _Layer, number: int, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, held: KVCache
    ) -> Tensor:
        rows, width, _ = x.shape
        mixed = linear(x, layer.qkv, layer.qkv_bias).view(rows, width, -1, self._head)
        turned, values = mixed.split([self._heads + self._key_heads, self._key_heads], dim=2)
        if layer.head_norm is not None:
            turned = rms_norm(turned, (self._head,), eps=self._epsilon) * layer.head_norm
        turned = turned * cos + turned.roll(self._head // 2, dims=-1) * sin
        queries, keys = turned.transpose(1, 2).split([self._heads, self._key_heads], dim=1)
        keys, values = held.update(keys, values.transpose(1, 2), number)
        grouped = self._heads != self._key_heads
        seen = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None and width > 1, enable_gqa=grouped
        )
        return linear(seen.transpose(1, 2).reshape(rows, width, -1), layer.out)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._epsilon)


def make_library_pass(model: PreTrainedModel) -> Callable[..., Tensor]:
    """Make a pass of the same signature by the library's layers, for any model of the family."""

    def run(
        ids: Tensor, positions: Tensor, mask: Tensor | None, held: KVCache, screens: Sequence[ScreenFeatures] = ()
    ) -> Tensor:
        return model.base_model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=held,
            use_cache=True,
            **({"mm_encoder_outputs": to_encoder_outputs(screens)} if screens else {}),
        ).last_hidden_state

    return run


def _weights(layer: nn.Module, heads: int, key_heads: int) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = ((getattr(attention, name, None), count) for name, count in (("q_norm", heads), ("k_norm", key_heads)))
    normed = [norm.weight.detach().expand(count, -1) for norm, count in norms if norm is not None]
    return _Layer(
        layer.input_layernorm.weight,
        _joined(*three),
        None if three[0].bias is None else torch.cat([one.bias.detach() for one in three]),
        torch.cat(normed) if normed else None,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        _joined(mlp.gate_proj, mlp.up_proj),
        mlp.down_proj.weight,
    )


def _joined(*linears: nn.Linear) -> Tensor:
    """Their weights as one matrix, of which each keeps its part: the numbers are in memory once."""
    joined = torch.cat([one.weight.detach() for one in linears])
    for one, part in zip(linears, joined.split([one.out_features for one in linears]), strict=True):
        one.weight = nn.Parameter(part, requires_grad=False)
    return joined


ROWS = 512  # of the matrix products, about, that the weights' layout is chosen for; fewer rows lose nothing by it


class StillPatchEmbedding(nn.Module):
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
        """Embed patches: [patches, channels, frames, side, side] -> [patches, size]."""
        return nn.functional.linear(patches[:, :, 0].flatten(1), self.weight, self.bias)


class PackedLinear(nn.Module):
    """A linear layer whose weights lie as oneDNN wants them, with the GELU that follows it, if one does.

    The library's layer has them put in order anew at every call. This one takes a fifth off the time of a pass.
    """

    def __init__(self, linear: nn.Linear, gelu: str = "") -> None:
        """gelu: how it is approximated, "none" or "tanh"; empty: none follows."""
        super().__init__()
        self.put(linear.weight.detach())
        self.bias = linear.bias
        self._after = ("gelu", [], gelu) if gelu else ("none", [], "")

    def put(self, weight: Tensor) -> None:
        """Take other weights, [out, in]."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self._after)


def optimise_for_inference(model: PreTrainedModel) -> TextPass | None:
    """Put the above into a model that will only infer. Returns what takes its language model's place, where known."""
    embed = model.base_model.visual.patch_embed
    if isinstance(embed.proj, nn.Conv3d) and embed.proj.kernel_size == embed.proj.stride:
        embed.proj = StillPatchEmbedding(embed.proj)
    first = next(model.parameters())
    if is_cuda(first.device):
        install_window_attention(model)
    known = TextPass.knows(model)
    if first.device.type == "cpu" and first.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        _pack_linear_layers(model, model.base_model.language_model if known else None)
    return TextPass(model) if known else None


def _pack_linear_layers(module: nn.Module, but: nn.Module | None) -> None:
    for name, child in list(module.named_children()):
        if child is but:
            continue
        if type(child) is nn.Linear:
            activation, gelu = getattr(module, "act_fn", None) if name == "linear_fc1" else None, ""
            if isinstance(activation, nn.GELU):
                gelu = activation.approximate
            elif type(activation).__name__ == "GELUTanh":
                gelu = "tanh"
            setattr(module, name, PackedLinear(child, gelu))
            if gelu:
                module.act_fn = nn.Identity()
        else:
            _pack_linear_layers(child, but)
