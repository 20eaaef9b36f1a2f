"""Adapt AndroidWorld: load its list of tasks, convert its JSON actions, and score the checkpoints of its runs.

https://github.com/google-research/android_world. Its points are pixels of the phone's screen.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    BenchmarkTask,
    OfficialScore,
    RefusedTask,
    TaskResult,
    read_pixel,
    require_results,
    require_text,
    write_pixel,
)
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

_METADATA = "task_metadata.json"
_MIDDLE = Point(0.5, 0.5)  # where its scroll of the whole screen begins
_AT_POINT = {"click": act.Click, "double_tap": act.LeftDouble, "long_press": act.LongPress}
_PLAIN: dict[str, Action] = {
    "keyboard_enter": act.Hotkey(("enter",)), "navigate_home": act.PressHome(), "navigate_back": act.PressBack(),
    "wait": act.Wait(),
}  # fmt: skip
_ENDS: dict[str, Action] = {"complete": act.Finished(), "infeasible": act.CallUser()}
_TYPES = (*_AT_POINT, *_PLAIN, "input_text", "scroll", "swipe", "open_app", "status", "answer", "unknown")
_DIRECTIONS = ("left", "right", "down", "up")
_CHECKPOINT = ".pkl.gz"
_MOST_BYTES = 2**31  # of an unpacked checkpoint


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    task_name: str = Field(min_length=1)
    task_template: str = Field(min_length=1)
    difficulty: str = ""


class AndroidWorld:
    """Adapt AndroidWorld. An action is an object with `action_type`."""

    name, title = "android-world", "AndroidWorld"
    source = "github.com/google-research/android_world: android_world/task_metadata.json"
    space = "pixels of the phone's screen"
    ran = "none: no Android emulator with its applications here"

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the tasks of task_metadata.json, which is in `folder` or below it. Raises BadInput where it is not."""
        path = next(iter(sorted(folder.rglob(_METADATA))), None)
        if path is None:
            raise BadInput(f"no {_METADATA}", where=folder, fix="name the folder android_world")
        try:
            listed = TypeAdapter(list[dict[str, Any]]).validate_python(parse_foreign_json(path.read_bytes()))
        except ValueError as error:
            raise BadInput(f"no list of tasks: {error}", where=path, fix="take the file anew") from None
        for said in listed:
            try:
                task = _Metadata.model_validate(said)
            except ValidationError as error:
                yield RefusedTask(path, describe_first_fault(error))
                continue
            unplayable = "it needs an Android emulator with AndroidWorld's applications, and its own package"
            yield BenchmarkTask(task.task_name, task.task_template, task.difficulty, unplayable, said, path)

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse a JSON action; one at an element's index, and a swipe, has no counterpart among our actions."""
        if not isinstance(written, Mapping):
            raise ValueError("an action of AndroidWorld is an object")
        kind = require_text(written.get("action_type"), "action_type")
        if kind not in _TYPES:
            raise ValueError(f"{kind} is no action of AndroidWorld")
        given = {name: value for name, value in written.items() if name != "action_type" and value is not None}
        action = _parse(kind, given, screen)
        if action is None:
            return AdaptedActions((), {"written": dict(written)})
        adapted = AdaptedActions((action,), {"action_type": kind} if isinstance(action, act.Finished) else {})
        same = self.format_action(adapted, screen) == dict(written)
        return adapted if same else AdaptedActions((action,), {"written": dict(written)})

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> dict[str, Any]:
        """Write a JSON action. Raises ValueError for one that AndroidWorld lacks."""
        if "written" in action.extras:
            return dict(action.extras["written"])
        if len(action.actions) != 1:
            raise ValueError("an action of AndroidWorld is one action")
        (done,) = action.actions
        answers = action.extras.get("action_type") == "answer"
        match done:
            case act.Click(point) | act.LeftDouble(point) | act.LongPress(point):
                kind = next(name for name, one in _AT_POINT.items() if one is type(done))
                return {"action_type": kind, **_write_point(point, screen)}
            case act.Type(content):
                return {"action_type": "input_text", "text": content}
            case act.TypeAt(point, content, clear):
                said = {"action_type": "input_text", **_write_point(point, screen), "text": content}
                return said | ({"clear_text": True} if clear else {})
            case act.Scroll(point, direction) if point == _MIDDLE:
                return {"action_type": "scroll", "direction": direction}
            case act.OpenApp(app_name):
                return {"action_type": "open_app", "app_name": app_name}
            case act.Finished(content) if content or answers:
                return {"action_type": "answer", "text": content}
            case act.Finished() | act.CallUser():
                status = next(name for name, one in _ENDS.items() if type(one) is type(done))
                return {"action_type": "status", "goal_status": status}
        for kind, one in _PLAIN.items():
            if one == done:
                return {"action_type": kind}
        raise ValueError(f"AndroidWorld has no action for {done}")

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read a run's checkpoints, `<task>_<instance>.pkl.gz`. An episode that ended in an exception is a fault.

        No class of a checkpoint is imported but numbers, arrays and times: what else is in it is left out.
        """
        paths = sorted(folder.glob(f"*{_CHECKPOINT}"))
        if not paths:
            raise BadInput("no checkpoints", where=folder, fix="name the folder that --checkpoint_dir named")
        found = [_read_episode(episode, path) for path in paths for episode in _unpickle(path)]
        if not found:
            raise BadInput("the checkpoints hold no episodes", where=folder, fix="let the run finish a task")
        return found

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as `process_episodes` does: the mean over tasks of each task's mean over episodes without exception."""
        require_results(results, self.title)
        tasks: dict[str, list[float]] = defaultdict(list)
        for one in results:
            if one.score is not None:
                tasks[one.task].append(one.score)
        failed = float(sum(one.score is None for one in results))
        means = [fmean(scores) for scores in tasks.values()]
        score = fmean(means) if means else 0.0
        figures = {"mean_success_rate": score, "tasks": float(len(means)), "num_fail_trials": failed}
        return OfficialScore(score, figures)


