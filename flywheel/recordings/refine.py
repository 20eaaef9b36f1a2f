"""Refine heard words into clean thoughts: fillers, repetitions and self-corrections go, one sentence stays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Protocol

from flywheel.config import Settings
from flywheel.envs.screens.vocabulary import BUTTONS, COLOURS, KEYS, PEOPLE, SETTINGS, SHAPES, SYMBOLS, THINGS
from flywheel.policy.client.language_model import OpenAIChatModel


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> list[tuple[str, ...]]:
    """Phrases between commas, the longest first."""
    return sorted((tuple(phrase.split()) for phrase in text.split(",")), key=len, reverse=True)


# Phrases that mean nothing wherever they stand.
FILLERS = _phrases(
    "um, uh, er, erm, hmm, mm, ah, eh, huh, let me see, let's see, let us see, you know, kind of, sort of, "
    "let me think, where is it, oh"
)
# Words that are dropped at the beginning of a thought, and at its end.
OPENERS = _words("okay ok well so and right alright yes yeah but")
LEFT_OVER = _words("the a an and to of so but or then okay")

CLOSINGS = _phrases("done, all done, that's it, that is it, i am done, i'm done")  # which are about no action

# Words of self-correction. "no" and "wait" alone are ordinary words too, so they count only where the speaker then
# repeats a word said just before.
REPAIRS = _phrases(
    "no wait, no no, no sorry, wait no, sorry, i mean, no i mean, scratch that, or rather, oh no, actually no, "
    "no actually"
)
WEAK_REPAIRS = _words("no wait actually rather")
REACH = 8  # words back to which a speaker goes when beginning again

VERBS = _words(
    "click press pick take open close drag drop move type enter write scroll turn switch select choose search add "
    "remove put buy go merge slide hit set save push tap look find need want see"
)
LEADS = _words("now then first next finally again here")

# Words that stay even where the recognizer is unsure: of interfaces, and those that the rules below read.
PROTECTED_WORDS = _words("the and this that with for its it's not one too two").union(
    COLOURS, SHAPES, SYMBOLS, THINGS, SETTINGS, BUTTONS, PEOPLE, KEYS, OPENERS, VERBS, LEADS, *FILLERS, *REPAIRS
)

# Words that need another one: a thought that ends in one was broken off by a pause.
UNFINISHED = _words("the a an to of in on off i and my is name for").union(COLOURS, VERBS) - _words("close save search")


@dataclass(frozen=True)
class RefinerInput:
    """One utterance: its words, and what the screen and the task say, from which misheard words are mended.

    confidence: 0 to 1 for each word. vocabulary: lower-case words that stand on the screen or in the task.
    """

    words: tuple[str, ...]
    confidence: tuple[float, ...]
    instruction: str = ""
    vocabulary: frozenset[str] = frozenset()


class Refiner(Protocol):
    """Refine heard words into a thought. name: as it is written into the table `utterances` (`refined_by`)."""

    name: str

    def refine(self, heard: RefinerInput) -> str:
        """Write a sentence in the first person; "" where only fillers were said."""


def open_refiner(settings: Settings) -> Refiner:
    """Open a language model where `language_model.endpoint` names one, else the rules; the data say which it was."""
    if settings.language_model.endpoint:
        return ModelRefiner(OpenAIChatModel(settings.language_model))
    return RuleRefiner()


class ModelRefiner:
    """Refinement by a language model. A failure of the model is an error: the rules are no silent substitute."""

    def __init__(self, model: OpenAIChatModel) -> None:
        self.name, self._model = model.name, model

    def refine(self, heard: RefinerInput) -> str:
        if not heard.words:
            return ""
        answer = self._model.complete(_SYSTEM, _question(heard))
        return "" if answer.strip().strip(".").lower() in ("", "none") else " ".join(answer.split())


_SYSTEM = (
    "You clean up the spoken thoughts of a person who uses a computer and thinks aloud. You get the words that a "
    "speech recognizer heard. Remove fillers, repetitions and what the speaker takes back; mend words that were "
    "misheard, with the help of the task and of the words on the screen. Add nothing that was not said. Answer with "
    "one short sentence in the first person and nothing else, or with NONE where nothing was meant."
)


def _question(heard: RefinerInput) -> str:
    return (
        f"Task: {heard.instruction}\nWords on the screen: {', '.join(sorted(heard.vocabulary)[:80])}\n"
        f"Heard: {' '.join(heard.words)}"
    )


class RuleRefiner:
    """Refinement by rules, for where there is no language model."""

    name = "rules"

    def refine(self, heard: RefinerInput) -> str:
        words = _correct_misheard(heard)
        words = _drop(words, FILLERS)
        words = _repair(words)
        words = _first_person(_trim(_repetitions(words)))
        return "" if tuple(words) in CLOSINGS else _sentence(words)


_SIMILAR = 0.72  # least similarity of a misheard word to the one meant
_SURE = 0.9  # a word heard with this confidence is left alone


def _correct_misheard(heard: RefinerInput) -> list[str]:
    """Replace a word heard with doubt by a similar one that stands on the screen or in the task."""
    known = sorted(word for word in heard.vocabulary if len(word) > 2 and word.isalpha())
    mended = []
    for word, confidence in zip(heard.words, heard.confidence, strict=True):
        word = word.lower()
        if word in heard.vocabulary or confidence >= _SURE or len(word) < 3 or word in PROTECTED_WORDS:
            mended.append(word)
            continue
        close = [(word_similarity(word, other), other) for other in known if other[0] == word[0]]
        best = max(close, default=(0.0, word))
        mended.append(best[1] if best[0] >= _SIMILAR else word)
    return mended


def word_similarity(one: str, other: str) -> float:
    """Compare two words by their letters: 0 to 1 (1: equal)."""
    return 1.0 if one == other else SequenceMatcher(None, one, other, autojunk=False).ratio()


def _drop(words: list[str], phrases: Sequence[tuple[str, ...]]) -> list[str]:
    kept, at = [], 0
    while at < len(words):
        size = next((len(p) for p in phrases if tuple(words[at : at + len(p)]) == p), 0)
        if not size:
            kept.append(words[at])
        at += size or 1
    return kept


def _repair(words: list[str]) -> list[str]:
    """Carry out self-corrections: `the red no wait the blue tile` -> `the blue tile`.

    What follows the marker begins again at a word said before, and everything from there on is taken back. Where no
    word is said again, the speaker corrects the last word alone.
    """
    done: list[str] = []
    at = 0
    while at < len(words):
        rest = words[at:]
        size = next((len(p) for p in REPAIRS if tuple(rest[: len(p)]) == p), 0)
        weak = not size and rest[0] in WEAK_REPAIRS
        if not size and not weak:
            done.append(words[at])
            at += 1
            continue
        size = size or 1
        again = _begun_again(done, rest[size:])
        if again is not None:
            done = done[:again]
        elif weak:
            done.append(words[at])
        elif rest[size:]:
            done = done[:-1]
        at += size
    return done


def _begun_again(done: list[str], rest: list[str]) -> int | None:
    """Where in `done` the first word of `rest` was said last, within reach."""
    if not rest:
        return None
    nearest = max((i for i, word in enumerate(done) if word == rest[0]), default=None)
    return nearest if nearest is not None and len(done) - nearest <= REACH else None


def _repetitions(words: list[str]) -> list[str]:
    """Say once what was said two or more times in a row: words, and phrases of up to four."""
    for size in range(4, 0, -1):
        at = 0
        while at + 2 * size <= len(words):
            if words[at : at + size] == words[at + size : at + 2 * size]:
                del words[at : at + size]
            else:
                at += 1
    return words


def _trim(words: list[str]) -> list[str]:
    start, end = 0, len(words)
    while start < end and words[start] in OPENERS:
        start += 1
    while start < end and words[end - 1] in LEFT_OVER:
        end -= 1
    return words[start:end]


def _first_person(words: list[str]) -> list[str]:
    """`click the tile` -> `i click the tile`."""
    lead = 1 if len(words) > 1 and words[0] in LEADS else 0
    if len(words) > lead and words[lead] in VERBS:
        words = [*words[:lead], "i", *words[lead:]]
    return _repetitions(words)


_I = re.compile(r"^i('|$)")


def _sentence(words: list[str]) -> str:
    """A capital and a full stop."""
    if not words:
        return ""
    text = " ".join(_I.sub(r"I\1", word) for word in words)
    return text[0].upper() + text[1:] + "."
