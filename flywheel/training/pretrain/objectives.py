"""What pretraining minimises: the answers' cross-entropy, and aids that make a small model see, read and point early.

Naming: each image token, as it enters the language model, says in words what it shows. Through layers that only
training has, it tells the centre of the thing (placing) and the letters of the text (reading), and each patch of the
vision tower the characters in it, by their places (spelling). Pointing: a few attention heads, while a point is
written or a thing is read out, look at the thing that is meant. Copying: others look, while a name is repeated, at
what was said before, and in the first layer at the token before, by which they find it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from flywheel.training.pretrain.attention import CapturedQK, capture_attention, screen_lengths
from flywheel.training.pretrain.copying import CopyBatch
from flywheel.training.pretrain.question_batch import IGNORED, AttentionTargets, QuestionBatch
from flywheel.training.pretrain.targets import CHARACTERS, HEARD, SLOTS

# Weights of the two digits of a coordinate in the loss. The first says which thing is meant; the second is at first
# noise, and as loud.
TENS, UNITS = 5.0, 1.0
SPOKEN = 5.0  # weight of a token that is read off the screen: an action has ten times as many tokens
WEIGHTS = {"naming": 1.0, "placing": 0.5, "spelling": 1.0, "reading": 1.0, "pointing": 1.0, "copying": 1.0}
BLANK = 0.1  # weight of places without a character, of which there are many more
LAYER = 2  # of the language model, whose attention is taught to point; the last reads off what was found
HEADS = 3  # of that layer, that many, the first ones; the others are taught to copy
FIRST, BEFORE = 0, 2  # the layer, and how many of its heads, that are taught to look at the token before


@dataclass(frozen=True)
class Losses:
    """answers: mean weighted cross-entropy over response tokens. aids: the others, by their names in WEIGHTS. right:
    the share of looks that fall on the thing. predicted: [response tokens], the likeliest token at each.
    """

    answers: torch.Tensor
    aids: dict[str, torch.Tensor]
    right: float
    predicted: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        return self.answers + sum(WEIGHTS[name] * aid for name, aid in self.aids.items())


@dataclass(frozen=True)
class Shown:
    """What is on the screens of a batch: what `targets`' name_cells, place_cells, spell_patches and read_cells say."""

    names: tuple[torch.Tensor, torch.Tensor]
    places: torch.Tensor
    spelling: torch.Tensor
    reading: torch.Tensor


