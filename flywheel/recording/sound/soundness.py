"""Whether a recording's sound can be trusted as speech on its session's clock: its length, its level, its peaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flywheel.errors import DataError
from flywheel.recording.sound import audio

# What is left of the difference of audio and screen in length. A sync mark is wrong by up to a second, and a recorder
# needs time to stop; without a mark, the microphone may have been switched on seconds before the screen or after it.
TOLERANCE_S = 2.0
TOLERANCE_WITHOUT_SYNC_S = 5.0
SILENT_DB = -75.0  # a microphone that is on hears its room, 10 dB and more above this
CLIPPED = 0.02  # share of the samples of loud frames at full scale
_FULL = 0.98  # a codec rounds off what was cut off
_LOUD_DB = -30.0
_FRAME = audio.RATE // 50
_AGAIN = "record the session again"
_RATIOS = {"half": 0.5, "a third": 1 / 3, "double": 2.0, "three times": 3.0}  # of lengths, where a rate is wrong


def check_sound(samples: np.ndarray, where: Path) -> None:
    """Raises DataError where the microphone gave nothing, or too much. samples: float32 mono at `audio.RATE`."""
    size = min(_FRAME, len(samples))
    framed = samples[: len(samples) // size * size]
    level = audio.levels(framed, size)
    if level.max() < SILENT_DB:
        raise DataError("the audio is silent: the microphone was off or muted", where=where, fix=_AGAIN)
    full = [(np.abs(block).reshape(-1, size) >= _FULL).mean(axis=1) for block in audio.blocks(framed, size)]
    loud = level > _LOUD_DB
    clipped = float(np.concatenate(full)[loud].mean()) if loud.any() else 0.0
    if clipped > CLIPPED:
        raise DataError(
            f"the audio is clipped: {clipped:.0%} of its loud parts are at full scale",
            where=where,
            fix=f"lower the microphone's level and {_AGAIN}",
        )


def check_clock(length_s: float, seconds: float, sync_s: float | None, where: Path) -> None:
    """Raises DataError where the audio is not as long as the session says.

    length_s: of the audio. seconds: how long the session lasted on the screen's clock. sync_s: the screen's clock
    minus the audio's; both were stopped together.
    """
    expected = seconds - (sync_s or 0.0)
    tolerance = TOLERANCE_WITHOUT_SYNC_S if sync_s is None else TOLERANCE_S
    if abs(length_s - expected) <= tolerance:
        return
    close = [name for name, ratio in _RATIOS.items() if abs(length_s / ratio - expected) <= tolerance * min(ratio, 1)]
    guess = f" ({close[0]}: its sample rate may be wrong)" if close else ""
    what = "too short" if length_s < expected else "too long"
    raise DataError(
        f"the audio is {what}: it lasts {length_s:.1f} s, by the session's clock {expected:.1f} s{guess}",
        where=where,
        fix="copy the recording again; where it is the same there, record the session again",
    )
