"""Route the SDK functions over HTTP: shell, Python, files, streams and services."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from dataclasses import asdict
from pathlib import Path

import forwarding
import snapshot
import terminal_relay
from python_session import PythonSession
from server import MAX_BODY_BYTES, ApiAnswer, ApiRequest, RequestRefused, Routes
from shell import Shell, ShellBusy, ShellIdle

# Files: read, written, listed as the machine's user. Relative paths count from the home folder.

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
# Links may lead anywhere in this machine: they are followed nowhere else.
_EXTRACT_OPTIONS = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
_MAX_LISTED = 1000  # entries


def file_routes(home: Path) -> Routes:
    def read(request: ApiRequest) -> ApiAnswer:
        limit = int(request.query.get("limit", MAX_BODY_BYTES))
        return ApiAnswer(*_read_file(_requested_path(home, request), limit))

    def write(request: ApiRequest) -> dict:
        path = _requested_path(home, request)
        with _refuse_os_errors(path):
            if request.query["path"].endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                return {"bytes": 0}
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not through a pipe or a device that somebody has put there, which would wait for ever.
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
            with os.fdopen(target, "wb") as file:
                if not stat.S_ISREG(os.fstat(target).st_mode):
                    raise RequestRefused(f"{path} is not a file")
                file.write(request.body)
            if modified := request.query.get("modified"):
                os.utime(path, (float(modified), float(modified)))
        return {"bytes": len(request.body)}

    def listed(request: ApiRequest) -> dict:
        return _list_folder(_requested_path(home, request))

    def unpack(request: ApiRequest) -> dict:
        with _refuse_os_errors(home), tarfile.open(fileobj=io.BytesIO(request.body)) as tar:
            tar.extractall(home, **_EXTRACT_OPTIONS)
        return {"ok": True}

    return {
        ("GET", "/files/read"): read,
        ("PUT", "/files/write"): write,
        ("GET", "/files/list"): listed,
        ("PUT", "/files/unpack"): unpack,
    }


def _requested_path(home: Path, request: ApiRequest) -> Path:
    path = request.query.get("path", "")
    if not path or "\0" in path:
        raise RequestRefused("no path is given")
    return home / Path(path).expanduser()


@contextlib.contextmanager
def _refuse_os_errors(path: Path):
    """What the system refuses is an answer."""
    try:
        yield
    except OSError as error:
        status = 404 if isinstance(error, FileNotFoundError) else 400
        raise RequestRefused(f"{path}: {error.strerror or error}", status) from None


def _read_file(path: Path, limit: int) -> tuple[bytes, str]:
    """The bytes, or of more than `limit` the first and the last half around a line that says so; their type."""
    with _refuse_os_errors(path):
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise RequestRefused(f"{path} is not a file")
    with os.fdopen(opened, "rb") as file, _refuse_os_errors(path):
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            return file.read(limit), "application/octet-stream"
        first = file.read(limit // 2)
        file.seek(-(limit // 2), os.SEEK_END)
        left_out = f"\n[... {size - limit // 2 * 2} bytes left out ...]\n".encode()
        return first + left_out + file.read(limit // 2), "text/plain"


def _list_folder(path: Path) -> dict:
    """The entries of a folder by name: kind and size of each; how many more there are."""
    entries = []
    with _refuse_os_errors(path), os.scandir(path) as found:
        for entry in found:
            about = entry.stat(follow_symlinks=False)
            kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
            entries.append({"name": entry.name, "kind": kind, "bytes": about.st_size if kind == "file" else 0})
    entries.sort(key=lambda entry: entry["name"])
    return {"entries": entries[:_MAX_LISTED], "more": max(0, len(entries) - _MAX_LISTED)}


# Routes of the SDK functions: shell, Python, files, streams, requests to services.

_LONGEST_S, _WAIT_S = 3600.0, 10.0
_MOST, _LIMIT = 2**24, 2**16  # bytes of an output


def sdk_routes(home: Path, environment: dict[str, str]) -> Routes:
    shell, python = Shell(str(home), environment), PythonSession(str(home), environment)

    def run(request: ApiRequest) -> dict:
        try:
            return asdict(shell.run(request.text("command"), _wait_seconds(request), _output_limit(request)))
        except ShellBusy as busy:
            raise RequestRefused(str(busy), 409) from None
        except ValueError as error:
            raise RequestRefused(str(error)) from None

    def keys(request: ApiRequest) -> dict:
        try:
            return asdict(shell.keys(request.text("keys"), _wait_seconds(request)))
        except ShellIdle as idle:
            raise RequestRefused(str(idle), 409) from None

    def read(request: ApiRequest) -> dict:
        return asdict(shell.read(_wait_seconds(request)))

    def code(request: ApiRequest) -> dict:
        return asdict(python.run(request.text("code"), _wait_seconds(request), _output_limit(request)))

    own = {
        ("POST", "/shell/run"): run,
        ("POST", "/shell/keys"): keys,
        ("POST", "/shell/read"): read,
        ("GET", "/shell/screen"): lambda request: {"screen": shell.look()},
        ("POST", "/python/run"): code,
    }
    handed_on = {
        **forwarding.stream_routes(str(home), environment),
        **forwarding.port_routes(),
        **forwarding.forward_routes(),
    }
    handed_on |= snapshot.snapshot_routes(shell, python)
    return {**own, **terminal_relay.terminal_routes(shell, str(home), environment), **file_routes(home), **handed_on}


def _wait_seconds(request: ApiRequest) -> float:
    return request.number("wait_s", 0, _LONGEST_S, _WAIT_S)


def _output_limit(request: ApiRequest) -> int:
    return int(request.number("limit", 0, _MOST, _LIMIT))
