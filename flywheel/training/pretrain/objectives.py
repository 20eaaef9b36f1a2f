"""Compute the losses of pretraining: answers, and auxiliary losses to see, read, point and copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, PreTrainedModel

from flywheel.training.modeling.monkey_patch import patch_patch_embedding
from flywheel.training.pretrain import batches

# Attention for pretraining on a CPU, which gives access to queries and keys, for losses on the scores. Two matrix
# products around a softmax are 1.5 times as fast as the library's fused kernel, whose gradient is slow for heads this
# narrow; and all screens of a batch are computed at once.

PRETRAINING_ATTENTION = "pretraining"


@dataclass
class CapturedQK:
    """Hold the queries and keys of one layer's attention.

    query, key: [batch, heads, length, width], after rotary positions.
    """

    query: torch.Tensor
    key: torch.Tensor
    scaling: float


@dataclass
class Captured:
    """Hold the queries and keys that are captured during one pass.

    layers: of the language model, to capture. screens: number of them in the batch.
    """

    layers: tuple[int, ...]
    screens: int
    found: dict[int, CapturedQK] = field(default_factory=dict)


_captured: Captured | None = None


@contextmanager
def capture_attention(layers: tuple[int, ...], screens: int) -> Iterator[dict[int, CapturedQK]]:
    """Capture the language model's queries and keys in one forward pass within the block; yield them by layer.

    layers: those to capture. screens: number of screens in the pass, all of one size. Not for concurrent passes.
    """
    global _captured
    _captured = Captured(layers, screens)
    try:
        yield _captured.found
    finally:
        _captured = None


def install_attention(model: PreTrainedModel) -> None:
    """Make `model`, a Qwen3-VL, use the attention whose queries and keys can be captured.

    It must then be called within `capture_attention`.
    """
    model.set_attn_implementation(PRETRAINING_ATTENTION)
    patch_patch_embedding(model)


def make_screen_lengths(patches: int) -> torch.Tensor:
    """Return the `cu_seqlens` that let the library pass the patches of all screens in one call.

    The attention of this module splits them. patches: of all screens.
    """
    return torch.tensor([0, patches], dtype=torch.int32)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Compute attention; the library calls it. query, key, value: [batch, heads, length, width] each. attention_mask:
    bool, or None. Returns [batch, length, heads, width], and None for the attention weights."""
    assert _captured is not None
    if not hasattr(module, "layer_idx"):  # the vision tower, all screens in one row: [screens, heads, patches, width]
        row = (query, key, value)
        query, key, value = (part[0].unflatten(1, (_captured.screens, -1)).transpose(0, 1) for part in row)
    elif module.layer_idx in _captured.layers:
        _captured.found[module.layer_idx] = CapturedQK(query, key, scaling)
    scores = torch.matmul(query * scaling, key.transpose(-1, -2)).float()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -1e9)
    mixed = torch.matmul(scores.softmax(-1).to(value.dtype), value).transpose(1, 2)
    return (mixed if hasattr(module, "layer_idx") else mixed.flatten(0, 1)[None]).contiguous(), None


AttentionInterface.register(PRETRAINING_ATTENTION, _attend)


# Losses: the answers' cross-entropy, and auxiliary losses with which a small model learns early to see, read and point.
#
# naming     each image token, at the language model's input, predicts the words for what it shows
# placing    each image token predicts the centre of the thing that it shows, by a head that only training has
# reading    each image token predicts the first characters of the text that it shows, by such a head
# spelling   each patch of the vision tower predicts the characters in it, and their slots, by such a head
# pointing   while a point is written or a text is read, a few attention heads attend to the thing that is meant
# copying    while a name is repeated, other heads attend to its earlier occurrence; some heads of the first layer
#            attend to the previous token, which makes that occurrence easy to find

