"""Save what shell and Python hold, and restore it into fresh ones."""

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

from python_session import PythonSession
from server import ApiRequest, RequestRefused, Routes
from shell import Shell, ShellBusy

_PLACE = Path("/tmp")
_WAIT_S = 3.0
_MOST = 16 * 2**20  # bytes of each
_NAMES, _LETTERS = 50, 100  # of what is lost: names that are told, letters of each
_KEEP = Path(__file__).with_name("keep.sh")


def snapshot_routes(shell: Shell, python: PythonSession) -> Routes:
    def keep(_: ApiRequest) -> dict:
        lost: list[str] = []
        kept = {}
        with contextlib.suppress(_NothingToSave):
            kept["shell"] = _encode_bytes(_save_shell(shell, lost))
        with contextlib.suppress(_NothingToSave):
            kept["python"] = _encode_bytes(_save_python(python, lost))
        return {**kept, "lost": lost}

    def bring_back(request: ApiRequest) -> dict:
        lost: list[str] = []
        if data := _decode_field(request, "shell"):
            with _temporary_file(data) as path:
                if not shell.quietly(f". {path} >/dev/null 2>&1", _WAIT_S):
                    lost.append("shell: it did not take in what was kept")
        if data := _decode_field(request, "python"):
            with _temporary_file(data) as path:
                if python.run(str(path), _WAIT_S, 0, "bring back").failed:
                    lost.append("python: it did not take in what was kept")
        return {"lost": lost}

    return {("POST", "/keep"): keep, ("POST", "/bring_back"): bring_back}


class _NothingToSave(Exception):
    """There is nothing to keep, or it was told why it is lost."""


def _save_shell(shell: Shell, lost: list[str]) -> bytes:
    if not shell.begun:
        raise _NothingToSave

    def write(path: Path) -> None:
        try:
            if not shell.quietly(f'set -- {path} "$@"; . {_KEEP}; shift', _WAIT_S):
                lost.append("shell: it did not say in time what it holds")
                raise _NothingToSave
        except ShellBusy:
            lost.append("shell: a command was running, and what the shell held is lost with it")
            raise _NothingToSave from None

    return _collect_file(write, "shell", lost)


def _save_python(python: PythonSession, lost: list[str]) -> bytes:
    if not python.begun:
        raise _NothingToSave

    def write(path: Path) -> None:
        if python.run(str(path), _WAIT_S, 0, "keep").failed:
            lost.append("python: it did not say what it holds")
            raise _NothingToSave

    data = _collect_file(write, "python", lost)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        names = [str(name)[:_LETTERS] for name in json.loads(data.partition(b"\n")[0])["lost"]]
        lost += [f"python: {name}" for name in names[:_NAMES]]
        if len(names) > _NAMES:
            lost.append(f"python: {len(names) - _NAMES} names more")
    return data


def _collect_file(write: Callable[[Path], None], what: str, lost: list[str]) -> bytes:
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
    raise _NothingToSave


@contextlib.contextmanager
def _temporary_file(data: bytes):
    path = _PLACE / f".kept-{secrets.token_hex(8)}"
    path.write_bytes(data)
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_field(request: ApiRequest, name: str) -> bytes:
    text = request.json().get(name, "")
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error):
        raise RequestRefused(f"{name} is not base64") from None
