"""Utterances: stretches of speech between pauses, and what was heard in them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from flywheel.recording.audio import segments
from flywheel.recording.recognizer import Recognizer, Word
from flywheel.recording.wording import FILLERS, LEADS, OPENERS, UNFINISHED, VERBS

LONGEST_PAUSE_S = 1.5  # inside a sentence


@dataclass(frozen=True)
class Utterance:
    """A stretch of speech between pauses. Times, also those of the words, are seconds on the audio's clock."""

    start_s: float
    end_s: float
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        return " ".join(word.word for word in self.words)


def transcribe(recognizer: Recognizer, samples: np.ndarray, rate: int, timeout_s: float) -> list[Utterance]:
    """Cut the audio into utterances and recognize each; those in which no word was found are left out.

    Raises RecognitionTimeout where the whole takes longer than `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    utterances = []
    for start, end in segments(samples, rate):
        piece = samples[round(start * rate) : round(end * rate)]
        words = recognizer.recognize(piece, rate, deadline - time.monotonic()).words
        if words:
            shifted = tuple(replace(w, start_s=w.start_s + start, end_s=w.end_s + start) for w in words)
            utterances.append(Utterance(start, end, shifted))
    return utterances


def joined(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Put together again what a pause has cut: `I click the` and, a second later, `purple tile`.

    An utterance goes on where it ends in a word that wants another and the next does not begin a sentence.
    """
    whole: list[Utterance] = []
    for one in utterances:
        before = whole[-1] if whole else None
        if before and one.start_s - before.end_s < LONGEST_PAUSE_S and _goes_on(before, one):
            whole[-1] = Utterance(before.start_s, one.end_s, (*before.words, *one.words))
        else:
            whole.append(one)
    return whole


def _goes_on(before: Utterance, after: Utterance) -> bool:
    return before.words[-1].word in UNFINISHED and not _begins(after)


def _begins(utterance: Utterance) -> bool:
    """Whether a new sentence begins here, perhaps after fillers. Fillers alone begin none."""
    fillers = OPENERS | {word for phrase in FILLERS for word in phrase}
    words = [word.word for word in utterance.words if word.word not in fillers]
    return bool(words) and (words[0] in LEADS or words[0] == "i" or words[0].startswith("i'") or words[0] in VERBS)
