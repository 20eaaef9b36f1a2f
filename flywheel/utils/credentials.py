"""Keep the user and password of a workspace's servers in a file that its owner alone can read.

A page in a browser reaches servers of this machine, and so does whoever else works on it; neither reads this file.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import secrets
from pathlib import Path

from flywheel.utils.files import atomic_file, disk_full_errors

USER = "flywheel"


def workspace_credentials(folder: Path) -> str:
    """Return `flywheel:PASSWORD`, user and password of a workspace's servers; made and kept at the first call.

    folder: the workspace's `.flywheel`. A password that others could have read is replaced. Raises
    DiskFull.
    """
    path = credentials_path(folder)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mode & 0o077:
            path.unlink()
    if not path.exists():
        with contextlib.suppress(FileExistsError):  # another process was faster
            write_private_file(path, f"{USER}:{secrets.token_urlsafe(24)}\n", over=False)
    return path.read_text(encoding="utf-8").strip()


def credentials_path(folder: Path) -> Path:
    """Return the path of the file with user and password, there or not. folder: the workspace's `.flywheel`."""
    return folder / "auth"


def write_private_file(path: Path, text: str, *, over: bool = True) -> None:
    """Write `text` to `path`, whole or not at all, at no moment readable by other users. Missing folders are made.

    over: replace a file that is there; else raises FileExistsError for it. Raises DiskFull.
    """
    with disk_full_errors(path), atomic_file(path, over=over) as temporary:
        temporary.touch(0o600)
        temporary.write_text(text, encoding="utf-8")


def basic_auth_header(secret: str) -> str:
    """Build the value of the header Authorization. secret: `user:password`."""
    return "Basic " + base64.b64encode(secret.encode()).decode()


def is_valid_basic_auth(secret: str, header: str) -> bool:
    """Tell in constant time whether an Authorization header is the right one.

    secret: `user:password`. header: its value, `Basic ...`; "" where there is none.
    """
    return hmac.compare_digest(header.encode(), basic_auth_header(secret).encode())
