"""Replace a model's layers by faster ones, for inference only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from flywheel.policy.devices import install_window_attention, is_cuda
from flywheel.policy.inference.cache import KVCache, ScreenFeatures, to_encoder_outputs
from flywheel.policy.inference.output_layer import MOST_ROWS, BfloatOutputLayer

# The language model's layers in few operations, on a CPU: the same arithmetic, rounded in another order. In the library
# a layer is some fifty operations in general wrappers, which take half of the time of a small model's pass.

_KNOWN = {"Qwen2VLDecoderLayer", "Qwen2_5_VLDecoderLayer", "Qwen3VLTextDecoderLayer"}


@dataclass(frozen=True)
class LayerWeights:
    """Hold the weights of a layer, [out, in]; matrices with the same input are joined into one.

    head_norm: factors of queries and keys after their normalisation, [heads + key heads, head size]; None for a model
    without it.
    """

    before: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    out: Tensor
    after: Tensor
    gate_up: Tensor
    down: Tensor


class TextPass:
    """Run the language model over tokens in float32, in few operations.

    It replaces the model's weights by views of joined matrices, so the model can no longer be trained.
    """

    quantized = False

    def __init__(self, model: PreTrainedModel, output: BfloatOutputLayer | None = None) -> None:
        """Take the language model of `model`. output: of `PaddedPass`."""
        self.output = output
        text, config = model.base_model.language_model, model.config.get_text_config()
        self.embed, self.rotary, self.norm = text.embed_tokens, text.rotary_emb, text.norm.weight
        self.image_id, self.vocabulary = model.config.image_token_id, config.vocab_size
        self.epsilon = config.rms_norm_eps
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head = text.layers[0].self_attn.head_dim
        self.inner = text.layers[0].mlp.down_proj.in_features
        self.layers = [_weights(layer, self.heads, self.key_heads) for layer in text.layers]

    @staticmethod
    def knows(model: PreTrainedModel) -> bool:
        """Tell whether this class can run the layers of `model`: known layer classes in float32 on a CPU."""
        first, config = next(model.parameters()), model.config.get_text_config()
        return (
            (first.device.type, first.dtype) == ("cpu", torch.float32)
            and config.hidden_act == "silu"
            and not getattr(config, "use_sliding_window", False)
            and all(type(layer).__name__ in _KNOWN for layer in model.base_model.language_model.layers)
        )

    @property
    def static_positions(self) -> bool:
        """Tell whether the rotary angles of a position are always the same, not a function of the prompt's length."""
        return getattr(self.rotary, "rope_type", "default") == "default"

    def __call__(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, held: KVCache, screens: Sequence[ScreenFeatures] = ()
    ) -> Tensor:
        """Return the hidden states after the last layer, [rows, width, size], and append to the KV cache.

        ids: [rows, width]. positions: [3, rows, width]. held: the KV cache; mask: as its `at` returned it. screens:
        features for the image tokens of `ids`, row after row.
        """
        x = self.embed(ids)
        places, deeper = None, ()
        if screens:
            first, *deeper = (torch.cat(level) for level in zip(*screens, strict=True))
            places = ids == self.image_id
            x[places] = first
        cos, sin = (part[:, :, None] for part in self.rotary(x, positions))  # [rows, width, 1, head size]
        half = self.head // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        for number, layer in enumerate(self.layers):
            x = x + self._attend(layer, number, self._normed(x, layer.before), cos, sin, mask, held)
            gate, up = self.product(self._normed(x, layer.after), number, "gate_up").chunk(2, dim=-1)
            x = x + self.product(silu(gate) * up, number, "down")
            if number < len(deeper):
                x[places] += deeper[number]
        return self._normed(x, self.norm)

    def _attend(
        self, layer: LayerWeights, number: int, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, held: KVCache
    ) -> Tensor:
        rows, width, _ = x.shape
        mixed = self.product(x, number, "qkv").view(rows, width, -1, self.head)
        turned, values = mixed.split([self.heads + self.key_heads, self.key_heads], dim=2)
        if layer.head_norm is not None:
            turned = rms_norm(turned, (self.head,), eps=self.epsilon) * layer.head_norm
        turned = turned * cos + turned.roll(self.head // 2, dims=-1) * sin
        queries, keys = turned.transpose(1, 2).split([self.heads, self.key_heads], dim=1)
        keys, values = held.update(keys, values.transpose(1, 2), number)
        grouped = self.heads != self.key_heads
        seen = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None and width > 1, enable_gqa=grouped
        )
        return self.product(seen.transpose(1, 2).reshape(rows, width, -1), number, "out")

    def product(self, x: Tensor, number: int, name: str) -> Tensor:
        """Multiply by a matrix of a layer: [..., in] -> [..., out].

        number: of the layer. name: of a field of `LayerWeights`; qkv has its bias added.
        """
        layer = self.layers[number]
        return linear(x, getattr(layer, name), layer.qkv_bias if name == "qkv" else None)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self.epsilon)


def make_library_pass(model: PreTrainedModel) -> Callable[..., Tensor]:
    """Return a function with the signature of `TextPass` that runs the library's layers, for any Qwen-VL model."""
    known = inspect.signature(model.base_model.forward).parameters
    cache = "cache" if "cache" in known else "past_key_values"  # before transformers 5.24

    def run(
        ids: Tensor, positions: Tensor, mask: Tensor | None, held: KVCache, screens: Sequence[ScreenFeatures] = ()
    ) -> Tensor:
        return model.base_model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{cache: held},
            **({"mm_encoder_outputs": to_encoder_outputs(screens)} if screens else {}),
        ).last_hidden_state

    return run


