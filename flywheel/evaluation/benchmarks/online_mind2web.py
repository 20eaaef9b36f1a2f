"""Adapt Online-Mind2Web: load its tasks on live web sites, convert lines of its histories, and score judged runs.

https://github.com/OSU-NLP-Group/Online-Mind2Web. Its histories are texts, in which agents that act by points name CSS
pixels of the viewport.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
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
from flywheel.utils.json_text import describe_first_fault, iter_json_lines, parse_foreign_json

_TASKS = "Online_Mind2Web*.json"
_AT = r"\((\d+), (\d+)\)"
_CLICK, _HOVER = re.compile(f"Click at {_AT}"), re.compile(f"Hover at {_AT}")
_DRAG = re.compile(f"Drag from {_AT} to {_AT}")
_TYPE, _NAVIGATE = re.compile(r'Type "(.*)"', re.DOTALL), re.compile(r"Navigate to (\S+)")
_PRESS = re.compile(r"Press ([A-Z][A-Z0-9]*(?:\+[A-Z0-9]+){0,2})")
_BACK = "Navigate back"
_KEYS = {"control": "ctrl"}  # its names of keys -> ours
_NAMES = {ours: theirs for theirs, ours in _KEYS.items()}


class _Task(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    task_id: str = Field(min_length=1)
    confirmed_task: str = Field(min_length=1)
    website: str = ""
    level: str = ""


class OnlineMind2Web:
    """Adapt Online-Mind2Web. An action is a line of a history, such as `Click at (100, 200)`."""

    name, title = "online-mind2web", "Online-Mind2Web"
    source = "huggingface.co/datasets/osunlp/Online-Mind2Web: Online_Mind2Web.json"
    space = "CSS pixels of the viewport"
    ran = "none: its sites are on the internet"

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the tasks of Online_Mind2Web.json. Raises BadInput where it is not there."""
        path = folder if folder.is_file() else next(iter(sorted(folder.rglob(_TASKS))), None)
        if path is None:
            raise BadInput("no Online_Mind2Web.json", where=folder, fix="name the folder that holds it")
        try:
            listed = TypeAdapter(list[dict[str, Any]]).validate_python(parse_foreign_json(path.read_bytes()))
        except ValueError as error:
            raise BadInput(f"no list of tasks: {error}", where=path, fix="take the file anew") from None
        for said in listed:
            try:
                task = _Task.model_validate(said)
            except ValidationError as error:
                yield RefusedTask(path, describe_first_fault(error))
                continue
            unplayable = f"it needs the internet: {task.website}"
            yield BenchmarkTask(task.task_id, task.confirmed_task, task.level, unplayable, said, path)

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse a line of a history; one that names an element, or an amount of a scroll, has no counterpart here."""
        line = require_text(written, "an action")
        action = _parse(line, screen)
        if action is not None:
            adapted = AdaptedActions((action,))
            return adapted if self.format_action(adapted, screen) == line else AdaptedActions((action,), {"line": line})
        return AdaptedActions((), {"line": line})

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> str:
        """Write a line of a history. Raises ValueError for an action without a form."""
        if "line" in action.extras:
            return action.extras["line"]
        if len(action.actions) != 1:
            raise ValueError("a line of Online-Mind2Web is one action")
        match action.actions[0]:
            case act.Click(point):
                return f"Click at {write_pixel(point, screen)}"
            case act.Hover(point):
                return f"Hover at {write_pixel(point, screen)}"
            case act.Drag(start, end):
                return f"Drag from {write_pixel(start, screen)} to {write_pixel(end, screen)}"
            case act.Type(content):
                return f'Type "{content}"'
            case act.Navigate(content) if _NAVIGATE.fullmatch(f"Navigate to {content}"):
                return f"Navigate to {content}"
            case act.NavigateBack():
                return _BACK
            case act.Hotkey(keys):
                line = f"Press {'+'.join(_NAMES.get(key, key).upper() for key in keys)}"
                if _parse(line, screen) == act.Hotkey(keys):
                    return line
        raise ValueError(f"Online-Mind2Web's histories have no line for {action.actions[0]}")

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read judged runs, JSON lines with `task_id` and `predicted_label`, of files *auto_eval_results.json*.

        Runs that nobody judged (`<task>/result.json`) are faults.
        """
        judged = [one for path in sorted(folder.rglob("*auto_eval_results.json*")) for one in _read_judged(path)]
        known = {one.task for one in judged}
        runs = sorted(path.parent.name for path in folder.rglob("result.json"))
        found = judged + [TaskResult(run, fault="nobody judged it") for run in runs if run not in known]
        if not found:
            raise BadInput("no judged runs", where=folder, fix="name the folder that its judge wrote")
        return found

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as its leaderboard does: the share of judged runs that succeeded, in all and by level."""
        require_results(results, self.title)
        judged = [one for one in results if one.score is not None]
        levels: dict[str, list[float]] = defaultdict(list)
        for one in judged:
            levels[one.category].append(one.score)
        rate = fmean(one.score for one in judged) if judged else 0.0
        figures = {"success_rate": rate, "judged": float(len(judged))}
        return OfficialScore(rate, figures | {level: fmean(scores) for level, scores in levels.items() if level})


def _parse(line: str, screen: tuple[int, int] | None) -> Action | None:
    if line == _BACK:
        return act.NavigateBack()
    for form, kind in ((_CLICK, act.Click), (_HOVER, act.Hover)):
        if found := form.fullmatch(line):
            return kind(read_pixel(int(found[1]), int(found[2]), screen))
    if found := _DRAG.fullmatch(line):
        x, y, to_x, to_y = map(int, found.groups())
        return act.Drag(read_pixel(x, y, screen), read_pixel(to_x, to_y, screen))
    if found := _TYPE.fullmatch(line):
        return act.Type(found[1])
    if found := _NAVIGATE.fullmatch(line):
        return act.Navigate(found[1])
    if found := _PRESS.fullmatch(line):
        return act.Hotkey(tuple(_KEYS.get(key, key) for key in found[1].lower().split("+")))
    return None


def _read_judged(path: Path) -> Iterator[TaskResult]:
    for number, line in iter_json_lines(path):
        try:
            said = json.loads(line)
            task, label = str(said["task_id"]), said.get("predicted_label")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"line {number}: no judged run: {error}", where=path, fix="judge the runs again") from None
        level = str(said.get("level") or "")
        if label not in (0, 1, "0", "1"):
            yield TaskResult(task, fault="the judge gave no judgement", category=level)
        else:
            yield TaskResult(task, score=float(label), category=level)
