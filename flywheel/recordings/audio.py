"""Read sound files as speech samples, check that they are whole, and find where somebody speaks."""

from __future__ import annotations

import hashlib
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from flywheel.utils.errors import DataError

if TYPE_CHECKING:  # imported where sound is read: the import takes a twentieth of a second
    import soundfile

# Whether a sound file is whole is checked by its own structure (checksums, numbers, positions, lengths of pages): a
# decoder skips a page whose checksum is wrong and joins the rest, so all later speech would come too early.

_OPUS_RATE = 48_000  # samples a second, for all positions in Opus files (RFC 7845)
_BEGINS, _ENDS = 2, 4  # flags of an Ogg page
_FRAMES_PER_BLOCK = 1 << 20  # frames decoded at a time


def _damaged(what: str, where: object) -> DataError:
    fix = "copy the recording again from the annotator's machine; where the file is the same there, record it again"
    return DataError(what, where=where, fix=fix)


def check_sound_file(path: Path) -> None:
    """Check that the sound file `path` is whole.

    Opus (RFC 7845, in Ogg, RFC 3533) and FLAC (RFC 9639) have checksums, so any change of their sound is found. WAV has
    none: only its lengths are checked. Raises DataError where the file is missing, empty, cut off, damaged or of a
    kind that is not read (MP3, M4A, WebM, Ogg without Opus), and for a FLAC whose header has neither length nor MD5.
    """
    try:
        with path.open("rb") as file:
            head = file.read(12)
            file.seek(0)
            if not head:
                raise _damaged("the audio file is empty", path)
            if head[:4] == b"OggS":
                _check_opus(file, path)
            elif head[:4] == b"fLaC":
                _check_flac(file, path)
            elif head[:4] == b"RIFF" and head[8:] == b"WAVE":
                _check_wav(file, path)
            else:
                raise _unread_kind(head, path)
    except FileNotFoundError:
        raise _damaged("the recording has no audio", path) from None
    except OSError as error:
        raise _damaged(f"the audio cannot be read: {error.strerror}", path) from None


# Kinds of sound that are not supported: offset, the bytes that stand there, name.
_UNREAD_KINDS = (
    (0, b"ID3", "MP3"), (0, b"\xff\xfb", "MP3"), (0, b"\xff\xf3", "MP3"), (0, b"\xff\xf2", "MP3"), (4, b"ftyp", "M4A"),
    (0, b"\x1a\x45\xdf\xa3", "WebM"), (0, b"RF64", "RF64"), (0, b"RIFX", "RIFX"), (0, b"FORM", "AIFF"),
    (0, b"\xff\xf1", "AAC"), (0, b"\xff\xf9", "AAC"), (0, b"#!AMR", "AMR"),
)  # fmt: skip


def _unread_kind(head: bytes, path: Path) -> DataError:
    kind = next((kind for at, sign, kind in _UNREAD_KINDS if head.startswith(sign, at)), "")
    if not kind:
        return _damaged("the audio is neither Opus, FLAC nor WAV", path)
    fix = (
        f"convert it (`ffmpeg -i {path.name} speech.flac`) and write in session.json audio: speech.flac, without "
        "audio_sha256"
    )
    return DataError(f"the audio is {kind}, and Opus, FLAC and WAV are read", where=path, fix=fix)


@dataclass(frozen=True)
class _Page:
    """Hold one Ogg page. position: the end, in samples, of the last packet that ends on it; -1 where none does."""

    flags: int
    position: int
    serial: int
    number: int
    lengths: bytes
    body: bytes


