"""Define what a speech recognizer is (audio in, words with times out), and open the one that the settings name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from flywheel.config import RecordingSettings
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.files import expand_home


class RecognitionTimeout(FlywheelError):
    """Signal that speech was not recognized within its deadline."""


@dataclass(frozen=True)
class Word:
    """Hold a recognized word, in lower case.

    start_s, end_s: seconds from the first sample. confidence: 0 to 1, the back-end's own estimate.
    """

    word: str
    start_s: float
    end_s: float
    confidence: float


class Recognizer(Protocol):
    """Recognize speech. name: as stored in the table `utterances`. whole: whether it takes a whole recording at once,
    rather than one utterance."""

    name: str
    whole: bool

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> tuple[Word, ...]:
        """Recognize the words of one utterance, or of a whole recording, in the order of their times.

        samples: float32 mono [n], in [-1, 1]. rate: samples a second, which must be 16,000. deadline_s: seconds. Words
        are lower case without punctuation; times lie within the audio and do not decrease. Raises RecognitionTimeout
        after `deadline_s`, BadInput for other samples.
        """


def locate_whisper_checkpoint(settings: RecordingSettings, folder: Path) -> RecordingSettings:
    """Return the settings with the full path of the Whisper checkpoint, where they name a file relative to `folder`.

    settings: block `recording`; it is not changed. folder: absolute, the workspace's. A relative path would depend on
    the directory that a process was started in. A name that is no file there, such as a published model's, stays.
    """
    path = folder / expand_home(settings.whisper_model)
    return settings.model_copy(update={"whisper_model": str(path)}) if path.is_file() else settings


def open_recognizer(settings: RecordingSettings) -> Recognizer:
    """Open the recognizer that the settings name, with its model loaded.

    settings: block `recording`. Raises BadInput where its library or model is missing, or the model is damaged.
    """
    # A back-end's libraries are loaded only where it is used: whisper's take seconds.
    if settings.recognizer == "whisper":
        from flywheel.recordings.asr.whisper import Whisper

        return Whisper(settings.whisper_model, settings.language)
    from flywheel.recordings.asr.pocketsphinx import PocketSphinx

    return PocketSphinx()


def check_audio(samples: np.ndarray, rate: int) -> None:
    """Raise BadInput unless `samples` is float32 [n] and `rate` is 16,000 samples a second, as recognizers want it."""
    if rate != 16_000:
        raise BadInput(f"a recognizer needs 16,000 samples a second, not {rate}", fix="use audio.resample")
    if samples.ndim != 1 or samples.dtype != np.float32:
        raise BadInput(f"a recognizer needs float32 mono, not {samples.dtype} of shape {samples.shape}")


def check_deadline(deadline: float, name: str) -> None:
    """Raise RecognitionTimeout once `deadline`, of the clock `time.monotonic`, has passed. name: the recognizer's."""
    if time.monotonic() >= deadline:
        raise RecognitionTimeout(
            f"{name} did not recognize the speech in time",
            where="recording.timeout_s",
            fix="raise it, or use a smaller model",
        )
