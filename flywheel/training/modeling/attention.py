"""Compute attention over packed samples without padding them to one length.

In a transformer of this kind all but attention works on tokens one by one, so samples of any lengths can lie in one
row of tokens. For attention alone they are put side by side again, in groups of like length: a group's waste is
bounded, and of the whole pass attention is the smaller part. Screens go through the vision tower together, those of
one size at once.

On a GPU the product is the fused kernel's, which keeps no scores for the gradient: what it needs grows with the tokens,
and of the masks, a group's each, with its scores, a byte each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from flywheel.policy.devices import is_cuda

PACKED_ATTENTION = "flywheel_packed"
_MAX_WASTE = 0.25  # of a group's scores, at most
_SMALL_GROUP = 20_000  # scores of a head: waste below it costs less than one more group
_LARGE_GROUP = 1 << 19  # and above it a group is closed: its scores would leave the caches
_MASKED_SCORE = -1e30  # added to a score: what is left of it after a softmax is 0


@dataclass(frozen=True, eq=False)
class AttentionGroup:
    """Samples of like length. queries: int64 [samples, longest tail], keys: int64 [samples, longest path]: tokens of
    the pack, 0 where there is none. mask: bool [samples, 1, longest tail, longest path]. causal: whether each tail is
    its sample's whole path."""

    queries: Tensor
    keys: Tensor
    mask: Tensor
    causal: bool

    @cached_property
    def bias(self) -> Tensor:
        """float32, as the mask: what it adds to the scores. The same for all layers of a pass."""
        return torch.zeros(self.mask.shape, device=self.mask.device).masked_fill_(~self.mask, _MASKED_SCORE)


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """Who attends to whom in a pack. outputs: int64 [tokens], the place of each token in the groups' results."""

    groups: tuple[AttentionGroup, ...]
    outputs: Tensor

    def to(self, device: torch.device) -> AttentionPlan:
        names = ("queries", "keys", "mask")
        groups = tuple(
            replace(group, **{name: getattr(group, name).to(device) for name in names}) for group in self.groups
        )
        return AttentionPlan(groups, self.outputs.to(device))


def plan_attention(paths: Sequence[np.ndarray], shared: Sequence[int], tokens: int) -> AttentionPlan:
    """Plan the attention of a pack.

    paths: for each sample the pack's tokens from its first to its last, int64 [length]. shared: how many of them an
    earlier sample has already, or nothing needs; the others are its tail. tokens: in the pack; the results of those in
    no tail are undefined.
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
    """Rows cut into groups with little waste."""
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
    """Compute attention over a pack: [1, heads, tokens, width] each -> [1, tokens, heads, width].

    plan: of a pack, for the language model's layers. screens: how many of one size lie behind one another, for the
    vision tower's. Without either it is the library's attention.
    """
    if plan is not None:
        return _attend_groups(query, key, value, plan, scaling), None
    if screens:
        rows = (part[0].unflatten(1, (screens, -1)).transpose(0, 1) for part in (query, key, value))
        return _softmax_attention(*rows, None, scaling).transpose(1, 2).flatten(0, 1)[None], None
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
    return _softmax_attention(query, key, value, group.bias[:, None], scaling)


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, group: AttentionGroup, scaling: float) -> Tensor:
    """[samples, key heads, queries of a key head, tail, width], and [samples, key heads, 1, path, width] twice."""
    count, kept, each, tail, width = query.shape
    key, value = (part.expand(-1, -1, each, -1, -1).flatten(1, 2) for part in (key, value))
    mask = None
    if not group.causal:  # padding that sees nothing would be no number, also in its gradient: it sees everything
        mask = group.mask | ~group.mask.any(-1, keepdim=True)
    mixed = functional.scaled_dot_product_attention(
        query.flatten(1, 2), key, value, attn_mask=mask, is_causal=group.causal, scale=scaling
    )
    return mixed.view(count, kept, each, tail, width)


def _softmax_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
    """[..., queries, width]. bias: float32, added to the scores."""
    return _SoftmaxAttention.apply(query, key, value, bias, scaling)


class _SoftmaxAttention(torch.autograd.Function):
    """Two products around a softmax: on a CPU quicker than the fused kernel, slow in its gradient for narrow heads. The
    gradient is written out, since of all that is made on the way it needs the softmax alone."""

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
        # A key of several queries' heads has the gradient of all of them.
        return of_query, of_key.sum_to_size(key.shape), of_value.sum_to_size(value.shape), None, None


AttentionInterface.register(PACKED_ATTENTION, attend_packed)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