def _check_opus(file: BinaryIO, path: Path) -> None:
    """Check that the pages follow each other without a gap, and that each lasts as long as its packets."""
    end, last, packet, packets = None, None, b"", 0
    for page in _pages(file, path):
        where = f"{path}, page {page.number}"
        if last is None and not page.flags & _BEGINS:
            raise _damaged("the audio's beginning is missing", where)
        if last is not None:
            _check_order(last, page, where)
        last, at, samples = page, 0, 0
        for length in page.lengths:
            packet += page.body[at : at + length]
            at += length
            if length == 255:  # the packet goes on
                continue
            if packets == 0 and not packet.startswith(b"OpusHead"):
                raise DataError("the Ogg file holds no Opus", where=where, fix="record as Opus, FLAC or WAV")
            samples += _duration(packet, where) if packets >= 2 else 0  # the first two are headers
            packets, packet = packets + 1, b""
        if packets <= 2:
            continue
        before = end or 0
        end = page.position if page.position >= 0 else before
        lost = (end - before - samples) / _OPUS_RATE
        # The end of the last page may be cut back to where the recording stopped.
        if lost > 0 or (lost < 0 and not page.flags & _ENDS) or end < before:
            raise _damaged(f"{abs(lost):.2f} s of sound are missing or too many", where)
    if last is None or not last.flags & _ENDS or packet:
        raise _damaged("the audio is cut off: its last page is missing", path)
    if end is None:
        raise _damaged("the audio is empty", path)


def _pages(file: BinaryIO, path: Path) -> Iterator[_Page]:
    """Yield the pages. Raises DataError at the first page that is cut off or whose checksum is wrong."""
    count = 0
    while head := file.read(27):
        where = f"{path}, page {count}"
        if head[:4] != b"OggS"[: len(head)]:
            raise _damaged("the audio is damaged: no page begins where one should", where)
        lengths = file.read(head[26]) if len(head) == 27 else b""
        body = file.read(sum(lengths))
        if len(head) < 27 or len(lengths) < head[26] or len(body) < sum(lengths):
            raise _damaged("the audio is cut off in the middle of a page", where)
        _, version, flags, position, serial, number, checksum = struct.unpack("<4sBBqIII", head[:26])
        if version != 0 or _crc(head[:22] + bytes(4) + head[26:] + lengths + body) != checksum:
            raise _damaged("the audio is damaged: the page's checksum differs", where)
        yield _Page(flags, position, serial, number, lengths, body)
        count += 1


_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _crc(data: bytes) -> int:
    """Compute Ogg's CRC-32, which takes the highest bit first and starts at 0; zlib's, of the same polynomial, the
    lowest."""
    mirrored = zlib.crc32(data.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)


def _check_order(last: _Page, page: _Page, where: str) -> None:
    if last.flags & _ENDS or page.flags & _BEGINS or page.serial != last.serial:
        raise _damaged("more than one recording is in the file", where)
    if page.number > last.number + 1:
        missing = page.number - last.number - 1
        raise _damaged(f"{missing} pages of audio are missing before it", where)
    if page.number != last.number + 1:
        raise _damaged(f"pages of audio are out of order: it comes after page {last.number}", where)


def _duration(packet: bytes, where: str) -> int:
    """Return the number of samples in an Opus packet, by its first bytes (RFC 6716, 3.1)."""
    code = packet[0] & 3 if packet else 0
    if not packet or (code == 3 and len(packet) < 2):
        raise _damaged("the audio is damaged: an empty packet", where)
    kind = packet[0] >> 3
    if kind < 12:
        tenths = (100, 200, 400, 600)[kind & 3]
    elif kind < 16:
        tenths = (100, 200)[kind & 1]
    else:
        tenths = (25, 50, 100, 200)[kind & 3]
    frames = (1, 2, 2, packet[1] & 63 if code == 3 else 0)[code]
    return tenths * frames * _OPUS_RATE // 10_000


