"""Damaged audio: whatever happens to a file, it is refused by name, or what is read from it is what was recorded."""

from __future__ import annotations

import json
import shutil
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.config import Settings
from flywheel.recordings import audio
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.session import load_session
from flywheel.utils.errors import DataError

KINDS = {"opus": {"format": "OGG", "subtype": "OPUS"}, "flac": {"subtype": "PCM_16"}, "wav": {"subtype": "PCM_16"}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """kind -> (the bytes of a file of seven seconds, its samples)."""
    rng = np.random.default_rng(0)
    samples = np.repeat(rng.uniform(0.01, 0.1, 70), 1600) * rng.normal(0, 1, 112_000)
    found = {}
    for kind, how in KINDS.items():
        path = tmp_path_factory.mktemp("whole") / f"speech.{kind}"
        soundfile.write(path, np.clip(samples, -1, 1), 16_000, **how)
        found[kind] = path.read_bytes(), audio.read_audio(path)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def fault(place, data: bytes, samples: np.ndarray) -> str:
    """Why `data` is refused; empty where it is read as `samples`, the only other thing that may happen."""
    path = place / "speech"
    path.write_bytes(data)
    try:
        found = audio.read_audio(path)
    except DataError as error:
        # It says where and how to mend it.
        return error.what if error.where.startswith(str(path)) and error.fix else f"unclear: {error}"
    assert np.array_equal(found, samples)
    return ""


def pages(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        body = at + 27 + data[at + 26]
        end = body + sum(data[at + 27 : body])
        found.append(data[at:end])
        at = end
    return found


def renumbered(parts: list[bytes]) -> bytes:
    """Pages as a recorder writes them that never knew of the one that is missing: all bookkeeping holds but time."""
    out = b""
    for number, page in enumerate(parts):
        page = page[:18] + struct.pack("<I", number) + bytes(4) + page[26:]
        out += page[:22] + struct.pack("<I", audio._crc(page)) + page[26:]
    return out


@pytest.mark.parametrize("kind", KINDS)
@given(share=st.floats(0, 1, exclude_max=True))
@settings(max_examples=examples(40))
def test_a_file_that_is_cut_anywhere_is_refused(whole, place, kind, share):
    data, samples = whole[kind]
    assert fault(place, data[: int(share * len(data))], samples)


@pytest.mark.parametrize("kind", ["opus", "flac"])
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=examples(60))
def test_a_changed_byte_is_refused_or_changes_nothing(whole, place, kind, share, flip):
    data, samples = whole[kind]
    at = int(share * len(data))
    found = fault(place, data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :], samples)
    assert found or kind == "flac"  # whose comments nobody needs; in Opus, each byte is under a checksum


@given(data=st.data())
@settings(max_examples=examples(60))
def test_pages_that_are_dropped_doubled_or_swapped_are_refused(whole, place, data):
    original, samples = whole["opus"]
    parts = pages(original)
    assert b"".join(parts) == original
    assert len(parts) > 8
    one, other = (data.draw(st.integers(0, len(parts) - 1)) for _ in range(2))
    how = data.draw(st.sampled_from(["drop", "double", "swap", "move"]))
    if how == "drop":
        del parts[one]
    elif how == "double":
        parts.insert(other, parts[one])
    elif how == "swap":
        parts[one], parts[other] = parts[other], parts[one]
    else:
        parts.insert(other, parts.pop(one))
    changed = b"".join(parts)
    assert bool(fault(place, changed, samples)) == (changed != original)


def test_each_fault_has_its_name(whole, place):
    data, samples = whole["opus"]
    parts = pages(data)
    assert "neither Opus, FLAC nor WAV" in fault(place, b"noise" * 9, samples)
    assert "file is empty" in fault(place, b"", samples)
    assert "in the middle of a page" in fault(place, data[:-1], samples)
    assert "its last page is missing" in fault(place, b"".join(parts[:-1]), samples)
    assert "1 pages of audio are missing" in fault(place, b"".join(parts[:4] + parts[5:]), samples)
    assert "out of order" in fault(place, b"".join([*parts[:4], parts[3], *parts[4:]]), samples)
    assert "checksum differs" in fault(place, data[:-1] + bytes([data[-1] ^ 1]), samples)
    assert "more than one recording" in fault(place, data + data, samples)
    assert "no page begins" in fault(place, data + b"more", samples)
    # Nothing but the positions tells that a page was never written.
    assert "s of sound are missing" in fault(place, renumbered(parts[:4] + parts[5:]), samples)
    assert renumbered(parts) == data


def test_a_wav_header_that_says_another_length_or_contradicts_itself_is_refused(whole, place):
    data, samples = whole["wav"]
    assert "header says" in fault(place, data + b"12", samples)
    assert "header says" in fault(place, data[:4] + b"\xff\xff\xff\xff" + data[8:], samples)  # as a pipe leaves it
    assert "not whole" in fault(place, data[:40] + struct.pack("<I", len(data)) + data[44:], samples)
    assert "contradicts itself" in fault(place, data[:32] + struct.pack("<H", 3) + data[34:], samples)


