"""Convert OSWorld's task files to tasks that can be played here: set-up steps, getters and metrics."""

from __future__ import annotations

import base64
import importlib.util
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.envs.computer.bwrap import MACHINE_HOME
from flywheel.envs.computer.osworld import official
from flywheel.envs.computer.osworld.applications import stand_in_path
from flywheel.envs.computer.osworld.commands import (
    NEEDS_ACCOUNT,
    NEEDS_GETTER,
    NEEDS_INTERNET,
    NEEDS_INTERNET_FILE,
    NEEDS_LARGE_FILES,
    NEEDS_METRIC,
    NEEDS_PLACE_OUTSIDE_HOME,
    NEEDS_SCREEN,
    NEEDS_STEP,
    PROGRAMS,
    REMOTE_ADDRESS,
    RUNS_AGENTS_CODE,
    STAND_INS,
    WRITABLE_FOLDERS,
    MalformedTask,
    UnsupportedTask,
    check_command,
    check_program,
)
from flywheel.envs.computer.osworld.inputs import CHROME_GETTERS
from flywheel.envs.computer.osworld.judge import EXPECTS_FILE, EXPECTS_RULES, METRICS
from flywheel.envs.computer.task_spec import OsworldMetric, OsworldTask
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

MetricsChoice = Literal["own", "official"]
DEFAULT_FILES_MB = 8  # MiB that one task's files may have


class DownloadCopies:
    """Find local copies of the files that a task downloads, since no machine has the internet.

    folder: has a subfolder for each task's id, as OSWorld's `cache`; files of several tasks may lie in it directly.
    None: there are no copies. task: its id. most_mb: MiB that the task's files may have.
    """

    def __init__(self, folder: Path | None, task: str, most_mb: int = DEFAULT_FILES_MB) -> None:
        self._places = [] if folder is None else [folder / task, folder]
        self._most_mb = most_mb
        self._left = most_mb * 2**20

    def find_copy(self, url: str, name: str) -> str:
        """Return the copy of a file that a task downloads, as base64.

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
                NEEDS_LARGE_FILES, f"{path.name}, and {self._most_mb} MiB is all that a task's files may have"
            )
        return base64.b64encode(path.read_bytes()).decode()


class AssumedCopies(DownloadCopies):
    """Stand for copies of all files that a task downloads, so that a conversion tells what else the task needs."""

    def __init__(self) -> None:
        super().__init__(None, "")

    def find_copy(self, url: str, name: str) -> str:
        """Return an empty file."""
        return ""


OsworldGetter = dict[str, Any]


class OsworldStep(BaseModel):
    """Hold a set-up step of OSWorld's task file. parameters: as its type needs them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    type: str
    parameters: dict[str, Any] = {}


class OsworldEvaluator(BaseModel):
    """Hold the evaluator of OSWorld's task file. func: one metric, or a list; other fields then have an entry for each.

    postconfig: steps that are run before the judging.
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
        """Return each metric's name, result, expected value and options; {} for what is not given."""
        if isinstance(self.func, str):
            return [(self.func, self.result, self.expected, self.options)]
        parts = [said or [{}] * len(self.func) for said in (self.result, self.expected, self.options)]
        return [(func, *(one or {} for one in rest)) for func, *rest in zip(self.func, *parts, strict=True)]