def _check_flac(file: BinaryIO, path: Path) -> None:
    """Check that the sound has the length, the rate and the MD5 that the header gives."""
    head = file.read(42)
    if len(head) < 42 or head[4] & 127 or head[5:8] != b"\0\0\x22":
        raise _damaged("the audio is cut off or damaged: no FLAC header", path)
    packed = int.from_bytes(head[18:26], "big")
    rate, channels, bits, count = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    digest = head[26:42]
    if not count or not any(digest):
        raise DataError(
            "the FLAC header does not say how long the sound is, or not its MD5",
            where=path,
            fix="encode it again into a file, not a pipe (flac does so)",
        )
    frame_rate = _rate_of_first_frame(file, head, path)
    if frame_rate not in (0, rate):
        raise _damaged(f"the audio's header says {rate} samples a second, its frames {frame_rate}", path)
    import soundfile

    md5, decoded, width = hashlib.md5(usedforsecurity=False), 0, -(-bits // 8)
    try:
        with soundfile.SoundFile(path) as sound:
            for block in sound.blocks(_FRAMES_PER_BLOCK, dtype="int32", always_2d=True):
                decoded += len(block)
                samples = np.ascontiguousarray(block >> (32 - bits)).astype("<i4")
                md5.update(samples.view(np.uint8).reshape(*block.shape, 4)[:, :, :width].tobytes())
            same = sound.channels == channels
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _damaged(f"the audio is damaged: {error}", path) from None
    if decoded != count:
        raise _damaged(f"the audio's header says {count} samples, {decoded} are there", path)
    if not same or md5.digest() != digest:
        raise _damaged("the audio is damaged: its MD5 differs", path)


_FLAC_RATES = (0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)


def _rate_of_first_frame(file: BinaryIO, head: bytes, path: Path) -> int:
    """Return the samples a second that the first frame gives; 0 where it gives none, or in a rarely used form."""
    file.seek(4)
    last = False
    while not last:
        block = file.read(4)
        if len(block) < 4:
            raise _damaged("the audio is cut off in its header", path)
        last = bool(block[0] & 128)
        file.seek(int.from_bytes(block[1:], "big"), 1)
    frame = file.read(4)
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xFC != 0xF8:
        raise _damaged("the audio is cut off or damaged: no sound after the header", path)
    code = frame[2] & 15
    return _FLAC_RATES[code] if code < len(_FLAC_RATES) else 0


def _check_wav(file: BinaryIO, path: Path) -> None:
    """Check that the file and each chunk have the length that their headers give, and that the format is consistent."""
    size = path.stat().st_size
    said = int.from_bytes(file.read(8)[4:], "little") + 8
    if said != size:
        raise _damaged(f"the audio's header says {said:,} bytes, the file has {size:,}", path)
    file.seek(12)
    block = data = None
    while file.tell() < size:
        head = file.read(8)
        name, length = head[:4], int.from_bytes(head[4:], "little")
        start = file.tell()
        if len(head) < 8 or start + length > size:
            raise _damaged(f"the audio is cut off: its part {name!r} is not whole", path)
        if name == b"fmt ":
            block = _wav_block(file.read(length), path)
        elif name == b"data":
            data = length
        file.seek(start + length + length % 2)
    if block is None or data is None or data % block:
        raise _damaged("the audio's header has no format or no data, or they do not fit", path)


def _wav_block(format_: bytes, path: Path) -> int:
    """Return the bytes of one sample of all channels. format_: content of the chunk `fmt `."""
    if len(format_) < 16:
        raise _damaged("the audio's header has no whole format", path)
    # The bytes a second are not checked: widely used tools write them wrong (flite does).
    _, channels, rate, _, block, bits = struct.unpack("<HHIIHH", format_[:16])
    if not channels or not rate or not bits or block != channels * -(-bits // 8):
        what = f"{channels} channels of {bits} bits, {block} bytes together"
        raise _damaged(f"the audio's header contradicts itself: {what}", path)
    return block


# A recording may last for hours: it is read in blocks, and where there are several, memory-mapped from a file.

SAMPLE_RATE = 16_000  # samples a second that every recognizer gets
MIN_SAMPLE_RATE = 8_000  # least of a file: below it, half of what distinguishes consonants is lost

_FRAME_S = 0.02
_PAUSE_S, _SHORTEST_S, _LONGEST_S = 0.5, 0.2, 20.0  # least pause; shortest and longest utterance
_PAD_S = 0.15  # kept on both sides of an utterance: the first consonant is quieter than the threshold
_BLOCK_S = 60  # seconds read, resampled and measured at a time
_MARGIN_S = 1  # seconds resampled on both sides of a block, since resampling is not exact at the very ends


def read_audio(path: Path) -> np.ndarray:
    """Read the sound file `path` (FLAC, Opus, WAV) as float32 mono [n] at `SAMPLE_RATE`, in [-1, 1].

    An array of more than a minute is memory-mapped from a temporary file. Raises DataError as `check_sound_file`, and
    for a file without samples or with less than `MIN_SAMPLE_RATE` of them a second; OSError where there is no room for
    the temporary file.
    """
    import soundfile

    check_sound_file(path)
    try:
        with soundfile.SoundFile(path) as sound:
            if sound.samplerate < MIN_SAMPLE_RATE:
                fix = f"record with {SAMPLE_RATE:,} or more; {MIN_SAMPLE_RATE:,} is the least"
                raise DataError(f"the audio has {sound.samplerate:,} samples a second", where=path, fix=fix)
            samples = _gathered(_resampled(sound, path))
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _damaged(f"the audio cannot be read: {error}", path) from None
    if not len(samples):
        raise _damaged("the audio is empty", path)
    return samples


def _resampled(sound: soundfile.SoundFile, path: Path) -> Iterator[np.ndarray]:
    """Yield the sound as mono at `SAMPLE_RATE`, `_BLOCK_S` seconds at a time; the blocks meet at whole seconds."""
    rate, begin, done = sound.samplerate, 0, 0  # begin: start of `held`, done: end of what was yielded, in seconds
    held, ended = np.zeros(0, np.float32), False
    while not ended:
        wanted = (done + _BLOCK_S + _MARGIN_S - begin) * rate - len(held)
        new = sound.read(wanted, dtype="float32", always_2d=True)
        if not np.isfinite(new).all():
            raise _damaged("the audio holds values that are not numbers", path)
        held, ended = np.concatenate([held, new.mean(axis=1)]), len(new) < wanted
        first = (done - begin) * SAMPLE_RATE
        yield resample(held, rate)[first : None if ended else first + _BLOCK_S * SAMPLE_RATE]
        done += _BLOCK_S
        held, begin = held[(done - _MARGIN_S - begin) * rate :], done - _MARGIN_S


def _gathered(blocks: Iterator[np.ndarray]) -> np.ndarray:
    """Return a single block as it is, several memory-mapped from an unnamed file, which is freed with the array."""
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


def iter_blocks(samples: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield `samples`, [n] at `SAMPLE_RATE`, in blocks of about a minute, all but the last multiples of `size` long."""
    step = max(_BLOCK_S * SAMPLE_RATE // size, 1) * size
    for at in range(0, len(samples), step):
        yield samples[at : at + step]


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Resample float32 mono `samples` [n] from `rate` samples a second to `SAMPLE_RATE`, band-limited (by Fourier).

    Returns float32 [round(n * SAMPLE_RATE / rate)], at least one sample; `samples` itself where it is empty or has that
    rate already.
    """
    if rate == SAMPLE_RATE or not len(samples):
        return samples.astype(np.float32, copy=False)
    count = max(1, round(len(samples) * SAMPLE_RATE / rate))
    return (np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples))).astype(np.float32)


def speech_segments(samples: np.ndarray) -> list[tuple[float, float]]:
    """Find the stretches of speech: (start, end) in seconds of each, in order, not overlapping; [] for silence.

    samples: float32 mono [n] in [-1, 1] at `SAMPLE_RATE`. A frame (20 ms) is speech where its level is 9 dB above the
    noise floor (10th percentile of the levels), less than 35 dB below the loud parts (95th), and above -55 dB; where
    these two are within 12 dB, where it is above -35 dB. Pauses shorter than half a second do not end an utterance;
    sounds shorter than a fifth of a second (a click of the mouse) are dropped; an utterance longer than 20 s is cut at
    the quietest place between its 10th and 20th second. Up to 0.15 s are kept on both sides.
    """
    size = round(_FRAME_S * SAMPLE_RATE)
    count = len(samples) // size
    if not count:
        return []
    level = frame_levels(samples[: count * size], size)
    floor, loud = np.percentile(level, 10), np.percentile(level, 95)
    # A recording without contrast is all speech or all silence: then the absolute level decides.
    threshold = max(floor + 9, loud - 35, -55.0) if loud - floor > 12 else -35.0
    runs = _runs(level > threshold)
    runs = _joined(runs, round(_PAUSE_S / _FRAME_S))
    runs = [run for run in runs if (run[1] - run[0]) * _FRAME_S >= _SHORTEST_S]
    pieces = [piece for run in runs for piece in _cut(run, level, round(_LONGEST_S / _FRAME_S))]
    return _padded([(a * _FRAME_S, b * _FRAME_S) for a, b in pieces], len(samples) / SAMPLE_RATE)


def frame_levels(samples: np.ndarray, size: int) -> np.ndarray:
    """Measure the level of each frame of `size` samples, in dB (0: full scale): float64 [n / size].

    samples: mono [n] in [-1, 1]; n is a multiple of `size` and not 0, else ValueError.
    """
    powers = [(block.astype(np.float64).reshape(-1, size) ** 2).mean(axis=1) for block in iter_blocks(samples, size)]
    return 10 * np.log10(np.concatenate(powers) + 1e-10)


def _runs(speech: np.ndarray) -> list[tuple[int, int]]:
    """Return the half-open runs of True."""
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
    # Cut at the quietest frame of the second half of the allowed length: pieces stay long, and the rest gets shorter.
    at = start + longest // 2 + int(np.argmin(level[start + longest // 2 : start + longest]))
    return [(start, at), *_cut((at, end), level, longest)]


def _padded(pieces: list[tuple[float, float]], length: float) -> list[tuple[float, float]]:
    """Lengthen each piece a little, at most half-way to its neighbour and within the recording."""
    padded = []
    for index, (start, end) in enumerate(pieces):
        before = (pieces[index - 1][1] + start) / 2 if index else 0.0
        after = (pieces[index + 1][0] + end) / 2 if index + 1 < len(pieces) else length
        padded.append((max(start - _PAD_S, before), min(end + _PAD_S, after)))
    return padded


# Tolerated difference of sound and screen in length. A sync mark is wrong by up to a second, and a recorder takes time
# to stop; without a mark, the microphone may have been switched on seconds before the screen or after it.
TOLERANCE_S = 2.0
TOLERANCE_WITHOUT_SYNC_S = 5.0
SILENT_DB = -75.0  # a microphone that is on hears its room, 10 dB and more above this
CLIPPED = 0.02  # share of the samples of loud frames at full scale, above which audio is clipped
_FULL = 0.98  # counts as full scale: a codec rounds clipped peaks
_LOUD_DB = -30.0
_FRAME = SAMPLE_RATE // 50
_FIX_RECORD_AGAIN = "record the session again"
_RATIOS = {"half": 0.5, "a third": 1 / 3, "double": 2.0, "three times": 3.0}  # of lengths, at a wrong sample rate


def check_speech_level(samples: np.ndarray, where: Path) -> None:
    """Check that a recording's sound is neither silent nor clipped. Raises DataError where it is.

    samples: float32 mono [n] at `SAMPLE_RATE`, not empty. where: the audio's file, for the error.
    """
    size = min(_FRAME, len(samples))
    framed = samples[: len(samples) // size * size]
    level = frame_levels(framed, size)
    if level.max() < SILENT_DB:
        raise DataError("the audio is silent: the microphone was off or muted", where=where, fix=_FIX_RECORD_AGAIN)
    full = [(np.abs(block).reshape(-1, size) >= _FULL).mean(axis=1) for block in iter_blocks(framed, size)]
    loud = level > _LOUD_DB
    clipped = float(np.concatenate(full)[loud].mean()) if loud.any() else 0.0
    if clipped > CLIPPED:
        what = f"the audio is clipped: {clipped:.0%} of its loud parts are at full scale"
        raise DataError(what, where=where, fix=f"lower the microphone's level and {_FIX_RECORD_AGAIN}")


def check_audio_length(length_s: float, seconds: float, sync_s: float | None, where: Path) -> None:
    """Check that the audio is as long as the session says. Raises DataError where it is not.

    length_s: seconds of audio. seconds: the session's length on the screen's clock; both were stopped together. sync_s:
    the screen's clock minus the audio's; None where it is not known. where: the audio's file, for the error.
    """
    expected = seconds - (sync_s or 0.0)
    tolerance = TOLERANCE_WITHOUT_SYNC_S if sync_s is None else TOLERANCE_S
    if abs(length_s - expected) <= tolerance:
        return
    close = [name for name, ratio in _RATIOS.items() if abs(length_s / ratio - expected) <= tolerance * min(ratio, 1)]
    guess = f" ({close[0]}: its sample rate may be wrong)" if close else ""
    which = "too short" if length_s < expected else "too long"
    what = f"the audio is {which}: it lasts {length_s:.1f} s, by the session's clock {expected:.1f} s{guess}"
    raise DataError(
        what, where=where, fix="copy the recording again; where it is the same there, record the session again"
    )
