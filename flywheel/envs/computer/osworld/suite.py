"""Load task suites from OSWorld's task files, which a manifest names (docs/computer.md#tasks-of-osworld).

Tasks that cannot be played here are left out, and reported by name.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import logging
import re
import shlex
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from flywheel.envs.base import TaskSuite, TaskTemplate
from flywheel.envs.computer.bwrap import MACHINE_HOME, PROGRAM_PATH, list_written_folders
from flywheel.envs.computer.osworld.judge import EXPECTS_FILE, EXPECTS_RULES, METRICS
from flywheel.envs.computer.task_spec import OsworldMetric, OsworldTask
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

log = logging.getLogger(__name__)
OSWORLD_VERIFIER = "osworld"
_LEVEL = 1  # of every task


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
NEEDS_WHOLE_FILE = "a whole task file"


class MalformedTask(Exception):
    """Signal that a task file is wrong; the message names the field and its fault."""


class UnsupportedTask(Exception):
    """Signal that a task needs something that is missing here. reason: one of the texts above. detail: what it is."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason, self.detail = reason, " ".join(detail.split())[:120]
        super().__init__(f"{self.reason}: {self.detail}")


MAX_TASK_FILES_BYTES = 2**23  # bytes that one task's files may have


class DownloadCopies:
    """Find copies of the files that a task downloads, since no machine has the internet.

    folder: has a subfolder for each task's id, as OSWorld's `cache`; files of several tasks may lie in it directly.
    None: there are no copies. task: its id.
    """

    def __init__(self, folder: Path | None, task: str) -> None:
        self._places = [] if folder is None else [folder / task, folder]
        self._left = MAX_TASK_FILES_BYTES

    def find_copy(self, url: str, name: str) -> str:
        """Return the copy of a file as base64.

        url: of a download, or the path of an upload. name: the file's name in the machine. Raises UnsupportedTask where
        there is no copy, or the task's files are too large.
        """
        kept = f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name}"  # as in OSWorld's cache
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


OsworldGetter = dict[str, Any]


class OsworldStep(BaseModel):
    """Declare a step of set-up. parameters: as its type needs them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    type: str
    parameters: dict[str, Any] = {}


class OsworldEvaluator(BaseModel):
    """Declare an evaluator. func: one metric, or a list; the other fields then have an entry for each metric."""

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
        """Return each metric's name, result, expected value and options; {} for what is not given."""
        if isinstance(self.func, str):
            return [(self.func, self.result, self.expected, self.options)]
        parts = [said or [{}] * len(self.func) for said in (self.result, self.expected, self.options)]
        return [(func, *(one or {} for one in rest)) for func, *rest in zip(self.func, *parts, strict=True)]


class OsworldExample(BaseModel):
    """Declare a task, as OSWorld's file of it does; other fields of the file are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    instruction: str = Field(min_length=1)
    config: list[OsworldStep] = []
    evaluator: OsworldEvaluator
    proxy: bool = False
    related_apps: list[str] = []


def read_example(path: Path) -> OsworldExample:
    """Read a task file. Raises MalformedTask that names the field."""
    try:
        return OsworldExample.model_validate(parse_foreign_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        why = describe_first_fault(error) if isinstance(error, ValidationError) else f"no task of OSWorld: {error}"
        raise MalformedTask(why) from None


OsworldCommand = str | list[str]
_PROGRAMS = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text(encoding="utf-8"))
_ROOT_PROGRAMS, _SYSTEM_PROGRAMS, _SHELL_BUILTINS, _PREFIX_WORDS, _WRITERS, _COPIERS = (
    frozenset(_PROGRAMS[name].split()) for name in ("root", "system", "builtins", "prefixes", "writers", "copiers")
)
_SHELLS, _FINDERS = ("sh", "bash", "dash", "zsh"), ("which", "command", "type", "whereis")
_SHELL_SIGNS = "();<>|&\n"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_ARITHMETIC = re.compile(r"\$\(\((?:[^()]|\([^()]*\))*\)\)")
_REMOTE_ADDRESS = re.compile(r"(https?|ftp)://(?!localhost|127\.|0\.0\.0\.0)")
_QUOTED_PROGRAM = re.compile(r"""["'](?:/[\w/]*/)?(\w[\w-]*)""")  # a program's name in code of another language
_WRITABLE_FOLDERS = (MACHINE_HOME, *list_written_folders())  # that can be written in a machine


