"""Recognize a thought that an annotator speaks, and refine it to a sentence, by the same means as for recordings."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np

from flywheel.config import Settings
from flywheel.recordings.annotation.session import AnnotationSession
from flywheel.recordings.asr.recognizer import Recognizer, open_recognizer
from flywheel.recordings.audio import resample
from flywheel.recordings.refine import Refiner, RefinerInput, open_refiner
from flywheel.recordings.utterances import join_broken_utterances, transcribe_utterances
from flywheel.utils.errors import BadInput

_LONGEST_S, _RATES = 60, (8_000, 192_000)  # seconds of one thought; samples a second that microphones have
MAX_SPEECH_BYTES = 2 * 48_000 * _LONGEST_S
_DEADLINE_S = 60.0
_WORD = re.compile(r"[a-z0-9']+")


class SpokenThoughts:
    """Recognize spoken thoughts, one after the other (others wait); the sound is not kept."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tools: tuple[Recognizer, Refiner] | None = None
        self._turn = asyncio.Lock()

    async def hear(self, data: bytes, rate: int, session: AnnotationSession) -> dict[str, Any]:
        """Recognize speech; return `heard`, the words, and `text`, the thought made of them, both "" for silence.

        data: mono samples of 16 bits, little-endian, a minute at most. rate: samples a second. session: misheard words
        are corrected by those of its task and on its screen. Raises BadInput for other samples, and where the
        recognizer or its model is missing; RecognitionTimeout, LanguageModelError.
        """
        least, most = _RATES
        if len(data) % 2 or not least <= rate <= most or len(data) > 2 * rate * _LONGEST_S:
            what = f"{len(data)} bytes at {rate} a second are no samples of 16 bits, up to {_LONGEST_S} s"
            raise BadInput(what, where="speech", fix="speak again, or type the thought")
        samples = np.frombuffer(data, "<i2").astype(np.float32) / 2**15
        named = [str(one.get("name", "")) for one in session.elements]
        words = frozenset(_WORD.findall(" ".join([session.task.instruction, *named]).casefold()))
        async with self._turn:
            return await asyncio.to_thread(self._recognize, samples, rate, session.task.instruction, words)

    def _recognize(self, samples: np.ndarray, rate: int, instruction: str, words: frozenset[str]) -> dict[str, Any]:
        if self._tools is None:
            self._tools = open_recognizer(self._settings.recording), open_refiner(self._settings)
        recognizer, refiner = self._tools
        heard = join_broken_utterances(transcribe_utterances(recognizer, resample(samples, rate), _DEADLINE_S))
        texts = [
            refiner.refine(
                RefinerInput(
                    tuple(word.word for word in one.words),
                    tuple(word.confidence for word in one.words),
                    instruction,
                    words,
                )
            )
            for one in heard
        ]
        return {"heard": " ".join(one.text for one in heard), "text": " ".join(filter(None, texts))}
