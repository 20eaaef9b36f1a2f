"""A task file of OSWorld's into a task that is played here, or why it cannot be."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from flywheel.computer.osworld import commands
from flywheel.computer.osworld.copies import Copies
from flywheel.computer.osworld.form import Example, Getter, Step
from flywheel.computer.osworld.metrics import METRICS
from flywheel.computer.osworld.metrics.metric import EITHER, FILE, RULES
from flywheel.computer.osworld.task import Metric, OsworldTask
from flywheel.computer.osworld.unfit import GETTER, METRIC, ONLINE, PLACE, PROGRAM, SCREEN, STEP, Unfit
from flywheel.computer.walls import HOME

INFEASIBLE = "infeasible"  # the metric of tasks that cannot be done
_WRITTEN = (HOME, "/tmp")  # the places of a machine that can be written


class Malformed(Exception):
    """The task file itself is wrong. field: where. what: in words."""

    def __init__(self, field: str, what: str) -> None:
        self.field, self.what = field, what
        super().__init__(f"{field}: {what}")


def fitted(example: Example, copies: Copies, screen: bool, seconds: float) -> OsworldTask:
    """Raises Unfit where a machine lacks what it needs, Malformed where the file is wrong. screen: whether the machine
    has one."""
    if example.proxy:
        raise Unfit(ONLINE, "it asks for a proxy")
    commands.applications(example.related_apps)
    fits = _Fits(copies, screen)
    steps = [fits.step(f"config.{number}", one) for number, one in enumerate(example.config)]
    evaluator = example.evaluator
    if evaluator.func == INFEASIBLE:
        return OsworldTask(steps=steps, seconds=seconds)
    after = [fits.step(f"evaluator.postconfig.{number}", one) for number, one in enumerate(evaluator.postconfig)]
    metrics = [fits.metric(*one) for one in evaluator.metrics]
    return OsworldTask(
        steps=steps, after=after, metrics=metrics, conj=evaluator.conj, gold=fits.gold, seconds=seconds
    )  # fmt: skip


class _Fits:
    """One task's parts. gold: files to compare with, as they are met."""

    def __init__(self, copies: Copies, screen: bool) -> None:
        self._copies, self._screen = copies, screen
        self.gold: dict[str, str] = {}

    # -- set-up -------------------------------------------------------------------------------------------------------
    def step(self, field: str, step: Step) -> dict[str, Any]:
        carried: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "download": self._download, "upload_file": self._upload, "execute": self._execute,
            "command": self._execute, "launch": self._launch, "open": self._open, "sleep": self._sleep,
            "activate_window": self._window, "close_window": self._window,
        }  # fmt: skip
        if step.type not in carried:
            raise Unfit(STEP, step.type)
        try:
            return {"type": step.type, "parameters": carried[step.type](step.parameters)}
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise Malformed(f"{field}.parameters", f"{type(error).__name__} {error}") from None

    def _download(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"files": [self._put(one["path"], one["url"], _name(one["path"])) for one in said["files"]]}

    def _upload(self, said: Mapping[str, Any]) -> dict[str, Any]:
        return {"files": [self._put(one["path"], one["local_path"], _name(one["path"])) for one in said["files"]]}

    def _put(self, path: str, url: str, name: str) -> dict[str, str]:
        place = PurePosixPath(path)
        if ".." in place.parts or (place.is_absolute() and not any(place.is_relative_to(one) for one in _WRITTEN)):
            raise Unfit(PLACE, path)
        return {"path": path, "content": self._copies.of(url, name)}

    def _execute(self, said: Mapping[str, Any]) -> dict[str, Any]:
        command, shell = _command(said)
        commands.look(command, shell, self._screen)
        return {"command": command, "shell": shell, "until": dict(said.get("until") or {})}

    def _launch(self, said: Mapping[str, Any]) -> dict[str, Any]:
        command, shell = _command(said)
        commands.look(command, shell, self._screen)
        self._needs_screen(f"launches {command}")
        return {"command": command, "shell": shell}

    def _open(self, said: Mapping[str, Any]) -> dict[str, Any]:
        commands.look(["xdg-open"], False, self._screen)
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
            raise Unfit(SCREEN, what)

    # -- what judges --------------------------------------------------------------------------------------------------
    def metric(self, func: str, result: Getter, expected: Getter, options: dict[str, Any]) -> Metric:
        found, wanted = self._got("evaluator.result", result), self._got("evaluator.expected", expected)
        if func not in METRICS:
            raise Unfit(METRIC, func)
        known = METRICS[func]
        if known.package and importlib.util.find_spec(known.package) is None:
            raise Unfit(PROGRAM, f"the Python package {known.package}, for {func}")
        rules = wanted.get("value")
        if known.expected == RULES and (rules is None or (known.keys and not isinstance(rules, dict))):
            raise Malformed("evaluator.expected", f"{func} wants rules")
        if known.expected in (FILE, EITHER) and "value" in wanted and (rules is not None or known.expected == FILE):
            raise Malformed("evaluator.expected", f"{func} wants a file")
        if lacking := [key for key in known.keys if key not in rules]:
            raise Malformed("evaluator.expected.rules", f"{func} wants {', '.join(lacking)}")
        if why := known.unable(rules or {}, options):
            raise Unfit(METRIC, f"{func} with {why}")
        return Metric(func=func, result=found, expected=wanted, options=options)

    def _got(self, field: str, said: Getter) -> dict[str, Any]:
        getters: dict[str, Callable[[Getter], dict[str, Any]]] = {
            "rule": lambda said: {"value": said["rules"]},
            "vm_command_line": lambda said: self._printed(said, "output"),
            "vm_command_error": lambda said: self._printed(said, "error"),
            "vm_file": self._vm_file, "cloud_file": self._cloud_file,
            "list_directory": lambda said: {"tree": _at_home(said["path"])},
        }  # fmt: skip
        if not said:
            return {"value": None}
        if said.get("type") not in getters:
            raise Unfit(GETTER, str(said.get("type")))
        try:
            return getters[said["type"]](said)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise Malformed(field, f"{type(error).__name__} {error}") from None

    def _printed(self, said: Getter, stream: str) -> dict[str, Any]:
        command, shell = _command(said)
        commands.look(command, shell, self._screen)
        return {"command": command, "shell": shell, "stream": stream}

    def _vm_file(self, said: Getter) -> dict[str, Any]:
        paths = [_at_home(one) for one in _chosen(said, "path")]
        return {"file": paths[0]} if len(paths) == 1 else {"files": paths}

    def _cloud_file(self, said: Getter) -> dict[str, Any]:
        names = []
        for url, dest in zip(_chosen(said, "path"), _chosen(said, "dest"), strict=True):
            name = f"{len(self.gold)}-{_name(dest)}"
            self.gold[name] = self._copies.of(url, _name(dest))
            names.append(name)
        return {"gold": names[0]} if len(names) == 1 else {"golds": names}


def _command(said: Mapping[str, Any]) -> tuple[commands.Command, bool]:
    command = said["command"]
    if not command or not (isinstance(command, str) or all(isinstance(word, str) for word in command)):
        raise ValueError("command is not a text or a list of words")
    return command, bool(said.get("shell"))


def _chosen(said: Getter, field: str) -> list[str]:
    """The path, or of several those that the metric is given."""
    if not said.get("multi"):
        return [said[field]]
    return [said[field][number] for number in sorted(set(said.get("gives", [0])))]


def _at_home(path: str) -> str:
    """From the home. Raises Unfit for one that lies elsewhere: the home is all that is looked at from outside."""
    place = PurePosixPath(HOME, path[2:] if path.startswith("~/") else path)
    if ".." in place.parts or not place.is_relative_to(HOME):
        raise Unfit(PLACE, path)
    return str(place.relative_to(HOME))


def _name(path: str) -> str:
    return PurePosixPath(path).name