def check_command(command: OsworldCommand, shell: bool, screen: bool, judges: bool = False) -> None:
    """Check that a machine has what a command, and each command that it starts, needs. Raises UnsupportedTask.

    shell: a shell interprets it. screen: the machine has one. judges: its output judges the task.
    """
    text = command if isinstance(command, str) else shlex.join(command)
    for words in _list_commands(text if shell or isinstance(command, str) else command, shell):
        _check_program(words[0])
        _check_arguments(words, judges)
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


def _check_arguments(words: list[str], judges: bool) -> None:
    """Check a command's paths: it can write those that it writes, and an agent can change those that it judges by.

    Programs that a judging command looks for must be installed, since an agent cannot install them.
    """
    name, given = PurePosixPath(words[0]).name, [word for word in words[1:] if not word.startswith("-")]
    if judges and name in _FINDERS:
        for program in given:
            _check_program(program)
    known = (*_WRITABLE_FOLDERS, "/dev", "/proc")
    paths = given if judges or name in _WRITERS else given[-1:] if name in _COPIERS else []
    for path in paths:
        if path.startswith("/") and not any(PurePosixPath(path).is_relative_to(one) for one in known):
            raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)


def _list_commands(command: OsworldCommand, shell: bool) -> Iterator[list[str]]:
    """Yield the words of each command that `command` runs, those in substitutions and behind wrappers included.

    shell: a shell interprets it. A redirection to a file (`> FILE`) is yielded as `tee FILE`.
    """
    if not shell:
        words = shlex.split(command) if isinstance(command, str) else list(command)
        if words[0] == "python":  # OSWorld's server runs its own Python
            words[0] = "python3"
        yield from _unwrap_command(words)
        return
    command = _ARITHMETIC.sub("0", command)
    for inner in _list_substitutions(command):
        yield from _list_commands(inner, True)
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_SHELL_SIGNS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    try:
        words = list(lexer)
    except ValueError:  # quotes that shlex cannot parse: not checked
        return
    simple: list[str] = []
    sign = ""  # of a redirection, whose file is the next word
    for word in (*words, ";"):
        if word and set(word) <= set(_SHELL_SIGNS):
            sign = word if {"<", ">"} & set(word) else ""
            if sign and simple and simple[-1].isdigit():
                simple.pop()  # a descriptor's number
            if not sign:
                yield from _unwrap_command(simple)
                simple = []
        elif sign:
            if ">" in sign and word not in ("-", "1", "2"):
                yield ["tee", word]
            sign = ""
        else:
            simple.append(word)


def _list_substitutions(text: str) -> Iterator[str]:
    """Yield the texts in `$( )` and backquotes (the outermost of nested ones), but not those in single quotes."""
    place, quoted = 0, False
    while place < len(text):
        letter = text[place]
        end = -1
        if letter == "\\":
            place += 2
            continue
        if letter == '"':
            quoted = not quoted
        elif letter == "'" and not quoted:
            end = text.find("'", place + 1)
            place = len(text) if end < 0 else end + 1
            continue
        elif letter == "`":
            end = text.find("`", place + 1)
        elif text.startswith("$(", place):
            place += 1
            depth = 0
            for end in range(place, len(text)):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                if not depth:
                    break
        if end > place:
            yield text[place + 1 : end]
            place = end
        place += 1


def _unwrap_command(words: list[str]) -> Iterator[list[str]]:
    """Yield a command's words, then those of each command that it starts."""
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _PREFIX_WORDS):
        words = words[1:]
    if not words or words[0].startswith(("$", "~", "`", "-")):
        return
    yield words
    name, rest = PurePosixPath(words[0]).name, words[1:]
    if name in _PROGRAMS["wrappers"]:
        operands, *valued = str(_PROGRAMS["wrappers"][name]).split()
        while rest and (rest[0].startswith("-") or _ASSIGNMENT.match(rest[0])):
            rest = rest[2 if rest[0] in valued else 1 :]
        yield from _unwrap_command(rest[int(operands) :])
    elif name in _SHELLS:
        at = next((at for at, word in enumerate(rest) if re.fullmatch(r"-\w*c", word)), len(rest))
        for text in rest[at + 1 : at + 2]:
            yield from _list_commands(text, True)
    elif name == "eval":
        yield from _list_commands(" ".join(rest), True)
    elif name == "find":
        for at, word in enumerate(rest):
            if word in ("-exec", "-execdir"):
                yield from _unwrap_command(rest[at + 1 :])
    elif {"-c", "-e"} & set(rest):  # code of another language may start system programs too
        for program in _QUOTED_PROGRAM.findall(" ".join(rest)):
            if program in _SYSTEM_PROGRAMS - {"service"}:
                yield [program]