# Loss weights of the two digits of a coordinate. The first digit selects the thing; the second is noise early in
# training, and would count as much.
TENS_WEIGHT, UNITS_WEIGHT = 5.0, 1.0
READING_WEIGHT = 5.0  # loss weight of a token that is read off the screen: an action has ten times as many tokens
AUXILIARY_WEIGHTS = {"naming": 1.0, "placing": 0.5, "spelling": 1.0, "reading": 1.0, "pointing": 1.0, "copying": 1.0}
BLANK_WEIGHT = 0.1  # loss weight of places without a character, of which there are many more
POINTING_LAYER = 2  # layer of the language model that is taught to point; the last layer reads what it finds
POINTING_HEADS = 3  # the first heads of that layer, which are taught to point; the others are taught to copy
PREVIOUS_TOKEN_LAYER, PREVIOUS_TOKEN_HEADS = 0, 2  # layer, and its number of heads, taught to attend to the last token


@dataclass(frozen=True)
class PretrainLosses:
    """Hold the losses of one pass.

    answers: weighted mean cross-entropy over response tokens. aids: the auxiliary losses, by name. right: share of
    attention targets that the heads hit. predicted: [response tokens], the likeliest token at each.
    """

    answers: torch.Tensor
    aids: dict[str, torch.Tensor]
    right: float
    predicted: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        """Return the sum that is minimised: the answers' loss and the weighted auxiliary losses."""
        return self.answers + sum(AUXILIARY_WEIGHTS[name] * aid for name, aid in self.aids.items())


@dataclass(frozen=True)
class ScreenTargets:
    """Hold what the image tokens and patches of a batch should predict of the screens.

    They are the results of `build_naming_targets`, `build_placing_targets`, `build_spelling_targets` and
    `build_reading_targets` in `batches`.
    """

    names: tuple[torch.Tensor, torch.Tensor]
    places: torch.Tensor
    spelling: torch.Tensor
    reading: torch.Tensor


