"""Convert task files of OSWorld to tasks that are played here, or say why one cannot be."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.envs.computer.bwrap import MACHINE_HOME, PROGRAM_PATH
from flywheel.envs.computer.osworld.judge import EXPECTS_FILE, EXPECTS_FILE_OR_NOTHING, EXPECTS_RULES, METRICS
from flywheel.envs.computer.task_spec import OsworldMetric, OsworldTask
from flywheel.utils.errors import BadInput

# Reasons why a task of OSWorld cannot be played here.

NEEDS_INTERNET_FILE = "a file of the internet, of which no copy is given"
NEEDS_INTERNET = "the internet"
NEEDS_PROGRAM = "a program that is not installed"
NEEDS_ROOT = "the rights of root"
NEEDS_SYSTEM_SERVICE = "GNOME or a service of the system"
NEEDS_SCREEN = "a screen, which the kind terminal has not"
NEEDS_STEP = "a step of set-up that is not carried out here"
NEEDS_GETTER = "a getter that is not here"
NEEDS_METRIC = "a metric that is not here"
NEEDS_PLACE_OUTSIDE_HOME = "a place outside of the home"
NEEDS_LARGE_FILES = "files that are too large"
LEFT_OUT_BY_MANIFEST = "left out by the manifest"


class UnsupportedTask(Exception):
    """It needs something that is not here. reason: what, one of those above. detail: which."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, " ".join(detail.split())[:120]
        super().__init__(f"{self.reason}: {self.detail}")


# Copies, in a folder, of the files that OSWorld's tasks download: no machine here has the internet.

MAX_TASK_FILES_BYTES = 2**23  # bytes that one task's files may have


class DownloadCopies:
    """Find copies of files that tasks download.

    folder: with a folder for each task by its id, such as OSWorld's own `cache`; what several tasks need may lie in the
    folder itself. None: there are none.
    """

    def __init__(self, folder: Path | None, task: str) -> None:
        self._places = [] if folder is None else [folder / task, folder]
        self._left = MAX_TASK_FILES_BYTES

    def of(self, url: str, name: str) -> str:
        """Return as base64 the copy of what a URL gives, or of a file on this machine. name: as the task calls it.

        Raises UnsupportedTask where there is no copy.
        """
        kept = f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name}"  # as OSWorld keeps what it has downloaded
        theirs = PurePosixPath(unquote(urlsplit(url).path)).name
        for folder in self._places:
            for one in (kept, name, theirs):
                if one and (folder / one).is_file():
                    return self._read(folder / one)
        raise UnsupportedTask(NEEDS_INTERNET_FILE, f"{name}, {url}")

    def _read(self, path: Path) -> str:
        self._left -= path.stat().st_size
        if self._left < 0:
            raise UnsupportedTask(
                NEEDS_LARGE_FILES, f"{path.name}, and {MAX_TASK_FILES_BYTES} bytes is all that a task's files may have"
            )
        return base64.b64encode(path.read_bytes()).decode()


# The parts of a task file that are read here.

OsworldGetter = dict[str, Any]


