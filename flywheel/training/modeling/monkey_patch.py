"""Patch a Qwen-VL model, in place, to read packed batches and to train faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from flywheel.policy.checkpoint import FAMILY
from flywheel.policy.devices import install_window_attention, is_cuda

# Attention over packed samples without padding them to one length.
#
# In these transformers everything except attention works on single tokens, so samples of any lengths can be
# concatenated to one row of tokens. For attention they become batches again, in groups of similar length with bounded
# padding. Screens of one size go through the vision tower together. On a GPU the fused kernel computes attention and
# keeps no scores for the gradient: its memory grows with the tokens, and with the masks, one byte per score.

PACKED_ATTENTION = "flywheel_packed"
_MAX_WASTE = 0.25  # largest share of padding among a group's scores
_SMALL_GROUP = 20_000  # scores per head: padding below this costs less than one more group
_LARGE_GROUP = 1 << 19  # scores per head: a larger group would not fit into the CPU's caches
_MASKED_SCORE = -1e30  # added to a masked score: its softmax is then 0


@dataclass(frozen=True, eq=False)
class AttentionGroup:
    """Hold the samples of a pack that have similar lengths, as one padded batch for attention.

    queries: int64 [samples, longest tail], keys: int64 [samples, longest path]: indices of the pack's tokens, 0 for
    padding. mask: bool [samples, 1, longest tail, longest path]. causal: whether each tail is its sample's whole path
    (`plan_attention`).
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor
    causal: bool

    @cached_property
    def bias(self) -> Tensor:
        """Return what is added to the scores, float32 in the shape of `mask`; all layers of a pass share it."""
        return torch.zeros(self.mask.shape, device=self.mask.device).masked_fill_(~self.mask, _MASKED_SCORE)


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """Hold which tokens of a pack attend to which.

    outputs: int64 [tokens], index of each token in the concatenated results of the groups.
    """

    groups: tuple[AttentionGroup, ...]
    outputs: Tensor

    def to(self, device: torch.device) -> AttentionPlan:
        """Return a copy on `device`."""
        groups = tuple(
            AttentionGroup(group.queries.to(device), group.keys.to(device), group.mask.to(device), group.causal)
            for group in self.groups
        )
        return AttentionPlan(groups, self.outputs.to(device))


def plan_attention(paths: Sequence[np.ndarray], shared: Sequence[int], tokens: int) -> AttentionPlan:
    """Plan the attention of a pack: which tokens attend to which, in groups of samples of similar length.

    paths: for each sample the indices of its tokens in the pack, in order, int64 [length]. shared: for each sample the
    number of first tokens that need no result, as an earlier sample has them or nothing uses them; the others are the
    sample's tail. tokens: number of tokens in the pack; the results of tokens in no tail are undefined.
    """
    own = [row for row in range(len(paths)) if len(paths[row]) > shared[row]]
    own.sort(key=lambda row: (-len(paths[row]), shared[row], row))
    groups, places, at = [], np.zeros(tokens, dtype=np.int64), 0
    for rows in _group_by_length(own, [len(path) for path in paths], shared):
        tails = [len(paths[row]) - shared[row] for row in rows]
        longest, wide = max(tails), max(len(paths[row]) for row in rows)
        queries, keys = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), wide), np.int64)
        mask = np.zeros((len(rows), 1, longest, wide), dtype=bool)
        for number, (row, tail) in enumerate(zip(rows, tails, strict=True)):
            path = paths[row]
            queries[number, :tail], keys[number, : len(path)] = path[-tail:], path
            mask[number, 0, :tail] = np.arange(wide) <= (shared[row] + np.arange(tail))[:, None]
            places[path[-tail:]] = at + number * longest + np.arange(tail)
        at += queries.size
        causal = not any(shared[row] for row in rows)
        groups.append(AttentionGroup(*(torch.from_numpy(part) for part in (queries, keys, mask)), causal))
    return AttentionPlan(tuple(groups), torch.from_numpy(places))


