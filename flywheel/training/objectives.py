"""What pretraining minimises: the answers' cross-entropy, and three aids that make a small model see and point early.

Naming: each image token, as it enters the language model, says in words and letters what it shows. Placing: it says,
through a layer that only training has, where the centre of the thing is. Pointing: a few attention heads, while a point
is written or a thing is read out, look at the thing that is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from flywheel.training.attention import Heard, listening, screen_lengths
from flywheel.training.packing import IGNORED, Looks, Packed

# Weights of the two digits of a coordinate in the loss. The first says which thing is meant; the second is at first
# noise, and as loud.
TENS, UNITS = 5.0, 1.0
NAMING = 1.0
PLACING = 0.5
POINTING = 1.0
LAYER = 2  # of the language model, whose attention is taught to point; the last reads off what was found
HEADS = 3  # of that layer, that many


@dataclass(frozen=True)
class Losses:
    """answers: mean weighted cross-entropy over response tokens. naming, placing, pointing: the aids. right: the share
    of looks that fall on the thing. predicted: [response tokens], the likeliest token at each.
    """

    answers: torch.Tensor
    naming: torch.Tensor
    placing: torch.Tensor
    pointing: torch.Tensor
    right: float
    predicted: torch.Tensor

    @property
    def total(self) -> torch.Tensor:
        return self.answers + NAMING * self.naming + PLACING * self.placing + POINTING * self.pointing


@dataclass(frozen=True)
class Shown:
    """What is on the screens of a batch. names: of `packing.name_cells`. places: of `packing.place_cells`."""

    names: tuple[torch.Tensor, torch.Tensor]
    places: torch.Tensor


class Placing(torch.nn.Linear):
    """From what an image token is in the language model to the four digits of a centre."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, 40)

    def loss(self, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the image tokens that show something, first digits for five times the second."""
        logits = self(features.float()).view(-1, 4, 10)
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), places, reduction="none", ignore_index=IGNORED)
        weights = torch.tensor([TENS, UNITS, TENS, UNITS]) / (2 * TENS + 2 * UNITS)
        return (each * weights).sum() / (places[:, 0] != IGNORED).sum().clamp_min(1)


def seeing(model: torch.nn.Module, placing: Placing, packed: Packed, shown: Shown) -> Losses:
    """Naming and placing alone, without a pass of the language model: less than half of the cost of `losses`."""
    patches, grid = packed.inputs["pixel_values"], packed.inputs["image_grid_thw"]
    with torch.autocast("cpu", torch.bfloat16), listening(LAYER, len(grid)):
        images = model.model.get_image_features(patches, grid, cu_seqlens=screen_lengths(len(patches)))
        features = _features(model, images)
        named = model.lm_head(features)
    none = torch.zeros(())
    placed = placing.loss(features, shown.places)
    return Losses(none, _naming(named, shown.names), placed, none, 0.0, torch.zeros(0, dtype=torch.long))


def _features(model: torch.nn.Module, images: Any) -> torch.Tensor:
    """Image tokens as they enter the language model, in the measure in which it leaves: [image tokens, hidden]."""
    return model.model.language_model.norm(torch.cat(list(images.pooler_output)))


def _naming(named: torch.Tensor, cells: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    words, shares = cells
    return -(named.float().log_softmax(-1).gather(1, words) * shares).sum()


def losses(model: torch.nn.Module, placing: Placing, packed: Packed, shown: Shown, digits: torch.Tensor) -> Losses:
    """digits: the digits' token ids.

    The model must have `attention.install`ed.
    """
    inputs = dict(packed.inputs)
    core = model.model
    patches, grid = inputs.pop("pixel_values"), inputs["image_grid_thw"]
    with torch.autocast("cpu", torch.bfloat16), listening(LAYER, len(grid)) as heard:
        images = core.get_image_features(patches, grid, cu_seqlens=screen_lengths(len(patches)))
        hidden = core(**inputs, mm_encoder_outputs={"image": images}, use_cache=False)[0]
        where = packed.labels[:, 1:] != IGNORED
        logits = model.lm_head(hidden[:, :-1][where])
        features = _features(model, images)
        named = model.lm_head(features)
    target = packed.labels[:, 1:][where]
    each = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
    weights = digit_weights(packed.labels, digits)[:, 1:][where]
    pointing, right = _pointing(heard, packed.looks)
    answers = (each * weights).sum() / weights.sum()
    placed = placing.loss(features, shown.places)
    return Losses(answers, _naming(named, shown.names), placed, pointing, right, logits.detach().argmax(-1))


def digit_weights(labels: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
    """TENS for the first digit of a pair, UNITS for the second, 1 elsewhere: [batch, length], as `labels`."""
    digit = torch.isin(labels, digits)
    after, before = torch.zeros_like(digit), torch.zeros_like(digit)
    after[:, 1:], before[:, :-1] = digit[:, :-1], digit[:, 1:]
    weights = torch.ones(labels.shape)
    weights[digit & before & ~after] = TENS
    weights[digit & after] = UNITS
    return weights


def _pointing(heard: Heard, looks: Looks) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy between the thing's cells and where the heads look; the share of looks that fall on it."""
    query, key = heard.query, heard.key
    asked = query[:, :HEADS].float().transpose(1, 2)[looks.row, looks.position]  # [looks, heads, width]
    screen = key[:, :HEADS, looks.screen].float()[looks.row]  # [looks, heads, cells, width]
    scores = torch.einsum("lhd,lhcd->lhc", asked, screen) * heard.scaling
    lost = -(scores.log_softmax(-1) * looks.cells[:, None]).sum(-1)
    best = scores.detach().mean(1).argmax(-1, keepdim=True)
    return lost.mean(), (looks.cells.gather(1, best) > 0).float().mean().item()
