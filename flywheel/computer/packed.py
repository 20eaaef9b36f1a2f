"""Archives opened outside of the machine they lie in, within limits: whoever made them may have lied."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator

_ARCHIVE = 2**24  # bytes that are looked at
_FILES = 1000
_TEXT = 2**20  # bytes of all files, unpacked


def files(data: bytes | None) -> dict[str, str] | None:
    """Texts by path, of a zip or of a tar of any compression; folders are left out. None where it is no archive, or
    holds more than is looked at."""
    if data is None or len(data) > _ARCHIVE:
        return None
    members = _zipped if data.startswith(b"PK") else _tarred
    found, left = {}, _TEXT
    try:
        for path, content in members(data):
            left -= len(content)
            if left < 0 or len(found) >= _FILES:
                return None
            found[path.removeprefix("./")] = content.decode("utf-8", "replace")
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, ValueError, RuntimeError, KeyError):
        return None  # RuntimeError: it wants a password
    return found


def _zipped(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for about in archive.infolist():
            if not about.is_dir():
                with archive.open(about) as file:
                    yield about.filename, file.read(_TEXT + 1)


def _tarred(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for about in archive:
            if about.isfile() and (file := archive.extractfile(about)) is not None:
                yield about.name, file.read(_TEXT + 1)


LIMIT = _ARCHIVE + 1  # bytes to read of a file, so that one that is too long is seen to be so