def _group_by_length(order: Sequence[int], lengths: Sequence[int], shared: Sequence[int]) -> list[list[int]]:
    """Split sample numbers into groups with little padding. order: sample numbers, longest path first. lengths, shared:
    of all samples."""
    groups: list[list[int]] = []
    longest = wide = real = 0
    for row in order:
        tail = lengths[row] - shared[row]
        if groups:
            most, width = max(longest, tail), max(wide, lengths[row])
            padded = (len(groups[-1]) + 1) * most * width
            waste = padded - real - tail * lengths[row]
            if (waste <= _MAX_WASTE * padded or waste <= _SMALL_GROUP) and padded <= _LARGE_GROUP:
                groups[-1].append(row)
                longest, wide, real = most, width, real + tail * lengths[row]
                continue
        groups.append([row])
        longest, wide, real = tail, lengths[row], tail * lengths[row]
    return groups


def attend_packed(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: AttentionPlan | None = None,
    screens: int = 0,
    scaling: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Compute attention over a pack; the library calls it as an attention function.

    query, key, value: [1, heads, tokens, width] each; key and value may have fewer heads. plan: of the pack, in the
    language model's layers. screens: number of concatenated screens of one size, in the vision tower's layers. scaling:
    of the scores. Without plan and screens it is the library's attention, for which `module` and `attention_mask` are.
    Returns [1, tokens, heads, width], and None for the attention weights.
    """
    if plan is not None:
        return _attend_groups(query, key, value, plan, scaling), None
    if screens:
        rows = (part[0].unflatten(1, (screens, -1)).transpose(0, 1) for part in (query, key, value))
        return _SoftmaxAttention.apply(*rows, None, scaling).transpose(1, 2).flatten(0, 1)[None], None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _attend_groups(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float) -> Tensor:
    (heads, tokens, width), kept = query.shape[1:], key.shape[1]
    flat = [part[0].transpose(0, 1).reshape(tokens, -1) for part in (query, key, value)]
    results, product = [], _attend_fused if is_cuda(query.device) else _attend_with_scores
    for group in plan.groups:
        count, longest = group.queries.shape
        asked = functional.embedding(group.queries, flat[0]).view(count, longest, kept, heads // kept, width)
        asked = asked.permute(0, 2, 3, 1, 4)  # [samples, key heads, queries of a key head, tail, width]
        seen = [
            functional.embedding(group.keys, part).view(count, -1, kept, width).transpose(1, 2) for part in flat[1:]
        ]
        mixed = product(asked, *(part[:, :, None] for part in seen), group, scaling)
        results.append(mixed.permute(0, 3, 1, 2, 4).reshape(count * longest, heads * width))
    mixed = functional.embedding(plan.outputs, torch.cat(results))
    return mixed.view(1, tokens, heads, width)


def _attend_with_scores(query: Tensor, key: Tensor, value: Tensor, group: AttentionGroup, scaling: float) -> Tensor:
    return _SoftmaxAttention.apply(query, key, value, group.bias[:, None], scaling)


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, group: AttentionGroup, scaling: float) -> Tensor:
    """Compute a group's attention by torch's fused kernel. query: [samples, key heads, queries per key head, tail,
    width]; key, value: [samples, key heads, 1, path, width]. Returns the shape of `query`."""
    count, kept, each, tail, width = query.shape
    key, value = (part.expand(-1, -1, each, -1, -1).flatten(1, 2) for part in (key, value))
    mask = None
    if not group.causal:  # a padding query that sees no key would give NaN, also in the gradient: let it see all
        mask = group.mask | ~group.mask.any(-1, keepdim=True)
    mixed = functional.scaled_dot_product_attention(
        query.flatten(1, 2), key, value, attn_mask=mask, is_causal=group.causal, scale=scaling
    )
    return mixed.view(count, kept, each, tail, width)


class _SoftmaxAttention(torch.autograd.Function):
    """Compute attention as two products around a softmax: on a CPU faster than the fused kernel, whose gradient is slow
    for narrow heads. The gradient is written out, as it needs to keep the softmax only. query, key, value: [...,
    tokens, width]. bias: float32, added to the scores."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
        scores = torch.matmul(query * scaling, key.transpose(-1, -2)).float()
        if bias is not None:
            scores += bias
        shares = scores.softmax(-1)
        ctx.save_for_backward(query, key, value, shares)
        ctx.scaling = scaling
        return torch.matmul(shares.to(value.dtype), value)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, shares = ctx.saved_tensors
        of_value = torch.matmul(shares.to(value.dtype).transpose(-1, -2), gradient)
        of_shares = torch.matmul(gradient, value.transpose(-1, -2)).float()
        of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype).to(query.dtype)
        of_query = torch.matmul(of_scores, key) * ctx.scaling
        of_key = torch.matmul(of_scores.transpose(-1, -2), query * ctx.scaling)
        # The gradient of a key head that several query heads share is the sum over them.
        return of_query, of_key.sum_to_size(key.shape), of_value.sum_to_size(value.shape), None, None


