"""Record the microphone while a recording goes on: raw samples, appended to a file as they come."""

from __future__ import annotations

import io
import threading
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.utils.errors import BadInput

FILE = "speech.raw"  # 16-bit little-endian mono at `SAMPLE_RATE`
_FIRST_S = 3.0  # that the first sound is waited for
_NO_SPEECH = "record without speech by --no-speech"


class Microphone:
    """Write the microphone's sound to a file. began_s: when the first sample was heard, by `time.monotonic`. muted:
    silence is written in place of the sound, as it is for lost samples, so that times stay. begun: set once there is
    sound."""

    def __init__(self, path: Path, stream: Any) -> None:
        self._stream = stream
        self._file = path.open("ab", buffering=0)
        self.muted = False
        self.began_s, self._written = time.monotonic(), 0
        self.begun = threading.Event()

    def hear(self, block: Any, lost: bool = False) -> None:
        """Append a block of samples. block: 16-bit, bytes-like. lost: whether samples before it were lost. Raises
        OSError where the file cannot be written."""
        raw = bytes(block)
        begun_s = time.monotonic() - len(raw) / 2 / SAMPLE_RATE
        if not self.begun.is_set():
            self.began_s = begun_s
            self.begun.set()
        missing = round((begun_s - self.began_s) * SAMPLE_RATE) - self._written
        if lost and missing > 0:
            self._file.write(bytes(2 * missing))
            self._written += missing
        self._written += len(raw) // 2
        self._file.write(bytes(len(raw)) if self.muted else raw)

    def stop(self) -> None:
        """Close the microphone and the file."""
        self._stream.stop()
        self._stream.close()
        self._file.close()


def start_microphone(path: Path) -> Microphone:
    """Open this machine's default microphone, and write its sound to `path` until `Microphone.stop`.

    Raises BadInput where the package sounddevice, PortAudio or a microphone is missing.
    """
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: without PortAudio's library
        fix = f"pip install 'flywheel[record]' and apt-get install libportaudio2; or {_NO_SPEECH}"
        raise BadInput(f"the microphone cannot be opened: {error}", where="flywheel record", fix=fix) from None
    heard: Microphone | None = None

    def callback(block: Any, frames: int, clock: Any, status: Any) -> None:
        if heard is not None:
            heard.hear(block, bool(status.input_overflow))

    try:
        stream = sounddevice.RawInputStream(samplerate=SAMPLE_RATE, channels=1, dtype="int16", callback=callback)
        heard = Microphone(path, stream)
        stream.start()
        heard.begun.wait(_FIRST_S)
    except sounddevice.PortAudioError as error:
        raise BadInput(f"there is no microphone: {error}", where="flywheel record", fix=_NO_SPEECH) from None
    return heard


def read_sound_length(path: Path) -> float:
    """Return how many seconds of sound the file `path` has; 0 without a file."""
    return path.stat().st_size // 2 / SAMPLE_RATE if path.is_file() else 0.0


def cut_wav(path: Path, start_s: float, end_s: float) -> bytes:
    """Return the sound of the file `path` between two times of its own, in seconds, as a WAV file."""
    first, last = (2 * max(0, round(at * SAMPLE_RATE)) for at in (start_s, end_s))
    with path.open("rb") as file:
        file.seek(first)
        samples = file.read(max(0, last - first))
    out = io.BytesIO()
    with wave.open(out, "wb") as written:
        written.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
        written.writeframes(samples)
    return out.getvalue()


def read_sound(path: Path) -> np.ndarray:
    """Read the samples of the file `path`: float32 mono [n] in [-1, 1] at `SAMPLE_RATE`; none without a file."""
    if not path.is_file():
        return np.zeros(0, np.float32)
    samples = np.fromfile(path, "<i2").astype(np.float32)  # half a sample at the end of a killed one is left out
    samples /= 32768  # in place: eight hours are 1.8 GB
    return samples