class OsworldStep(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    type: str
    parameters: dict[str, Any] = {}


class OsworldEvaluator(BaseModel):
    """Declare the evaluator of a task file.

    func: one metric, or several, to each of which a result, what is expected and options belong by their order.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    func: str | list[str]
    conj: Literal["and", "or"] = "and"
    result: OsworldGetter | list[OsworldGetter | None] = {}
    expected: OsworldGetter | list[OsworldGetter | None] = {}
    options: dict[str, Any] | list[dict[str, Any] | None] = {}
    postconfig: list[OsworldStep] = []

    @model_validator(mode="after")
    def _whole(self) -> OsworldEvaluator:
        if not self.func:
            raise ValueError("func names no metric")
        several = isinstance(self.func, list)
        for name in ("result", "expected", "options"):
            said = getattr(self, name)
            if not said:
                continue
            if several and (not isinstance(said, list) or len(said) != len(self.func)):
                raise ValueError(f"{name} has not one entry for each of func")
            if not several and isinstance(said, list):
                raise ValueError(f"{name} is a list, and func is none")
        return self

    @property
    def metrics(self) -> list[tuple[str, OsworldGetter, OsworldGetter, dict[str, Any]]]:
        """Each with its result, what is expected, its options; {} where nothing is said."""
        if isinstance(self.func, str):
            return [(self.func, self.result, self.expected, self.options)]
        parts = [said or [{}] * len(self.func) for said in (self.result, self.expected, self.options)]
        return [(func, *(one or {} for one in rest)) for func, *rest in zip(self.func, *parts, strict=True)]


class OsworldExample(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    instruction: str = Field(min_length=1)
    config: list[OsworldStep] = []
    evaluator: OsworldEvaluator
    proxy: bool = False
    related_apps: list[str] = []


def read_example(path: Path) -> OsworldExample:
    """Read a task file. Raises BadInput that names the file and the field."""
    try:
        return OsworldExample.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise BadInput(f"no task of OSWorld: {error}", where=path, fix="mend it, or leave it out") from None
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"])) or "whole"
        raise BadInput(f"the task's {field}: {fault['msg']}", where=path, fix="mend it, or leave it out") from None


# Which programs a task's command starts, as far as its words show, and whether a machine has them.

OsworldCommand = str | list[str]
_ROOT_PROGRAMS = {"sudo", "su", "pkexec", "useradd", "adduser", "chpasswd", "apt", "apt-get", "dpkg", "snap"}
_SYSTEM_PROGRAMS = {"gsettings", "dconf", "timedatectl", "systemctl", "hostnamectl", "nmcli", "bluetoothctl", "pactl"}
_SYSTEM_PROGRAMS |= {
    "pulseaudio",
    "amixer",
    "service",
    "loginctl",
    "journalctl",
    "gnome-extensions",
    "gnome-control-center",
}
_SHELL_BUILTINS = {
    "[", "[[", ":", ".", "alias", "bg", "break", "cd", "command", "continue", "declare", "echo", "eval", "exec", "exit",
    "export", "false", "fg", "jobs", "kill", "let", "local", "printf", "pwd", "read", "readonly", "return", "set",
    "shift", "source", "test", "trap", "true", "type", "ulimit", "umask", "unset", "wait", "function", "for", "case",
    "select",
}  # fmt: skip
_PREFIX_WORDS = {
    "if",
    "then",
    "elif",
    "else",
    "while",
    "until",
    "do",
    "!",
    "{",
    "}",
    "fi",
    "done",
    "esac",
    "in",
    "time",
}
_PREFIX_WORDS |= {"env", "nohup", "setsid", "xargs"}  # the next word is a program's too
_SHELL_SIGNS = "();<>|&\n"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_REMOTE_ADDRESS = re.compile(r"(https?|ftp)://(?!localhost|127\.|0\.0\.0\.0)")


# Applications that a task names, by the beginning of the name, and their programs.
_APPLICATIONS = {
    "chrome": "google-chrome", "google": "google-chrome", "browser": "google-chrome", "gimp": "gimp",
    "libreoffice": "libreoffice", "calc": "libreoffice", "writer": "libreoffice", "impress": "libreoffice",
    "excel": "libreoffice", "thunderbird": "thunderbird", "vlc": "vlc", "vscode": "code", "vs_code": "code",
    "picard": "picard",
}  # fmt: skip


def check_applications(names: list[str]) -> None:
    """Check that the applications of a task are installed. Raises UnsupportedTask."""
    for name in names:
        for begins, program in _APPLICATIONS.items():
            if name.lower().startswith(begins):
                _check_program(program)


def check_command(command: OsworldCommand, shell: bool, screen: bool) -> None:
    """Check that a machine has what a command needs. screen: whether it has one. Raises UnsupportedTask."""
    text = command if isinstance(command, str) else shlex.join(command)
    for program in _list_programs(text if shell or isinstance(command, str) else command, shell):
        _check_program(program)
    if "DBUS_SESSION_BUS_ADDRESS" in text:
        raise UnsupportedTask(NEEDS_SYSTEM_SERVICE, "the session's D-Bus")
    if found := _REMOTE_ADDRESS.search(text):
        raise UnsupportedTask(NEEDS_INTERNET, text[found.start() :].split()[0])
    if not screen and ("pyautogui" in text or "xdotool" in text or "wmctrl" in text):
        raise UnsupportedTask(NEEDS_SCREEN, text)


def _check_program(program: str) -> None:
    if program in _ROOT_PROGRAMS:
        raise UnsupportedTask(NEEDS_ROOT, program)
    if program in _SYSTEM_PROGRAMS:
        raise UnsupportedTask(NEEDS_SYSTEM_SERVICE, program)
    if "/" not in program and program not in _SHELL_BUILTINS and shutil.which(program, path=PROGRAM_PATH) is None:
        raise UnsupportedTask(NEEDS_PROGRAM, program)


def _list_programs(command: OsworldCommand, shell: bool) -> Iterator[str]:
    """The first word of each command of a shell's text; of words, or a text that no shell takes, the first."""
    if not shell:
        words = shlex.split(command) if isinstance(command, str) else command
        if words[0] != "python":  # for which OSWorld's server takes its own
            yield words[0]
        if PurePosixPath(words[0]).name in ("sh", "bash", "dash") and words[1:2] == ["-c"] and len(words) > 2:
            yield from _list_programs(words[2], True)
        return
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_SHELL_SIGNS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    try:
        words = list(lexer)
    except ValueError:  # nested quotes: left to the shell
        return
    begins = True
    for word in words:
        if word and set(word) <= set(_SHELL_SIGNS):
            begins = not set(word) <= {"<", ">"} and (word != ">&")
        elif begins and not (_ASSIGNMENT.match(word) or word in _PREFIX_WORDS):
            begins = False
            if not word.startswith(("$", "~", "`", "-")):
                yield word


# Converting a task file to a task that is played here.

INFEASIBLE_METRIC = "infeasible"  # the metric of tasks that cannot be done
_WRITABLE_FOLDERS = (MACHINE_HOME, "/tmp")  # the places of a machine that can be written


class MalformedTask(Exception):
    """The task file itself is wrong. field: where. what: in words."""

    def __init__(self, field: str, what: str) -> None:
        self.field, self.what = field, what
        super().__init__(f"{field}: {what}")


def convert_example(example: OsworldExample, copies: DownloadCopies, screen: bool, seconds: float) -> OsworldTask:
    """Convert a task file to a task that is played here.

    screen: whether the machine has one. seconds: for judging it. Raises UnsupportedTask where a machine lacks what it
    needs, MalformedTask where the file is wrong.
    """
    if example.proxy:
        raise UnsupportedTask(NEEDS_INTERNET, "it asks for a proxy")
    check_applications(example.related_apps)
    fits = _ExampleConverter(copies, screen)
    steps = [fits.step(f"config.{number}", one) for number, one in enumerate(example.config)]
    evaluator = example.evaluator
    if evaluator.func == INFEASIBLE_METRIC:
        return OsworldTask(steps=steps, seconds=seconds)
    after = [fits.step(f"evaluator.postconfig.{number}", one) for number, one in enumerate(evaluator.postconfig)]
    metrics = [fits.metric(*one) for one in evaluator.metrics]
    return OsworldTask(
        steps=steps, after=after, metrics=metrics, conj=evaluator.conj, gold=fits.gold, seconds=seconds
    )  # fmt: skip


class _ExampleConverter:
    """One task's parts. gold: files to compare with, as they are met."""

    def __init__(self, copies: DownloadCopies, screen: bool) -> None:
        self._copies, self._screen = copies, screen
        self.gold: dict[str, str] = {}

    # -- set-up -------------------------------------------------------------------------------------------------------
    def step(self, field: str, step: OsworldStep) -> dict[str, Any]:
        carried: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "download": self._download, "upload_file": self._upload, "execute": self._execute,
            "command": self._execute, "launch": self._launch, "open": self._open, "sleep": self._sleep,
            "activate_window": self._window, "close_window": self._window,
        }  # fmt: skip
        if step.type not in carried:
            raise UnsupportedTask(NEEDS_STEP, step.type)
        try:
            return {"type": step.type, "parameters": carried[step.type](step.parameters)}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise MalformedTask(f"{field}.parameters", f"{type(error).__name__} {error}") from None

    def _download(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"files": [self._put(file["path"], file["url"], _file_name(file["path"])) for file in said["files"]]}

    def _upload(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "files": [self._put(file["path"], file["local_path"], _file_name(file["path"])) for file in said["files"]]
        }

    def _put(self, path: str, url: str, name: str) -> dict[str, str]:
        place = PurePosixPath(path)
        if ".." in place.parts or (
            place.is_absolute() and not any(place.is_relative_to(one) for one in _WRITABLE_FOLDERS)
        ):
            raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)
        return {"path": path, "content": self._copies.of(url, name)}

    def _execute(self, said: Mapping[str, Any]) -> dict[str, Any]:
        command, shell = _read_command(said)
        check_command(command, shell, self._screen)
        return {"command": command, "shell": shell, "until": dict(said.get("until") or {})}

    def _launch(self, said: Mapping[str, Any]) -> dict[str, Any]:
        command, shell = _read_command(said)
        check_command(command, shell, self._screen)
        self._needs_screen(f"launches {command}")
        return {"command": command, "shell": shell}

    def _open(self, said: Mapping[str, Any]) -> dict[str, Any]:
        check_command(["xdg-open"], False, self._screen)
        self._needs_screen(f"opens {said['path']}")
        return {"path": said["path"]}

    def _sleep(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"seconds": float(said["seconds"])}

    def _window(self, said: Mapping[str, Any]) -> dict[str, Any]:
        self._needs_screen(f"the window {said['window_name']}")
        chosen = {name: bool(said.get(name)) for name in ("strict", "by_class")}
        return {"window_name": said["window_name"], **chosen}

    def _needs_screen(self, what: str) -> None:
        if not self._screen:
            raise UnsupportedTask(NEEDS_SCREEN, what)

    # -- what judges --------------------------------------------------------------------------------------------------
    def metric(
        self, func: str, result: OsworldGetter, expected: OsworldGetter, options: dict[str, Any]
    ) -> OsworldMetric:
        found, wanted = self._got("evaluator.result", result), self._got("evaluator.expected", expected)
        if func not in METRICS:
            raise UnsupportedTask(NEEDS_METRIC, func)
        known = METRICS[func]
        if known.package and importlib.util.find_spec(known.package) is None:
            raise UnsupportedTask(NEEDS_PROGRAM, f"the Python package {known.package}, for {func}")
        rules = wanted.get("value")
        if known.expected == EXPECTS_RULES and (rules is None or (known.keys and not isinstance(rules, dict))):
            raise MalformedTask("evaluator.expected", f"{func} wants rules")
        if (
            known.expected in (EXPECTS_FILE, EXPECTS_FILE_OR_NOTHING)
            and "value" in wanted
            and (rules is not None or known.expected == EXPECTS_FILE)
        ):
            raise MalformedTask("evaluator.expected", f"{func} wants a file")
        if lacking := [key for key in known.keys if key not in rules]:
            raise MalformedTask("evaluator.expected.rules", f"{func} wants {', '.join(lacking)}")
        if why := known.unable(rules or {}, options):
            raise UnsupportedTask(NEEDS_METRIC, f"{func} with {why}")
        return OsworldMetric(func=func, result=found, expected=wanted, options=options)

    def _got(self, field: str, said: OsworldGetter) -> dict[str, Any]:
        getters: dict[str, Callable[[OsworldGetter], dict[str, Any]]] = {
            "rule": lambda said: {"value": said["rules"]},
            "vm_command_line": lambda said: self._printed(said, "output"),
            "vm_command_error": lambda said: self._printed(said, "error"),
            "vm_file": self._vm_file, "cloud_file": self._cloud_file,
            "list_directory": lambda said: {"tree": _path_from_home(said["path"])},
        }  # fmt: skip
        if not said:
            return {"value": None}
        if said.get("type") not in getters:
            raise UnsupportedTask(NEEDS_GETTER, str(said.get("type")))
        try:
            return getters[said["type"]](said)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise MalformedTask(field, f"{type(error).__name__} {error}") from None

    def _printed(self, said: OsworldGetter, stream: str) -> dict[str, Any]:
        command, shell = _read_command(said)
        check_command(command, shell, self._screen)
        return {"command": command, "shell": shell, "stream": stream}

    def _vm_file(self, said: OsworldGetter) -> dict[str, Any]:
        paths = [_path_from_home(one) for one in _chosen_values(said, "path")]
        return {"file": paths[0]} if len(paths) == 1 else {"files": paths}

    def _cloud_file(self, said: OsworldGetter) -> dict[str, Any]:
        names = []
        for url, dest in zip(_chosen_values(said, "path"), _chosen_values(said, "dest"), strict=True):
            name = f"{len(self.gold)}-{_file_name(dest)}"
            self.gold[name] = self._copies.of(url, _file_name(dest))
            names.append(name)
        return {"gold": names[0]} if len(names) == 1 else {"golds": names}


def _read_command(said: Mapping[str, Any]) -> tuple[OsworldCommand, bool]:
    command = said["command"]
    if not command or not (isinstance(command, str) or all(isinstance(word, str) for word in command)):
        raise ValueError("command is not a text or a list of words")
    return command, bool(said.get("shell"))


def _chosen_values(said: OsworldGetter, field: str) -> list[str]:
    """The path, or of several those that the metric is given."""
    if not said.get("multi"):
        return [said[field]]
    return [said[field][number] for number in sorted(set(said.get("gives", [0])))]


def _path_from_home(path: str) -> str:
    """Return a path relative to the home. Raises UnsupportedTask for one elsewhere: only the home is read from
    outside."""
    place = PurePosixPath(MACHINE_HOME, path[2:] if path.startswith("~/") else path)
    if ".." in place.parts or not place.is_relative_to(MACHINE_HOME):
        raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)
    return str(place.relative_to(MACHINE_HOME))


def _file_name(path: str) -> str:
    return PurePosixPath(path).name
