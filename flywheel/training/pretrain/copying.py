"""Texts in which names come again, by which the base learns to copy out of a text: a word that is none included.

A name stands behind a cue (`folder jetena`), and later behind the same cue again, in other quotes, in another order:
so what is to be written is told by the cue, and letter by letter by what was just written. Each token that repeats a
name knows the token that it repeats. The worlds' instructions and commands are not used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits
from typing import NamedTuple

import numpy as np
import torch

from flywheel import words
from flywheel.policy.encoding import Encoder

NONE = -1  # the source of a token that repeats nothing
NAMES = 3  # in a text, at most
TIMES = (2, 3)  # that each of them is said
_WORDS = tuple(sorted({word for name in (*words.READING, *words.VALUES) for word in name.split()}))
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_ENDINGS = ("txt", "csv", "md", "py", "log", "json")
_FORMS = (" {}", " '{}'", ' "{}"', "/{}", "={}", "({})", ": {}", " {},", " {}.", "='{}'", "-{}")
_OPENINGS = ("Thought:", "Action:", "I", "The", "Now", "\n", "$", ">>>", "{", "")
_ENDS = (".", "\n", " ;", "\nAction: ", "\nThought: ")


class Copy(NamedTuple):
    """In a text, a name that was said before: `length` characters from `start` are those from `source`."""

    start: int
    source: int
    length: int


class Repeated(NamedTuple):
    text: str
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class CopyBatch:
    """ids: int64 [texts, length], 0 behind the end of a text. source: int64 [texts, length], the place of the earlier
    token that a token repeats, NONE where it repeats nothing."""

    ids: torch.Tensor
    source: torch.Tensor


def draw(rng: random.Random) -> Repeated:
    count = rng.randint(1, NAMES)
    cues, names = _unlike(_cue, count, rng), _unlike(name, count, rng)
    text, copies, last = "", [], {}
    for time in range(rng.randint(*TIMES)):
        if rng.random() < 0.5:
            text += " ".join([rng.choice(_OPENINGS), *rng.choices(_WORDS, k=rng.randint(0, 3))])
        for number in rng.sample(range(count), count) if time else range(count):
            before, after = rng.choice(_FORMS).split("{}")
            text += f" {cues[number]}{before}"
            start = len(text)
            if number in last:
                copies.append(Copy(start, last[number], len(names[number])))
            if number not in last or rng.random() < 0.5:  # what is copied may be a copy
                last[number] = start
            text += names[number] + after
        text += rng.choice(_ENDS)
    return Repeated(text, tuple(copies))


def name(rng: random.Random) -> str:
    """Letters, syllables, a word, a number, or a word with a number or letters; of four one has an ending."""
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


def _cue(rng: random.Random) -> str:
    return rng.choice(_WORDS) if rng.random() < 0.7 else "".join(rng.choices(ascii_lowercase, k=rng.randint(2, 6)))


def _unlike(make, count: int, rng: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(rng)] = None
    return list(found)


def pack(encoder: Encoder, texts: Sequence[Repeated]) -> CopyBatch:
    """A token that begins within a copy repeats the token that holds the same character where the name was said before,
    however the two are cut into tokens."""
    rows = [_sources(encoder, text) for text in texts]
    length = max(len(ids) for ids, _ in rows)
    ids, source = np.zeros((len(rows), length), np.int64), np.full((len(rows), length), NONE)
    for number, (tokens, sources) in enumerate(rows):
        ids[number, : len(tokens)], source[number, : len(tokens)] = tokens, sources
    return CopyBatch(torch.from_numpy(ids), torch.from_numpy(source))


def _sources(encoder: Encoder, repeated: Repeated) -> tuple[list[int], list[int]]:
    told = encoder.tokenizer(repeated.text, add_special_tokens=False, return_offsets_mapping=True)
    spans: list[tuple[int, int]] = told["offset_mapping"]
    token_at = {place: token for token, (start, end) in enumerate(spans) for place in range(start, end)}
    sources = [NONE] * len(spans)
    for copy in repeated.copies:
        for token, (start, end) in enumerate(spans):
            if end > copy.start and start < copy.start + copy.length:  # a space before the name may be in its token
                sources[token] = token_at[copy.source + max(start - copy.start, 0)]
    return told["input_ids"], sources