class AuxiliaryHeads(torch.nn.Module):
    """Hold the heads that only training needs. hidden, vision: widths of the language model and the vision tower."""

    def __init__(self, hidden: int, vision: int) -> None:
        super().__init__()
        self.place = torch.nn.Linear(hidden, 4 * 10)
        self.read = torch.nn.Linear(hidden, batches.CELL_CHARACTERS * (len(batches.CHARACTERS) + 1))
        self.spell = torch.nn.Linear(vision, batches.PATCH_SLOTS * (len(batches.CHARACTERS) + 1))
        self.norm = torch.nn.LayerNorm(vision)

    def losses(self, features: torch.Tensor, patches: torch.Tensor, shown: ScreenTargets) -> dict[str, torch.Tensor]:
        """Compute the losses placing, spelling and reading, scalars by name.

        features: [image tokens, hidden]. patches: [patches, vision], the vision tower's last hidden states. shown:
        their targets.
        """
        return {
            "placing": self.placing(features, shown.places),
            "spelling": _character_loss(self.spell(self.norm(patches.float())), shown.spelling),
            "reading": _character_loss(self.read(features.float()), shown.reading),
        }

    def placing(self, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Compute the mean cross-entropy of a centre's digits over the image tokens that show something.

        First digits weigh five times as much as second ones. features: [image tokens, hidden]. places: of
        `build_placing_targets`.
        """
        logits = self.place(features.float()).view(-1, 4, 10)
        each = cross_entropy(logits.transpose(1, 2), places, reduction="none", ignore_index=batches.IGNORED)
        weights = torch.tensor([TENS_WEIGHT, UNITS_WEIGHT] * 2) / (2 * TENS_WEIGHT + 2 * UNITS_WEIGHT)
        return (each * weights).sum() / (places[:, 0] != batches.IGNORED).sum().clamp_min(1)


def _character_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Compute the weighted mean cross-entropy over character places; those without a character weigh BLANK_WEIGHT."""
    wanted = wanted.flatten()
    each = cross_entropy(logits.view(len(wanted), -1), wanted, reduction="none", ignore_index=batches.IGNORED)
    weights = torch.where(wanted > 0, 1.0, BLANK_WEIGHT) * (wanted != batches.IGNORED)
    return (each * weights).sum() / weights.sum().clamp_min(1)


def compute_seeing_losses(
    model: torch.nn.Module, aids: AuxiliaryHeads, packed: batches.QuestionBatch, shown: ScreenTargets
) -> PretrainLosses:
    """Compute the auxiliary losses that need no pass of the language model, for less than half the cost of all."""
    patches, grid = packed.inputs["pixel_values"], packed.inputs["image_grid_thw"]
    with _bfloat16_autocast(), capture_attention((POINTING_LAYER,), len(grid)):
        images = model.model.get_image_features(patches, grid, cu_seqlens=make_screen_lengths(len(patches)))
        seen = _vision_losses(model, aids, images, shown)
    return PretrainLosses(torch.zeros(()), seen, 0.0, torch.zeros(0, dtype=torch.long))


def _bfloat16_autocast() -> torch.autocast:
    """Return an autocast to bfloat16, enabled if this CPU has instructions for it: else it is fifty times slower."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _vision_losses(
    model: torch.nn.Module, aids: AuxiliaryHeads, images: Any, shown: ScreenTargets
) -> dict[str, torch.Tensor]:
    """Compute naming, placing, spelling and reading. Image tokens at the language model's input get its final norm, so
    that the output embedding can read them."""
    features = model.model.language_model.norm(torch.cat(list(images.pooler_output)))
    words, shares = shown.names
    naming = -(model.lm_head(features).float().log_softmax(-1).gather(1, words) * shares).sum()
    return {"naming": naming, **aids.losses(features, images.last_hidden_state, shown)}


def compute_question_losses(
    model: torch.nn.Module,
    aids: AuxiliaryHeads,
    packed: batches.QuestionBatch,
    shown: ScreenTargets | None,
    digits: torch.Tensor,
) -> PretrainLosses:
    """Compute the losses of questions about screens: of the answers, of pointing, and of seeing.

    shown: targets of seeing; None: no losses of seeing are computed, only pointing, and copying where questions repeat
    a name. digits: int64 [10], token ids of the digits. The model needs `install_attention`.
    """
    inputs = dict(packed.inputs)
    core = model.model
    patches, grid = inputs.pop("pixel_values"), inputs["image_grid_thw"]
    with _bfloat16_autocast(), capture_attention((POINTING_LAYER,), len(grid)) as heard:
        images = core.get_image_features(patches, grid, cu_seqlens=make_screen_lengths(len(patches)))
        hidden = core(**inputs, mm_encoder_outputs={"image": images}, use_cache=False)[0]
        where = packed.labels[:, 1:] != batches.IGNORED
        logits = model.lm_head(hidden[:, :-1][where])
        seen = {} if shown is None else _vision_losses(model, aids, images, shown)
    target = packed.labels[:, 1:][where]
    each = cross_entropy(logits.float(), target, reduction="none")
    weights = compute_digit_weights(packed.labels, digits)[:, 1:][where]
    weights = torch.where(packed.read[:, 1:][where], READING_WEIGHT, weights)
    pointing, right = _pointing_loss(heard[POINTING_LAYER], packed.looks)
    answers = (each * weights).sum() / weights.sum()
    aids = {**seen, "pointing": pointing}
    if packed.repeats.any():
        aids["copying"], _ = _copying_loss(heard[POINTING_LAYER], packed.inputs["attention_mask"], packed.repeats)
    return PretrainLosses(answers, aids, right, logits.detach().argmax(-1))


def compute_digit_weights(labels: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """Return loss weights [batch, length] that stress the first of two successive digits.

    They are TENS_WEIGHT for the first digit, UNITS_WEIGHT for the second, 1 elsewhere. labels: [batch, length]. digits:
    int64 [10], token ids of the digits.
    """
    digit = torch.isin(labels, digits)
    after, before = torch.zeros_like(digit), torch.zeros_like(digit)
    after[:, 1:], before[:, :-1] = digit[:, :-1], digit[:, 1:]
    weights = torch.ones(labels.shape)
    weights[digit & before & ~after] = TENS_WEIGHT
    weights[digit & after] = UNITS_WEIGHT
    return weights


def compute_copying_losses(model: torch.nn.Module, texts: batches.CopyBatch) -> PretrainLosses:
    """Compute the losses of texts that repeat names; the answers are the tokens that repeat a name.

    Copying heads of POINTING_LAYER are taught to attend to the source of the next token, and two heads of the first
    layer to the previous token, so that a token can be found by the token before it.
    """
    length = texts.ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(len(texts.ids), 1, -1, -1)
    with _bfloat16_autocast(), capture_attention((PREVIOUS_TOKEN_LAYER, POINTING_LAYER), 0) as heard:
        hidden = model.model.language_model(input_ids=texts.ids, attention_mask=causal, use_cache=False)[0]
        again = texts.repeats.any(-1)[:, 1:]
        logits = model.lm_head(hidden[:, :-1][again])
    lost, right = _copying_loss(heard[POINTING_LAYER], causal, texts.repeats)
    before = _attention_scores(heard[PREVIOUS_TOKEN_LAYER], causal)[:, :PREVIOUS_TOKEN_HEADS, 1:]
    found = cross_entropy(before.flatten(0, 2), torch.arange(length - 1).repeat(len(texts.ids) * PREVIOUS_TOKEN_HEADS))
    answers = cross_entropy(logits.float(), texts.ids[:, 1:][again])
    return PretrainLosses(answers, {"copying": lost + found}, right, logits.detach().argmax(-1))


def _copying_loss(heard: CapturedQK, seen: torch.Tensor, repeats: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the negative log of the attention that the copying heads, one position before a repeating token, give to
    the tokens that it repeats (mean); and the share of these positions where the maximum is on one. seen: bool [batch,
    1, length, length], the attention mask. repeats: as in `CopyBatch`."""
    again = repeats.any(-1)[:, 1:]
    scores = _attention_scores(heard, seen)[:, POINTING_HEADS:, :-1].transpose(1, 2)[again]  # [tokens, heads, length]
    sources = repeats[:, 1:][again]
    shares = scores.log_softmax(-1).masked_fill(~sources[:, None], -math.inf).logsumexp(-1)
    best = scores.detach().mean(1).argmax(-1, keepdim=True)
    return -shares.mean(), sources.gather(1, best).float().mean().item()


def _attention_scores(heard: CapturedQK, seen: torch.Tensor) -> torch.Tensor:
    """Return attention scores [batch, heads, length, length], -1e9 where the mask `seen` is False."""
    scores = torch.matmul(heard.query.float() * heard.scaling, heard.key.float().transpose(-1, -2))
    return scores.masked_fill(~seen, -1e9)


def _pointing_loss(heard: CapturedQK, looks: batches.AttentionTargets) -> tuple[torch.Tensor, float]:
    """Return the mean cross-entropy between the thing's cells and the pointing heads' attention; and the share of
    targets where the maximum is on the thing."""
    query, key = heard.query, heard.key
    asked = query[:, :POINTING_HEADS].float().transpose(1, 2)[looks.row, looks.position]  # [looks, heads, width]
    screen = key[:, :POINTING_HEADS, looks.screen].float()[looks.row]  # [looks, heads, cells, width]
    scores = torch.einsum("lhd,lhcd->lhc", asked, screen) * heard.scaling
    lost = -(scores.log_softmax(-1) * looks.cells[:, None]).sum(-1)
    best = scores.detach().mean(1).argmax(-1, keepdim=True)
    return lost.mean(), (looks.cells.gather(1, best) > 0).float().mean().item()
