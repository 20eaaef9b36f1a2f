"""Speech as samples: reading a file, resampling, and cutting it into utterances by its energy.

A recording may last for hours: it is read in blocks, and what is longer than one lies in a file that is mapped, not in
memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from flywheel.errors import DataError
from flywheel.recording.sound import container

RATE = 16_000  # samples a second that every recognizer gets
LEAST_RATE = 8_000  # of a file: below it, half of what tells consonants apart is lost

_FRAME_S = 0.02
_PAD_S = 0.15  # kept on both sides of an utterance: the first consonant is quieter than the threshold
_BLOCK_S = 60  # read, resampled and measured at a time
_MARGIN_S = 1  # resampled with each block on both sides: at its very ends, a block's resampling is not exact


def read(path: Path) -> np.ndarray:
    """A sound file (FLAC, Opus, WAV) as float32 mono at `RATE`, in [-1, 1].

    Raises DataError for a file that is missing, is not sound, is damaged or cut off (`container.check`), or is empty.
    """
    container.check(path)
    try:
        with soundfile.SoundFile(path) as sound:
            if sound.samplerate < LEAST_RATE:
                raise DataError(
                    f"the audio has {sound.samplerate:,} samples a second",
                    where=path,
                    fix=f"record with {RATE:,} or more; {LEAST_RATE:,} is the least",
                )
            samples = _gathered(_resampled(sound, path))
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise DataError(f"the audio cannot be read: {error}", where=path, fix=container.COPY) from None
    if not len(samples):
        raise DataError("the audio is empty", where=path, fix=container.COPY)
    return samples


def _resampled(sound: soundfile.SoundFile, path: Path) -> Iterator[np.ndarray]:
    """The sound as mono at `RATE`, `_BLOCK_S` seconds at a time; the blocks meet at whole seconds."""
    rate, begin, done = sound.samplerate, 0, 0  # begin: of `held`, done: of what was given out, in seconds
    held, ended = np.zeros(0, np.float32), False
    while not ended:
        wanted = (done + _BLOCK_S + _MARGIN_S - begin) * rate - len(held)
        new = sound.read(wanted, dtype="float32", always_2d=True)
        if not np.isfinite(new).all():
            raise DataError("the audio holds values that are not numbers", where=path, fix=container.COPY)
        held, ended = np.concatenate([held, new.mean(axis=1)]), len(new) < wanted
        first = (done - begin) * RATE
        yield resample(held, rate)[first : None if ended else first + _BLOCK_S * RATE]
        done += _BLOCK_S
        held, begin = held[(done - _MARGIN_S - begin) * rate :], done - _MARGIN_S


def _gathered(blocks: Iterator[np.ndarray]) -> np.ndarray:
    """One block as it is; more of them in a file of no name, which the system takes back with the array."""
    first = next(blocks)
    second = next(blocks, None)
    if second is None:
        return first
    with tempfile.TemporaryFile() as file:
        for block in (first, second):
            block.tofile(file)
        for block in blocks:
            block.tofile(file)
        file.flush()
        return np.memmap(file, np.float32, "r")


def blocks(samples: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """`samples` a minute at a time, each block but the last a multiple of `size` samples."""
    step = max(_BLOCK_S * RATE // size, 1) * size
    for at in range(0, len(samples), step):
        yield samples[at : at + step]


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
    level = levels(samples[: count * size], size)
    floor, loud = np.percentile(level, 10), np.percentile(level, 95)
    # A recording without contrast is all speech or all silence: then the absolute level decides.
    threshold = max(floor + 9, loud - 35, -55.0) if loud - floor > 12 else -35.0
    runs = _runs(level > threshold)
    runs = _joined(runs, round(pause_s / _FRAME_S))
    runs = [run for run in runs if (run[1] - run[0]) * _FRAME_S >= shortest_s]
    pieces = [piece for run in runs for piece in _cut(run, level, round(longest_s / _FRAME_S))]
    return _padded([(a * _FRAME_S, b * _FRAME_S) for a, b in pieces], len(samples) / rate)


def levels(samples: np.ndarray, size: int) -> np.ndarray:
    """Level in dB (0: full scale) of each frame of `size` samples."""
    powers = [(block.astype(np.float64).reshape(-1, size) ** 2).mean(axis=1) for block in blocks(samples, size)]
    return 10 * np.log10(np.concatenate(powers) + 1e-10)


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
