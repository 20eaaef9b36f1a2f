"""PocketSphinx: a recognizer whose wheel carries its English model. Works with no download.

Its own language model, of general English, hears `card` for `cart`; one of how people speak about a screen
(`trigrams.py`) hears nothing but what it was made from. So an utterance is heard with both together first; where what
was heard is less likely as such speech than as general English, it is heard again with the general model alone.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import numpy as np
from pocketsphinx import NGramModel

from flywheel.recording.recognizers.recognizer import Transcript, Word, check_audio, check_deadline
from flywheel.recording.recognizers.sphinx import DICTIONARY, GENERAL, Decoder, Segment
from flywheel.recording.recognizers.trigrams import END, START, Trigrams, sentences

_FRAMES_PER_S = 100
_LOG_BASE = math.log(1.0001)  # of the probabilities that pocketsphinx gives out
_COMMON = 3_000  # words of general English that the quick search can hear
_SEARCH = {"maxhmmpf": 4_000, "maxwpf": 20, "fwdflat": 0}  # it follows fewer paths, and once
_UNKNOWN = 1e-7  # probability of a word that a language model does not have
_VARIANT = re.compile(r"\(\d+\)$")  # "the(2)": a second pronunciation of the same word


class PocketSphinx:
    """Not for use by several threads at once.

    adapted: False is the stock recognizer, its language model and search as they come with the wheel; it is what ours
    is measured against.
    """

    whole = False

    def __init__(self, adapted: bool = True) -> None:
        self.name = f"pocketsphinx-{version('pocketsphinx')}"
        self._general = Decoder({GENERAL: 1.0})
        self._interface = _InterfaceSpeech() if adapted else None

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> Transcript:
        """See `Recognizer.recognize`. confidence: the posterior of the word in the lattice.

        Decoding cannot be broken off, so the deadline is checked before and after.
        """
        check_audio(samples, rate)
        deadline = time.monotonic() + deadline_s
        check_deadline(deadline, self.name)
        if not len(samples):
            return Transcript(())
        pcm, length = (np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes(), len(samples) / rate
        words = _words(self._interface.decoder.decode(pcm), length) if self._interface else ()
        check_deadline(deadline, self.name)
        if not words or not self._interface or self._interface.gain([word.word for word in words]) <= 0:
            words = _words(self._general.decode(pcm), length)
            check_deadline(deadline, self.name)
        return Transcript(words)


class _InterfaceSpeech:
    """A quick search that leans to speech about interfaces, and the judge of what it heard.

    Both language models count alike. To save time it knows only the words of that speech and the commonest others:
    whatever else is said is for the general search.
    """

    def __init__(self) -> None:
        pronounced = _dictionary()
        corpus = [sentence for sentence in sentences() if all(word in pronounced for word in sentence)]
        self._interface, self._general = Trigrams(corpus), NGramModel.readfile(str(GENERAL))
        spoken = sorted((word for word in pronounced if word.isascii()), key=lambda word: (-self._english(word), word))
        known = {word for sentence in corpus for word in sentence}.union(islice(spoken, _COMMON))
        with tempfile.TemporaryDirectory() as folder:
            model, dictionary = Path(folder) / "interface.lm", Path(folder) / "known.dict"
            model.write_text(self._interface.arpa(), encoding="ascii")
            dictionary.write_text("".join(pronounced[word] for word in sorted(known)), encoding="utf-8")
            self.decoder = Decoder({GENERAL: 0.5, model: 0.5}, dictionary, **_SEARCH)

    def gain(self, words: Sequence[str]) -> float:
        """log p(words) as speech about an interface, less that as general English: over 0, the first is likelier."""
        said, gain = (START, *words, END), 0.0
        for at in range(1, len(said)):
            gram = said[max(0, at - 2) : at + 1]
            gain += math.log(max(self._interface.probability(gram), _UNKNOWN))
            gain -= max(self._english(*gram), math.log(_UNKNOWN))
        return gain

    def _english(self, *gram: str) -> float:
        """Natural logarithm of the general model's probability of the last word after the others."""
        return self._general.prob(list(reversed(gram))) * _LOG_BASE


def _dictionary() -> dict[str, str]:
    """The words that the recognizer can pronounce, each with the dictionary's lines for it."""
    found: dict[str, str] = {}
    for line in DICTIONARY.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.strip():
            word = _VARIANT.sub("", line.split(maxsplit=1)[0])
            found[word] = found.get(word, "") + line
    return found


def _words(segments: Sequence[Segment], length: float) -> tuple[Word, ...]:
    """Without silence and noise, which the model writes as <s>, <sil>, [NOISE]."""
    return tuple(_word(segment, length) for segment in segments if not segment.word.startswith(("<", "[")))


def _word(segment: Segment, length: float) -> Word:
    start, end = segment.first_frame / _FRAMES_PER_S, (segment.last_frame + 1) / _FRAMES_PER_S
    return Word(_VARIANT.sub("", segment.word), min(start, length), min(end, length), segment.posterior)