AttentionInterface.register(PACKED_ATTENTION, attend_packed)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)


# The last layer of the language model is computed only for the tokens that predict a response. The other tokens, most
# of a prompt with a screen, are needed there as keys and values only.


def last_layer_skips_prompt(trunk: nn.Module) -> bool:
    """Tell whether the last layer of `trunk` may skip tokens: not where deepstack adds features to its output."""
    levels = getattr(trunk.config.vision_config, "deepstack_visual_indexes", ())
    return len(levels) < len(trunk.language_model.layers)


def patch_last_layer(trunk: nn.Module) -> None:
    """Make the last layer of `trunk`, a Qwen-VL base model, compute only the tokens that predict a response.

    It returns the hidden states of the tokens `predicting` only, if it is called with `last` and `predicting`
    (`PackedBatch`). A model whose last layer must not skip tokens is left unchanged.
    """
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
    """Run the last layer for the tokens `predicting`: [1, tokens, width] -> [1, responses, width].

    last: attention plan of these tokens; None: run the library's layer. predicting: int64 [responses], indices of
    tokens.
    """
    if last is None:
        return type(layer).forward(layer, hidden_states, **kwargs)
    mixed, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **kwargs | {"plan": last})
    kept = hidden_states.index_select(1, predicting) + mixed.index_select(1, predicting)
    return kept + layer.mlp(layer.post_attention_layernorm(kept))


def patch_rms_norms(model: PreTrainedModel) -> None:
    """Make the language model of a Qwen-VL `model` use `RmsNorm` for float32 on a CPU, and the library's layer else."""
    for module in model.base_model.language_model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = MethodType(_rms_norm_forward, module)  # bound, so that a copy of the model has its own


def _rms_norm_forward(norm: nn.Module, hidden_states: Tensor) -> Tensor:
    tensors = (hidden_states, norm.weight)
    if all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors):
        return RmsNorm.apply(hidden_states, norm.weight, norm.variance_epsilon)
    return type(norm).forward(norm, hidden_states)


class RmsNorm(torch.autograd.Function):
    """Compute x / sqrt(mean x^2 + eps) * weight over the last axis: [..., width] -> [..., width].

    weight: [width]. It takes a quarter of the time of the library's five operations.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the normalised `x`, and keep for `backward` what it was multiplied by."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of x and weight. gradient: of the result, [..., width]."""
        normed, scale, weight = ctx.saved_tensors
        both = gradient * normed
        along = (both @ weight).unsqueeze(-1)  # the gradient's part along x, which the normalisation removes
        of_x = (gradient * weight).addcmul_(normed, along, value=-1 / normed.shape[-1]).mul_(scale)
        return of_x, both.flatten(0, -2).sum(0), None


def patch_patch_embedding(model: PreTrainedModel) -> None:
    """Make a Qwen-VL model embed the patches of pictures (not of videos) by one matrix product.

    `StillPatchEmbedding` in `policy/inference/fused_layers.py` does the same for inference; here the convolution's
    weights stay, to be trained. On a CPU the gradient takes a sixth of the convolution's time.
    """
    embed = model.base_model.visual.patch_embed
    if isinstance(embed.proj, nn.Conv3d) and embed.proj.kernel_size == embed.proj.stride:
        embed.forward = MethodType(_patch_embedding_forward, embed)  # bound, so that a copy of the model has its own


def _patch_embedding_forward(embed: nn.Module, patches: Tensor) -> Tensor:
    """Embed patches: [patches, channels x frames x side x side] -> [patches, size]."""
    convolution = embed.proj
    frames = convolution.kernel_size[0]
    still = patches.view(len(patches), convolution.in_channels, frames, -1)[:, :, 0].flatten(1)
    weight = convolution.weight.sum(2).flatten(1)
    return nn.functional.linear(still.to(weight.dtype), weight, convolution.bias)


# A frozen base may be stored in fewer bits than it is computed in: each weight is converted where it is used, in the
# forward pass and again in the backward pass, and the copy is freed at once. This costs little next to the product.

_WIDE = 1 << 24  # numbers of a weight that are converted at once: 64 MiB in float32