def _parse(kind: str, given: Mapping[str, Any], screen: tuple[int, int] | None) -> Action | None:
    if kind in _PLAIN:
        return _PLAIN[kind]
    point = read_pixel(given["x"], given["y"], screen) if "x" in given and "y" in given else None
    if kind in _AT_POINT:
        return _AT_POINT[kind](point) if point else None
    if kind == "input_text" and "index" not in given:
        text = require_text(given.get("text"), "text")
        if point:
            return act.TypeAt(point, text, bool(given.get("clear_text")))
        return None if given.get("clear_text") else act.Type(text)
    if kind == "scroll" and "index" not in given:
        direction = given.get("direction")
        if direction not in _DIRECTIONS:
            raise ValueError(f"{direction!r} is no direction")
        return act.Scroll(_MIDDLE, direction)
    if kind == "open_app":
        return act.OpenApp(require_text(given.get("app_name"), "app_name"))
    if kind == "status":
        return _ENDS.get(given.get("goal_status"))
    return act.Finished(require_text(given.get("text"), "text")) if kind == "answer" else None


def _write_point(point: Point, screen: tuple[int, int] | None) -> dict[str, int]:
    return dict(zip(("x", "y"), write_pixel(point, screen), strict=True))


class _LeftOut:
    """Stand in for an object of a class that is not imported."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


class _DataUnpickler(pickle.Unpickler):
    """Unpickle numbers, texts, times and arrays; no other class of a file is imported, and nothing of it is run."""

    _KNOWN = frozenset(
        [("datetime", "datetime"), ("datetime", "timedelta"), ("datetime", "timezone"), ("numpy", "ndarray"),
         ("numpy", "dtype")]
        + [(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")]
    )  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the list, or `_LeftOut`."""
        return super().find_class(module, name) if (module, name) in self._KNOWN else _LeftOut


def _unpickle(path: Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(path) as file:
            packed = file.read(_MOST_BYTES + 1)
        if len(packed) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES >> 30} GiB")
        found = _DataUnpickler(io.BytesIO(packed)).load()
    except Exception as error:  # a damaged pickle may raise anything
        what = f"no checkpoint: {type(error).__name__} {error}"[:200]
        raise BadInput(what, where=path, fix="play the task again, or remove the file") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadInput("it holds no list of episodes", where=path, fix="name the run's own folder")
    return found


def _read_episode(said: Mapping[str, Any], path: Path) -> TaskResult:
    try:
        task, instance = str(said["task_template"]), int(said.get("instance_id") or 0)
        broke, score = said.get("exception_info"), float(said["is_successful"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"no episode: {error}", where=path, fix="play the task again") from None
    seconds = said.get("run_time")
    took = float(seconds) if isinstance(seconds, int | float) else 0.0
    if broke is not None or math.isnan(score):
        lines = str(broke).strip().splitlines()
        return TaskResult(task, instance, fault=(lines[-1] if lines else "it has no result")[:300], seconds=took)
    return TaskResult(task, instance, score=score, seconds=took)