def test_a_flac_without_its_length_is_refused(whole, place):
    data, samples = whole["flac"]
    assert "MD5" in fault(place, data[:26] + bytes(16) + data[42:], samples)
    rate = int.from_bytes(data[18:26], "big") ^ (1 << 44)
    assert "its frames 16000" in fault(place, data[:18] + rate.to_bytes(8, "big") + data[26:], samples)


def test_a_rate_that_is_too_low_for_speech_is_refused(place):
    soundfile.write(place / "low.wav", np.zeros(4000), 4_000)
    with pytest.raises(DataError, match="4,000 samples a second"):
        audio.read_audio(place / "low.wav")


@pytest.mark.parametrize(("seconds", "rate"), [(59.5, 48_000), (61.3, 44_100), (185.0, 22_050)])
def test_a_long_file_is_read_in_blocks_that_join_without_a_seam(tmp_path, monkeypatch, seconds, rate):
    at = np.arange(round(seconds * rate)) / rate
    sound = 0.3 * np.sin(2 * np.pi * 440 * at) * np.cos(at)
    soundfile.write(tmp_path / "long.wav", sound, rate, subtype="FLOAT")
    found = audio.read_audio(tmp_path / "long.wav")
    at = np.arange(round(seconds * rate) * 16_000 // rate) / 16_000
    np.testing.assert_allclose(
        found[200 : len(at) - 200], (0.3 * np.sin(2 * np.pi * 440 * at) * np.cos(at))[200:-200], atol=2e-3
    )
    assert isinstance(found, np.memmap) == (seconds > 60)


class Deaf:
    name = "deaf"
    whole = False

    def recognize(self, samples, rate, deadline_s=60.0):
        return ()


@pytest.fixture
def session(project, tmp_path):
    """A copy of a shipped session whose audio may be changed: its sha256 is not told."""
    folder = shutil.copytree(project / "recordings" / "000-tiles-anna", tmp_path / "000-tiles-anna")
    edit(folder, audio_sha256="")
    return folder


def edit(folder, **changes):
    raw = json.loads((folder / "session.json").read_text())
    (folder / "session.json").write_text(json.dumps(raw | changes))


def spoken(folder, change) -> None:
    """The session's audio changed and written anew: a sound container with other sound."""
    samples = change(audio.read_audio(folder / "speech.opus"))
    (folder / "speech.opus").unlink()
    soundfile.write(folder / "speech.wav", samples, 16_000, subtype="PCM_16")
    edit(folder, audio="speech.wav")


FAULTS = {
    "too short: it lasts 9.": lambda f: spoken(f, lambda x: x[: 9 * 16_000]),
    "too short: it lasts 11.2 s, by the session's clock 14.4 s": lambda f: spoken(
        f, lambda x: np.delete(x, slice(48_000, 96_000))
    ),
    "too long": lambda f: spoken(f, lambda x: np.concatenate([x, x[:48_000]])),
    "sample rate may be wrong": lambda f: spoken(f, lambda x: np.repeat(x, 3)),
    "silent: the microphone was off": lambda f: spoken(f, lambda x: 0 * x),
    "clipped": lambda f: spoken(f, lambda x: np.clip(40 * x, -1, 1)),
    "not that of session.json": lambda f: edit(f, audio_sha256="0" * 64),
    "seconds is 15.145, the last event": lambda f: (f / "events.jsonl").write_text(
        (f / "events.jsonl").read_text().splitlines()[0].replace('"time_s": ', '"time_s": 9') + "\n"
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_sound_that_cannot_be_trusted_sets_the_session_aside(session, what):
    FAULTS[what](session)
    with pytest.raises(DataError, match=what.replace("(", r"\(")) as caught:
        load_session(session)
    assert str(session) in caught.value.where
    one = ingest_session(session, Deaf(), Settings(), 1)
    assert one.trajectory.status == "invalid"
    assert what in one.trajectory.error
    assert (one.steps, one.thought_rows) == ((), ())


def test_without_a_sync_mark_the_clock_decides_less_sharply(session):
    edit(session, sync_s=None)
    assert load_session(session).meta.sync_s is None
    spoken(session, lambda x: x[: 9 * 16_000])
    with pytest.raises(DataError, match="too short"):
        load_session(session)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"ID3\x04" + bytes(20), "MP3"),
        (b"\xff\xfb\x90" + bytes(20), "MP3"),
        (bytes(4) + b"ftypM4A " + bytes(8), "M4A"),
        (b"\x1a\x45\xdf\xa3" + bytes(20), "WebM"),
        (b"RF64" + bytes(4) + b"WAVE", "RF64"),
    ],
)
def test_sound_of_another_kind_is_told_how_to_convert(place, data, kind):
    path = place / "speech.bin"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"the audio is {kind}, .*ffmpeg -i speech\.bin speech\.flac"):
        audio.read_audio(path)
