"""PocketSphinx: a recognizer whose wheel carries its English model. Works with no download."""

from __future__ import annotations

import re
import time
from importlib.metadata import version

import numpy as np
from pocketsphinx import Decoder

from flywheel.recording.recognizer import Transcript, Word, check_audio, check_deadline

_FRAMES_PER_S = 100
_CHUNK = 8_000  # samples between two looks at the clock
_VARIANT = re.compile(r"\(\d+\)$")  # "the(2)": a second pronunciation of the same word


class PocketSphinx:
    """One decoder; not for use by several threads at once."""

    def __init__(self) -> None:
        self.name = f"pocketsphinx-{version('pocketsphinx')}"
        self._decoder = Decoder(samprate=16_000, loglevel="FATAL")

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> Transcript:
        """See `Recognizer.recognize`. confidence: the posterior of the word in the lattice."""
        check_audio(samples, rate)
        deadline = time.monotonic() + deadline_s
        check_deadline(deadline, self.name)
        if not len(samples):
            return Transcript(())
        pcm = (np.clip(samples, -1, 1) * 32_767).astype("<i2")
        self._decoder.start_utt()
        try:
            for at in range(0, len(pcm), _CHUNK):
                check_deadline(deadline, self.name)
                self._decoder.process_raw(pcm[at : at + _CHUNK].tobytes())
        finally:
            self._decoder.end_utt()
        length = len(samples) / rate
        return Transcript(tuple(word for part in self._decoder.seg() or () if (word := _word(part, length))))


def _word(part, length: float) -> Word | None:
    """None for silence and noise, which the model writes as <s>, <sil>, [NOISE]."""
    if part.word.startswith(("<", "[")):
        return None
    start, end = part.start_frame / _FRAMES_PER_S, (part.end_frame + 1) / _FRAMES_PER_S
    confidence = min(max(float(part.prob), 0.0), 1.0)
    return Word(_VARIANT.sub("", part.word), min(start, length), min(end, length), confidence)
