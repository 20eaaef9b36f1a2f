"""Answer the calls of OSWorld's server, so that its DesktopEnv and its set-ups can drive this machine.

The requests are those that OSWorld's controllers send, and the answers have what they read. `/screenshot` is in
`screen.py`. What needs GNOME, an accessibility tree or the internet is refused with 501, which OSWorld's client takes
for "not there".
"""

from __future__ import annotations

import email
import email.policy
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl

from screen import ScreenAccess
from server import ApiAnswer, ApiRequest, RequestRefused, Routes, is_command

_COMMAND_S, _PYTHON_S, _SCRIPT_S = 120.0, 30.0, 100.0  # OSWorld's own timeouts
_MOST_S = 3600.0
_MAX_DEPTH = 64
# Stand-ins for modules that OSWorld's set-ups and agents import, where they are not installed.
_SHIM_FOLDERS = (
    [] if importlib.util.find_spec("pyautogui") else [str(Path(__file__).resolve().parent / "pyautogui_shim")]
)
_UNSUPPORTED = {
    ("GET", "/accessibility"): "there is no accessibility tree",
    ("GET", "/terminal"): "the terminal is not read: look at the screen, or run the command",
    ("POST", "/wallpaper"): "there is no wallpaper",
    ("POST", "/setup/change_wallpaper"): "there is no wallpaper",
    ("POST", "/setup/download_file"): "this machine has no network: upload the file",
    ("POST", "/start_recording"): "the session is recorded from outside",
    ("POST", "/end_recording"): "the session is recorded from outside",
}


