"""Transcribe a recording into utterances, which are stretches of speech between pauses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flywheel.recordings.asr.recognizer import Recognizer, Word
from flywheel.recordings.audio import SAMPLE_RATE, speech_segments
from flywheel.recordings.refine import FILLERS, LEADS, OPENERS, UNFINISHED, VERBS

LONGEST_PAUSE_S = 1.5  # within a sentence
_HESITATIONS = {phrase[0] for phrase in FILLERS if len(phrase) == 1}
NEAR_S = 0.3  # most seconds of a word's middle outside its span: the error of its times


@dataclass(frozen=True)
class Utterance:
    """Hold a stretch of speech between pauses, with its words in order. All times, also of words, are seconds on the
    audio's clock."""

    start_s: float
    end_s: float
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        """Return the words, joined with blanks."""
        return " ".join(word.word for word in self.words)

    @property
    def confidence(self) -> float:
        """Return the mean confidence of the words, 0 to 1; 0 where there are none."""
        return sum(word.confidence for word in self.words) / len(self.words) if self.words else 0.0


def transcribe_utterances(recognizer: Recognizer, samples: np.ndarray, timeout_s: float) -> list[Utterance]:
    """Transcribe each stretch of speech, in order; those without a recognized word are left out.

    recognizer: hears each, or all at once where it is `whole`. samples: float32 mono [n] at `SAMPLE_RATE`. Raises
    RecognitionTimeout where all of it takes longer than `timeout_s` seconds, BadInput for samples of another type.
    """
    spans = speech_segments(samples)
    heard = (_recognize_whole if recognizer.whole else _recognize_spans)(recognizer, samples, spans, timeout_s)
    return [Utterance(start, end, tuple(words)) for (start, end), words in zip(spans, heard, strict=True) if words]


Span = tuple[float, float]


def _recognize_spans(
    recognizer: Recognizer, samples: np.ndarray, spans: Sequence[Span], timeout_s: float
) -> list[list[Word]]:
    """Recognize each span separately; return its words, with times from the recording's start."""
    deadline = time.monotonic() + timeout_s
    heard = []
    for start, end in spans:
        piece = samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
        words = recognizer.recognize(piece, SAMPLE_RATE, deadline - time.monotonic())
        heard.append([replace(w, start_s=w.start_s + start, end_s=w.end_s + start) for w in words])
    return heard


def _recognize_whole(
    recognizer: Recognizer, samples: np.ndarray, spans: Sequence[Span], timeout_s: float
) -> list[list[Word]]:
    """Recognize the whole recording at once; assign each word to the span in which its middle lies, or nearly lies.

    Words in no span are dropped: such recognizers hear words in silence.
    """
    heard: list[list[Word]] = [[] for _ in spans]
    for word in recognizer.recognize(samples, SAMPLE_RATE, timeout_s) if spans else ():
        middle = (word.start_s + word.end_s) / 2
        away = [max(start - middle, middle - end, 0.0) for start, end in spans]
        nearest = min(range(len(spans)), key=away.__getitem__)
        if away[nearest] <= NEAR_S:
            heard[nearest].append(word)
    return heard


def join_broken_utterances(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Join utterances that a pause has cut: `I click the` and then `purple tile`. utterances: in order.

    An utterance is continued where it ends in a word that needs another, and the next one comes within LONGEST_PAUSE_S
    seconds and does not begin a sentence. An utterance of hesitations alone (`uh`) is dropped: it is about no step, and
    could take the place of a thought.
    """
    whole: list[Utterance] = []
    for utterance in utterances:
        before = whole[-1] if whole else None
        near = before is not None and utterance.start_s - before.end_s < LONGEST_PAUSE_S
        if near and before.words[-1].word in UNFINISHED and not _begins(utterance):
            whole[-1] = Utterance(before.start_s, utterance.end_s, (*before.words, *utterance.words))
        else:
            whole.append(utterance)
    return [one for one in whole if not _HESITATIONS.issuperset(word.word for word in one.words)]


def _begins(utterance: Utterance) -> bool:
    """Tell whether a new sentence begins here, perhaps after fillers. Fillers alone begin none."""
    fillers = OPENERS | {word for phrase in FILLERS for word in phrase}
    words = [word.word for word in utterance.words if word.word not in fillers]
    return bool(words) and (words[0] in LEADS or words[0] == "i" or words[0].startswith("i'") or words[0] in VERBS)
