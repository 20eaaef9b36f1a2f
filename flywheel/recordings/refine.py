"""Refine heard words into clean thoughts: drop fillers, repetitions and self-corrections, and keep one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import resources
from typing import Protocol

import yaml

from flywheel.config import Settings
from flywheel.envs.screens.vocabulary import BUTTONS, COLOURS, KEYS, PEOPLE, SETTINGS, SHAPES, SYMBOLS, THINGS
from flywheel.policy.client.language_model import OpenAIChatModel

_DECLARED = yaml.safe_load(resources.files("flywheel.recordings").joinpath("refine.yaml").read_text("utf-8"))


def _words(name: str) -> frozenset[str]:
    return frozenset(_DECLARED[name].split())


def _phrases(name: str) -> list[tuple[str, ...]]:
    """Return the phrases of a list of refine.yaml, the longest first."""
    return sorted((tuple(phrase.split()) for phrase in _DECLARED[name].split(",")), key=len, reverse=True)


FILLERS, CLOSINGS, REPAIRS = _phrases("fillers"), _phrases("closings"), _phrases("repairs")
OPENERS, LEFT_OVER, WEAK_REPAIRS = _words("openers"), _words("left_over"), _words("weak_repairs")
VERBS, LEADS = _words("verbs"), _words("leads")
REACH = 8  # most words that a self-correction goes back
PROTECTED_WORDS = _words("protected").union(
    COLOURS, SHAPES, SYMBOLS, THINGS, SETTINGS, BUTTONS, PEOPLE, KEYS, OPENERS, VERBS, LEADS, *FILLERS, *REPAIRS
)
UNFINISHED = _words("unfinished").union(COLOURS, VERBS) - _words("whole_verbs")


@dataclass(frozen=True)
class RefinerInput:
    """Hold one utterance, and the words of screen and task by which misheard ones are corrected.

    confidence: 0 to 1 for each of `words`. vocabulary: lower-case words of the screen and the task.
    """

    words: tuple[str, ...]
    confidence: tuple[float, ...]
    instruction: str = ""
    vocabulary: frozenset[str] = frozenset()


class Refiner(Protocol):
    """Refine heard words into a thought. name: as stored in the table `utterances` (`refined_by`)."""

    name: str

    def refine(self, heard: RefinerInput) -> str:
        """Return a sentence in the first person for what was `heard`; "" where only fillers were said.

        Raises LanguageModelError where a language model is asked and fails.
        """


def open_refiner(settings: Settings) -> Refiner:
    """Open what refines heard words to thoughts: a language model where `language_model.endpoint` is set, else rules.

    No server is called yet. Raises BadInput for an endpoint that is not an address.
    """
    if settings.language_model.endpoint:
        return ModelRefiner(OpenAIChatModel(settings.language_model))
    return RuleRefiner()


class ModelRefiner:
    """Refine by a language model. Its failure is an error: rules never replace it silently."""

    def __init__(self, model: OpenAIChatModel) -> None:
        self.name, self._model = model.name, model

    def refine(self, heard: RefinerInput) -> str:
        """Ask the model for a sentence for what was `heard`; "" where it answers nothing or `none`, or nothing was.

        Raises LanguageModelError where the model fails.
        """
        if not heard.words:
            return ""
        answer = self._model.complete(_DECLARED["system"], _question(heard))
        return "" if answer.strip().strip(".").lower() in ("", "none") else " ".join(answer.split())


def _question(heard: RefinerInput) -> str:
    return (
        f"Task: {heard.instruction}\nWords on the screen: {', '.join(sorted(heard.vocabulary)[:80])}\n"
        f"Heard: {' '.join(heard.words)}"
    )


class RuleRefiner:
    """Refine by rules, where there is no language model."""

    name = "rules"

    def refine(self, heard: RefinerInput) -> str:
        """Make a sentence in the first person of what was `heard`; "" where nothing is left, or only a closing word.

        Misheard words are corrected; fillers, self-corrections and repetitions are dropped.
        """
        words = _correct_misheard(heard)
        words = _drop(words, FILLERS)
        words = _repair(words)
        words = _first_person(_trim(_repetitions(words)))
        return "" if tuple(words) in CLOSINGS else _sentence(words)


_SIMILAR = 0.72  # least similarity of a misheard word to the one meant
_SURE = 0.9  # a word heard with this confidence is left alone


def _correct_misheard(heard: RefinerInput) -> list[str]:
    """Replace each word of low confidence by a similar one of the vocabulary, if there is one."""
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
    """Compare the words `one` and `other` by their letters: 0 to 1 (1: equal)."""
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
    """Apply self-corrections: `the red no wait the blue tile` -> `the blue tile`.

    The word after the marker is looked up among the words before it, and everything from there on is dropped. Where it
    is not found, the correction replaces the last word only, or the marker, if weak, is an ordinary word.
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
    """Return where in `done` the first word of `rest` was said last, within `REACH` words; None where it was not."""
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
    """Begin with `i` where a verb begins: `click the tile` -> `i click the tile`."""
    lead = 1 if len(words) > 1 and words[0] in LEADS else 0
    if len(words) > lead and words[lead] in VERBS:
        words = [*words[:lead], "i", *words[lead:]]
    return _repetitions(words)


_I = re.compile(r"^i('|$)")


def _sentence(words: list[str]) -> str:
    """Join the words to a sentence with a capital letter and a full stop."""
    if not words:
        return ""
    text = " ".join(_I.sub(r"I\1", word) for word in words)
    return text[0].upper() + text[1:] + "."
