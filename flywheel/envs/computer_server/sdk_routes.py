"""Route over HTTP what an agent, or a task's set-up, does without a screen: shell, Python, files, ports, snapshots."""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import json
import os
import secrets
import select
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import forwarding
import terminal_relay
from server import MAX_BODY_BYTES, ApiAnswer, ApiRequest, RequestRefused, Routes
from shell import BoundedOutput, Shell, ShellBusy, strip_control_sequences

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
# Unpacked links may lead anywhere: they are followed only inside this machine.
_EXTRACT_OPTIONS = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
_MAX_LISTED = 1000  # entries


def file_routes(home: Path) -> Routes:
    """Return the routes that read, write, list and unpack files. home: folder from which relative paths count."""

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
            # O_NONBLOCK, since opening a pipe or a device that a program has put there would block for ever.
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
    try:
        yield
    except OSError as error:
        status = 404 if isinstance(error, FileNotFoundError) else 400
        raise RequestRefused(f"{path}: {error.strerror or error}", status) from None


def _read_file(path: Path, limit: int) -> tuple[bytes, str]:
    """Return a file's content and content type.

    Of a file above `limit` bytes, it has the first and the last half of the limit, around a line that says how much is
    left out.
    """
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
    entries = []
    with _refuse_os_errors(path), os.scandir(path) as found:
        for entry in found:
            about = entry.stat(follow_symlinks=False)
            kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
            entries.append({"name": entry.name, "kind": kind, "bytes": about.st_size if kind == "file" else 0})
    entries.sort(key=lambda entry: entry["name"])
    return {"entries": entries[:_MAX_LISTED], "more": max(0, len(entries) - _MAX_LISTED)}


_LOOP_PROGRAM = Path(__file__).with_name("python_loop.py")
_ANSWERS = {b"true\n": True, b"false\n": False}  # anything else was written by the code itself
_START_S = 10.0
_STOP_S = 2.0  # for interrupted code to end
_CHUNK = 2**16


@dataclass(frozen=True)
class PythonOutput:
    """Hold what a run of code printed, and how it ended.

    text: its output, with a last expression's value. failed: it raised an exception, whose traceback is in the text.
    stopped: it was interrupted after its timeout. lost: the interpreter has ended, and all variables with it.
    """

    text: str
    failed: bool = False
    stopped: bool = False
    lost: bool = False


