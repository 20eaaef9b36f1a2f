"""Audio: resampling and voice activity, on signals whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from flywheel.recordings import audio
from flywheel.utils.errors import DataError


def tone(seconds: float, rate: int = audio.SAMPLE_RATE, hertz: float = 220.0, level: float = 0.2) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def speech(*spans: tuple[float, float], seconds: float) -> np.ndarray:
    """Noise, with a tone in each span."""
    samples = np.random.default_rng(0).normal(0, 5e-4, round(seconds * audio.SAMPLE_RATE)).astype(np.float32)
    for start, end in spans:
        at = round(start * audio.SAMPLE_RATE)
        piece = tone(end - start)
        samples[at : at + len(piece)] += piece
    return samples


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_resampling_keeps_a_tone(rate):
    resampled = audio.resample(tone(0.5, rate, 440), rate)
    assert len(resampled) == 8_000
    np.testing.assert_allclose(resampled[500:-500], tone(0.5, hertz=440)[500:-500], atol=2e-3)


@given(
    gaps=st.lists(st.floats(0.8, 2.0), min_size=1, max_size=5),
    lengths=st.lists(st.floats(0.4, 2.0), min_size=5, max_size=5),
)
def test_each_stretch_between_pauses_is_one_utterance(gaps, lengths):
    spans, at = [], 0.0
    for gap, length in zip(gaps, lengths, strict=False):
        spans.append((at + gap, at + gap + length))
        at += gap + length
    found = audio.speech_segments(speech(*spans, seconds=at + 0.8))
    assert len(found) == len(spans)
    for (start, end), (true_start, true_end) in zip(found, spans, strict=True):
        assert start <= true_start <= true_end <= end
        assert start > true_start - 0.25
        assert end < true_end + 0.25


def test_a_short_pause_does_not_cut_and_a_mouse_click_is_no_speech():
    samples = speech((1.0, 1.8), (2.1, 2.6), seconds=5.0)
    samples[64_000:64_160] += tone(0.01, level=0.5)
    ((start, end),) = audio.speech_segments(samples)
    assert (start, end) == (pytest.approx(0.85, abs=0.05), pytest.approx(2.75, abs=0.05))


def test_a_long_utterance_is_cut_where_it_is_quietest():
    samples = speech((0.5, 30.0), seconds=31.0)
    samples[round(15.0 * audio.SAMPLE_RATE) : round(15.04 * audio.SAMPLE_RATE)] = 0
    first, second = audio.speech_segments(samples)
    assert first[1] == second[0] == pytest.approx(15.0, abs=0.06)


@pytest.mark.parametrize("samples", [np.zeros(0), np.zeros(100), np.zeros(32_000)])
def test_silence_has_no_utterances(samples):
    assert audio.speech_segments(samples.astype(np.float32)) == []


def test_a_file_is_read_as_mono_at_our_rate(tmp_path):
    path = tmp_path / "speech.wav"
    soundfile.write(path, np.stack([tone(1.0, 48_000), -tone(1.0, 48_000)], axis=1), 48_000)
    samples = audio.read_audio(path)
    assert (samples.shape, samples.dtype) == ((16_000,), np.float32)
    assert np.abs(samples).max() < 1e-3


def test_what_is_no_audio_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="no audio"):
        audio.read_audio(tmp_path / "speech.opus")
    (tmp_path / "bad.opus").write_bytes(b"OggS but not really")
    with pytest.raises(DataError, match="cut off in the middle of a page"):
        audio.read_audio(tmp_path / "bad.opus")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    with pytest.raises(DataError, match="is empty"):
        audio.read_audio(tmp_path / "empty.wav")
