"""A long recording heard through windows of thirty seconds, in memory that does not grow with its length."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

from flywheel.recording.recognizers.recognizer import Word

WINDOW_S = 30.0
EDGE_S = 1.0  # a word that ends so near a window's end may be half a word
CONTEXT = 100  # words that the next window is told
LOOPING = 2.4  # a text that zlib makes so much smaller says one thing again and again (Whisper's own measure)

# (start, end of the window in seconds, what was said before it) -> its words, their times from the recording's start
Hear = Callable[[float, float, str], Sequence[Word]]


def stream(seconds: float, hear: Hear) -> Iterator[Word]:
    """The words of a recording of `seconds`, each once, in order of time.

    What may be cut at the end of a window is left to the next, which begins in the gap before it. A window whose words
    go round in a loop is no context: the next would go round with it.
    """
    at, context = 0.0, ""
    while at < seconds:
        end = min(at + WINDOW_S, seconds)
        words = list(hear(at, end, context))
        kept, after = (words, end) if end == seconds else _whole(words, at, end)
        yield from kept
        said = " ".join(word.word for word in kept)
        context = "" if _loops(said) else " ".join(f"{context} {said}".split()[-CONTEXT:])
        at = after


def _whole(words: list[Word], at: float, end: float) -> tuple[list[Word], float]:
    """The words that are surely whole, and where to go on."""
    first = next((i for i, word in enumerate(words) if word.end_s > end - EDGE_S), len(words))
    if first == len(words):
        return words, end
    before = words[first - 1].end_s if first else at
    after = (before + words[first].start_s) / 2
    # One word as long as half a window is none; to begin there again would take for ever.
    return (words[:first], after) if after > at + WINDOW_S / 2 else (words, end)


def _loops(text: str) -> bool:
    return bool(text) and len(text) / len(zlib.compress(text.encode())) > LOOPING