class OsworldApi:
    """Answer the requests of OSWorld's controllers, each by a method.

    screen: of the machine. home: where commands start. environment: of commands, to which DISPLAY is added.
    """

    def __init__(self, screen: ScreenAccess, home: Path, environment: dict[str, str]) -> None:
        self._screen, self._home, self._own = screen, home, environment

    # -- commands -----------------------------------------------------------------------------------------------------
    def execute(self, request: ApiRequest) -> ApiAnswer | dict:
        """Run a command, and answer with `output`, `error` and `returncode` once it has ended.

        Two fields are flywheel's own: `wait_s`, its timeout, and `fresh`, for commands that judge: no program, module
        or start-up file in the home is then used in place of one of the system's.
        """
        words, shell = self._words(request)
        limit_s, fresh = request.number("wait_s", 0, _MOST_S, _COMMAND_S), bool(request.json().get("fresh"))
        try:
            ran = self._run(words, limit_s, shell=shell, fresh=fresh)
        except subprocess.TimeoutExpired:
            return _error_answer(f"Command timed out after {limit_s:g} seconds.")
        except OSError as error:
            return _error_answer(f"{error.strerror}: {error.filename}")
        return {"status": "success", "output": ran.stdout, "error": ran.stderr, "returncode": ran.returncode}

    def launch(self, request: ApiRequest) -> ApiAnswer:
        """Start a command, and answer without waiting for it."""
        words, shell = self._words(request)
        try:
            subprocess.Popen(
                words, shell=shell, cwd=self._home, env=self._environment(), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            return _error_answer(f"{error.strerror}: {error.filename}")
        return _text_answer(f"{words if shell else ' '.join(words)} launched successfully")

    def python(self, request: ApiRequest) -> ApiAnswer | dict:
        """Run Python code, and answer once it has ended."""
        code = request.text("code")
        try:
            ran = self._run([sys.executable, "-c", code], _PYTHON_S)
        except subprocess.TimeoutExpired:
            return _error_answer(
                "Execution timeout: Code took too long to execute", output=None, error="TimeoutExpired"
            )
        answer = {"output": ran.stdout, "error": ran.stderr, "return_code": ran.returncode, "need_more": False}
        status = "success" if ran.returncode == 0 else "error"
        return {"status": status, "message": ran.stdout + ran.stderr, **answer}

    def script(self, request: ApiRequest) -> ApiAnswer | dict:
        """Run a shell script, and answer once it has ended."""
        script, limit_s = request.text("script"), request.number("timeout", 0, _MOST_S, _SCRIPT_S)
        folder = self._path(request.json().get("working_dir") or str(self._home))
        if not folder.is_dir():
            return _error_answer(f"Working directory does not exist: {folder}", 400, output="", error="", returncode=-1)
        with tempfile.NamedTemporaryFile("w", suffix=".sh", encoding="utf-8") as file:
            file.write(script)
            file.flush()
            words = [shutil.which("bash") or "sh", file.name]
            try:
                ran = self._run(words, limit_s, folder=folder, stderr=subprocess.STDOUT)
            except subprocess.TimeoutExpired:
                said = f"Script execution timed out after {limit_s:g} seconds"
                return _error_answer(said, output=said, error="", returncode=-1)
        status = "success" if ran.returncode == 0 else "error"
        return {"status": status, "output": ran.stdout, "error": "", "returncode": ran.returncode}

    # -- files --------------------------------------------------------------------------------------------------------
    def upload(self, request: ApiRequest) -> ApiAnswer:
        """Write the file that a multipart form holds. Raises RequestRefused where it cannot be written."""
        fields = _parse_multipart(request)
        if not {"file_path", "file_data"} <= fields.keys():
            raise RequestRefused("file_path and file_data are required")
        path = self._path(fields["file_path"].decode("utf-8", "replace").strip())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(fields["file_data"])
        except OSError as error:
            raise RequestRefused(f"{path}: {error.strerror}", 500) from None
        return _text_answer("File Uploaded")

    def file(self, request: ApiRequest) -> ApiAnswer:
        """Answer with a file's bytes. Raises RequestRefused where it cannot be read."""
        path = _parse_form(request).get("file_path", "")
        if not path:
            raise RequestRefused("file_path is required")
        try:
            return ApiAnswer(self._path(path).read_bytes(), "application/octet-stream")
        except FileNotFoundError:
            raise RequestRefused("File not found", 404) from None
        except OSError as error:
            raise RequestRefused(f"{path}: {error.strerror}", 500) from None

    def directory(self, request: ApiRequest) -> dict:
        """Answer with the tree of a folder. Raises RequestRefused where it is none."""
        path = self._path(request.text("path"))
        if not path.is_dir():
            raise RequestRefused("The provided path is not a directory")
        return {"directory_tree": _folder_tree(path, _MAX_DEPTH)}

    def open_file(self, request: ApiRequest) -> ApiAnswer:
        """Open a file in its application. Raises RequestRefused where there is none."""
        path = self._path(request.text("path"))
        if not path.exists():
            raise RequestRefused(f"Failed to open {path}. Error: File not found: {path}", 500)
        if sys.platform == "win32":
            os.startfile(path)
        else:
            opener = "open" if sys.platform == "darwin" else "xdg-open"
            subprocess.Popen([opener, str(path)], cwd=self._home, env=self._environment(), start_new_session=True)
        return _text_answer("File opened successfully")

    # -- the screen ---------------------------------------------------------------------------------------------------
    def screen_size(self, _: ApiRequest) -> dict:
        """Answer with width and height in pixels."""
        width, height = self._screen.input.size
        return {"width": width, "height": height}

    def window_size(self, request: ApiRequest) -> dict:
        """Answer with a window's width and height in pixels. Raises RequestRefused where there is no such window."""
        window = self._window(_parse_form(request).get("app_class_name", ""), by_class=True, strict=True, status=404)
        return {"width": window["width"], "height": window["height"]}

    def cursor_position(self, _: ApiRequest) -> list[int]:
        """Answer with the pointer's position, in pixels."""
        return list(self._screen.input.position())

    def activate_window(self, request: ApiRequest) -> ApiAnswer:
        """Give a window the focus. Raises RequestRefused where there is no such window."""
        self._screen.input.activate(self._named(request)["id"])
        return _text_answer("Window activated successfully")

    def close_window(self, request: ApiRequest) -> ApiAnswer:
        """Ask a window to close. Raises RequestRefused where there is no such window."""
        self._screen.input.close_window(self._named(request)["id"])
        return _text_answer("Window closed successfully.")

    def desktop_path(self, _: ApiRequest) -> dict:
        """Answer with the path of the folder Desktop. Raises RequestRefused where there is none."""
        if not (self._home / "Desktop").is_dir():
            raise RequestRefused("there is no folder Desktop", 404)
        return {"desktop_path": str(self._home / "Desktop")}

    # -- inside -------------------------------------------------------------------------------------------------------
    def _words(self, request: ApiRequest) -> tuple[list[str] | str, bool]:
        """Return a request's command, and whether a shell interprets it. `python` becomes the server's own."""
        asked = request.json()
        shell, command = bool(asked.get("shell", False)), asked.get("command", [])
        if isinstance(command, str):
            return (command, True) if shell else (self._known(shlex.split(command)), False)
        if not is_command(command):
            raise RequestRefused("command is not a text or a list of words", 500)
        return (shlex.join(command), True) if shell else (self._known(command), False)

    def _known(self, words: list[str]) -> list[str]:
        words = [str(Path(word).expanduser()) if word.startswith("~/") else word for word in words]
        return [sys.executable, *words[1:]] if words[:1] == ["python"] else words

    def _run(
        self, words, limit_s: float, *, shell: bool = False, folder: Path | None = None, stderr=subprocess.PIPE,
        fresh: bool = False,
    ):  # fmt: skip
        environment = {**self._environment(), **(self._fresh() if fresh else {})}
        return subprocess.run(
            words, shell=shell, cwd=folder or self._home, env=environment, timeout=limit_s, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8", errors="replace",
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        display = os.environ.get("DISPLAY")
        folders = [*sys.path[1:], *_SHIM_FOLDERS]
        return {**self._own, **({"DISPLAY": display} if display else {}), "PYTHONPATH": os.pathsep.join(folders)}

    def _fresh(self) -> dict[str, str]:
        folders = [one for one in self._own.get("PATH", os.defpath).split(os.pathsep) if one]
        outside = [folder for folder in folders if not Path(folder).is_relative_to(self._home)]
        return {"PATH": os.pathsep.join(outside), "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}

    def _path(self, path: str) -> Path:
        return self._home / os.path.expandvars(Path(path).expanduser())

    def _named(self, request: ApiRequest) -> dict:
        asked = request.json()
        by_class, strict = bool(asked.get("by_class")), bool(asked.get("strict"))
        return self._window(request.text("window_name"), by_class=by_class, strict=strict, status=500)

    def _window(self, name: str, *, by_class: bool, strict: bool, status: int) -> dict:
        """Find a window as wmctrl does: by a part of its title or class in any case, or (strict) by the exact text."""
        for window in self._screen.input.windows():
            has = window["kind" if by_class else "title"]
            if name and (name == has if strict else name.lower() in has.lower()):
                return window
        raise RequestRefused(f"Window {name} not found", status)


def osworld_routes(screen: ScreenAccess, home: Path, environment: dict[str, str]) -> Routes:
    """Return the routes of OSWorld's server. screen, home, environment: as of `OsworldApi`."""
    server = OsworldApi(screen, home, environment)
    return {
        ("POST", "/execute"): server.execute,
        ("POST", "/setup/execute"): server.execute,
        ("POST", "/setup/launch"): server.launch,
        ("POST", "/run_python"): server.python,
        ("POST", "/run_bash_script"): server.script,
        ("POST", "/setup/upload"): server.upload,
        ("POST", "/file"): server.file,
        ("POST", "/list_directory"): server.directory,
        ("POST", "/setup/open_file"): server.open_file,
        ("POST", "/screen_size"): server.screen_size,
        ("POST", "/window_size"): server.window_size,
        ("GET", "/cursor_position"): server.cursor_position,
        ("POST", "/setup/activate_window"): server.activate_window,
        ("POST", "/setup/close_window"): server.close_window,
        ("POST", "/desktop_path"): server.desktop_path,
        ("GET", "/platform"): lambda request: _text_answer(platform.system()),
        **{route: _refuse_unsupported(why) for route, why in _UNSUPPORTED.items()},
    }


def _refuse_unsupported(why: str):
    def refuse(_: ApiRequest) -> None:
        raise RequestRefused(why, 501)

    return refuse


def _text_answer(text: str) -> ApiAnswer:
    return ApiAnswer(text.encode(), "text/html; charset=utf-8")


def _error_answer(message: str, status: int = 500, **more) -> ApiAnswer:
    return ApiAnswer({"status": "error", "message": message, **more}, status=status)


def _parse_form(request: ApiRequest) -> dict[str, str]:
    return dict(parse_qsl(request.body.decode("utf-8", "replace")))


def _parse_multipart(request: ApiRequest) -> dict[str, bytes]:
    head = f"Content-Type: {request.kind}\r\n\r\n".encode()
    message = email.message_from_bytes(head + request.body, policy=email.policy.HTTP)
    parts = message.iter_parts() if message.is_multipart() else ()
    return {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True) or b"" for part in parts
    }


def _folder_tree(folder: Path, depth: int) -> dict:
    tree = {"type": "directory", "name": folder.name, "children": []}
    try:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False) and depth:
                tree["children"].append(_folder_tree(Path(entry.path), depth - 1))
            else:
                tree["children"].append({"type": "file", "name": entry.name})
    except OSError as error:
        return {"error": str(error)}
    return tree