class PythonSession:
    """Run code in one interpreter, which keeps its variables between calls; one that has ended is replaced.

    folder, environment: of each new interpreter.
    """

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._process: subprocess.Popen | None = None
        self._alone = threading.Lock()

    @property
    def begun(self) -> bool:
        """Tell whether an interpreter is alive, which holds what code has left in it."""
        return self._process is not None and self._process.poll() is None

    def run(self, code: str, wait_s: float, limit: int, how: str = "code") -> PythonOutput:
        """Run code, interrupt it after `wait_s` seconds, and return what it printed.

        limit: bytes of output that are kept. how: "code" runs it; "keep" saves the namespace to the file whose path is
        `code`, "bring back" loads it from there.
        """
        with self._alone:
            if not self.begun:
                self._start()
            kept = BoundedOutput(limit)
            message = json.dumps({"code": code, "as": how}).encode() + b"\n"
            threading.Thread(target=self._send, args=(message,), daemon=True).start()
            told = self._wait(kept, wait_s)
            stopped = told is None and self._process.poll() is None
            if stopped:
                self._process.send_signal(signal.SIGINT)
                told = self._wait(kept, _STOP_S)
            lost = told is None
            if lost:
                self.close()
            return PythonOutput(kept.take(strip_control_sequences), bool(told) or lost, stopped, lost)

    def close(self) -> None:
        """Kill the interpreter, if it runs, with its process group."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (self._asked, self._told, self._printed):
                os.close(pipe)

    def _start(self) -> None:
        self.close()
        theirs_in, self._asked = os.pipe()
        self._told, theirs_out = os.pipe()
        self._printed, printed = os.pipe()
        words = [sys.executable, "-u", str(_LOOP_PROGRAM), str(theirs_in), str(theirs_out)]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd=self._folder,
                env=self._environment, pass_fds=(theirs_in, theirs_out), start_new_session=True,
            )  # fmt: skip
        finally:
            for pipe in (theirs_in, theirs_out, printed):
                os.close(pipe)
        self._wait(BoundedOutput(0), _START_S)  # it answers once when it has started

    def _send(self, message: bytes) -> None:
        try:
            while message:
                message = message[os.write(self._asked, message) :]
        except OSError:
            pass  # it has ended, which `run` sees

    def _wait(self, kept: BoundedOutput, wait_s: float) -> bool | None:
        """Collect output and return whether the code failed; None where it is late, or its process has ended."""
        until = time.monotonic() + wait_s
        told = b""
        while (left := until - time.monotonic()) > 0:
            ready = select.select([self._told, self._printed], [], [], left)[0]
            if self._printed in ready:
                kept.add(os.read(self._printed, _CHUNK))
            elif self._told in ready:  # only once all output is read
                data = os.read(self._told, _CHUNK)
                told += data
                if not data:
                    self._process.wait()
                    return None
                if told.endswith(b"\n"):
                    return _ANSWERS.get(told)
        return None


_PLACE = Path("/tmp")
_SNAPSHOT_S = 3.0
_MAX_KEPT_BYTES = 16 * 2**20  # bytes of each state
_NAMES, _LETTERS = 50, 100  # of lost names: how many are reported, characters of each
_KEEP = Path(__file__).with_name("keep.sh")


def snapshot_routes(shell: Shell, python: PythonSession) -> Routes:
    """Return the routes that save and restore the states of `shell` and `python`, for a checkpoint of an episode."""

    def keep(_: ApiRequest) -> dict:
        lost: list[str] = []
        saved = {
            "shell": _save_shell(shell, lost) if shell.begun else None,
            "python": _save_python(python, lost) if python.begun else None,
        }
        kept = {name: base64.b64encode(data).decode() for name, data in saved.items() if data is not None}
        return {**kept, "lost": lost}

    def bring_back(request: ApiRequest) -> dict:
        lost: list[str] = []
        if data := _decode_field(request, "shell"):
            with _temporary_path() as path:
                path.write_bytes(data)
                if not shell.quietly(f". {path} >/dev/null 2>&1", _SNAPSHOT_S):
                    lost.append("shell: it did not take in what was kept")
        if data := _decode_field(request, "python"):
            with _temporary_path() as path:
                path.write_bytes(data)
                if python.run(str(path), _SNAPSHOT_S, 0, "bring back").failed:
                    lost.append("python: it did not take in what was kept")
        return {"lost": lost}

    return {("POST", "/keep"): keep, ("POST", "/bring_back"): bring_back}


def _save_shell(shell: Shell, lost: list[str]) -> bytes | None:
    with _temporary_path() as path:
        try:
            if not shell.quietly(f'set -- {path} "$@"; . {_KEEP}; shift', _SNAPSHOT_S):
                lost.append("shell: it did not say in time what it holds")
                return None
        except ShellBusy:
            lost.append("shell: a command was running, and what the shell held is lost with it")
            return None
        return _read_kept(path, "shell", lost)


def _save_python(python: PythonSession, lost: list[str]) -> bytes | None:
    with _temporary_path() as path:
        if python.run(str(path), _SNAPSHOT_S, 0, "keep").failed:
            lost.append("python: it did not say what it holds")
            return None
        data = _read_kept(path, "python", lost)
    if data is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            names = [str(name)[:_LETTERS] for name in json.loads(data.partition(b"\n")[0])["lost"]]
            lost += [f"python: {name}" for name in names[:_NAMES]]
            if len(names) > _NAMES:
                lost.append(f"python: {len(names) - _NAMES} names more")
    return data


def _read_kept(path: Path, what: str, lost: list[str]) -> bytes | None:
    """Read a saved state from a file, which programs may have replaced; None, with a line in `lost`, where it fails."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(file, "rb") as opened:
            data = opened.read(_MAX_KEPT_BYTES + 1) if stat.S_ISREG(os.fstat(file).st_mode) else None
            if data is not None and len(data) <= _MAX_KEPT_BYTES:
                return data
    lost.append(f"{what}: what it holds is too much to be kept ({_MAX_KEPT_BYTES} bytes at most)")
    return None


@contextlib.contextmanager
def _temporary_path():
    path = _PLACE / f".kept-{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _decode_field(request: ApiRequest, name: str) -> bytes:
    text = request.json().get(name, "")
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, binascii.Error):
        raise RequestRefused(f"{name} is not base64") from None


_LONGEST_S, _WAIT_S = 3600.0, 10.0
_MOST, _LIMIT = 2**24, 2**16  # bytes of output: at most, by default


def sdk_routes(home: Path, environment: dict[str, str]) -> Routes:
    """Return the routes of a new shell and a new Python, with those of files, forwarding, terminals and snapshots.

    home: where shell and Python start. environment: their environment variables.
    """
    shell, python = Shell(str(home), environment), PythonSession(str(home), environment)

    def run(request: ApiRequest) -> dict:
        return asdict(shell.run(request.text("command"), _wait_seconds(request), _output_limit(request)))

    def keys(request: ApiRequest) -> dict:
        return asdict(shell.keys(request.text("keys"), _wait_seconds(request)))

    def read(request: ApiRequest) -> dict:
        return asdict(shell.read(_wait_seconds(request)))

    def code(request: ApiRequest) -> dict:
        return asdict(python.run(request.text("code"), _wait_seconds(request), _output_limit(request)))

    return {
        ("POST", "/shell/run"): run,
        ("POST", "/shell/keys"): keys,
        ("POST", "/shell/read"): read,
        ("GET", "/shell/screen"): lambda request: {"screen": shell.look()},
        ("POST", "/python/run"): code,
        **terminal_relay.terminal_routes(shell, str(home), environment),
        **file_routes(home),
        **forwarding.forwarding_routes(str(home), environment),
        **snapshot_routes(shell, python),
    }


def _wait_seconds(request: ApiRequest) -> float:
    return request.number("wait_s", 0, _LONGEST_S, _WAIT_S)


def _output_limit(request: ApiRequest) -> int:
    return int(request.number("limit", 0, _MOST, _LIMIT))
