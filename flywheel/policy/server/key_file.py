"""Keep a server's API key in a file that its user alone can read.

A server belongs to no workspace, so the file is the user's. It is locked as long as the server lives, in whatever way
that ends, so that nobody takes a key that is left over for that of another server at the same port.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from flywheel.utils import credentials


def server_key_path(port: int) -> Path:
    """`$XDG_CACHE_HOME/flywheel/serve/<port>.key`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flywheel" / "serve" / f"{port}.key"


@contextlib.contextmanager
def hold_server_key(port: int, key: str) -> Iterator[Path]:
    path = server_key_path(port)
    credentials.write_private_file(path, f"{key}\n")
    with path.open(encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def find_server_key(url: str) -> str:
    """The key of the server that this user runs at an address of this machine; empty where there is none."""
    parts = urlsplit(url)
    try:
        if parts.hostname != "localhost" and not ipaddress.ip_address(parts.hostname or "").is_loopback:
            return ""
        with server_key_path(parts.port or 80).open(encoding="utf-8") as left:
            try:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # its server lives
                return left.read().strip()
    except (OSError, ValueError):
        pass
    return ""
