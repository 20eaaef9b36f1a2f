"""Keep the user and password of a workspace's servers in a file that its owner alone can read.

A page in a browser reaches servers of this machine, and so does whoever else works on it; neither reads this file.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import secrets
from pathlib import Path

from flywheel.utils.files import atomic_file

USER = "flywheel"


def workspace_credentials(folder: Path) -> str:
    """`flywheel:...`, user and password of a workspace's servers; made at the first call. folder: `.flywheel`.

    One that others could have read is replaced.
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
    return folder / "auth"


def write_private_file(path: Path, text: str, *, over: bool = True) -> None:
    """Whole or not at all, and at no moment readable by others. Raises FileExistsError where `over` is not allowed."""
    with atomic_file(path, over=over) as temporary:
        temporary.touch(0o600)
        temporary.write_text(text, encoding="utf-8")


def basic_auth_header(secret: str) -> str:
    """The header Authorization of a caller who has it."""
    return "Basic " + base64.b64encode(secret.encode()).decode()


def is_valid_basic_auth(secret: str, header: str) -> bool:
    return hmac.compare_digest(header.encode(), basic_auth_header(secret).encode())
