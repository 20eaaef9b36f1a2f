"""Whether a sound file is whole, by its own bookkeeping: page checksums, numbers and positions, declared lengths.

A decoder goes on past damage: it leaves out a page whose checksum is wrong and joins what is left, so all that was
said later stands too early, beside other steps. So the bookkeeping is read before the sound.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

from flywheel.errors import DataError

COPY = "copy the recording again from the annotator's machine; where the file is the same there, record it again"
_OPUS_RATE = 48_000  # of all positions in Opus files (RFC 7845)
_BEGINS, _ENDS = 2, 4  # flags of an Ogg page
_BLOCK = 1 << 20  # frames decoded at a time


def check(path: Path) -> None:
    """Raises DataError where the file is missing, empty, cut off or damaged, or of a kind that cannot be checked.

    Opus (RFC 7845, in Ogg, RFC 3533) and FLAC (RFC 9639) have checksums, so any change of their sound is seen. WAV has
    none: its lengths alone are checked.
    """
    try:
        with path.open("rb") as file:
            head = file.read(12)
            file.seek(0)
            if not head:
                raise DataError("the audio file is empty", where=path, fix=COPY)
            if head[:4] == b"OggS":
                _check_opus(file, path)
            elif head[:4] == b"fLaC":
                _check_flac(file, path)
            elif head[:4] == b"RIFF" and head[8:] == b"WAVE":
                _check_wav(file, path)
            else:
                raise DataError("the audio is neither Opus, FLAC nor WAV", where=path, fix=COPY)
    except FileNotFoundError:
        raise DataError("the recording has no audio", where=path, fix=COPY) from None
    except OSError as error:
        raise DataError(f"the audio cannot be read: {error.strerror}", where=path, fix=COPY) from None


@dataclass(frozen=True)
class _Page:
    """One Ogg page. position: of its last whole packet's end, in samples; -1 where none ends on it."""

    flags: int
    position: int
    serial: int
    number: int
    lengths: bytes
    body: bytes


def _check_opus(file: BinaryIO, path: Path) -> None:
    """Pages follow each other without a gap, and each lasts as long as its packets."""
    end, last, packet, packets = None, None, b"", 0
    for page in _pages(file, path):
        where = f"{path}, page {page.number}"
        if last is None and not page.flags & _BEGINS:
            raise DataError("the audio's beginning is missing", where=where, fix=COPY)
        if last is not None:
            _check_order(last, page, where)
        last, at, samples = page, 0, 0
        for length in page.lengths:
            packet += page.body[at : at + length]
            at += length
            if length == 255:  # goes on
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
            raise DataError(f"{abs(lost):.2f} s of sound are missing or too many", where=where, fix=COPY)
    if last is None or not last.flags & _ENDS or packet:
        raise DataError("the audio is cut off: its last page is missing", where=path, fix=COPY)
    if end is None:
        raise DataError("the audio is empty", where=path, fix=COPY)


def _pages(file: BinaryIO, path: Path) -> Iterator[_Page]:
    """Raises DataError at the first page that is cut off or whose checksum is wrong."""
    count = 0
    while head := file.read(27):
        where = f"{path}, page {count}"
        if head[:4] != b"OggS"[: len(head)]:
            raise DataError("the audio is damaged: no page begins where one should", where=where, fix=COPY)
        lengths = file.read(head[26]) if len(head) == 27 else b""
        body = file.read(sum(lengths))
        if len(head) < 27 or len(lengths) < head[26] or len(body) < sum(lengths):
            raise DataError("the audio is cut off in the middle of a page", where=where, fix=COPY)
        _, version, flags, position, serial, number, checksum = struct.unpack("<4sBBqIII", head[:26])
        if version != 0 or _crc(head[:22] + bytes(4) + head[26:] + lengths + body) != checksum:
            raise DataError("the audio is damaged: the page's checksum differs", where=where, fix=COPY)
        yield _Page(flags, position, serial, number, lengths, body)
        count += 1


_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _crc(data: bytes) -> int:
    """Ogg's CRC-32 takes the highest bit first and starts at 0; zlib's, of the same polynomial, the lowest first."""
    mirrored = zlib.crc32(data.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)


def _check_order(last: _Page, page: _Page, where: str) -> None:
    if last.flags & _ENDS or page.flags & _BEGINS or page.serial != last.serial:
        raise DataError("more than one recording is in the file", where=where, fix=COPY)
    if page.number > last.number + 1:
        missing = page.number - last.number - 1
        raise DataError(f"{missing} pages of audio are missing before it", where=where, fix=COPY)
    if page.number != last.number + 1:
        raise DataError(f"pages of audio are out of order: it comes after page {last.number}", where=where, fix=COPY)