INFEASIBLE_METRIC = "infeasible"  # the metric of tasks that cannot be done


def convert_example(example: OsworldExample, copies: DownloadCopies, screen: bool, seconds: float) -> OsworldTask:
    """Convert a task file to a task that can be played here.

    copies: of the files that it downloads. screen: the machine has one. seconds: for set-up and judging
    (`OsworldTask`). Raises UnsupportedTask where a machine lacks what it needs, MalformedTask where the file is wrong.
    """
    if example.proxy:
        raise UnsupportedTask(NEEDS_INTERNET, "it asks for a proxy")
    for name in example.related_apps:
        for begins, program in _PROGRAMS["applications"].items():
            if name.lower().startswith(begins):
                _check_program(program)
    fits = _ExampleConverter(copies, screen)
    steps = [fits.step(f"config.{number}", one) for number, one in enumerate(example.config)]
    evaluator = example.evaluator
    if evaluator.func == INFEASIBLE_METRIC:
        return OsworldTask(steps=steps, seconds=seconds)
    after = [fits.step(f"evaluator.postconfig.{number}", one) for number, one in enumerate(evaluator.postconfig)]
    metrics = [fits.metric(*one) for one in evaluator.metrics]
    return OsworldTask(steps=steps, after=after, metrics=metrics, conj=evaluator.conj, gold=fits.gold, seconds=seconds)


class _ExampleConverter:
    def __init__(self, copies: DownloadCopies, screen: bool) -> None:
        self._copies, self._screen = copies, screen
        self.gold: dict[str, str] = {}  # files to compare with, base64 by name, as found so far

    def step(self, field: str, step: OsworldStep) -> dict[str, Any]:
        carried: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "download": lambda said: self._upload(said, "url"),
            "upload_file": lambda said: self._upload(said, "local_path"),
            "execute": self._execute, "command": self._execute, "launch": self._launch, "open": self._open,
            "sleep": lambda said: {"seconds": float(said["seconds"])},
            "activate_window": self._window, "close_window": self._window,
        }  # fmt: skip
        if step.type not in carried:
            raise UnsupportedTask(NEEDS_STEP, step.type)
        try:
            return {"type": step.type, "parameters": carried[step.type](step.parameters)}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise MalformedTask(f"{field}.parameters: {type(error).__name__} {error}") from None

    def _upload(self, said: Mapping[str, Any], source: str) -> dict[str, Any]:
        return {"files": [self._put(file["path"], file[source]) for file in said["files"]]}

    def _put(self, path: str, url: str) -> dict[str, str]:
        place = PurePosixPath(path)
        if ".." in place.parts or (
            place.is_absolute() and not any(place.is_relative_to(one) for one in _WRITABLE_FOLDERS)
        ):
            raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)
        return {"path": path, "content": self._copies.find_copy(url, place.name)}

    def _command(self, said: Mapping[str, Any], judges: bool = False) -> dict[str, Any]:
        command, shell = said["command"], bool(said.get("shell"))
        if not command or not (isinstance(command, str) or all(isinstance(word, str) for word in command)):
            raise ValueError("command is not a text or a list of words")
        check_command(command, shell, self._screen, judges)
        return {"command": command, "shell": shell}

    def _execute(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._command(said), "until": dict(said.get("until") or {})}

    def _launch(self, said: Mapping[str, Any]) -> dict[str, Any]:
        asked = self._command(said)
        self._needs_screen(f"launches {asked['command']}")
        return asked

    def _open(self, said: Mapping[str, Any]) -> dict[str, Any]:
        check_command(["xdg-open"], False, self._screen)
        self._needs_screen(f"opens {said['path']}")
        return {"path": said["path"]}

    def _window(self, said: Mapping[str, Any]) -> dict[str, Any]:
        self._needs_screen(f"the window {said['window_name']}")
        chosen = {name: bool(said.get(name)) for name in ("strict", "by_class")}
        return {"window_name": said["window_name"], **chosen}

    def _needs_screen(self, what: str) -> None:
        if not self._screen:
            raise UnsupportedTask(NEEDS_SCREEN, what)

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
            raise MalformedTask(f"evaluator.expected: {func} wants rules")
        lacks_file = rules is not None or known.expected == EXPECTS_FILE
        if known.expected != EXPECTS_RULES and "value" in wanted and lacks_file:
            raise MalformedTask(f"evaluator.expected: {func} wants a file")
        if lacking := [key for key in known.keys if key not in rules]:
            raise MalformedTask(f"evaluator.expected.rules: {func} wants {', '.join(lacking)}")
        try:
            why = known.unable(rules or {}, options)
        except (TypeError, AttributeError) as error:
            raise MalformedTask(f"evaluator: {func}: {type(error).__name__} {error}") from None
        if why:
            raise UnsupportedTask(NEEDS_METRIC, f"{func} with {why}")
        return OsworldMetric(func=func, result=found, expected=wanted, options=options)

    def _got(self, field: str, said: OsworldGetter) -> dict[str, Any]:
        getters: dict[str, Callable[[OsworldGetter], dict[str, Any]]] = {
            "rule": lambda said: {"value": said["rules"]},
            "vm_command_line": lambda said: {**self._command(said, True), "stream": "output"},
            "vm_command_error": lambda said: {**self._command(said, True), "stream": "error"},
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
            raise MalformedTask(f"{field}: {type(error).__name__} {error}") from None

    def _vm_file(self, said: OsworldGetter) -> dict[str, Any]:
        paths = [_path_from_home(one) for one in _chosen_values(said, "path")]
        return {"file": paths[0]} if len(paths) == 1 else {"files": paths}

    def _cloud_file(self, said: OsworldGetter) -> dict[str, Any]:
        names = []
        for url, dest in zip(_chosen_values(said, "path"), _chosen_values(said, "dest"), strict=True):
            file = PurePosixPath(dest).name
            name = f"{len(self.gold)}-{file}"
            self.gold[name] = self._copies.find_copy(url, file)
            names.append(name)
        return {"gold": names[0]} if len(names) == 1 else {"golds": names}


def _chosen_values(said: OsworldGetter, field: str) -> list[str]:
    if not said.get("multi"):
        return [said[field]]
    return [said[field][number] for number in sorted(set(said.get("gives", [0])))]


def _path_from_home(path: str) -> str:
    """Return a path relative to the home. Raises UnsupportedTask for one outside, which the host cannot read."""
    place = PurePosixPath(MACHINE_HOME, path[2:] if path.startswith("~/") else path)
    if ".." in place.parts or not place.is_relative_to(MACHINE_HOME):
        raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)
    return str(place.relative_to(MACHINE_HOME))


