"""Adapt OSWorld: load its task files, convert both its action spaces, and score result folders, of OSWorld 2.0 too.

https://github.com/xlang-ai/OSWorld, https://osworld-v2.xlang.ai. Playing is in `flywheel.envs.computer.osworld`.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, ParseError
from flywheel.agent.grammar import Grammar, pixel_space
from flywheel.agent.parsing.parser import parse_demonstrated_action
from flywheel.envs.computer.osworld.suite import (
    DownloadCopies,
    MalformedTask,
    UnsupportedTask,
    convert_example,
    list_task_files,
    read_example,
)
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
from flywheel.store.interop.osworld import format_pyautogui
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

_TEMPLATE = "template.json"  # beside the tasks, to copy
_SECONDS = 15.0  # for a task's set-up, as in a manifest
_SPOKEN: dict[str, Action] = {"DONE": act.Finished(), "FAIL": act.CallUser(), "WAIT": act.Wait()}
_WORDS = (act.Finished, act.CallUser, act.Wait)
_WRITTEN = (  # what PyAutoGUI can do
    *_WORDS, act.Click, act.LeftDouble, act.LeftTriple, act.RightSingle, act.Hover, act.Drag, act.Scroll, act.Hotkey,
    act.Press, act.Release, act.Type, act.TypeAt,
)  # fmt: skip
_CLICKS = {1: act.Click, 2: act.LeftDouble, 3: act.LeftTriple}
_AT_POINT = {"MOVE_TO": act.Hover, "RIGHT_CLICK": act.RightSingle, "DOUBLE_CLICK": act.LeftDouble, "CLICK": act.Click}
_OTHER_KEYS = frozenset(["\t", "\n", "\r", " "])  # names of keys there that ours does not have
_GROUPS = {
    "office": ("libreoffice_calc", "libreoffice_impress", "libreoffice_writer"),
    "daily": ("vlc", "thunderbird", "chrome"),
    "professional": ("gimp", "vs_code"),
}


class _TaskFile(BaseModel):
    """Declare what every task file says, drafts among them."""

    model_config = ConfigDict(extra="allow", frozen=True)
    id: str = Field(min_length=1)
    instruction: str = Field(min_length=1)
    config: list[dict[str, Any]] = []
    evaluator: Any = None


class OsworldBenchmark:
    """Adapt OSWorld. An action is an object of the action space computer_13, code of PyAutoGUI, DONE, FAIL or WAIT."""

    name, title = "osworld", "OSWorld"
    source = "github.com/xlang-ai/OSWorld: evaluation_examples"
    space = "pixels of the screen"
    ran = "tasks that need no application that is not installed: docs/computer.md; no virtual machine"
    examples = ("examples", "examples_windows")  # folders of task files

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield the tasks of evaluation_examples. Raises BadInput where it has none."""
        root = folder / "evaluation_examples" if (folder / "evaluation_examples").is_dir() else folder
        folders = [root / name for name in self.examples if (root / name).is_dir()] or [root]
        found = [(one, path) for one in folders for path in list_task_files(one) if path.name != _TEMPLATE]
        if not found:
            raise BadInput("no task files", where=folder, fix="name evaluation_examples")
        for one, path in found:
            try:
                said = _TaskFile.model_validate(parse_foreign_json(path.read_bytes()))
            except (OSError, ValueError) as error:
                why = describe_first_fault(error) if isinstance(error, ValidationError) else str(error)
                yield RefusedTask(path, why)
                continue
            name = str(path.relative_to(one).with_suffix(""))
            task = name if one.name in ("examples", root.name) else f"{one.name}/{name}"
            declared = said.model_dump(exclude={"id", "instruction"})
            unplayable = self.explain_unplayable(path)
            yield BenchmarkTask(task, said.instruction, path.parent.name, unplayable, declared, path)

    def explain_unplayable(self, path: Path) -> str:
        """Say why the task file `path` cannot be played here; "" where it can."""
        try:
            example = read_example(path)
            convert_example(example, DownloadCopies(None, example.id), True, _SECONDS)
        except UnsupportedTask as error:
            return f"it needs {error}"
        except MalformedTask as error:
            return f"its file is no whole task: {error}"
        return ""

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse an object of computer_13, code of PyAutoGUI, or DONE, FAIL or WAIT."""
        if isinstance(written, Mapping):
            return _parse_computer_13(written, screen)
        code = require_text(written, "an action").strip()
        if code in _SPOKEN:
            return AdaptedActions((_SPOKEN[code],))
        actions = _parse_code(code, screen)
        return (
            _keep_text(AdaptedActions(tuple(actions)), code, screen) if actions else AdaptedActions((), {"code": code})
        )

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> Any:
        """Write an action in the form that it was parsed from; as PyAutoGUI's code where it was not parsed."""
        if "code" in action.extras:
            return action.extras["code"]
        if "action_type" in action.extras:
            return _format_computer_13(action, screen)
        return _format_code(action.actions, screen)

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read results: `<domain>/<task>/result.txt` at any depth, OSWorld 2.0's with partial credit too.

        A task with a `traj.jsonl` alone is a fault: the harness broke off, and that file may say why.
        """
        runs = sorted({path.parent for name in ("result.txt", "traj.jsonl") for path in folder.rglob(name)})
        if not runs:
            raise BadInput("no result.txt", where=folder, fix="name a folder of results")
        return [_read_run(run) for run in runs]

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as `show_result.py` does: the mean over tasks that have a result, in all, by domain and by group.

        `binary` is the share with the whole score and `partial` the mean, which OSWorld 2.0 reports both. `printed` is
        what `show_result.py` prints: it takes any text that is no number, such as False, for 1.
        """
        require_results(results, self.title)
        scored = [one for one in results if one.score is not None]
        if not scored:
            return OfficialScore(0.0, {"tasks": 0.0})
        domains: dict[str, list[float]] = defaultdict(list)
        for one in scored:
            domains[one.category].append(one.score)
        mean = fmean(one.score for one in scored)
        figures = {
            "tasks": float(len(scored)),
            "partial": mean,
            "binary": fmean(one.score == 1.0 for one in scored),
            "printed": fmean(one.parts.get("printed", one.score) for one in scored),
        }
        figures |= {domain: fmean(scores) for domain, scores in sorted(domains.items())}
        for group, names in _GROUPS.items():
            if of_group := [score for name in names for score in domains.get(name, ())]:
                figures[group] = fmean(of_group)
        return OfficialScore(mean, figures)