def compute_in_input_type(model: PreTrainedModel) -> None:
    """Make a frozen `model` that is stored in bfloat16 compute in float32, or under autocast in autocast's dtype.

    All its weights except linear layers and token embeddings are small and become float32.
    """
    table = model.get_input_embeddings()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = MethodType(_wide_linear_forward, module)
        elif module is table:
            module.register_forward_hook(lambda _module, _inputs, found: found.float())
        else:
            for name, weight in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(weight.detach().float(), requires_grad=False))
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias = nn.Parameter(module.bias.detach().float(), requires_grad=False)


def _wide_linear_forward(linear: nn.Linear, x: Tensor) -> Tensor:
    if linear.weight.dtype == x.dtype or torch.is_autocast_enabled(x.device.type):
        return functional.linear(x, linear.weight, linear.bias)
    return WideLinear.apply(x, linear.weight, linear.bias)


class WideLinear(torch.autograd.Function):
    """Compute x W^T + bias in the dtype of x, for a frozen W of another dtype: [..., in] -> [..., out].

    W: [out, in].
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product; only W is kept for `backward`."""
        ctx.save_for_backward(weight)
        return _wide_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of x; W and bias are frozen. gradient: of the result, [..., out]."""
        return multiply_frozen(gradient, *ctx.saved_tensors), None, None


def _wide_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = _rows_at_once(weight)
    biases = bias.split(rows) if bias is not None else [None] * -(-len(weight) // rows)
    parts = [functional.linear(x, w.to(x.dtype), b) for w, b in zip(weight.split(rows), biases, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def multiply_frozen(gradient: Tensor, weight: Tensor) -> Tensor:
    """Multiply `gradient` [..., out] by a frozen `weight` [out, in] of any dtype: [..., in], of the gradient's dtype.

    Some rows of the weight are converted at once.
    """
    rows = _rows_at_once(weight)
    total: Tensor | None = None
    for some, w in zip(gradient.split(rows, dim=-1), weight.split(rows), strict=True):
        more = some @ w.to(gradient.dtype)
        total = more if total is None else total.add_(more)
    return total


def _rows_at_once(weight: Tensor) -> int:
    return max(1, _WIDE // weight.shape[1])


def patch_lora_layers(model: PreTrainedModel) -> None:
    """Make PEFT's linear LoRA layers compute by `LoraLinear`, and gated MLPs of three such layers by `LoraMlp`.

    That holds for float32 on a CPU; the layers must have no dropout, and those with DoRA stay as they are.
    """
    from peft.tuners.lora import Linear

    for module in model.modules():
        if isinstance(module, Linear) and not module.lora_variant:
            module.forward = MethodType(_lora_linear_forward, module)
        layers = [getattr(module, name, None) for name in _GATED]
        if all(isinstance(one, Linear) and not one.lora_variant for one in layers) and _is_silu(module.act_fn):
            module.forward = MethodType(_lora_mlp_forward, module)


_GATED = ("gate_proj", "up_proj", "down_proj")


def _is_silu(activation: nn.Module) -> bool:
    return type(activation).__name__ in ("SiLU", "SiLUActivation")


def _computes_fused(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def _lora_linear_forward(layer: Any, x: Tensor) -> Tensor:
    if not _computes_fused(x):
        return type(layer).forward(layer, x)
    return LoraLinear.apply(x, *_lora_weights(layer))


def _lora_mlp_forward(mlp: Any, x: Tensor) -> Tensor:
    if not _computes_fused(x):
        return type(mlp).forward(mlp, x)
    return LoraMlp.apply(x, *(one for name in _GATED for one in _lora_weights(getattr(mlp, name))))


def _lora_weights(layer: Any) -> tuple[Tensor, Tensor | None, Tensor, Tensor, float]:
    """Return W, bias, A, B and the scaling of a LoRA layer."""
    (name,), base = layer.lora_A.keys(), layer.base_layer
    return base.weight, base.bias, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]


def _lora_product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """Return x W^T + bias + scaling x A^T B^T, and x A^T. rows: x, [rows, in]."""
    low = rows @ a.T
    return _wide_product(rows, weight, bias).addmm_(low, b.T, alpha=scaling), low


def _lora_gradients(
    gradient: Tensor, rows: Tensor, low: Tensor, weight: Tensor, a: Tensor, b: Tensor, scaling: float, wants_x: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return the gradients of x, A and B. gradient: of the result, [rows, out]. rows, low: as `_lora_product` has
    them. wants_x: False gives None for x."""
    of_low = (gradient @ b).mul_(scaling)
    of_x = multiply_frozen(gradient, weight).addmm_(of_low, a) if wants_x else None
    return of_x, of_low.T @ rows, (gradient.T @ low).mul_(scaling)


