"""PocketSphinx: a recognizer whose wheel carries its English model. Works with no download.

Its acoustic model is used with a language model of our own (`language.py`), made from the vocabulary of our worlds: on
made sessions that took the word error rate from 0.44 to 0.05.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from pocketsphinx import Decoder, NGramModel, get_model_path

from flywheel.recording.language import arpa, sentences
from flywheel.recording.recognizer import Transcript, Word, check_audio, check_deadline

_FRAMES_PER_S = 100
_CHUNK = 8_000  # samples between two looks at the clock
_COMMON = 3_000  # words of general English that are heard too
_LOG_BASE = 1.0001  # of the probabilities that pocketsphinx gives out
_VARIANT = re.compile(r"\(\d+\)$")  # "the(2)": a second pronunciation of the same word


class PocketSphinx:
    """One decoder; not for use by several threads at once."""

    def __init__(self) -> None:
        self.name = f"pocketsphinx-{version('pocketsphinx')}"
        dictionary = _dictionary()
        corpus = [s for s in sentences() if dictionary.issuperset(s)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "interface.lm"
            path.write_text(arpa(corpus, _general(dictionary)), encoding="ascii")
            self._decoder = Decoder(samprate=16_000, loglevel="FATAL", lm=str(path))

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> Transcript:
        """See `Recognizer.recognize`. confidence: the posterior of the word in the lattice."""
        check_audio(samples, rate)
        deadline = time.monotonic() + deadline_s
        check_deadline(deadline, self.name)
        if not len(samples):
            return Transcript(())
        pcm = (np.clip(samples, -1, 1) * 32_767).astype("<i2")
        # The front end adapts to the channel as it goes: without this, words would depend on the utterances before.
        self._decoder.reinit_feat()
        self._decoder.start_utt()
        try:
            for at in range(0, len(pcm), _CHUNK):
                check_deadline(deadline, self.name)
                self._decoder.process_raw(pcm[at : at + _CHUNK].tobytes())
        finally:
            self._decoder.end_utt()
        length = len(samples) / rate
        return Transcript(tuple(word for part in self._decoder.seg() or () if (word := _word(part, length))))


def _dictionary() -> set[str]:
    """The words that the recognizer can pronounce."""
    lines = (Path(get_model_path()) / "en-us" / "cmudict-en-us.dict").read_text(encoding="utf-8").splitlines()
    return {word for word in (line.split(maxsplit=1)[0] for line in lines if line) if "(" not in word}


def _general(dictionary: set[str]) -> dict[str, float]:
    """The most common words of English with their probabilities, from the model in the wheel."""
    model = NGramModel.readfile(str(Path(get_model_path()) / "en-us" / "en-us.lm.bin"))
    weight = {word: model.prob([word]) for word in dictionary if word.isascii()}
    common = sorted(weight, key=lambda word: (-weight[word], word))[:_COMMON]
    return {word: math.pow(_LOG_BASE, weight[word]) for word in common}


def _word(part, length: float) -> Word | None:
    """None for silence and noise, which the model writes as <s>, <sil>, [NOISE]."""
    if part.word.startswith(("<", "[")):
        return None
    start, end = part.start_frame / _FRAMES_PER_S, (part.end_frame + 1) / _FRAMES_PER_S
    confidence = min(max(float(part.prob), 0.0), 1.0)
    return Word(_VARIANT.sub("", part.word), min(start, length), min(end, length), confidence)