class PaddedPass:
    """Run `TextPass`, or the library's layers, over new tokens of several rows, padded to one width.

    run: with the signature of `TextPass`. device: of the model. output: what computes the logits of a few rows; None:
    the model.
    """

    takes_several = False  # every row gets one token at a step

    def __init__(
        self,
        run: Callable[..., Tensor],
        model: PreTrainedModel,
        device: torch.device,
        output: BfloatOutputLayer | None = None,
    ) -> None:
        self._run, self._model, self._device, self._output = run, model, device, output

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
        counts = [len(one) for one in ids]
        width = max(counts)
        padded = torch.zeros(len(ids), width, dtype=torch.int64)
        places = torch.zeros(3, len(ids), width, dtype=torch.int64)
        for row, (one, at) in enumerate(zip(ids, positions, strict=True)):
            padded[row, : len(one)] = one
            places[:, row, : len(one)] = at
        mask = held.at(list(starts), width, max(starts) + width, self._device)
        hidden = self._run(padded.to(self._device), places.to(self._device), mask, held, screens)
        return torch.stack([hidden[row, count - 1] for row, count in enumerate(counts)])

    def extend(
        self,
        ids: Sequence[Sequence[int]],
        positions: Sequence[int],
        starts: Sequence[int],
        held: KVCache,
        wanted: Sequence[int],
    ) -> Tensor:
        """Run the model over the newest token of each answer, and append to the KV cache.

        ids: of each row, one. positions: of each row. wanted: of how many tokens of each row the hidden states are
        returned, which is one. The rest as in `prefill`.
        """
        mask = held.at(list(starts), 1, max(starts) + 1, self._device)
        at = torch.tensor([positions], device=self._device).mT.expand(3, -1, -1)
        return self._run(torch.tensor(ids, device=self._device), at, mask, held)[:, -1]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states: [rows, size] -> float32 [rows, vocabulary]."""
        if self._output is not None and len(hidden) <= MOST_ROWS:
            return self._output(hidden)
        return self._model.get_output_embeddings()(hidden).float()


def _weights(layer: nn.Module, heads: int, key_heads: int) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    three = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = ((getattr(attention, name, None), count) for name, count in (("q_norm", heads), ("k_norm", key_heads)))
    normed = [norm.weight.detach().expand(count, -1) for norm, count in norms if norm is not None]
    return LayerWeights(
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
    """Return the layers' weights as one matrix, and make each layer's weight a view of it, so that they are in memory
    once."""
    joined = torch.cat([one.weight.detach() for one in linears])
    for one, part in zip(linears, joined.split([one.out_features for one in linears]), strict=True):
        one.weight = nn.Parameter(part, requires_grad=False)
    return joined


ROWS = 512  # number of rows that oneDNN chooses the weights' layout for; products of fewer rows lose nothing by it


class StillPatchEmbedding(nn.Module):
    """Embed the patches of still pictures by one matrix product, in place of a convolution.

    The frames of a still picture are equal, so the kernel can be summed over them; and kernel and stride are equal, so
    the convolution is a matrix product. On a CPU it takes a third of the library's time and rounds no worse.
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
    """Run a linear layer with its weights in oneDNN's memory layout, fused with the GELU that follows it, if any.

    torch's own layer reorders the weights at every call. This one makes a pass a fifth faster.
    """

    def __init__(self, linear: nn.Linear, gelu: str = "") -> None:
        """Take the weights of `linear`. gelu: approximation of the GELU that follows, "none" or "tanh"; "": no GELU."""
        super().__init__()
        self.put(linear.weight.detach())
        self.bias = linear.bias
        self._after = ("gelu", [], gelu) if gelu else ("none", [], "")

    def put(self, weight: Tensor) -> None:
        """Replace the weights. weight: [out, in]."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self._after)


def optimise_for_inference(model: PreTrainedModel) -> TextPass | None:
    """Replace the layers of `model` by faster ones, in place, so that it can only infer; return its `TextPass`.

    That runs its language model; None where `TextPass` does not know the model.
    """
    replace_patch_embedding(model)
    first = next(model.parameters())
    if is_cuda(first.device):
        install_window_attention(model)
    known = TextPass.knows(model)
    output = BfloatOutputLayer.open(model) if known else None
    if first.device.type == "cpu" and first.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        replace_linear_layers(model, PackedLinear, {model.base_model.language_model} if known else set())
    return TextPass(model, output) if known else None


def replace_patch_embedding(model: PreTrainedModel) -> None:
    """Replace the patch projection of `model` by `StillPatchEmbedding`, where its patches do not overlap."""
    embed = model.base_model.visual.patch_embed
    if isinstance(embed.proj, nn.Conv3d) and embed.proj.kernel_size == embed.proj.stride:
        embed.proj = StillPatchEmbedding(embed.proj)


def replace_linear_layers(module: nn.Module, kind: Callable[..., nn.Module], but: Collection[nn.Module]) -> None:
    """Replace the linear layers in `module`, each fused with the GELU that follows it.

    kind: makes the new layer of a linear layer and the GELU's approximation ("": none). but: modules whose layers stay.
    """
    for name, child in list(module.named_children()):
        if child in but:
            continue
        if type(child) is nn.Linear:
            activation, gelu = getattr(module, "act_fn", None) if name == "linear_fc1" else None, ""
            if isinstance(activation, nn.GELU):
                gelu = activation.approximate
            elif type(activation).__name__ == "GELUTanh":
                gelu = "tanh"
            setattr(module, name, kind(child, gelu))
            if gelu:
                module.act_fn = nn.Identity()
        else:
            replace_linear_layers(child, kind, but)
