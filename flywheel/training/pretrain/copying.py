"""Texts in which names come again, by which the base learns to copy out of texts, also what is no word.

A name stands behind a cue (`folder jetena`), and later behind the same cue again, in other quotes, in another order.
So the cue tells which name is to be written, and what was written of it so far tells how it goes on. Of each token that
repeats a name it is known which ones it repeats. The worlds' instructions and commands are not used.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits
from typing import NamedTuple

import numpy as np
import torch

from flywheel import words
from flywheel.policy.encoding import Encoder

NAMES = 3  # in a text, at most
TIMES = (2, 3)  # that each of them is said
_WORDS = tuple(sorted({word for name in (*words.READING, *words.VALUES) for word in name.split()}))
_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_ENDINGS = ("txt", "csv", "md", "py", "log", "json")
_FORMS = (" {}", " '{}'", ' "{}"', "/{}", "={}", "({})", ": {}", " {},", " {}.", "='{}'", "-{}")
_OPENINGS = ("Thought:", "Action:", "I", "The", "Now", "\n", "$", ">>>", "{", "")
_ENDS = (".", "\n", " ;", "\nAction: ", "\nThought: ")


class Said(NamedTuple):
    """Where in a text a name of `length` characters is said, in their order."""

    length: int
    starts: tuple[int, ...]


class Repeated(NamedTuple):
    """A text, and the names that are said in it more than once."""

    text: str
    names: tuple[Said, ...]


@dataclass(frozen=True)
class CopyBatch:
    """ids: int64 [texts, length], 0 behind the end of a text. repeats: bool [texts, length, length], whether the token
    of the second axis repeats the earlier one of the third."""

    ids: torch.Tensor
    repeats: torch.Tensor


def draw(rng: random.Random) -> Repeated:
    count = rng.randint(1, NAMES)
    cues, names = _unlike(_cue, count, rng), _unlike(name, count, rng)
    text, starts = "", [[] for _ in range(count)]
    for time in range(rng.randint(*TIMES)):
        if rng.random() < 0.5:
            text += " ".join([rng.choice(_OPENINGS), *rng.choices(_WORDS, k=rng.randint(0, 3))])
        for number in rng.sample(range(count), count) if time else range(count):
            before, after = rng.choice(_FORMS).split("{}")
            text += f" {cues[number]}{before}"
            starts[number].append(len(text))
            text += names[number] + after
        text += rng.choice(_ENDS)
    return Repeated(text, tuple(Said(len(said), tuple(at)) for said, at in zip(names, starts, strict=True)))


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
    told = [encoder.tokenizer(each.text, add_special_tokens=False, return_offsets_mapping=True) for each in texts]
    length = max(len(one["input_ids"]) for one in told)
    ids, repeats = np.zeros((len(texts), length), np.int64), np.zeros((len(texts), length, length), bool)
    for number, (one, each) in enumerate(zip(told, texts, strict=True)):
        ids[number, : len(one["input_ids"])] = one["input_ids"]
        for token, source in pairs(one["offset_mapping"], each.names):
            repeats[number, token, source] = True
    return CopyBatch(torch.from_numpy(ids), torch.from_numpy(repeats))


def pairs(spans: Sequence[tuple[int, int]], names: Sequence[Said]) -> Iterator[tuple[int, int]]:
    """(a token that repeats, an earlier token that it repeats), by the characters from which and to which tokens go.

    A token that begins within a name repeats those that hold the same character where the name was said before,
    however they are cut.
    """
    token_at = {place: token for token, (start, end) in enumerate(spans) for place in range(start, end)}
    for length, starts in names:
        for number, begin in enumerate(starts):
            for token, (start, end) in enumerate(spans):
                if number and end > begin and start < begin + length:
                    within = max(start - begin, 0)  # a space before the name may be in its token
                    yield from ((token, token_at[earlier + within]) for earlier in starts[:number])
