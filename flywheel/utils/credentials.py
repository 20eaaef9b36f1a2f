"""Keep the user and password of a workspace's servers in a private file, and make and check their HTTP header.

Web pages in a local browser and other users of the machine can connect to its servers, but cannot read this file.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import secrets
from pathlib import Path

from flywheel.utils.errors import DataError
from flywheel.utils.files import atomic_file, disk_full_errors

USER = "flywheel"


def workspace_credentials(folder: Path) -> str:
    """Return `flywheel:PASSWORD`, user and password of a workspace's servers; the first call makes and stores them.

    folder: the workspace's `.flywheel`, made where it is missing. A file that other users can read, or that is empty,
    is replaced. Raises DataError for a file that is not UTF-8, DiskFull, OSError where it cannot be read or written.
    """
    path = credentials_path(folder)
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        if status.st_mode & 0o077 or not status.st_size:  # a power cut may leave an empty file: no password at all
            path.unlink()
    if not path.exists():
        with contextlib.suppress(FileExistsError):  # another process was faster
            write_private_file(path, f"{USER}:{secrets.token_urlsafe(24)}\n", over=False)
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        what = "the password of the workspace's servers is not UTF-8"
        raise DataError(what, where=path, fix="delete the file: a new password is made") from None


def credentials_path(folder: Path) -> Path:
    """Return the path of the file with user and password of a workspace's servers, which may not exist.

    folder: the workspace's `.flywheel`.
    """
    return folder / "auth"


def write_private_file(path: Path, text: str, *, over: bool = True) -> None:
    """Write `text` to `path` in UTF-8, whole or not at all; other users can never read it. Missing folders are made.

    over: replace an existing file; False raises FileExistsError for one. Raises DiskFull, OSError for another failure.
    """
    with disk_full_errors(path), atomic_file(path, over=over) as temporary:
        temporary.touch(0o600)
        temporary.write_text(text, encoding="utf-8")


def basic_auth_header(secret: str) -> str:
    """Build the value of an Authorization header. secret: `user:password`."""
    return "Basic " + base64.b64encode(secret.encode()).decode()


def is_valid_basic_auth(secret: str, header: str) -> bool:
    """Tell, in constant time, whether an Authorization header has the right user and password.

    secret: `user:password`. header: its value, `Basic ...`; "" where there is none.
    """
    return hmac.compare_digest(header.encode(), basic_auth_header(secret).encode())
