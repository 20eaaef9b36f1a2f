"""OpenAI's Whisper, from a checkpoint file of its own format (`torch.save` of dims and weights)."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np

from flywheel.errors import BadInput
from flywheel.recording.recognizer import Transcript, Word, check_audio, check_deadline

_NOT_WORD = re.compile(r"[^\w']+")


class Whisper:
    """One model on the CPU, or on the GPU where there is one."""

    def __init__(self, checkpoint: str | Path) -> None:
        path = Path(checkpoint)
        if not path.is_file():
            raise BadInput("no such Whisper checkpoint", where=path, fix="set recording.whisper_model to its file")
        try:
            import whisper
        except ImportError as error:
            raise BadInput(
                f"Whisper is not installed: {error}", where="recording.recognizer",
                fix="pip install 'flywheel[whisper]', or set pocketsphinx",
            ) from None  # fmt: skip
        try:
            self._model = whisper.load_model(str(path))
        except Exception as error:  # torch raises many kinds for a file that is no checkpoint
            raise BadInput(f"not a Whisper checkpoint: {error}", where=path, fix="fetch the file again") from None
        self.name = f"whisper-{path.stem}"

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> Transcript:
        """See `Recognizer.recognize`. confidence: the mean probability of the word's tokens.

        Decoding cannot be broken off, so the deadline is checked before and after an utterance, which lasts 20 s at
        most. Samples go in as an array: a path would need ffmpeg.
        """
        check_audio(samples, rate)
        deadline = time.monotonic() + deadline_s
        check_deadline(deadline, self.name)
        if not len(samples):
            return Transcript(())
        result = self._model.transcribe(
            samples, language="en", word_timestamps=True, condition_on_previous_text=False, temperature=0.0,
            fp16=self._model.device.type == "cuda",
        )  # fmt: skip
        check_deadline(deadline, self.name)
        return Transcript(tuple(_words(result["segments"], len(samples) / rate)))


def _words(segments: list[dict], length: float):
    """Words in order; times are clipped to the audio, which Whisper pads to 30 s, and made not to decrease."""
    at = 0.0
    for segment in segments:
        for word in segment["words"]:
            text = _NOT_WORD.sub("", word["word"].lower())
            start = min(max(float(word["start"]), at), length)
            at = min(max(float(word["end"]), start), length)
            if text:
                yield Word(text, start, at, min(max(float(word["probability"]), 0.0), 1.0))
