"""Build the batches of pretraining: questions about screens, texts that repeat names, and targets."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase, digits
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.scene import SceneBox, SceneQuestion, SceneText
from flywheel.policy.encoding import Encoder
from flywheel.utils.errors import TrainingError

# Copying: texts that repeat names, from which the base learns to copy from its context, also strings that are no words.
# A name follows a cue (`folder jetena`), and later the same cue again, in other quotes, in another order. So the cue
# determines which name to write, and the part written so far how it continues. No suite's instructions are used.

MAX_NAMES = 3  # most names of a text
NAME_REPEATS = (2, 3)  # least and most occurrences of each name
_WORDS = tuple(sorted({word for name in (*vocabulary.READING, *vocabulary.VALUES) for word in name.split()}))
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_ENDINGS = ("txt", "csv", "md", "py", "log", "json")
_FORMS = (" {}", " '{}'", ' "{}"', "/{}", "={}", "({})", ": {}", " {},", " {}.", "='{}'", "-{}")
_OPENINGS = ("Thought:", "Action:", "I", "The", "Now", "\n", "$", ">>>", "{", "")
_ENDS = (".", "\n", " ;", "\nAction: ", "\nThought: ")


class NameOccurrences(NamedTuple):
    """Hold where a name of `length` characters occurs in a text.

    starts: index of its first character at each occurrence, in order.
    """

    length: int
    starts: tuple[int, ...]


class CopyText(NamedTuple):
    """Hold a text, and the names that occur in it more than once."""

    text: str
    names: tuple[NameOccurrences, ...]


@dataclass(frozen=True)
class CopyBatch:
    """Hold a batch of tokenised texts that repeat names.

    ids: int64 [texts, length], 0 after the end of a text. repeats: bool [texts, length, length], whether the token of
    the second axis repeats the earlier token of the third.
    """

    ids: torch.Tensor
    repeats: torch.Tensor


def draw_copy_text(rng: random.Random) -> CopyText:
    """Draw by `rng` a text of one to `MAX_NAMES` names, each of which occurs two or three times."""
    count = rng.randint(1, MAX_NAMES)
    cues, names = _draw_distinct(_draw_cue, count, rng), _draw_distinct(draw_name, count, rng)
    text, starts = "", [[] for _ in range(count)]
    for time in range(rng.randint(*NAME_REPEATS)):
        if rng.random() < 0.5:
            text += " ".join([rng.choice(_OPENINGS), *rng.choices(_WORDS, k=rng.randint(0, 3))])
        for number in rng.sample(range(count), count) if time else range(count):
            before, after = rng.choice(_FORMS).split("{}")
            text += f" {cues[number]}{before}"
            starts[number].append(len(text))
            text += names[number] + after
        text += rng.choice(_ENDS)
    return CopyText(text, tuple(NameOccurrences(len(said), tuple(at)) for said, at in zip(names, starts, strict=True)))


def draw_name(rng: random.Random) -> str:
    """Draw a name by `rng`: letters, syllables, a word, a number, or a word with a suffix.

    One in four has a file extension.
    """
    word, kind = rng.choice(_WORDS), rng.randrange(20)
    if kind < 5:
        said = "".join(rng.choices(ascii_lowercase, k=rng.randint(3, 8)))
    elif kind < 10:
        said = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 4)))
    elif kind < 15:
        said = word
    elif kind < 17:
        said = "".join(rng.choices(digits, k=rng.randint(1, 5)))
    else:
        more = rng.choice((str(rng.randint(1, 99)), "".join(rng.choices(ascii_lowercase, k=3))))
        said = f"{word}{rng.choice(('-', '_', ''))}{more}"
    if rng.random() < 0.25:
        said += "." + rng.choice((*_ENDINGS, "".join(rng.choices(ascii_lowercase, k=rng.randint(2, 3)))))
    return said.capitalize() if rng.random() < 0.1 else said


def _draw_cue(rng: random.Random) -> str:
    return rng.choice(_WORDS) if rng.random() < 0.7 else "".join(rng.choices(ascii_lowercase, k=rng.randint(2, 6)))


def _draw_distinct(make, count: int, rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(rng)] = None
    return list(found)


def collate_copy_texts(encoder: Encoder, texts: Sequence[CopyText]) -> CopyBatch:
    """Tokenise `texts` into one padded batch, with the tokens that each token repeats.

    texts: at least one. encoder: of the model.
    """
    encoded = [encoder.tokenizer(each.text, add_special_tokens=False, return_offsets_mapping=True) for each in texts]
    length = max(len(one["input_ids"]) for one in encoded)
    ids, repeats = np.zeros((len(texts), length), np.int64), np.zeros((len(texts), length, length), bool)
    for number, (one, each) in enumerate(zip(encoded, texts, strict=True)):
        ids[number, : len(one["input_ids"])] = one["input_ids"]
        for token, source in find_repeated_tokens(one["offset_mapping"], each.names):
            repeats[number, token, source] = True
    return CopyBatch(torch.from_numpy(ids), torch.from_numpy(repeats))


def find_repeated_tokens(
    spans: Sequence[tuple[int, int]], names: Sequence[NameOccurrences]
) -> Iterator[tuple[int, int]]:
    """Yield (index of a token, index of an earlier token that it repeats), for the names that occur several times.

    The earlier one contains the same character of an earlier occurrence of the name, also if it is tokenised otherwise.
    spans: each token's first character and end. names: where they occur in the text.
    """
    token_at = {place: token for token, (start, end) in enumerate(spans) for place in range(start, end)}
    for length, starts in names:
        for number, begin in enumerate(starts):
            for token, (start, end) in enumerate(spans):
                if number and end > begin and start < begin + length:
                    within = max(start - begin, 0)  # a space before the name may be in its token
                    yield from ((token, token_at[earlier + within]) for earlier in starts[:number])


# Questions: many about one screen in one sequence, so that the screen is computed once. A row is [screen][question 1]
# [question 2]...; the attention mask lets a question see only the screen and itself, and all positions begin where the
# screen ends, so each question is computed exactly as in a sequence of its own (tested).

IGNORED = -100
READING_SKILLS = ("read", "ask")  # skills whose whole answer is read off the screen


@dataclass(frozen=True)
class QuestionBatch:
    """Hold a batch of screens, each with its questions in one row.

    inputs: the model's keyword arguments, with attention_mask bool [batch, 1, length, length] and position_ids [3,
    batch, length]. labels: [batch, length], the token id in a response, else IGNORED. question: [batch, length], number
    of the token's question (-1: none). read: bool [batch, length], whether the token belongs to an answer that is read
    off the screen. looks: targets of attention. repeats: as in `CopyBatch`.
    """

    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor
    question: torch.Tensor
    read: torch.Tensor
    looks: AttentionTargets
    repeats: torch.Tensor


@dataclass(frozen=True)
class AttentionTargets:
    """Hold which parts of the screen the model should attend to, and at which tokens.

    They are those at which it writes a point, reads a text, or begins to judge a thing. row, position: [looks], of the
    token that predicts the next one from there. cells: [looks, image tokens], the shares of the thing's area in each
    image token, summing to 1. screen: range of the image tokens in a row.
    """

    row: torch.Tensor
    position: torch.Tensor
    cells: torch.Tensor
    screen: slice


@dataclass
class _QuestionRow:
    """Hold one screen with its questions. tokens: (id, label, number of its question, whether it belongs to an answer
    that is read off the screen) each. positions: [3, tokens] of each part. looks: (position, shares of the cells).
    repeats: (position, earlier position that it repeats)."""

    tokens: list[tuple[int, int, int, bool]]
    positions: list[np.ndarray]
    looks: list[tuple[int, np.ndarray]]
    repeats: list[tuple[int, int]]


def compute_cell_areas(box: SceneBox, side: int, cells: int) -> np.ndarray:
    """Compute the area of a box within each of cells x cells image tokens, in square pixels: [cells^2].

    side: of the screen, in pixels.
    """
    edges = np.arange(cells + 1) * (side / cells)
    across = np.clip(np.minimum(box.x + box.w, edges[1:]) - np.maximum(box.x, edges[:-1]), 0, None)
    down = np.clip(np.minimum(box.y + box.h, edges[1:]) - np.maximum(box.y, edges[:-1]), 0, None)
    return np.outer(down, across).ravel()


def compute_cell_shares(box: SceneBox, side: int, cells: int) -> np.ndarray:
    """Compute the shares of a box's area in each image token: float32 [cells^2], summing to 1.

    Arguments as of `compute_cell_areas`; a box outside of the screen gives NaN.
    """
    area = compute_cell_areas(box, side, cells)
    return (area / area.sum()).astype(np.float32)


class QuestionCollator:
    """Pack questions about screens of `side` x `side` pixels into batches. encoder: of the model."""

    def __init__(self, encoder: Encoder, side: int) -> None:
        self._encoder = encoder
        self._patch, self._merge = encoder.images.patch_size, encoder.images.merge_size
        self._grid = side // self._patch
        cells = self._grid // self._merge
        start = self._ids("<|im_start|>user\n<|vision_start|>")
        self._prefix = [*start, *[encoder.image_id] * cells**2, *self._ids("<|vision_end|>")]
        line = np.arange(cells)
        image = len(start) + np.stack([np.zeros(cells**2, int), np.repeat(line, cells), np.tile(line, cells)])
        self._side, self._cells = side, cells
        self._screen = slice(len(start), len(start) + cells**2)
        self._digits = {encoder.tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)}
        self._start = len(start) + cells + 1  # position of a question's first token
        texts = [np.broadcast_to(np.arange(len(start)), (3, len(start))), np.full((3, 1), self._start - 1)]
        self._positions = np.concatenate([texts[0], image, texts[1]], axis=1)

    def _ids(self, text: str) -> list[int]:
        return self._encoder.tokenizer(text, add_special_tokens=False)["input_ids"]

    def pack(self, pixels: np.ndarray, questions: Sequence[Sequence[SceneQuestion]]) -> QuestionBatch:
        """Pack screens with their questions into a batch, one row per screen.

        pixels: uint8 [batch, side, side, 3]. questions: of each screen. Raises TrainingError for an answer with fewer
        points than its question has boxes.
        """
        rows = [self._row(asked) for asked in questions]
        length = max(len(row.tokens) for row in rows)
        batch = len(rows)
        ids = np.zeros((batch, length), dtype=np.int64)
        labels = np.full_like(ids, IGNORED)
        read = np.zeros_like(ids, dtype=bool)
        segment = np.full_like(ids, -2)  # padding; the screen is -1
        positions = np.zeros((3, batch, length), dtype=np.int64)
        repeats = np.zeros((batch, length, length), dtype=bool)
        for number, row in enumerate(rows):
            n = len(row.tokens)
            ids[number, :n], labels[number, :n], segment[number, :n], read[number, :n] = np.array(row.tokens).T
            positions[:, number, :n] = np.concatenate(row.positions, axis=1)
            for token, source in row.repeats:
                repeats[number, token, source] = True
        mine = torch.from_numpy(segment)
        same = (mine[:, :, None] == mine[:, None, :]) | (mine[:, None, :] == -1)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        types = torch.from_numpy((ids == self._encoder.image_id).astype(np.int64))
        inputs = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": (same & causal)[:, None],
            "position_ids": torch.from_numpy(positions),
            "mm_token_type_ids": types,
            "pixel_values": self.patches(pixels),
            "image_grid_thw": torch.tensor([[1, self._grid, self._grid]] * batch),
        }
        looks = [(number, at, cells) for number, row in enumerate(rows) for at, cells in row.looks]
        targets = AttentionTargets(
            torch.tensor([row for row, _, _ in looks], dtype=torch.long),
            torch.tensor([at for _, at, _ in looks], dtype=torch.long),
            torch.from_numpy(np.array([cells for _, _, cells in looks], np.float32).reshape(-1, self._cells**2)),
            self._screen,
        )
        return QuestionBatch(
            inputs,
            torch.from_numpy(labels),
            mine.clamp_min(-1),
            torch.from_numpy(read),
            targets,
            torch.from_numpy(repeats),
        )

    def _row(self, asked: Sequence[SceneQuestion]) -> _QuestionRow:
        row = _QuestionRow([(token, IGNORED, -1, False) for token in self._prefix], [self._positions], [], [])
        for number, question in enumerate(asked):
            asked_for = f"{question.instruction}<|im_end|>\n<|im_start|>assistant\n"
            prompt = self._ids(asked_for)
            answer = self._encoder.encode_text(question.response)
            if question.copied:
                row.repeats += self._repeats(asked_for, question, len(row.tokens))
            last = len(row.tokens) + len(prompt) - 1  # the token before the answer
            reads = question.skill in READING_SKILLS
            if question.seen is not None:
                target = compute_cell_shares(question.seen, self._side, self._cells)
                row.looks += [(last + token, target) for token in range(len(answer) - 1 if reads else 1)]
            for place, box in zip(self._points(answer, len(question.boxes)), question.boxes, strict=True):
                target = compute_cell_shares(box, self._side, self._cells)
                row.looks += [(last + place + digit, target) for digit in (0, 1, 3, 4)]
            row.tokens += [(token, IGNORED, number, False) for token in prompt]
            row.tokens += [(token, token, number, reads) for token in answer]
            count = len(prompt) + len(answer)
            row.positions.append(np.broadcast_to(self._start + np.arange(count), (3, count)))
        return row

    def _repeats(self, asked: str, question: SceneQuestion, at: int) -> list[tuple[int, int]]:
        """Find the repeated tokens of `question.copied` in the prompt text `asked` and the response; return (position,
        earlier position) pairs. at: position of the question's first token in its row."""
        spans = []
        for text, shift in ((asked, 0), (question.response, len(asked))):
            encoded = self._encoder.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            spans += [(start + shift, end + shift) for start, end in encoded["offset_mapping"]]
        found = re.finditer(rf"(?<!\w){re.escape(question.copied)}(?!\w)", asked + question.response)
        occurrences = NameOccurrences(len(question.copied), tuple(match.start() for match in found))
        return [(at + token, at + source) for token, source in find_repeated_tokens(spans, [occurrences])]

    def _points(self, answer: Sequence[int], count: int) -> list[int]:
        """Return where the last `count` points of an answer (two digits, a space, two digits) begin, in order."""
        is_digit = [token in self._digits for token in answer]
        found, at = [], len(answer) - 5
        while at >= 0 and len(found) < count:
            if is_digit[at : at + 5] == [True, True, False, True, True]:
                found.append(at)
                at -= 5
            else:
                at -= 1
        if len(found) < count:
            raise TrainingError(f"{count} points were expected in {self._encoder.decode(answer)!r}", where="packing")
        return found[::-1]

    def patches(self, pixels: np.ndarray) -> torch.Tensor:
        """Cut screens into patches as the image processor does: float32 [batch x patches, values per patch] in [-1, 1].

        pixels: uint8 [batch, side, side, 3], of the model's size.
        """
        batch, p, m = len(pixels), self._patch, self._merge
        g = self._grid // m
        scaled = torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(127.5).sub_(1.0)
        cut = scaled.view(batch, g, m, p, g, m, p, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
        frames = cut.unsqueeze(6).expand(*[-1] * 6, self._encoder.images.temporal_patch_size, -1, -1)
        return frames.reshape(batch * self._grid**2, -1)


MIN_SHOWN_SHARE = 0.15  # of an image token's cell that a thing must cover, or half of the thing, to count as shown
CHARACTERS = {character: number + 1 for number, character in enumerate(ascii_lowercase + digits)}  # 0: none
PATCH_SLOTS = 4  # slots along the width of a patch, each for the character whose centre is in it
CELL_CHARACTERS = 8  # first characters of a text that an image token predicts


def build_naming_targets(
    encoder: Encoder, shown: Sequence[Sequence[tuple[str, SceneBox]]], side: int, cells: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words that each image token should predict: names of the things in its cell, by area, or "empty".

    encoder: of the model. shown: for each screen, names and boxes in pixels. side: of a screen in pixels. cells: image
    tokens along it. Returns token ids of the words and their weights, [screens x cells x cells, words] each. All
    weights sum to 1; the empty cells, which may be most of a screen, have half of that together.
    """

    @cache
    def spell(name: str) -> list[int]:
        return encoder.tokenizer(f" {name}", add_special_tokens=False)["input_ids"]

    rows: list[dict[int, float]] = []
    for things in shown:
        areas = np.zeros((len(things), cells * cells))
        for number, (_, box) in enumerate(things):
            area = compute_cell_areas(box, side, cells)
            areas[number] = np.where(area >= min(MIN_SHOWN_SHARE * (side / cells) ** 2, box.w * box.h / 2), area, 0)
        for place in range(cells * cells):
            here = areas[:, place].nonzero()[0]
            total = areas[here, place].sum()
            row: dict[int, float] = {}
            for number in here:
                tokens = spell(things[number][0])
                for token in tokens:
                    row[token] = row.get(token, 0.0) + areas[number, place] / total / len(tokens)
            rows.append(row or dict.fromkeys(spell("empty"), 1 / len(spell("empty"))))
    ids = pad_sequence([torch.tensor(list(row)) for row in rows], batch_first=True)
    weights = pad_sequence([torch.tensor(list(row.values()), dtype=torch.float32) for row in rows], batch_first=True)
    empty = ids[:, 0] == spell("empty")[0]
    for group in (empty, ~empty):
        weights[group] /= max(1, int(group.sum())) * (2 if empty.any() and not empty.all() else 1)
    return ids, weights


def build_placing_targets(shown: Sequence[Sequence[tuple[str, SceneBox]]], side: int, cells: int) -> torch.Tensor:
    """Compute the centre of the thing with the largest area in each image token, in coordinates of two digits.

    shown, side, cells: as in `build_naming_targets`. Returns int64 [screens x cells x cells, 4]: first and second digit
    of x, then of y; IGNORED for empty cells.
    """
    digits = np.full((len(shown), cells * cells, 4), IGNORED)
    for screen, things in enumerate(shown):
        if not things:
            continue
        areas = np.stack([compute_cell_areas(box, side, cells) for _, box in things])
        most = areas.argmax(0)
        for cell in (areas.max(0) >= MIN_SHOWN_SHARE * (side / cells) ** 2).nonzero()[0]:
            centre = things[most[cell]][1].centre
            x, y = (min(99, max(0, int(100 * part))) for part in (centre.x, centre.y))
            digits[screen, cell] = (*divmod(x, 10), *divmod(y, 10))
    return torch.from_numpy(digits.reshape(-1, 4))


def build_spelling_targets(texts: Sequence[Sequence[SceneText]], side: int, patches: int, merge: int) -> torch.Tensor:
    """Find the character whose centre lies in each slot of each patch; 0 where there is none.

    texts: of each screen. side: of a screen in pixels. patches: along it. merge: patches along an image token. Returns
    int64 [screens x patches x patches, PATCH_SLOTS], indices of CHARACTERS, with the patches in the order of the vision
    tower: blocks of merge x merge, row by row.
    """
    slots = np.zeros((len(texts), patches, patches * PATCH_SLOTS), dtype=np.int64)
    for screen, found in enumerate(texts):
        for text in found:
            for character, box in zip(text.characters, text.boxes, strict=True):
                row = int((box.y + box.h / 2) * patches // side)
                slot = int((box.x + box.w / 2) * patches * PATCH_SLOTS // side)
                if 0 <= row < patches and 0 <= slot < patches * PATCH_SLOTS:
                    slots[screen, row, slot] = CHARACTERS[character]
    blocks = patches // merge
    ordered = slots.reshape(len(texts), blocks, merge, blocks, merge, PATCH_SLOTS).swapaxes(2, 3)
    return torch.from_numpy(np.ascontiguousarray(ordered).reshape(-1, PATCH_SLOTS))


def build_reading_targets(texts: Sequence[Sequence[SceneText]], side: int, cells: int) -> torch.Tensor:
    """Find the first characters of the text with the largest area in each image token; 0 after its end.

    texts: of each screen. side, cells: as in `build_naming_targets`. Returns int64 [screens x cells x cells,
    CELL_CHARACTERS], indices of CHARACTERS; IGNORED where there is no text, or too little of it to be read.
    """
    targets = np.full((len(texts), cells * cells, CELL_CHARACTERS), IGNORED)
    for screen, found in enumerate(texts):
        if not found:
            continue
        boxes = [text.box for text in found]
        areas = np.stack([compute_cell_areas(box, side, cells) for box in boxes])
        sizes = np.array([box.w * box.h for box in boxes])[:, None]
        areas = np.where(areas >= np.minimum(MIN_SHOWN_SHARE * (side / cells) ** 2, sizes / 2), areas, 0)
        spelt = np.zeros((len(found), CELL_CHARACTERS), dtype=np.int64)
        for number, text in enumerate(found):
            first = [CHARACTERS[character] for character in text.characters[:CELL_CHARACTERS]]
            spelt[number, : len(first)] = first
        here = areas.max(0) > 0
        targets[screen, here] = spelt[areas.argmax(0)[here]]
    return torch.from_numpy(targets.reshape(-1, CELL_CHARACTERS))