class LoraLinear(torch.autograd.Function):
    """Compute x W^T + bias + scaling x A^T B^T for a frozen W of any dtype.

    The low-rank part is added in place, to the result and to the gradient of x; PEFT's composition writes three more
    tensors of the result's size. x: float32 [..., in], W: [out, in], A: [rank, in], B: [out, rank] -> [..., out].
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float) -> Tensor:
        """Return the layer's result, [..., out]."""
        result, low = _lora_product(x.flatten(0, -2), weight, bias, a, b, scaling)
        ctx.save_for_backward(x, low, weight, a, b)
        ctx.scaling = scaling
        return result.unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x (None where it needs none), A and B. gradient: of the result, [..., out]."""
        x, *others = ctx.saved_tensors
        rows = x.flatten(0, -2)
        of_x, of_a, of_b = _lora_gradients(
            gradient.flatten(0, -2), rows, *others, ctx.scaling, wants_x=ctx.needs_input_grad[0]
        )
        return None if of_x is None else of_x.view(x.shape), None, None, of_a, of_b, None


class LoraMlp(torch.autograd.Function):
    """Compute down(silu(gate(x)) * up(x)) where each of the three is a LoRA layer (`LoraLinear`).

    For the gradient it keeps what gate and up gave; the other two tensors of that width, which autograd would keep,
    cost one multiplication to compute again. x: float32 [..., in]; then W, bias, A, B and scaling of each layer ->
    [..., in].
    """

    @staticmethod
    def forward(ctx, x: Tensor, *weights: Any) -> Tensor:
        """Return the MLP's result, [..., in]. weights: W, bias, A, B and scaling of gate, of up, then of down."""
        gate_layer, up_layer, down_layer = weights[:5], weights[5:10], weights[10:]
        rows = x.flatten(0, -2)
        gate, low_gate = _lora_product(rows, *gate_layer)
        up, low_up = _lora_product(rows, *up_layer)
        result, low_down = _lora_product(functional.silu(gate).mul_(up), *down_layer)
        kept = [(weight, a, b) for weight, _, a, b, _ in (gate_layer, up_layer, down_layer)]
        ctx.save_for_backward(x, gate, up, low_gate, low_up, low_down, *(one for three in kept for one in three))
        ctx.scalings = [layer[4] for layer in (gate_layer, up_layer, down_layer)]
        return result.unflatten(0, x.shape[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x (None where it needs none) and of each layer's A and B.

        gradient: of the result, [..., in].
        """
        x, gate, up, low_gate, low_up, low_down, *kept = ctx.saved_tensors
        rows, wants_x = x.flatten(0, -2), ctx.needs_input_grad[0]
        active = functional.silu(gate)
        of_product, *of_down = _lora_gradients(
            gradient.flatten(0, -2), active * up, low_down, *kept[6:], ctx.scalings[2], wants_x=True
        )
        of_up = active.mul_(of_product)
        of_x, *of_up_layer = _lora_gradients(of_up, rows, low_up, *kept[3:6], ctx.scalings[1], wants_x=wants_x)
        of_gate = torch.ops.aten.silu_backward(of_product.mul_(up), gate)
        more, *of_gate_layer = _lora_gradients(of_gate, rows, low_gate, *kept[:3], ctx.scalings[0], wants_x=wants_x)
        layers = (of_gate_layer, of_up_layer, of_down)
        of_weights = (one for of_a, of_b in layers for one in (None, None, of_a, of_b, None))
        return of_x.add_(more).view(x.shape) if wants_x else None, *of_weights


def patch_for_training(model: PreTrainedModel) -> bool:
    """Make a Qwen-VL `model` read packs (`PackedBatch`), in place; return False for a model of another family.

    Other forward passes stay the same; a model of another family is left unchanged.
    """
    if model.config.model_type not in FAMILY:
        return False
    model.set_attn_implementation(PACKED_ATTENTION)
    if is_cuda(next(model.parameters()).device):
        install_window_attention(model)
    patch_patch_embedding(model)
    patch_rms_norms(model)
    patch_last_layer(model.base_model)
    return True
