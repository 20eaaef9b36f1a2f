"""What shell and Python hold, to be kept and to be brought back into fresh ones. It goes out as bytes that only they
themselves read again, in here."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from python import Python
from server import Refused, Request, Routes
from shell import Busy, Shell

_PLACE = Path("/tmp")
_WAIT_S = 3.0
_MOST = 16 * 2**20  # bytes of each
_NAMES, _LETTERS = 50, 100  # of what is lost: names that are told, letters of each
_KEEP = Path(__file__).with_name("keep.sh")


def routes(shell: Shell, python: Python) -> Routes:
    def keep(_: Request) -> dict:
        lost: list[str] = []
        kept = {}
        with contextlib.suppress(_Lost):
            kept["shell"] = _sent(_shell(shell, lost))
        with contextlib.suppress(_Lost):
            kept["python"] = _sent(_python(python, lost))
        return {**kept, "lost": lost}

    def bring_back(request: Request) -> dict:
        lost: list[str] = []
        if data := _given(request, "shell"):
            with _file(data) as path:
                if not shell.quietly(f". {path} >/dev/null 2>&1", _WAIT_S):
                    lost.append("shell: it did not take in what was kept")
        if data := _given(request, "python"):
            with _file(data) as path:
                if python.run(str(path), _WAIT_S, 0, "bring back").failed:
                    lost.append("python: it did not take in what was kept")
        return {"lost": lost}

    return {("POST", "/keep"): keep, ("POST", "/bring_back"): bring_back}


class _Lost(Exception):
    """There is nothing to keep, or it was told why it is lost."""


def _shell(shell: Shell, lost: list[str]) -> bytes:
    if not shell.begun:
        raise _Lost

    def write(path: Path) -> None:
        try:
            if not shell.quietly(f'set -- {path} "$@"; . {_KEEP}; shift', _WAIT_S):
                lost.append("shell: it did not say in time what it holds")
                raise _Lost
        except Busy:
            lost.append("shell: a command was running, and what the shell held is lost with it")
            raise _Lost from None

    return _written(write, "shell", lost)


def _python(python: Python, lost: list[str]) -> bytes:
    if not python.begun:
        raise _Lost

    def write(path: Path) -> None:
        if python.run(str(path), _WAIT_S, 0, "keep").failed:
            lost.append("python: it did not say what it holds")
            raise _Lost

    data = _written(write, "python", lost)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        names = [str(name)[:_LETTERS] for name in json.loads(data.partition(b"\n")[0])["lost"]]
        lost += [f"python: {name}" for name in names[:_NAMES]]
        if len(names) > _NAMES:
            lost.append(f"python: {len(names) - _NAMES} names more")
    return data


def _written(write: Callable[[Path], None], what: str, lost: list[str]) -> bytes:
    """What is written into a file, which others of this machine's may have put something else in the place of."""
    path = _PLACE / f".kept-{secrets.token_hex(8)}"
    try:
        write(path)
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(file, "rb") as opened:
            if stat.S_ISREG(os.fstat(file).st_mode) and len(data := opened.read(_MOST + 1)) <= _MOST:
                return data
    except OSError:
        pass
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    lost.append(f"{what}: what it holds is too much to be kept ({_MOST} bytes at most)")
    raise _Lost


@contextlib.contextmanager
def _file(data: bytes):
    path = _PLACE / f".kept-{secrets.token_hex(8)}"
    path.write_bytes(data)
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _sent(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _given(request: Request, name: str) -> bytes:
    said = request.json().get(name, "")
    try:
        return base64.b64decode(said, validate=True)
    except (TypeError, binascii.Error):
        raise Refused(f"{name} is not base64") from None
