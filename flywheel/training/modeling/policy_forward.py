"""Run a policy over padded or packed samples: log-probabilities, entropies and hidden states at response tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from flywheel.config import TrainingSettings
from flywheel.policy.devices import is_cuda
from flywheel.policy.encoding import EncodedSequence, collate_sequences
from flywheel.policy.guided_decoding import BLOCKED_LOGIT, AnswerConstraint
from flywheel.policy.inference import cache
from flywheel.policy.inference.cache import EncodedScreen, ScreenFeatures, VisionEncoder, make_prompt
from flywheel.policy.torch_threads import open_pass_pool
from flywheel.training.modeling.monkey_patch import (
    AttentionPlan,
    last_layer_skips_prompt,
    multiply_frozen,
    patch_for_training,
    plan_attention,
)


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Hold sequences of a prompt and its response, padded on the right to one length.

    Logits are computed for the responses only: a prompt, most of it the screen, needs none. inputs: as
    `collate_sequences` returns them. ids: int64 [batch, longest response], the responses. mask: bool, same shape, False
    for padding. positions: int64, same shape, index of the hidden state that predicts each response token. members:
    indices of the sequences in the list that the batch was made from. blocked: as in `PackedBatch`.
    """

    inputs: dict[str, Tensor]
    ids: Tensor
    mask: Tensor
    positions: Tensor
    members: tuple[int, ...] = ()
    blocked: Tensor | None = None

    @property
    def targets(self) -> Tensor:
        """Return the response tokens of all sequences, int64 [responses]."""
        return self.ids[self.mask]

    def to(self, device: torch.device) -> PaddedBatch:
        """Return a copy on `device`; `blocked` stays."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        others = {name: getattr(self, name).to(device) for name in ("ids", "mask", "positions")}
        return replace(self, inputs=inputs, **others)


def pad_samples(prompts: Sequence[EncodedSequence], responses: Sequence[Sequence[int]]) -> PaddedBatch:
    """Pad prompts and their responses into one batch. responses: token ids, at least one each."""
    longest = max(len(response) for response in responses)
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros(ids.shape, dtype=bool)
    positions = np.zeros_like(ids)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        n = len(response)
        ids[row, :n], mask[row, :n] = response, True
        positions[row, :n] = np.arange(len(prompt) - 1, len(prompt) - 1 + n)
    # No token is trained that follows the last response token, so it is left out.
    items = [append_response(prompt, response[:-1]) for prompt, response in zip(prompts, responses, strict=True)]
    return PaddedBatch(collate_sequences(items, "right"), *(torch.from_numpy(part) for part in (ids, mask, positions)))


def append_response(prompt: EncodedSequence, response: Sequence[int]) -> EncodedSequence:
    """Return the prompt followed by the response, as the model's input.

    A model at the start of its training may sample the image token, for which there is no image. In the input the token
    before takes its place, as in sampling; its own log-probability is still computed.
    """
    images = prompt.input_ids[prompt.mm_token_type_ids == 1]
    kept: list[int] = []
    for token in response:
        is_image = len(images) > 0 and token == images[0]
        kept.append((kept[-1] if kept else int(prompt.input_ids[-1])) if is_image else token)
    return prompt.extended(kept)


def compute_padded_hidden(trunk: nn.Module, batch: PaddedBatch) -> Tensor:
    """Return the hidden states that predict the response tokens, [batch, longest response, hidden].

    trunk: the base model, without its output embedding. Where a response is padded, the states are of any token.
    """
    hidden = trunk(**batch.inputs, use_cache=False).last_hidden_state
    return hidden.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


# Packed batches: samples of any lengths in one row of tokens, without padding, each shared prefix only once.
#
# The samples of one task have a common prefix, and so have the steps of a trajectory. A token's hidden states depend
# only on the tokens before it, so sharing a prefix is exact (tested); its gradient is the sum over all samples that
# follow it. A screen that several samples show takes one pass of the vision tower.

MIN_SHARED_TOKENS = 8  # a shorter common prefix is computed for each sample separately


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """Hold a prompt and its response, ready to be packed, without the last response token, which nothing follows.

    ids: int64 [tokens]. positions: int64 [3, tokens], time, row and column of multimodal RoPE. keys: int64 [tokens],
    equal for equal tokens, and for image tokens of equal screens. screens: in order. response: int64 [response], all of
    its tokens.
    """

    ids: np.ndarray
    positions: np.ndarray
    keys: np.ndarray
    screens: tuple[EncodedScreen, ...]
    response: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return a sort key that places sequences with a common prefix next to one another."""
        return tuple(self.keys.tolist())

    @property
    def predicting(self) -> np.ndarray:
        """Return the indices of the tokens that predict the response, [response]."""
        return len(self.ids) - len(self.response) + np.arange(len(self.response))