class OsworldExample(BaseModel):
    """Hold the fields of OSWorld's task file that are read here; its other fields are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    instruction: str = Field(min_length=1)
    config: list[OsworldStep] = []
    evaluator: OsworldEvaluator
    proxy: bool = False
    related_apps: list[str] = []


def read_example(path: Path) -> OsworldExample:
    """Read OSWorld's task file at `path`. Raises MalformedTask that names the wrong field."""
    try:
        return OsworldExample.model_validate(parse_foreign_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        why = describe_first_fault(error) if isinstance(error, ValidationError) else f"no task of OSWorld: {error}"
        raise MalformedTask(why) from None


INFEASIBLE_METRIC = "infeasible"  # the metric of tasks that cannot be done


def convert_example(
    example: OsworldExample, copies: DownloadCopies, screen: bool, seconds: float, metrics: MetricsChoice = "own"
) -> OsworldTask:
    """Convert OSWorld's task file to a task that can be played here.

    copies: of the files that it downloads. screen: whether the machine has one. seconds: for set-up and judging
    (`OsworldTask`). metrics: own: those of `judge.METRICS`, the others by desktop-env's function; official: all by
    desktop-env's. Raises UnsupportedTask where a machine lacks what it needs, MalformedTask where the file is wrong,
    BadInput where `metrics` is official and desktop-env is not installed.
    """
    if metrics == "official" and official.find_environment() is None:
        raise BadInput("desktop-env is not installed", where="osworld.metrics: official", fix="make osworld")
    if example.proxy:
        raise UnsupportedTask(NEEDS_INTERNET, "it asks for a proxy")
    _check_applications(example)
    fits = _ExampleConverter(copies, screen, metrics)
    steps = [fits.step(f"config.{number}", one) for number, one in enumerate(example.config)]
    evaluator = example.evaluator
    if evaluator.func == INFEASIBLE_METRIC:
        return OsworldTask(steps=steps, seconds=seconds)
    after = [fits.step(f"evaluator.postconfig.{number}", one) for number, one in enumerate(evaluator.postconfig)]
    judged = [fits.metric(*one) for one in evaluator.metrics]
    return OsworldTask(steps=steps, after=after, metrics=judged, conj=evaluator.conj, gold=fits.gold, seconds=seconds)


def _check_applications(example: OsworldExample) -> None:
    """Check that the applications that a task names are here. Raises UnsupportedTask.

    A browser that is named beside other applications is there for the web, and so is an address in the instruction.
    """
    used = {name.lower() for name in example.related_apps}
    for name in used:
        for begins, program in PROGRAMS["applications"].items():
            if name.startswith(begins) and name not in PROGRAMS["optional"]:
                check_program(program)
    if len(used) > 1 and used & {"chrome", "browser"} and example.evaluator.func != INFEASIBLE_METRIC:
        raise UnsupportedTask(NEEDS_INTERNET, "the browser beside other applications")
    if found := REMOTE_ADDRESS.search(example.instruction):
        raise UnsupportedTask(NEEDS_INTERNET, example.instruction[found.start() :].split()[0])


class _ExampleConverter:
    def __init__(self, copies: DownloadCopies, screen: bool, metrics: MetricsChoice) -> None:
        self._copies, self._screen, self._metrics = copies, screen, metrics
        self.gold: dict[str, str] = {}  # files to compare with, base64 by name, as found so far

    def step(self, field: str, step: OsworldStep) -> dict[str, Any]:
        carried: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "download": lambda said: self._upload(said, "url"),
            "upload_file": lambda said: self._upload(said, "local_path"),
            "execute": self._execute, "command": self._execute, "launch": self._launch, "open": self._open,
            "sleep": lambda said: {"seconds": float(said["seconds"])},
            "activate_window": self._window, "close_window": self._window,
            "chrome_open_tabs": self._tabs, "googledrive": self._account, "login": self._account,
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
            place.is_absolute() and not any(place.is_relative_to(one) for one in WRITABLE_FOLDERS)
        ):
            raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)
        return {"path": path, "content": self._copies.find_copy(url, place.name)}

    def _command(self, said: Mapping[str, Any], judges: bool = False) -> dict[str, Any]:
        command, shell = said["command"], bool(said.get("shell"))
        if not command or not (isinstance(command, str) or all(isinstance(word, str) for word in command)):
            raise ValueError("command is not a text or a list of words")
        check_command(command, shell, self._screen, judges)
        if isinstance(command, list) and (name := PurePosixPath(command[0]).name) in STAND_INS:
            command = [stand_in_path(name), *command[1:]]
        return {"command": command, "shell": shell}

    def _execute(self, said: Mapping[str, Any]) -> dict[str, Any]:
        streams = {name: _plain_name(said[name]) for name in ("stdout", "stderr") if said.get(name)}
        return {**self._command(said), "until": dict(said.get("until") or {}), **streams}

    def _launch(self, said: Mapping[str, Any]) -> dict[str, Any]:
        asked = self._command(said)
        self._needs_screen(f"launches {asked['command']}")
        words = [asked["command"]] if isinstance(asked["command"], str) else asked["command"]
        name = PurePosixPath(words[0].split()[0]).name
        return {**asked, "shows_window": name in PROGRAMS["windows"].split()}

    def _open(self, said: Mapping[str, Any]) -> dict[str, Any]:
        check_command(["xdg-open"], False, self._screen)
        self._needs_screen(f"opens {said['path']}")
        return {"path": said["path"]}

    def _window(self, said: Mapping[str, Any]) -> dict[str, Any]:
        self._needs_screen(f"the window {said['window_name']}")
        chosen = {name: bool(said.get(name)) for name in ("strict", "by_class")}
        return {"window_name": said["window_name"], **chosen}

    def _tabs(self, said: Mapping[str, Any]) -> dict[str, Any]:
        first = said["urls_to_open"][0]
        raise UnsupportedTask(NEEDS_INTERNET, f"tabs of {first}")

    def _account(self, _: Mapping[str, Any]) -> dict[str, Any]:
        raise UnsupportedTask(NEEDS_ACCOUNT, "it signs in")

    def _needs_screen(self, what: str) -> None:
        if not self._screen:
            raise UnsupportedTask(NEEDS_SCREEN, what)

    # -- metrics ------------------------------------------------------------------------------------------------------
    def metric(
        self, func: str, result: OsworldGetter, expected: OsworldGetter, options: dict[str, Any]
    ) -> OsworldMetric:
        found, wanted = self._got("evaluator.result", result), self._got("evaluator.expected", expected)
        why = self._refused_by_own(func, wanted, options)
        if self._metrics == "own" and not why:
            return OsworldMetric(func=func, result=found, expected=wanted, options=options)
        if func in official.RUN_AGENTS_CODE:
            raise UnsupportedTask(RUNS_AGENTS_CODE, func)
        if func in official.NEED_WEIGHTS:
            raise UnsupportedTask(NEEDS_METRIC, f"{func}: it needs the weights of a model")
        if official.find_environment() is None:
            raise UnsupportedTask(NEEDS_METRIC, f"{why or func} (desktop-env has it: make osworld)")
        if (module := official.list_functions().get(func)) is None:
            raise UnsupportedTask(NEEDS_METRIC, why or func)
        return OsworldMetric(func=func, module=module, result=found, expected=wanted, options=options)

    def _refused_by_own(self, func: str, wanted: dict[str, Any], options: dict[str, Any]) -> str:
        """Return why flywheel's own metric cannot judge; "" where it can. Raises MalformedTask for wrong rules."""
        if func not in METRICS:
            return func
        known = METRICS[func]
        if known.package and importlib.util.find_spec(known.package) is None:
            return f"{func}, which needs the Python package {known.package}"
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
        return f"{func} with {why}" if why else ""

    # -- getters ------------------------------------------------------------------------------------------------------
    def _got(self, field: str, said: OsworldGetter) -> dict[str, Any]:
        getters: dict[str, Callable[[OsworldGetter], dict[str, Any]]] = {
            "rule": lambda said: {"value": said["rules"]},
            "vm_command_line": lambda said: {**self._command(said, True), "stream": "output"},
            "vm_command_error": lambda said: {**self._command(said, True), "stream": "error"},
            "vm_file": self._vm_file, "cloud_file": self._cloud_file,
            "cache_file": lambda said: {"printed": _plain_name(said["path"])},
            "content_from_vm_file": self._file_content,
            "list_directory": lambda said: {"tree": _path_from_home(said["path"])},
            "gimp_config_file": lambda said: _one_file(f".config/GIMP/2.10/{_plain_name(said['file_name'])}", said),
            "vlc_config": lambda said: _one_file(".config/vlc/vlcrc", said),
            "vlc_playing_info": lambda said: {"vlc_status": _plain_name(said["dest"])},
            "audio_in_slide": lambda said: self._slide_part(said, "audio"),
            "background_image_in_slide": lambda said: self._slide_part(said, "background"),
            "vm_screen_size": lambda said: {"screen_size": True},
            "vm_window_size": lambda said: {"window_size": str(said["app_class_name"])},
            "googledrive_file": lambda said: self._account(said),
            **dict.fromkeys(CHROME_GETTERS, lambda said: {"chrome": said["type"]}),
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
        if said.get("time_suffix"):
            raise UnsupportedTask(NEEDS_GETTER, "vm_file with time_suffix")
        if not said.get("multi"):
            return _one_file(_path_from_home(said["path"]), said)
        paths = [_path_from_home(one) for one in said["path"]]
        return _several_files("files", paths, said)

    def _cloud_file(self, said: OsworldGetter) -> dict[str, Any]:
        several = bool(said.get("multi"))
        paths, dests = (said["path"], said["dest"]) if several else ([said["path"]], [said["dest"]])
        names = []
        for url, dest in zip(paths, dests, strict=True):
            file = PurePosixPath(dest).name
            name = f"{len(self.gold)}-{file}"
            self.gold[name] = self._copies.find_copy(url, file)
            names.append(name)
        return _several_files("golds", names, said) if several else {"gold": names[0], "name": _dest(said["dest"])}

    def _file_content(self, said: OsworldGetter) -> dict[str, Any]:
        if (said["file_type"], said["file_content"]) != ("xlsx", "last_row"):
            raise UnsupportedTask(NEEDS_GETTER, f"content_from_vm_file of {said['file_type']}")
        return {"last_row": _path_from_home(said["path"])}

    def _slide_part(self, said: OsworldGetter, kind: str) -> dict[str, Any]:
        found = {"file": _path_from_home(said["ppt_file_path"]), "slide": int(said["slide_index"]), "kind": kind}
        return {"slide_part": {**found, "name": _plain_name(said["dest"])}}


def _one_file(path: str, said: OsworldGetter) -> dict[str, Any]:
    return {"file": path, "name": _dest(said["dest"])}


def _several_files(kind: str, paths: list[str], said: OsworldGetter) -> dict[str, Any]:
    """Return an entry of several files. given: which of them the metric gets; one alone is no list, as in OSWorld."""
    given = sorted(set(said.get("gives", [0])))
    paths[max(given)]  # raises IndexError
    return {kind: paths, "names": [_dest(one) for one in said["dest"]], "given": given}


def _dest(name: str) -> str:
    """Return the name that OSWorld gives a file in its cache, which some metrics look at."""
    return PurePosixPath(name).name or "file"


def _plain_name(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no file name")
    return name


def _path_from_home(path: str) -> str:
    """Return a path relative to the home. Raises UnsupportedTask for one outside, which the host cannot read."""
    place = PurePosixPath(MACHINE_HOME, path[2:] if path.startswith("~/") else path)
    if ".." in place.parts or not place.is_relative_to(MACHINE_HOME):
        raise UnsupportedTask(NEEDS_PLACE_OUTSIDE_HOME, path)
    return str(place.relative_to(MACHINE_HOME))