class OsworldFiles(BaseModel):
    """Declare the block `osworld` of a manifest.

    tasks: task files, folders, and lists of ids (`list_task_files`). files: folder with copies of the files that tasks
    download (`DownloadCopies`); "": none. max_steps: step budget of each task. seconds: for a task's set-up, and again
    for its judging. allowed: interface: screen (gui), functions (sdk) or both. leave_out: tasks to leave out: name of
    the file without .json -> reason.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    tasks: list[str] = Field(min_length=1)
    files: str = ""
    max_steps: int = Field(15, ge=1)
    seconds: float = Field(15.0, gt=0, le=3600)
    allowed: Literal["gui", "sdk", "both"] = "both"
    leave_out: dict[str, str] = {}


class OsworldSuite(TaskSuite):
    """Hold a suite in which each template is one OSWorld task.

    environment: terminal or computer. tasks: params by template. left_out: template -> why it cannot be played here.
    reasons: reason -> number of tasks left out. judging_s: seconds that judging a task may take.
    """

    once: ClassVar[bool] = True
    environment: str
    tasks: dict[str, dict[str, Any]]
    left_out: dict[str, str]
    reasons: dict[str, int]
    judging_s: float

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Return the params of the task `template`. seed: ignored. Raises BadInput for another template or level."""
        self.budget(template, level)
        return self.tasks[template]

    @property
    def told(self) -> str:
        """Return a line that counts the tasks that are played, and those left out by reason."""
        why = ", ".join(f"{count} need {reason}" for reason, count in self.reasons.items())
        return f"{len(self.tasks)} of {len(self.tasks) + len(self.left_out)} tasks are played" + (why and f"; {why}")


