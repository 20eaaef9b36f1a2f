"""Batch samples for the forward pass: padded, or packed with shared prefixes computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flywheel.policy.devices import is_cuda
from flywheel.policy.encoding import EncodedSequence, collate_sequences
from flywheel.policy.inference.cache import EncodedScreen, ScreenFeatures, make_prompt, to_encoder_outputs
from flywheel.training.modeling.attention import AttentionPlan, plan_attention
from flywheel.training.modeling.monkey_patch import last_layer_skips_prompt

# Padded batches. SFT, PPO and the value model read hidden states at the response's tokens alone: the prompt (most of it
# the screen) needs no logits.


@dataclass(frozen=True)
class PaddedTokens:
    """Sequences (prompt and response), padded right. ids, mask: [batch, longest response]; positions: of the hidden
    state that predicts each response token."""

    inputs: dict[str, Tensor]
    ids: Tensor
    mask: Tensor
    positions: Tensor

    def to(self, device: torch.device) -> PaddedTokens:
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        return PaddedTokens(inputs, self.ids.to(device), self.mask.to(device), self.positions.to(device))


def pad_samples(prompts: Sequence[EncodedSequence], responses: Sequence[Sequence[int]]) -> PaddedTokens:
    """Pad prompts and their responses into one batch.

    responses: token ids, one a prompt, each with at least one token.
    """
    longest = max(len(response) for response in responses)
    ids = np.zeros((len(prompts), longest), dtype=np.int64)
    mask = np.zeros(ids.shape, dtype=bool)
    positions = np.zeros_like(ids)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        n = len(response)
        ids[row, :n], mask[row, :n] = response, True
        positions[row, :n] = np.arange(len(prompt) - 1, len(prompt) - 1 + n)
    # The last response token predicts nothing that is trained on: leave it out.
    items = [append_response(prompt, response[:-1]) for prompt, response in zip(prompts, responses, strict=True)]
    return PaddedTokens(collate_sequences(items, "right"), *(torch.from_numpy(part) for part in (ids, mask, positions)))


def append_response(prompt: EncodedSequence, response: Sequence[int]) -> EncodedSequence:
    """Join a prompt and a response as the model reads them.

    A model at the start of its training may sample the image token, for which there is no image: what follows it is
    conditioned on the token before it instead, while its own log-probability is still the one that is computed.
    """
    images = prompt.input_ids[prompt.mm_token_type_ids == 1]
    kept: list[int] = []
    for token in response:
        is_image = len(images) > 0 and token == images[0]
        kept.append((kept[-1] if kept else int(prompt.input_ids[-1])) if is_image else token)
    return prompt.extended(kept)


def compute_padded_hidden(trunk: nn.Module, batch: PaddedTokens) -> Tensor:
    """Hidden states [batch, longest response, hidden] from which the response's tokens are predicted."""
    hidden = trunk(**batch.inputs, use_cache=False).last_hidden_state
    return hidden.gather(1, batch.positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def batch_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Cut indices into batches of `size` of similar length, the shortest first: little padding.

    The last may be smaller.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    for start in range(0, len(order), size):
        yield order[start : start + size]


# Packed batches: samples of any lengths in one row of tokens, without padding, each shared prefix only once.
#
# The samples of one task begin with the same instruction and screen, a later step of a trajectory with the steps before
# it, all with the same words of the template. A token's states depend on the tokens before it alone, so a shared prefix
# is exact (tested), and its gradient is the sum over all that follows it. A screen that several samples show takes one
# pass of the vision tower.

MIN_SHARED_TOKENS = 8  # tokens: a shorter common beginning is computed for each sample by itself


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """A prompt and its response, ready to be packed. The last response token is not in it: nothing follows it.

    ids: int64 [tokens]. positions: int64 [3, tokens], time, row and column of multimodal RoPE. keys: int64 [tokens],
    equal for equal tokens of equal screens. screens: in order. response: int64 [response], all of its tokens.
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
        """Lines that begin alike lie next to one another when sorted by it."""
        return tuple(self.keys.tolist())

    @property
    def predicting(self) -> np.ndarray:
        """Which of its tokens predict the response, [response]."""
        return len(self.ids) - len(self.response) + np.arange(len(self.response))


def build_token_sequence(model: PreTrainedModel, prompt: EncodedSequence, response: Sequence[int]) -> TokenSequence:
    """Build one sample; a response has at least one token. Of `model` only the rule for positions is used."""
    whole = append_response(prompt, response[:-1])
    screen_keys = _screen_keys(whole)
    read = make_prompt(model, whole, -1, screen_keys)
    keys = whole.input_ids.copy()
    for screen in read.screens:
        keys[screen.start : screen.stop] = -1 - (int.from_bytes(screen.key[:8]) >> 1)
    target = np.asarray(response, dtype=np.int64)
    return TokenSequence(whole.input_ids, read.positions.numpy(), keys, read.screens, target)


def _screen_keys(encoded: EncodedSequence) -> list[bytes]:
    """A name for each screen: equal names mean equal pictures."""
    ends = np.cumsum(encoded.image_grid_thw.prod(axis=1))[:-1]
    parts = np.split(encoded.pixel_values, ends) if len(encoded.image_grid_thw) else []
    return [
        hashlib.sha256(np.ascontiguousarray(part).data).digest() + grid.tobytes()
        for part, grid in zip(parts, encoded.image_grid_thw, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Hold sequences packed into one row of tokens.

    members: numbers of its sequences, in the list that it was made from.

    ids: [1, tokens]; positions: [3, 1, tokens]. screens: each once; shown: which of them stands at each place that has
    one, in order of the tokens. plan: who attends to whom; last: the same for the last layer, where only the tokens
    that predict ask. predicting: int64 [responses], the tokens that predict the members' responses, one after the
    other; targets: int64 [responses], what they predict. unshared_tokens: tokens of the members, what they share
    counted for each. blocked: bits, uint8 [responses, vocabulary / 8], of the tokens that could not come, where answers
    are held to a form. features: of its screens, where the vision tower does not learn.
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
    unshared_tokens: int
    blocked: Tensor | None = None
    features: tuple[ScreenFeatures, ...] | None = None

    @property
    def tokens(self) -> int:
        return self.ids.shape[1]

    def to(self, device: torch.device) -> PackedBatch:
        names = ("ids", "positions", "plan", "last", "predicting", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def pack_sequences(
    sequences: Sequence[TokenSequence], limit: int, share: bool = True, shares: int = 1
) -> list[PackedBatch]:
    """Pack all sequences, at most `limit` computed tokens a pack (one sequence at least); their order does not matter.

    share: False computes every sequence by itself. shares: least number of packs, of about equal size; two where there
    are two sequences.
    """
    order = sorted(range(len(sequences)), key=lambda row: (sequences[row].order, row))
    common = [
        0,
        *(_count_shared_tokens(sequences[before], sequences[row]) if share else 0 for before, row in pairwise(order)),
    ]
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
    members = [sequences[row] for row, _ in part]
    predicting = [path[member.predicting] for path, member in zip(paths, members, strict=True)]
    return PackedBatch(
        tuple(row for row, _ in part),
        torch.from_numpy(np.concatenate(ids))[None],
        torch.from_numpy(np.concatenate(positions, axis=1))[:, None],
        tuple(found),
        tuple(shown),
        plan_attention(paths, [common for _, common in part], count),
        plan_attention(
            paths, [len(path) - len(member.response) for path, member in zip(paths, members, strict=True)], count
        ),
        torch.from_numpy(np.concatenate(predicting)),
        torch.from_numpy(np.concatenate([member.response for member in members])),
        sum(len(member) for member in members),
    )


def compute_packed_hidden(trunk: torch.nn.Module, pack: PackedBatch) -> Tensor:
    """Hidden states [responses, width] from which the members' responses are predicted.

    trunk: base model of one that was patched (`patch_for_training`).
    """
    device = pack.ids.device
    images: dict[str, Any] = {}
    if pack.shown and pack.features is not None:
        images["mm_encoder_outputs"] = to_encoder_outputs([pack.features[number] for number in pack.shown])
    elif pack.shown:
        images["mm_encoder_outputs"] = {"image": _encode_screens(trunk, pack)}
    early = last_layer_skips_prompt(trunk)
    hidden = trunk(
        input_ids=pack.ids,
        position_ids=pack.positions,
        plan=pack.plan,
        use_cache=False,
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),  # made already: the plan stands for it
        **({"last": pack.last, "predicting": pack.predicting} if early else {}),
        **images,
    ).last_hidden_state
    return hidden[0] if early else hidden[0].index_select(0, pack.predicting)


def _encode_screens(trunk: torch.nn.Module, pack: PackedBatch) -> SimpleNamespace:
    """What the language model takes of the pack's screens: those of one size in one pass, each once."""
    sizes: dict[tuple[int, ...], list[int]] = {}
    for number, screen in enumerate(pack.screens):
        sizes.setdefault(screen.grid, []).append(number)
    device = pack.ids.device
    levels: list[Any] = [None] * len(pack.screens)
    for grid, numbers in sizes.items():
        # In memory of torch's own, as in `policy.vision`.
        pixels = torch.cat([torch.from_numpy(pack.screens[number].pixels) for number in numbers]).to(device)
        out = trunk.get_image_features(
            pixels,
            torch.tensor([grid] * len(numbers), device=device),
            return_dict=True,
            **_side_by_side(trunk, pixels, numbers),
        )
        parts = zip(out.pooler_output, *(getattr(out, "deepstack_features", None) or ()), strict=True)
        for number, part in zip(numbers, parts, strict=True):
            levels[number] = part
    first, *deeper = zip(*(levels[number] for number in pack.shown), strict=True)
    return SimpleNamespace(pooler_output=list(first), deepstack_features=[list(level) for level in deeper])


def _side_by_side(trunk: torch.nn.Module, pixels: Tensor, numbers: Sequence[int]) -> dict[str, Any]:
    """Screens of one size attend side by side, where the tower has no windows. A GPU's kernel needs no such help."""
    if trunk.config.model_type != "qwen3_vl" or is_cuda(pixels.device):
        return {}
    whole = torch.tensor([0, len(pixels)], dtype=torch.int32, device=pixels.device)
    return {"cu_seqlens": whole, "screens": len(numbers)}
