"""Spoken thoughts for made sessions: what a person might say, spoken by `flite`, as one track of samples."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flywheel.errors import BadInput, FlywheelError
from flywheel.recording.sound import audio

VOICES = ("slt", "rms", "awb", "kal16")
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Habits:
    """How often, as shares of the thoughts, a speaker does what, and how slowly (1: the voice's own pace)."""

    filler: float
    correction: float
    repetition: float
    pause: float
    silence: float
    pace: float


HABITS = {
    "expert": Habits(filler=0.35, correction=0.10, repetition=0.05, pause=0.15, silence=0.04, pace=1.05),
    "novice": Habits(filler=0.70, correction=0.25, repetition=0.15, pause=0.35, silence=0.10, pace=1.15),
}

_FILLERS = ("um", "uh", "okay", "let me see", "so", "well", "um okay")
_TURNS = ("no wait", "sorry", "no sorry", "I mean")
_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "pink", "black", "white", "gray")


def as_spoken(thought: str, habits: Habits, rng: random.Random) -> list[str]:
    """The thought as it comes out: parts with a pause between them, fillers, repetitions, self-corrections."""
    words = thought.rstrip(".").split()
    if rng.random() < habits.correction:
        words = _corrected(words, rng)
    elif rng.random() < habits.repetition and len(words) > 2:
        words = [words[0], *words]
    if rng.random() < habits.filler:
        words = [*rng.choice(_FILLERS).split(), *words]
    if rng.random() < habits.pause and len(words) > 4:
        cut = rng.randrange(2, len(words) - 1)
        return [" ".join(words[:cut]), " ".join(words[cut:])]
    return [" ".join(words)]


def _corrected(words: list[str], rng: random.Random) -> list[str]:
    """`I pick the red heart` -> `I pick the blue no wait the red heart`, where a colour was named."""
    for at, word in enumerate(words):
        if word in _COLOURS and at and words[at - 1] == "the":
            other = rng.choice([colour for colour in _COLOURS if colour != word])
            return [*words[:at], other, *rng.choice(_TURNS).split(), *words[at - 1 :]]
    return words


def speak(text: str, voice: str, pace: float) -> np.ndarray:
    """`text` as float32 mono at `audio.RATE`. Raises BadInput where flite is not installed."""
    flite = shutil.which("flite")
    if flite is None:
        raise BadInput(
            "flite is not installed", where="flywheel.recording.synthetic.make_sessions", fix="apt install flite"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        # The text goes in by a file: on the command line, text without a blank would be read as a file's name.
        source = Path(folder) / "text"
        source.write_text(text + ".\n", encoding="ascii")
        command = [flite, "-voice", voice, "--setf", f"duration_stretch={pace}", "-f", str(source), "-o", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise FlywheelError(f"flite failed: {error}", where=voice) from None
        return audio.read(path)


def track(
    pieces: Sequence[tuple[float, np.ndarray]], seconds: float, clicks: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """Pieces (start in seconds, samples) on one float32 track, with the noise of a room and of the mouse.

    What would lie before the track's beginning is lost, as it is for a microphone that was switched on late.
    """
    samples = rng.normal(0, 6e-4, round(seconds * audio.RATE)).astype(np.float32)
    decay = np.exp(-np.arange(160) / 25).astype(np.float32)
    sounds = [(at, 0.03 * decay * rng.normal(0, 1, 160).astype(np.float32)) for at in clicks]
    for at, piece in [*pieces, *sounds]:
        start = round(at * audio.RATE)
        piece = piece[max(0, -start) :]
        start = max(start, 0)
        end = min(start + len(piece), len(samples))
        if end > start:
            samples[start:end] += piece[: end - start]
    return np.clip(samples, -1, 1)