def _read_run(folder: Path) -> TaskResult:
    domain, path = folder.parent.name, folder / "result.txt"
    task = f"{domain}/{folder.name}"
    if not path.is_file():
        return TaskResult(task, fault=_read_error(folder / "traj.jsonl"), category=domain)
    text = path.read_text(encoding="utf-8-sig").strip()
    words = {"True": 1.0, "False": 0.0}
    try:
        score = words[text] if text in words else float(text)
    except ValueError:
        raise BadInput(f"no score: {text[:40]!r}", where=path, fix="play the task again") from None
    if not 0 <= score <= 1:
        raise BadInput(f"a score outside of 0 to 1: {text[:40]}", where=path, fix="play the task again")
    return TaskResult(task, score=score, category=domain, parts={"printed": 1.0 if text in words else score})


def _read_error(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    for line in reversed(lines):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and (error := said.get("Error") or said.get("error")):
            return str(error)[:300]
    return "it has no result"


def _parse_code(code: str, screen: tuple[int, int] | None) -> list[Action]:
    """Parse PyAutoGUI's code as one action, or as one action a statement; none where any statement is no action."""
    if screen is None:
        raise ValueError("its points count pixels, and the size of the screen is not given")
    grammar = Grammar("point", pixel_space(*screen), "computer")
    whole = parse_demonstrated_action(code, grammar)
    if isinstance(whole, Action):
        return [whole]
    try:
        statements = [
            ast.unparse(one) for one in ast.parse(code).body if not isinstance(one, ast.Import | ast.ImportFrom)
        ]
    except (SyntaxError, ValueError, RecursionError):
        return []
    parsed = [parse_demonstrated_action(one, grammar) for one in statements]
    return [] if any(isinstance(one, ParseError) for one in parsed) else parsed


def _format_code(actions: Sequence[Action], screen: tuple[int, int] | None) -> str:
    if screen is None:
        raise ValueError("its points count pixels, and the size of the screen is not given")
    for one in actions:
        if not isinstance(one, _WRITTEN) or (isinstance(one, act.Finished) and one.content):
            raise ValueError(f"OSWorld has no code for {one}")
        if isinstance(one, _WORDS) and len(actions) > 1:
            raise ValueError("DONE, FAIL and WAIT stand alone")
    return "\n".join(format_pyautogui(one, screen) for one in actions)


def _keep_text(action: AdaptedActions, code: str, screen: tuple[int, int] | None) -> AdaptedActions:
    """Keep the code where ours writes the same actions with other words."""
    with contextlib.suppress(ValueError):
        if _format_code(action.actions, screen) == code:
            return action
    return AdaptedActions(action.actions, {"code": code})


def _parse_computer_13(written: Mapping[str, Any], screen: tuple[int, int] | None) -> AdaptedActions:
    """Parse an object of computer_13. What is done where the pointer is, or with the wheel, has no action of ours,
    since each of these names a point."""
    kind = require_text(written.get("action_type"), "action_type")
    flat = "parameters" not in written
    given = {name: value for name, value in written.items() if name != "action_type"} if flat else written["parameters"]
    if not isinstance(given, Mapping):
        raise ValueError("parameters is no object")
    extras: dict[str, Any] = {"action_type": kind, "flat": flat}
    action: Action | None = None
    if kind in _SPOKEN:
        action = _SPOKEN[kind]
    elif kind in _AT_POINT:
        known = dict(_AT_POINT)
        clicks, button = given.get("num_clicks", 1), given.get("button", "left")
        extras["options"] = {name: value for name, value in given.items() if name not in ("x", "y")}
        if kind == "CLICK" and button == "right" and clicks == 1:
            known[kind] = act.RightSingle
        elif kind == "CLICK" and button == "left" and clicks in _CLICKS:
            known[kind] = _CLICKS[clicks]
        elif kind == "CLICK":
            known.pop(kind)
        if kind in known and "x" in given and "y" in given:
            action = known[kind](read_pixel(given["x"], given["y"], screen))
    elif kind == "TYPING":
        action = act.Type(require_text(given.get("text"), "text"))
    elif kind in ("PRESS", "KEY_DOWN", "KEY_UP"):
        key = require_text(given.get("key"), "key")
        if key not in _OTHER_KEYS:
            action = {"PRESS": act.Hotkey((key,)), "KEY_DOWN": act.Press(key), "KEY_UP": act.Release(key)}[kind]
    elif kind == "HOTKEY":
        keys = given.get("keys")
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            raise ValueError("keys is no list of keys")
        action = act.Hotkey(tuple(keys)) if not _OTHER_KEYS & set(keys) else None
    elif kind not in ("SCROLL", "DRAG_TO", "MOUSE_DOWN", "MOUSE_UP"):
        raise ValueError(f"{kind} is no action of computer_13")
    if action is None:
        return AdaptedActions((), {"action_type": kind, "written": dict(written)})
    adapted = AdaptedActions((action,), extras)
    if _format_computer_13(adapted, screen) != dict(written):
        extras["written"] = dict(written)
    return adapted


def _format_computer_13(action: AdaptedActions, screen: tuple[int, int] | None) -> dict[str, Any]:
    extras = action.extras
    if "written" in extras:
        return dict(extras["written"])
    (done,), kind = action.actions, extras["action_type"]
    given: dict[str, Any] = dict(extras.get("options", {}))
    match done:
        case (
            act.Click(point) | act.LeftDouble(point) | act.LeftTriple(point) | act.RightSingle(point) | act.Hover(point)
        ):
            given["x"], given["y"] = write_pixel(point, screen)
        case act.Type(text):
            given["text"] = text
        case act.Press(key) | act.Release(key):
            given["key"] = key
        case act.Hotkey(keys):
            given |= {"keys": list(keys)} if kind == "HOTKEY" else {"key": keys[0]}
    if extras["flat"]:
        return {"action_type": kind, **given}
    return {"action_type": kind, "parameters": given}