class Aids(torch.nn.Module):
    """The layers that only training has. hidden, vision: widths of the language model and of the vision tower."""

    def __init__(self, hidden: int, vision: int) -> None:
        super().__init__()
        self.place = torch.nn.Linear(hidden, 4 * 10)
        self.read = torch.nn.Linear(hidden, HEARD * (len(CHARACTERS) + 1))
        self.spell = torch.nn.Linear(vision, SLOTS * (len(CHARACTERS) + 1))
        self.norm = torch.nn.LayerNorm(vision)

    def losses(self, features: torch.Tensor, patches: torch.Tensor, shown: Shown) -> dict[str, torch.Tensor]:
        """features: [image tokens, hidden]. patches: [patches, vision], as the tower's last layer leaves them."""
        return {
            "placing": self.placing(features, shown.places),
            "spelling": _characters(self.spell(self.norm(patches.float())), shown.spelling),
            "reading": _characters(self.read(features.float()), shown.reading),
        }

    def placing(self, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the image tokens that show something, first digits for five times the second."""
        logits = self.place(features.float()).view(-1, 4, 10)
        each = cross_entropy(logits.transpose(1, 2), places, reduction="none", ignore_index=IGNORED)
        weights = torch.tensor([TENS, UNITS, TENS, UNITS]) / (2 * TENS + 2 * UNITS)
        return (each * weights).sum() / (places[:, 0] != IGNORED).sum().clamp_min(1)


def _characters(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the places of characters, those without one for BLANK."""
    each = cross_entropy(logits.view(wanted.numel(), -1), wanted.flatten(), reduction="none", ignore_index=IGNORED)
    weights = torch.where(wanted.flatten() > 0, 1.0, BLANK) * (wanted.flatten() != IGNORED)
    return (each * weights).sum() / weights.sum().clamp_min(1)


def seeing(model: torch.nn.Module, aids: Aids, packed: QuestionBatch, shown: Shown) -> Losses:
    """The aids that need no pass of the language model: less than half of the cost of `losses`."""
    patches, grid = packed.inputs["pixel_values"], packed.inputs["image_grid_thw"]
    with _narrow(), capture_attention((LAYER,), len(grid)):
        images = model.model.get_image_features(patches, grid, cu_seqlens=screen_lengths(len(patches)))
        seen = _seen(model, aids, images, shown)
    return Losses(torch.zeros(()), seen, 0.0, torch.zeros(0, dtype=torch.long))


def _narrow() -> torch.autocast:
    """bfloat16 where this CPU multiplies it by instructions of its own: without (AVX2) it takes fifty times as long as
    float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _seen(model: torch.nn.Module, aids: Aids, images: Any, shown: Shown) -> dict[str, torch.Tensor]:
    """Of image tokens as they enter the language model, in the measure in which it leaves."""
    features = model.model.language_model.norm(torch.cat(list(images.pooler_output)))
    words, shares = shown.names
    naming = -(model.lm_head(features).float().log_softmax(-1).gather(1, words) * shares).sum()
    return {"naming": naming, **aids.losses(features, images.last_hidden_state, shown)}


def losses(
    model: torch.nn.Module, aids: Aids, packed: QuestionBatch, shown: Shown | None, digits: torch.Tensor
) -> Losses:
    """shown: None where the model learns no more to see, of the aids only pointing is left. digits: the digits' token
    ids.

    The model must have `attention.install`ed.
    """
    inputs = dict(packed.inputs)
    core = model.model
    patches, grid = inputs.pop("pixel_values"), inputs["image_grid_thw"]
    with _narrow(), capture_attention((LAYER,), len(grid)) as heard:
        images = core.get_image_features(patches, grid, cu_seqlens=screen_lengths(len(patches)))
        hidden = core(**inputs, mm_encoder_outputs={"image": images}, use_cache=False)[0]
        where = packed.labels[:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][where])
        seen = {} if shown is None else _seen(model, aids, images, shown)
    target = packed.labels[:, 1:][where]
    each = cross_entropy(logits.float(), target, reduction="none")
    weights = digit_weights(packed.labels, digits)[:, 1:][where]
    weights = torch.where(packed.read[:, 1:][where], SPOKEN, weights)
    pointing, right = _pointing(heard[LAYER], packed.looks)
    answers = (each * weights).sum() / weights.sum()
    aids = {**seen, "pointing": pointing}
    if packed.repeats.any():
        aids["copying"], _ = _repeating(heard[LAYER], packed.inputs["attention_mask"], packed.repeats)
    return Losses(answers, aids, right, logits.detach().argmax(-1))


def digit_weights(labels: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """TENS for the first digit of a pair, UNITS for the second, 1 elsewhere: [batch, length], as `labels`."""
    digit = torch.isin(labels, digits)
    after, before = torch.zeros_like(digit), torch.zeros_like(digit)
    after[:, 1:], before[:, :-1] = digit[:, :-1], digit[:, 1:]
    weights = torch.ones(labels.shape)
    weights[digit & before & ~after] = TENS
    weights[digit & after] = UNITS
    return weights


def copying(model: torch.nn.Module, texts: CopyBatch) -> Losses:
    """For texts in which names come again: answers are the tokens that repeat one. No screen is needed.

    The heads of LAYER look at the source of the token that comes next, and two of the first layer at the token before
    each, so that a token can be found by what it stood behind.
    """
    length = texts.ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril().expand(len(texts.ids), 1, -1, -1)
    with _narrow(), capture_attention((FIRST, LAYER), 0) as heard:
        told = model.model.language_model(input_ids=texts.ids, attention_mask=causal, use_cache=False)[0]
        again = texts.repeats.any(-1)[:, 1:]
        logits = model.lm_head(told[:, :-1][again])
    lost, right = _repeating(heard[LAYER], causal, texts.repeats)
    before = _scores(heard[FIRST], causal)[:, :BEFORE, 1:]
    found = cross_entropy(before.flatten(0, 2), torch.arange(length - 1).repeat(len(texts.ids) * BEFORE))
    answers = cross_entropy(logits.float(), texts.ids[:, 1:][again])
    return Losses(answers, {"copying": lost + found}, right, logits.detach().argmax(-1))


def _repeating(heard: CapturedQK, seen: torch.Tensor, repeats: torch.Tensor) -> tuple[torch.Tensor, float]:
    """How little the copying heads look, before a token that repeats, at the ones that it repeats; the share of such
    looks that fall on one. seen: bool [batch, 1, length, length]. repeats: as in `CopyBatch`."""
    again = repeats.any(-1)[:, 1:]
    scores = _scores(heard, seen)[:, HEADS:, :-1].transpose(1, 2)[again]  # [tokens, heads, length]
    sources = repeats[:, 1:][again]
    shares = scores.log_softmax(-1).masked_fill(~sources[:, None], -math.inf).logsumexp(-1)
    best = scores.detach().mean(1).argmax(-1, keepdim=True)
    return -shares.mean(), sources.gather(1, best).float().mean().item()


def _scores(heard: CapturedQK, seen: torch.Tensor) -> torch.Tensor:
    """[batch, heads, length, length], what is not seen left out."""
    scores = torch.matmul(heard.query.float() * heard.scaling, heard.key.float().transpose(-1, -2))
    return scores.masked_fill(~seen, -1e9)


def _pointing(heard: CapturedQK, looks: AttentionTargets) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy between the thing's cells and where the heads look; the share of looks that fall on it."""
    query, key = heard.query, heard.key
    asked = query[:, :HEADS].float().transpose(1, 2)[looks.row, looks.position]  # [looks, heads, width]
    screen = key[:, :HEADS, looks.screen].float()[looks.row]  # [looks, heads, cells, width]
    scores = torch.einsum("lhd,lhcd->lhc", asked, screen) * heard.scaling
    lost = -(scores.log_softmax(-1) * looks.cells[:, None]).sum(-1)
    best = scores.detach().mean(1).argmax(-1, keepdim=True)
    return lost.mean(), (looks.cells.gather(1, best) > 0).float().mean().item()