def load_osworld_suite(manifest: Path, name: str, domain: str, said: OsworldFiles, kind: str) -> OsworldSuite:
    """Load the OSWorld task files that a manifest names as a suite.

    manifest: its file. name, domain: of the suite. said: its block `osworld`. kind: terminal or computer. Raises
    BadInput where a path is missing, two files give one template, or no task can be played.
    """
    folder = _path_beside(manifest, said.files) if said.files else None
    paths = [path for entry in said.tasks for path in list_task_files(_path_beside(manifest, entry))]
    tasks, left_out, reasons = read_task_files(paths, folder, kind == "computer", said)
    for template, why in left_out.items():
        log.info("world %s: %s is left out: it needs %s", name, template, why)
    if not tasks:
        first = next(iter(left_out.items()), ("", "no file ends in .json"))
        raise BadInput("no task can be played here", where=manifest, fix=f"the first: {first[0]}: {first[1]}")
    spec = TaskTemplate(instruction="{instruction}", verifier=OSWORLD_VERIFIER, max_steps={_LEVEL: said.max_steps})
    return OsworldSuite(
        environment=kind,
        name=name,
        domain=domain,
        tasks=tasks,
        left_out=left_out,
        reasons=reasons,
        judging_s=said.seconds,
        checksum=hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest(),
        templates=dict.fromkeys(tasks, spec),
    )


def read_task_files(
    paths: list[Path], copies: Path | None, screen: bool, said: OsworldFiles
) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, int]]:
    """Read OSWorld task files; returns params by template, reasons of those left out by template, and counts by reason.

    A template is named `<name of the file's folder>_<stem of the file>`; counts are by `UnsupportedTask.reason`, the
    largest first. paths: the files; a repeated one is read once. copies: folder with what they download, or None.
    screen: the machine has one. said: the manifest's block `osworld`. A file that is unreadable or wrong is left out
    like a task that cannot be played. Raises BadInput where two files give one template.
    """
    tasks: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    for path in dict.fromkeys(path.absolute() for path in paths):
        template = f"{path.parent.name}_{path.stem}"
        if template in tasks or template in left_out:
            raise BadInput(f"two tasks are called {template}", where=path, fix="rename one's file")
        try:
            if path.stem in said.leave_out:
                raise UnsupportedTask(LEFT_OUT_BY_MANIFEST, said.leave_out[path.stem])
            example = read_example(path)
            task = convert_example(example, DownloadCopies(copies, example.id), screen, said.seconds)
        except Exception as fault:  # any fault is this file's, and must not stop the others
            said_why = str(fault) if isinstance(fault, MalformedTask) else f"{type(fault).__name__} {fault}"
            unfit = fault if isinstance(fault, UnsupportedTask) else UnsupportedTask(NEEDS_WHOLE_FILE, said_why)
            left_out[template] = str(unfit)
            reasons[unfit.reason] += 1
        else:
            given = {"instruction": example.instruction, "allowed": said.allowed}
            tasks[template] = {**given, "osworld": task.model_dump()}
    return tasks, left_out, dict(reasons.most_common())


def list_task_files(path: Path) -> list[Path]:
    """List the task files that a path stands for.

    path: a folder (all JSON files below it, sorted, except lists of ids); a list of ids by folder, such as OSWorld's
    `test_all.json`, whose tasks lie in the folder `examples` beside it, or else beside it; or a task file, which need
    not exist.
    """
    if path.is_dir():
        return [one for one in sorted(path.rglob("*.json")) if not _read_id_list(one)]
    if not (ids := _read_id_list(path)):
        return [path]
    root = path.parent / "examples" if (path.parent / "examples").is_dir() else path.parent
    return [root / domain / f"{name}.json" for domain, names in ids.items() for name in names]


def _read_id_list(path: Path) -> dict[str, list[str]] | None:
    """Read a list of task ids by folder; None where the file is anything else."""
    with suppress(OSError, ValueError, ValidationError):
        return _LIST.validate_json(path.read_bytes())
    return None


_ID = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
_LIST = TypeAdapter(Annotated[dict[_ID, list[_ID]], Field(min_length=1)])


def score_osworld_state(_: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the score of the verdict in `state`, which the end of an episode adds; 0 before."""
    return state["checked"]["score"] if "checked" in state else 0.0


def _path_beside(manifest: Path, name: str) -> Path:
    path = manifest.parent / name
    if not path.exists():
        raise BadInput(f"there is no {name} beside the manifest", where=manifest, fix="it is relative to the manifest")
    return path
