"""What the microphone hears stays at its time, also where sound was lost or is muted."""

from __future__ import annotations

import numpy as np

from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.recorder import microphone
from flywheel.recordings.recorder.microphone import Microphone

BLOCK = np.full(SAMPLE_RATE // 10, 1000, "<i2").tobytes()  # a tenth of a second


class Stream:
    def stop(self) -> None: ...

    def close(self) -> None: ...


def test_lost_sound_is_silence_in_its_place(tmp_path, monkeypatch):
    now = 50.0
    monkeypatch.setattr("flywheel.recordings.recorder.microphone.time.monotonic", lambda: now)
    heard = Microphone(tmp_path / "speech.raw", Stream())
    for after_s, lost in ((1.1, False), (0.1, False), (0.6, True), (0.1, False)):
        now += after_s
        heard.hear(BLOCK, lost)
    heard.muted = True
    now += 0.1
    heard.hear(BLOCK)
    heard.stop()
    loud = microphone.read_sound(tmp_path / "speech.raw").reshape(-1, SAMPLE_RATE // 10).any(axis=1)
    assert heard.began_s == 51.0
    assert loud.tolist() == [True, True, *[False] * 5, True, True, False]
