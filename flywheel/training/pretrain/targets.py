"""What image tokens and patches should tell of what they show: the targets of `objectives`' aids."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, digits

import numpy as np
import torch

from flywheel.policy.encoding import Encoder
from flywheel.scenes import Box, Text
from flywheel.training.pretrain.question_batch import IGNORED, overlap

SHOWN = 0.15  # of an image token's cell, or half of itself, is what is shown in it at least
CHARACTERS = {character: number + 1 for number, character in enumerate(ascii_lowercase + digits)}  # 0: none
SLOTS = 4  # across a patch, each for the character whose middle stands there
HEARD = 8  # characters of a text that an image token tells, the first ones


def name_cells(
    encoder: Encoder, shown: Sequence[Sequence[tuple[str, Box]]], side: int, cells: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each image token shows, in words: the things in its cell by their shares of it, or "empty".

    shown: for each screen, names and boxes in pixels. Returns the words' token ids and their weights, each
    [screens x cells x cells, words]. The weights sum to 1; most of a screen may be empty, so the empty cells have
    half of it together.
    """
    spelt: dict[str, list[int]] = {}

    def spell(name: str) -> list[int]:
        if name not in spelt:
            spelt[name] = encoder.tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
        return spelt[name]

    rows: list[dict[int, float]] = []
    for things in shown:
        areas = np.zeros((len(things), cells * cells))
        for number, (_, box) in enumerate(things):
            area = overlap(box, side, cells)
            areas[number] = np.where(area >= min(SHOWN * (side / cells) ** 2, box.w * box.h / 2), area, 0)
        for place in range(cells * cells):
            here = areas[:, place].nonzero()[0]
            total = areas[here, place].sum()
            row: dict[int, float] = {}
            for number in here:
                tokens = spell(things[number][0])
                for token in tokens:
                    row[token] = row.get(token, 0.0) + areas[number, place] / total / len(tokens)
            rows.append(row or dict.fromkeys(spell("empty"), 1 / len(spell("empty"))))
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    weights = torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(list(row))
        weights[number, : len(row)] = torch.tensor(list(row.values()))
    empty = ids[:, 0] == spell("empty")[0]
    for group in (empty, ~empty):
        weights[group] /= max(1, int(group.sum())) * (2 if empty.any() and not empty.all() else 1)
    return ids, weights


def place_cells(shown: Sequence[Sequence[tuple[str, Box]]], side: int, cells: int) -> torch.Tensor:
    """Where the thing that each image token shows most of has its centre, in points of two digits.

    Returns int64 [screens x cells x cells, 4]: the digits of x and of y, first and second; IGNORED for empty cells.
    """
    digits = np.full((len(shown), cells * cells, 4), IGNORED)
    for screen, things in enumerate(shown):
        if not things:
            continue
        areas = np.stack([overlap(box, side, cells) for _, box in things])
        most = areas.argmax(0)
        for cell in (areas.max(0) >= SHOWN * (side / cells) ** 2).nonzero()[0]:
            centre = things[most[cell]][1].centre
            x, y = (min(99, max(0, int(100 * part))) for part in (centre.x, centre.y))
            digits[screen, cell] = (*divmod(x, 10), *divmod(y, 10))
    return torch.from_numpy(digits.reshape(-1, 4))


def spell_patches(texts: Sequence[Sequence[Text]], side: int, patches: int, merge: int) -> torch.Tensor:
    """Which character has its middle in each slot of each patch, 0 where none has.

    Returns int64 [screens x patches x patches, SLOTS], patches in the order of the vision tower: blocks of
    merge x merge, row by row.
    """
    slots = np.zeros((len(texts), patches, patches * SLOTS), dtype=np.int64)
    for screen, found in enumerate(texts):
        for text in found:
            for character, box in zip(text.characters, text.boxes, strict=True):
                row = int((box.y + box.h / 2) * patches // side)
                slot = int((box.x + box.w / 2) * patches * SLOTS // side)
                if 0 <= row < patches and 0 <= slot < patches * SLOTS:
                    slots[screen, row, slot] = CHARACTERS[character]
    blocks = patches // merge
    ordered = slots.reshape(len(texts), blocks, merge, blocks, merge, SLOTS).swapaxes(2, 3)
    return torch.from_numpy(np.ascontiguousarray(ordered).reshape(-1, SLOTS))


def read_cells(texts: Sequence[Sequence[Text]], side: int, cells: int) -> torch.Tensor:
    """The first characters of the text that each image token shows most of, 0 after its end.

    Returns int64 [screens x cells x cells, HEARD]; IGNORED where no text is shown.
    """
    told = np.full((len(texts), cells * cells, HEARD), IGNORED)
    for screen, found in enumerate(texts):
        if not found:
            continue
        boxes = [text.box for text in found]
        areas = np.stack([overlap(box, side, cells) for box in boxes])
        sizes = np.array([box.w * box.h for box in boxes])[:, None]
        areas = np.where(areas >= np.minimum(SHOWN * (side / cells) ** 2, sizes / 2), areas, 0)
        spelt = np.zeros((len(found), HEARD), dtype=np.int64)
        for number, text in enumerate(found):
            first = [CHARACTERS[character] for character in text.characters[:HEARD]]
            spelt[number, : len(first)] = first
        here = areas.max(0) > 0
        told[screen, here] = spelt[areas.argmax(0)[here]]
    return torch.from_numpy(told.reshape(-1, HEARD))