def _duration(packet: bytes, where: str) -> int:
    """Samples in an Opus packet, by its first bytes (RFC 6716, 3.1)."""
    code = packet[0] & 3 if packet else 0
    if not packet or (code == 3 and len(packet) < 2):
        raise DataError("the audio is damaged: an empty packet", where=where, fix=COPY)
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
    """The sound has the length, the rate and the MD5 that the header says."""
    head = file.read(42)
    if len(head) < 42 or head[4] & 127 or head[5:8] != b"\0\0\x22":
        raise DataError("the audio is cut off or damaged: no FLAC header", where=path, fix=COPY)
    packed = int.from_bytes(head[18:26], "big")
    rate, channels, bits, count = packed >> 44, (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    digest = head[26:42]
    if not count or not any(digest):
        raise DataError(
            "the FLAC header does not say how long the sound is, or not its MD5",
            where=path,
            fix="encode it again into a file, not a pipe (flac does so)",
        )
    said = _rate_of_first_frame(file, head, path)
    if said not in (0, rate):
        raise DataError(f"the audio's header says {rate} samples a second, its frames {said}", where=path, fix=COPY)
    md5, decoded, width = hashlib.md5(usedforsecurity=False), 0, -(-bits // 8)
    try:
        with soundfile.SoundFile(path) as sound:
            for block in sound.blocks(_BLOCK, dtype="int32", always_2d=True):
                decoded += len(block)
                samples = np.ascontiguousarray(block >> (32 - bits)).astype("<i4")
                md5.update(samples.view(np.uint8).reshape(*block.shape, 4)[:, :, :width].tobytes())
            same = sound.channels == channels
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise DataError(f"the audio is damaged: {error}", where=path, fix=COPY) from None
    if decoded != count:
        raise DataError(f"the audio's header says {count} samples, {decoded} are there", where=path, fix=COPY)
    if not same or md5.digest() != digest:
        raise DataError("the audio is damaged: its MD5 differs", where=path, fix=COPY)


_FLAC_RATES = (0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)


def _rate_of_first_frame(file: BinaryIO, head: bytes, path: Path) -> int:
    """Samples a second as the first frame tells it; 0 where it tells none, or in a form that headers rarely have."""
    file.seek(4)
    last = False
    while not last:
        block = file.read(4)
        if len(block) < 4:
            raise DataError("the audio is cut off in its header", where=path, fix=COPY)
        last = bool(block[0] & 128)
        file.seek(int.from_bytes(block[1:], "big"), 1)
    frame = file.read(4)
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xFC != 0xF8:
        raise DataError("the audio is cut off or damaged: no sound after the header", where=path, fix=COPY)
    code = frame[2] & 15
    return _FLAC_RATES[code] if code < len(_FLAC_RATES) else 0


def _check_wav(file: BinaryIO, path: Path) -> None:
    """The file is as long as its header says, and so is each chunk; the format adds up."""
    size = path.stat().st_size
    said = int.from_bytes(file.read(8)[4:], "little") + 8
    if said != size:
        raise DataError(f"the audio's header says {said:,} bytes, the file has {size:,}", where=path, fix=COPY)
    file.seek(12)
    block = data = None
    while file.tell() < size:
        head = file.read(8)
        name, length = head[:4], int.from_bytes(head[4:], "little")
        start = file.tell()
        if len(head) < 8 or start + length > size:
            raise DataError(f"the audio is cut off: its part {name!r} is not whole", where=path, fix=COPY)
        if name == b"fmt ":
            block = _wav_block(file.read(length), path)
        elif name == b"data":
            data = length
        file.seek(start + length + length % 2)
    if block is None or data is None or data % block:
        raise DataError("the audio's header has no format or no data, or they do not fit", where=path, fix=COPY)


def _wav_block(format_: bytes, path: Path) -> int:
    """Bytes of one sample of all channels."""
    if len(format_) < 16:
        raise DataError("the audio's header has no whole format", where=path, fix=COPY)
    # The bytes a second stand there too, but tools that are widely used write them wrong (flite does).
    _, channels, rate, _, block, bits = struct.unpack("<HHIIHH", format_[:16])
    if not channels or not rate or not bits or block != channels * -(-bits // 8):
        raise DataError(
            f"the audio's header contradicts itself: {channels} channels of {bits} bits, {block} bytes together",
            where=path,
            fix=COPY,
        )
    return block