def build_token_sequence(model: PreTrainedModel, prompt: EncodedSequence, response: Sequence[int]) -> TokenSequence:
    """Build the sequence of an encoded `prompt` and its response, ready to be packed.

    model: only its rule for positions is used. response: token ids, at least one.
    """
    whole = append_response(prompt, response[:-1])
    read = make_prompt(model, whole, -1, _screen_keys(whole))
    keys = whole.input_ids.copy()
    for screen in read.screens:
        keys[screen.start : screen.stop] = -1 - (int.from_bytes(screen.key[:8]) >> 1)
    target = np.asarray(response, dtype=np.int64)
    return TokenSequence(whole.input_ids, read.positions.numpy(), keys, read.screens, target)


def _screen_keys(encoded: EncodedSequence) -> list[bytes]:
    """Return a digest of each screen: equal digests mean equal pictures."""
    ends = np.cumsum(encoded.image_grid_thw.prod(axis=1))[:-1]
    parts = np.split(encoded.pixel_values, ends) if len(encoded.image_grid_thw) else []
    return [
        hashlib.sha256(np.ascontiguousarray(part).data).digest() + grid.tobytes()
        for part, grid in zip(parts, encoded.image_grid_thw, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Hold sequences packed into one row of tokens, with common beginnings only once.

    members: indices of the sequences in the list that the pack was made from. ids: int64 [1, tokens]. positions: int64
    [3, 1, tokens]. screens: each different screen once. shown: index into `screens` for each image of the row, in
    order. plan: attention of the layers; last: of the last layer, where only the predicting tokens have queries.
    predicting: int64 [responses], the tokens that predict the members' responses, one member after the other. targets:
    int64 [responses], the tokens that they predict. blocked: bits, uint8 [responses, vocabulary / 8], of the tokens
    that guided decoding excludes; None without it. features: of the screens, where the vision tower is frozen.
    """

    members: tuple[int, ...]
    ids: Tensor
    positions: Tensor
    screens: tuple[EncodedScreen, ...]
    shown: tuple[int, ...]
    plan: AttentionPlan
    last: AttentionPlan
    predicting: Tensor
    targets: Tensor
    blocked: Tensor | None = None
    features: tuple[ScreenFeatures, ...] | None = None

    @property
    def tokens(self) -> int:
        """Return the number of computed tokens."""
        return self.ids.shape[1]

    def to(self, device: torch.device) -> PackedBatch:
        """Return a copy on `device`; screens, `blocked` and features stay."""
        names = ("ids", "positions", "plan", "last", "predicting", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pack_sequences(sequences: Sequence[TokenSequence], limit: int, shares: int = 1) -> list[PackedBatch]:
    """Pack sequences, given in any order, into packs of at most `limit` computed tokens.

    A sequence that is longer has a pack of its own. shares: least number of packs, if there are as many sequences; they
    get about equal sizes.
    """
    order = sorted(range(len(sequences)), key=lambda row: (sequences[row].order, row))
    common = [0, *(_count_shared_tokens(sequences[before], sequences[row]) for before, row in pairwise(order))]
    enough = sum(len(sequences[row]) - shared for row, shared in zip(order, common, strict=True)) / shares
    parts: list[list[tuple[int, int]]] = []  # (sequence, tokens shared with the one before it)
    held = 0
    for row, shared in zip(order, common, strict=True):
        more = len(sequences[row]) - shared
        if not parts or held + more > limit or (len(parts) < shares and held + more / 2 > enough):
            parts.append([])
            held, shared, more = 0, 0, len(sequences[row])
        parts[-1].append((row, shared))
        held += more
    return [_build_pack(sequences, part) for part in parts]


def _count_shared_tokens(before: TokenSequence, after: TokenSequence) -> int:
    n = min(len(before), len(after))
    different = np.flatnonzero(before.keys[:n] != after.keys[:n])
    common = int(different[0]) if len(different) else n
    return common if common >= MIN_SHARED_TOKENS else 0


def _build_pack(sequences: Sequence[TokenSequence], part: Sequence[tuple[int, int]]) -> PackedBatch:
    ids, positions, paths, shown = [], [], [], []
    screens: dict[bytes, int] = {}
    found: list[EncodedScreen] = []
    count = 0
    for row, common in part:
        now = sequences[row]
        path = np.concatenate([paths[-1][:common] if common else [], count + np.arange(len(now) - common)])
        paths.append(path.astype(np.int64))
        ids.append(now.ids[common:])
        positions.append(now.positions[:, common:])
        count += len(now) - common
        for screen in now.screens:
            if screen.start >= common:
                if screen.key not in screens:
                    screens[screen.key] = len(found)
                    found.append(screen)
                shown.append(screens[screen.key])
    rows, shared = zip(*part, strict=True)
    members = [sequences[row] for row in rows]
    before = [len(path) - len(member.response) for path, member in zip(paths, members, strict=True)]
    predicting = [path[member.predicting] for path, member in zip(paths, members, strict=True)]
    return PackedBatch(
        rows,
        torch.from_numpy(np.concatenate(ids))[None],
        torch.from_numpy(np.concatenate(positions, axis=1))[:, None],
        tuple(found),
        tuple(shown),
        plan_attention(paths, shared, count),
        plan_attention(paths, before, count),
        torch.from_numpy(np.concatenate(predicting)),
        torch.from_numpy(np.concatenate([member.response for member in members])),
    )


def compute_packed_hidden(trunk: torch.nn.Module, pack: PackedBatch) -> Tensor:
    """Return the hidden states that predict the responses of `pack`, [responses, width], one member after the other.

    trunk: the base model, after `patch_for_training`.
    """
    device = pack.ids.device
    images: dict[str, Any] = {}
    if pack.shown:
        features = _encode_screens(trunk, pack) if pack.features is None else pack.features
        images["mm_encoder_outputs"] = cache.to_encoder_outputs([features[number] for number in pack.shown])
    early = last_layer_skips_prompt(trunk)
    hidden = trunk(
        input_ids=pack.ids,
        position_ids=pack.positions,
        plan=pack.plan,
        use_cache=False,
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),  # unused: the plan is the mask
        **({"last": pack.last, "predicting": pack.predicting} if early else {}),
        **images,
    ).last_hidden_state
    return hidden[0] if early else hidden[0].index_select(0, pack.predicting)


def _encode_screens(trunk: torch.nn.Module, pack: PackedBatch) -> list[ScreenFeatures]:
    """Compute the features of the pack's screens, in order, with one pass for all screens of one size."""
    sizes: dict[tuple[int, ...], list[int]] = {}
    for number, screen in enumerate(pack.screens):
        sizes.setdefault(screen.grid, []).append(number)
    device, found = pack.ids.device, {}
    for numbers in sizes.values():
        screens = [pack.screens[number] for number in numbers]
        more: dict[str, Any] = {}
        # Attention of equal-sized screens as one batch, where the tower has no windows. A GPU's kernel needs no batch.
        if trunk.config.model_type == "qwen3_vl" and not is_cuda(device):
            patches = sum(len(screen.pixels) for screen in screens)
            more = {"cu_seqlens": torch.tensor([0, patches], dtype=torch.int32), "screens": len(screens)}
        found |= zip(numbers, cache.run_vision_tower(trunk, screens, device, **more), strict=True)
    return [found[number] for number in range(len(pack.screens))]


SCREEN_CACHE_BYTES = 256 << 20  # bytes of screens' features: about 2,000 screens of the shipped base


@dataclass(frozen=True, eq=False)
class EncodedExample:
    """Hold an encoded prompt and its response.

    context: the prompt. sequence: both in the form for packs; None where the model cannot read packs. blocked: bits,
    uint8 [response, vocabulary / 8], of the tokens that guided decoding excludes; None without it.
    """

    context: EncodedSequence
    response: tuple[int, ...]
    sequence: TokenSequence | None
    blocked: np.ndarray | None = None


_LOGITS = 1 << 24  # logits that are in memory at once: 64 MiB in float32

MicroBatch = PackedBatch | PaddedBatch  # its response tokens, [tokens], are those of one member after the other


def freeze_vision_tower(policy: PreTrainedModel, chosen: TrainingSettings) -> bool:
    """Freeze the vision tower of `policy` if `chosen` says so; return whether its features may be cached.

    chosen: block `ct`, `sft` or `rl`, of which freeze_vision, engine and zero_stage are read. Features may be cached
    where no weight of the tower is trained, as when an adapter does not reach it. With ZeRO 3 they may not: all
    processes make each pass together, so none may skip one.
    """
    visual = policy.base_model.visual
    if chosen.freeze_vision:
        visual.requires_grad_(False)
    fixed = not any(weight.requires_grad for weight in visual.parameters())
    if fixed:
        visual.eval()  # no dropout in adapter layers that are not trained
    return fixed and not (chosen.engine == "deepspeed" and chosen.zero_stage == 3)


class PolicyForward(nn.Module):
    """Run a policy, and read log-probabilities, entropies and hidden states at response tokens.

    policy: patched, in place, to read packs if its family can. constraint: guided decoding of the responses, if any;
    probabilities are then among the tokens that it allows. keeps_screens: cache the vision tower's features of a screen
    for other examples that show it (`freeze_vision_tower`). at_once: screens that the tower then computes in parallel,
    one core each. bfloat16: compute products in bfloat16; log-probabilities stay float32.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        constraint: AnswerConstraint | None = None,
        *,
        keeps_screens: bool = False,
        at_once: int = 1,
        bfloat16: bool = False,
    ) -> None:
        super().__init__()
        self.policy, self._constraint, self._bfloat16 = policy, constraint, bfloat16
        self.reads_packs = patch_for_training(policy)
        self.vision: VisionEncoder | None = None
        if keeps_screens:
            self.vision = VisionEncoder(policy, SCREEN_CACHE_BYTES, at_once, open_pass_pool(at_once), one_by_one=True)

    def encode_example(
        self, context: EncodedSequence, response: Sequence[int], *, sampled: bool = True
    ) -> EncodedExample:
        """Join a prompt and its response.

        context: the encoded prompt. response: token ids, at least one. sampled: False for a placeholder token, to which
        the constraint does not apply. Raises PolicyError where the constraint does not allow a token.
        """
        made = build_token_sequence(self.policy, context, response) if self.reads_packs else None
        held = self._constraint is not None and sampled
        return EncodedExample(context, tuple(response), made, self._constraint.blocked(response) if held else None)

    def split_into_micro_batches(
        self, items: Sequence[EncodedExample], settings: TrainingSettings, shares: int = 1
    ) -> list[MicroBatch]:
        """Divide items into micro-batches on the policy's device, packed or padded.

        Packs have at most settings.pack_tokens tokens; where that is 0, or the model cannot read packs, padded batches
        have settings.micro_batch items. items: from `encode_example`. settings: block `ct`, `sft` or `rl`. shares:
        least number of micro-batches, if there are as many items; they get about equal sizes.
        """
        device = next(self.policy.parameters()).device
        found: list[MicroBatch] = []
        if settings.pack_tokens and items and items[0].sequence is not None:
            packs = pack_sequences([item.sequence for item in items], settings.pack_tokens, shares=shares)
            for packed in packs:
                seen = None if self.vision is None else tuple(self.vision.features(packed.screens))
                found.append(replace(packed.to(device), features=seen))
        else:  # items of similar length together, for little padding
            size = min(settings.micro_batch, -(-len(items) // shares))
            order = sorted(range(len(items)), key=lambda i: (len(items[i].context) + len(items[i].response), i))
            for rows in (order[start : start + size] for start in range(0, len(order), size)):
                batch = pad_samples([items[i].context for i in rows], [items[i].response for i in rows])
                found.append(replace(batch.to(device), members=tuple(rows)))
        if self._constraint is None:
            return found
        return [
            replace(part, blocked=_concatenate_blocked([items[i] for i in part.members]).to(device)) for part in found
        ]

    def forward(self, part: MicroBatch, *temperatures: float) -> tuple[Tensor, ...]:
        """Read one micro-batch: return (hidden, entropy, log-probabilities at each temperature).

        part: has `tokens` response tokens. temperatures: at least one. hidden: [tokens, width], the hidden states that
        predict the response tokens. entropy: [tokens], of the distribution at the first temperature, in nats, without
        gradient. log-probabilities: [tokens] each.
        """
        with torch.autocast(part.targets.device.type, torch.bfloat16, enabled=self._bfloat16):
            if isinstance(part, PackedBatch):
                hidden = compute_packed_hidden(self.policy.base_model, part)
            else:
                hidden = compute_padded_hidden(self.policy.base_model, part)[part.mask]
            rows = max(1, _LOGITS // self.policy.get_output_embeddings().out_features)
            if len(hidden) <= rows:
                return hidden, *self._read_logits(hidden, part.targets, part.blocked, *temperatures)
            # All logits at once would be the largest tensor. Those of a chunk are computed again for the gradient, or
            # what the gradient needs of them is computed with them.
            head = self.policy.get_output_embeddings()
            fixed = type(head) is nn.Linear and head.bias is None and not head.weight.requires_grad
            fixed &= not hasattr(head.weight, "ds_id")  # ZeRO 3 gathers weights only where their module is called
            starts = range(0, len(hidden), rows)
            blocked = [None if part.blocked is None else part.blocked[start : start + rows] for start in starts]
            chunks = zip(hidden.split(rows), part.targets.split(rows), blocked, strict=True)
            if fixed and hidden.requires_grad and not self._bfloat16:
                read = [_FixedHeadLogprobs.apply(head, *chunk, *temperatures) for chunk in chunks]
            else:
                read = [
                    checkpoint(self._read_logits, *chunk, *temperatures, use_reentrant=False, preserve_rng_state=False)
                    for chunk in chunks
                ]
            return hidden, *(torch.cat(column) for column in zip(*read, strict=True))

    def _read_logits(
        self, hidden: Tensor, targets: Tensor, blocked: Tensor | None, *temperatures: float
    ) -> tuple[Tensor, ...]:
        """Return entropy and log-probabilities, as in `forward`, for some of the response tokens."""
        logits = _compute_logits(self.policy.get_output_embeddings(), hidden, blocked)
        read = [token_logprobs(logits / temperature, targets) for temperature in temperatures]
        return read[0][1], *(logprobs for logprobs, _ in read)


def _compute_logits(head: nn.Module, hidden: Tensor, blocked: Tensor | None) -> Tensor:
    """Compute the logits [tokens, vocabulary] of `hidden` [tokens, width]. blocked: as `PackedBatch` has it."""
    logits = head(hidden)
    return logits if blocked is None else logits.masked_fill(_unpack_bits(blocked, logits.shape[-1]), BLOCKED_LOGIT)


class _FixedHeadLogprobs(torch.autograd.Function):
    """Compute what `PolicyForward._read_logits` does, for an output layer that does not learn.

    A log-probability is one number a token, and its gradient with respect to the hidden state is (W[target] - p W) / T,
    a row of the hidden state's width, which is kept in place of the logits (as Liger's fused loss does it).
    """

    @staticmethod
    def forward(
        ctx, head: nn.Linear, hidden: Tensor, targets: Tensor, blocked: Tensor | None, *temperatures: float
    ) -> tuple[Tensor, ...]:
        logits, rows, entropy, values = _compute_logits(head, hidden, blocked).float(), [], None, []
        chosen = head.weight[targets].to(hidden.dtype)
        for temperature in temperatures:
            logp = torch.log_softmax(logits / temperature, dim=-1)
            values.append(logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1))
            shares = logp.exp()
            if entropy is None:
                entropy = -(shares * logp).sum(-1)
            rows.append((chosen - multiply_frozen(shares, head.weight)) / temperature)
        ctx.save_for_backward(*rows)
        ctx.mark_non_differentiable(entropy)
        return entropy, *values

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = (gradient[:, None] * row for gradient, row in zip(gradients, ctx.saved_tensors, strict=True))
        return None, sum(parts), None, None, *(None for _ in gradients)


def token_logprobs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target and the entropy of each distribution, both [...], in nats.

    logits: [..., vocabulary]. targets: ids [...]. The entropy carries no gradient.
    """
    logp = torch.log_softmax(logits.float(), dim=-1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def _concatenate_blocked(items: Sequence[EncodedExample]) -> Tensor:
    """Return the blocked bits of all items, uint8 [tokens, vocabulary / 8]; a placeholder has none blocked."""
    width = next((item.blocked.shape[1] for item in items if item.blocked is not None), 0)
    free = [np.zeros((len(item.response), width), np.uint8) if item.blocked is None else item.blocked for item in items]
    return torch.from_numpy(np.concatenate(free))


def _unpack_bits(bits: Tensor, width: int) -> Tensor:
    """Unpack bits, uint8 [tokens, bytes] with the highest bit first, to bool [tokens, width]."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    every = (bits[:, :, None] >> places & 1).flatten(1).bool()
    return every[:, :width] if every.shape[1] else every.new_zeros(len(bits), width)
