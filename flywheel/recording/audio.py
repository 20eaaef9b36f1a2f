"""Speech as samples: reading a file, resampling, and cutting it into utterances by its energy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from flywheel.errors import DataError

RATE = 16_000  # samples a second that every recognizer gets

_FRAME_S = 0.02
_PAD_S = 0.15  # kept on both sides of an utterance: the first consonant is quieter than the threshold


def read(path: Path) -> np.ndarray:
    """A sound file (FLAC, Opus, WAV) as float32 mono at `RATE`, in [-1, 1].

    Raises DataError for a file that is missing, is not sound, is cut off, or is empty.
    """
    fix = "copy the recording again from the annotator's machine"
    if not path.is_file():
        raise DataError("the recording has no audio", where=path, fix=fix)
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise DataError(f"the audio cannot be read: {error}", where=path, fix=fix) from None
    if not len(samples):
        raise DataError("the audio is empty", where=path, fix=fix)
    if not np.isfinite(samples).all():
        raise DataError("the audio holds values that are not numbers", where=path, fix=fix)
    return resample(samples.mean(axis=1), rate)


def resample(samples: np.ndarray, rate: int, to: int = RATE) -> np.ndarray:
    """Change the sampling rate of float32 mono `samples` (n,) -> (round(n to / rate),), band-limited (by Fourier)."""
    if rate == to or not len(samples):
        return samples.astype(np.float32, copy=False)
    count = max(1, round(len(samples) * to / rate))
    spectrum = np.fft.rfft(samples)
    bins = count // 2 + 1
    kept = np.zeros(bins, dtype=complex)
    shared = min(bins, len(spectrum))
    kept[:shared] = spectrum[:shared]
    return (np.fft.irfft(kept, count) * (count / len(samples))).astype(np.float32)


def segments(
    samples: np.ndarray, rate: int = RATE, *, pause_s: float = 0.5, shortest_s: float = 0.2, longest_s: float = 20.0
) -> list[tuple[float, float]]:
    """Voice activity: (start, end) in seconds of each utterance, in order, not overlapping.

    A frame is speech where its level is well over the noise floor of the recording (a low percentile of the levels)
    and not far under its loud parts. Pauses shorter than `pause_s` do not end an utterance; sounds shorter than
    `shortest_s` (a click of the mouse) are none; a longer one than `longest_s` is cut at its quietest place.
    """
    size = round(_FRAME_S * rate)
    count = len(samples) // size
    if not count:
        return []
    frames = samples[: count * size].astype(np.float64).reshape(count, size)
    level = 10 * np.log10((frames**2).mean(axis=1) + 1e-10)
    floor, loud = np.percentile(level, 10), np.percentile(level, 95)
    # A recording without contrast is all speech or all silence: then the absolute level decides.
    threshold = max(floor + 9, loud - 35, -55.0) if loud - floor > 12 else -35.0
    runs = _runs(level > threshold)
    runs = _joined(runs, round(pause_s / _FRAME_S))
    runs = [run for run in runs if (run[1] - run[0]) * _FRAME_S >= shortest_s]
    pieces = [piece for run in runs for piece in _cut(run, level, round(longest_s / _FRAME_S))]
    return _padded([(a * _FRAME_S, b * _FRAME_S) for a, b in pieces], len(samples) / rate)


def _runs(speech: np.ndarray) -> list[tuple[int, int]]:
    """Half-open runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], speech.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _joined(runs: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and start - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _cut(run: tuple[int, int], level: np.ndarray, longest: int) -> list[tuple[int, int]]:
    start, end = run
    if end - start <= longest:
        return [run]
    # The quietest frame of the second half of what may stand: pieces are long, and shrink in any case.
    at = start + longest // 2 + int(np.argmin(level[start + longest // 2 : start + longest]))
    return [(start, at), *_cut((at, end), level, longest)]


def _padded(pieces: list[tuple[float, float]], length: float) -> list[tuple[float, float]]:
    """Each piece a little longer, up to half-way to its neighbour and within the recording."""
    padded = []
    for index, (start, end) in enumerate(pieces):
        before = (pieces[index - 1][1] + start) / 2 if index else 0.0
        after = (pieces[index + 1][0] + end) / 2 if index + 1 < len(pieces) else length
        padded.append((max(start - _PAD_S, before), min(end + _PAD_S, after)))
    return padded
