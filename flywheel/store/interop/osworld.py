"""Read and write OSWorld's result folders: what agents did on desktops, a folder a task.

    RESULTS/<action space>/<observation>/<model>/<domain>/<task>/{traj.jsonl, step_<n>_<time>.png, result.txt}

A line of `traj.jsonl` is one executed action; its `screenshot_file` is the screen after it. The action is PyAutoGUI
code with points in pixels (a text, or in an object as `command` or `action`), WAIT, FAIL or DONE, or an object of the
action space computer_13. https://github.com/xlang-ai/OSWorld
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, ParseError, Point
from flywheel.agent.grammar import Grammar, format_response, pixel_space
from flywheel.agent.parsing.lexing import escape_text
from flywheel.agent.parsing.parser import parse_demonstrated_action, parse_response, serialise_action
from flywheel.agent.prompt import MAX_SIDE, screenshot_size
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import (
    DEMONSTRATION_GRAMMAR,
    MAX_CHARACTERS,
    MAX_SCREEN_BYTES,
    NO_SCREEN,
    DemonstratedStep,
    Demonstration,
    RefusedRecord,
)
from flywheel.store.interop.traces import Trace, folder_name, refuse_equal_names
from flywheel.utils.errors import BadInput
from flywheel.utils.files import atomic_folder, write_text
from flywheel.utils.json_text import iter_json_lines, parse_foreign_json

DATASET, LICENCE = "osworld", ""
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_FIRST_SCREENS = ("step_0.png", "initial_state.png")  # of the harnesses that keep the screen before the first action
_SPOKEN = {"DONE": act.Finished(), "FAIL": act.CallUser(), "WAIT": act.Wait(), "CALL_USER": act.CallUser()}
# computer_13's actions -> PyAutoGUI's functions, and its parameters -> theirs.
_FUNCTIONS = {
    "MOVE_TO": "moveTo", "CLICK": "click", "RIGHT_CLICK": "rightClick", "DOUBLE_CLICK": "doubleClick",
    "DRAG_TO": "dragTo", "TYPING": "typewrite", "PRESS": "press", "KEY_DOWN": "keyDown", "KEY_UP": "keyUp",
    "HOTKEY": "hotkey", "MOUSE_DOWN": "mouseDown", "MOUSE_UP": "mouseUp",
}  # fmt: skip
_PARAMETERS = {"num_clicks": "clicks", "text": "message", "key": "keys"}
_IMPORTS = re.compile(r"(?:\s*(?:import|from)[ \t][^\n]*\n)*\s*")
_QUOTED = re.compile(r"'''(.*?)'''\s*", re.DOTALL)  # UI-TARS's agents write their thought before the code
_PASTED = re.compile(
    r"import pyperclip\s*pyperclip\.copy\((?P<text>.*)\)\s*pyautogui\.hotkey\('ctrl', 'v'\)", re.DOTALL
)
_HEADING = re.compile(r"^#+ *(?:Action|Code) *:", re.MULTILINE)  # OpenCUA's agents write theirs behind the thought
_HELD = re.compile(r"\b(key|mouse)(Down|Up)\(\s*(?:keys?\s*=\s*)?['\"]?([^'\",)]*)")
_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    step_num: int | None = Field(default=None, ge=0, lt=2**31)
    action_timestamp: _Text | None = None
    action: _Text | dict[str, Any] | None = None
    response: Any = None
    plan: Any = None
    screenshot_file: _Text | None = None
    instruction: _Text | None = None
    thought: _Text | None = None
    error: _Text | None = Field(default=None, alias="Error")


class _Config(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    instruction: _Text


def read_osworld(
    folders: Sequence[Path], tasks: Path | None = None, split: str = "eval", licence: str = LICENCE,
    max_side: int = MAX_SIDE,
) -> Iterator[Demonstration | RefusedRecord]:  # fmt: skip
    """Yield each task's result folder as a demonstration, or as a RefusedRecord that says why it is none.

    folders: with a `traj.jsonl` in them, at any depth. tasks: folder of task configs, `<task>.json` at any depth, for
    the instructions of results that have none beside them. split: "eval" for tasks of the benchmark, which are never
    trained on, or "train". licence: stored with each demonstration. max_side: longest side of a screen, in pixels
    (policy.max_image_side). It is a generator; at the first record it raises BadInput where `tasks` has no configs, and
    for a folder that is missing or without results when it comes to it.
    """
    configs: dict[str, list[Path]] = defaultdict(list)
    for path in tasks.rglob("*.json") if tasks else ():
        configs[path.stem].append(path)
    if tasks and not configs:
        raise BadInput("no task configs", where=tasks, fix="name OSWorld's evaluation_examples")
    yield from demonstration.read_folders(
        folders,
        "traj.jsonl",
        "name a folder of OSWorld's results",
        lambda one: _demonstration(one, configs, split, licence, max_side),
    )


def _demonstration(
    folder: Path, configs: Mapping[str, Sequence[Path]], split: str, licence: str, max_side: int
) -> Demonstration:
    lines = _read_lines(folder / "traj.jsonl")
    told = [line for line in lines if line.action is not None]
    idle = _find_idle_steps(told, folder)
    screens: dict[str, bytes] = {}
    steps: list[DemonstratedStep] = []
    hands = _Hands()
    before = next((name for name in _FIRST_SCREENS if (folder / name).is_file()), None)
    number = None
    # Actions of one response within a second have one file, which has the screen after the last of them.
    newest = {line.screenshot_file: place for place, line in enumerate(told)}
    for place, line in enumerate(told):
        screen, size = NO_SCREEN, None
        if shown := before or line.screenshot_file:  # the screen after it has the size of the one before
            encoded = _read_screen(folder, shown)
            name = demonstration.check_screen(encoded, f"its screen {shown}", max_side)
            size = screenshot_size(encoded, max_side)
            if before:
                screens[name], screen = encoded, name
        code, thought = _read_code(line.action)
        action = hands.read(code, size)
        repeated = number is not None and line.step_num == number  # several actions of one response
        thought = "" if repeated else _read_thought(line) or thought
        steps.append(demonstration.make_demonstrated_step(action, code, screen, thought))
        before = line.screenshot_file if newest[line.screenshot_file] == place else None
        number = line.step_num
    if not steps:
        raise ValueError("it has no actions")
    result = _read_result(folder / "result.txt")
    broke = [line.error for line in lines if line.error is not None]
    model, domain, task = (*("", "", ""), *folder.parts)[-3:]
    facts = {"author": "model", "agent": model, "result": result, "error": broke[0] if broke else None}
    facts |= {"idle_steps": idle} if idle else {}
    began = f"@{told[0].action_timestamp}" if told[0].action_timestamp else ""
    return Demonstration(
        dataset=DATASET,
        id=f"{model}/{domain}/{task}{began}",
        licence=licence,
        instruction=_read_instruction(folder, lines, configs),
        world=DATASET,
        template=domain,
        split=split,
        completed=None if result is None else result == 1,
        steps=tuple(steps),
        facts={name: value for name, value in facts.items() if value is not None},
        screens=screens,
    )


def _read_lines(path: Path) -> list[_Line]:
    lines: list[_Line] = []
    for number, text in iter_json_lines(path):
        if lines and lines[-1].error is not None:
            raise ValueError(f"line {number}: lines follow the one of the error that ended the run")
        try:
            line = _Line.model_validate(parse_foreign_json(text))
            if line.action is None and line.error is None and line.instruction is None:
                raise ValueError("action: it has none")
            if line.screenshot_file is not None and Path(line.screenshot_file).name != line.screenshot_file:
                raise ValueError("screenshot_file: not the name of a file of its folder")
        except ValueError as error:
            raise ValueError(f"line {number}: {RefusedRecord.from_error('', error).why}") from None
        lines.append(line)
    return lines


def _find_idle_steps(lines: Sequence[_Line], folder: Path) -> list[int]:
    """Return the numbers of steps whose response had no action. Raises ValueError where a second run was appended to
    the file, so that steps begin anew, or where a line is lost, whose screen is there."""
    last, idle = 0, []
    for number in (line.step_num for line in lines if line.step_num is not None):
        if number < last:
            raise ValueError(f"two runs in one file: step {number} comes after step {last}")
        for gap in range(last + 1, min(number, last + 1000)):
            if next(folder.glob(f"step_{gap}_*"), None):
                raise ValueError(f"no line has step {gap}, and its screen is there")
            idle.append(gap)
        last = number
    return idle


def _read_screen(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        large = path.stat().st_size > MAX_SCREEN_BYTES
        encoded = b"" if large else path.read_bytes()
    except (OSError, ValueError):
        raise ValueError(f"its screen {name} is not there") from None
    if large:
        raise ValueError(f"its screen {name} is larger than {MAX_SCREEN_BYTES // 2**20} MiB")
    return encoded


def _read_result(path: Path) -> float | None:
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8-sig").strip()
    try:
        result = float({"True": "1", "False": "0"}.get(text, text))
    except ValueError:
        result = -1.0
    if not 0 <= result <= 1:
        raise ValueError(f"result.txt: not a score from 0 to 1: {text[:40]!r}")
    return result


def _read_instruction(folder: Path, lines: Sequence[_Line], configs: Mapping[str, Sequence[Path]]) -> str:
    if said := next((line.instruction for line in lines if line.instruction), ""):
        return said
    if (beside := folder / "instruction.txt").is_file():
        return beside.read_text(encoding="utf-8-sig").strip()
    beside, given = folder / f"{folder.name}.json", configs.get(folder.name, ())
    fit = [beside] if beside.is_file() else [path for path in given if path.parent.name == folder.parent.name] or given
    if not fit:
        raise ValueError(f"its instruction is not there: give the folder with {folder.name}.json as --tasks")
    if len(fit) > 1:
        raise ValueError(f"its task config may be {fit[0]} or {fit[1]}")
    try:
        return _Config.model_validate(parse_foreign_json(fit[0].read_bytes())).instruction
    except ValueError as error:
        raise ValueError(f"{fit[0].name}: {RefusedRecord.from_error('', error).why}") from None


def _read_thought(line: _Line) -> str:
    if line.thought is not None:
        return line.thought
    raw = line.action.get("raw_response") if isinstance(line.action, dict) else None
    for said in (line.response, line.plan, raw):
        text = "\n".join(one for one in said if isinstance(one, str)) if isinstance(said, list) else said
        if isinstance(text, str) and text:
            thought = parse_response(text, DEMONSTRATION_GRAMMAR).thought
            return _HEADING.split(thought, maxsplit=1)[0].strip()[:MAX_CHARACTERS]
    return ""


def _read_code(action: str | Mapping[str, Any]) -> tuple[str, str]:
    """Return an action as code, or as a word of `_SPOKEN`, and the thought that stands in the code."""
    if not isinstance(action, str):
        action = next((action[name] for name in ("command", "action") if isinstance(action.get(name), str)), action)
    code = action if isinstance(action, str) else _write_code(action)
    start = _IMPORTS.match(code).end()
    quoted = _QUOTED.match(code, start)
    thought = quoted[1].partition("Thought:")[2].strip() if quoted else ""
    code = code[quoted.end() :] if quoted else code
    if pasted := _PASTED.search(code):
        code = f"{code[: pasted.start()]}pyautogui.write({pasted['text']}){code[pasted.end() :]}"
    return code.strip(), thought


def _write_code(action: Mapping[str, Any]) -> str:
    """Write an action of computer_13 as the code that OSWorld makes of it."""
    kind = action.get("action_type")
    given = action.get("parameters", {name: value for name, value in action.items() if name != "action_type"})
    if not isinstance(kind, str) or not isinstance(given, dict):
        raise ValueError("action: an object without an action_type")
    if kind == "SCROLL":
        names = {"dx": "hscroll", "dy": "vscroll"}
        return "\n".join(f"pyautogui.{names.get(name, name)}({value!r})" for name, value in given.items() if value)
    if kind not in _FUNCTIONS:
        return kind
    written = ", ".join(f"{_PARAMETERS.get(name, name)}={value!r}" for name, value in given.items())
    return f"pyautogui.{_FUNCTIONS[kind]}({written})"


class _Hands:
    """Read actions one after the other: where the pointer is, and what is held down, goes on from each to the next."""

    def __init__(self) -> None:
        self._pointer: Point | None = None
        self._held: set[str] = set()

    def read(self, code: str, size: tuple[int, int] | None) -> Action | ParseError:
        """Return the action of `code`, or why there is none that can be learnt. size: of the screen, in pixels; None
        where it is not known."""
        if code in _SPOKEN:
            return _SPOKEN[code]
        grammar = Grammar("point", pixel_space(*size), "computer") if size else None
        found: Action | ParseError = ParseError(demonstration.WITHOUT_SCREEN)
        if grammar is not None:
            found = parse_demonstrated_action(code, grammar)
            if isinstance(found, ParseError) and self._pointer is not None:
                # A click, scroll or drag without a place begins where the pointer is.
                x, y = self._pointer.x * size[0], self._pointer.y * size[1]
                rest = code[_IMPORTS.match(code).end() :]
                there = parse_demonstrated_action(f"pyautogui.moveTo({x!r}, {y!r})\n{rest}", grammar)
                found = found if isinstance(there, ParseError) else there
            if isinstance(found, ParseError):
                self._pointer = None
            else:
                self._pointer = getattr(found, "end_point", None) or getattr(found, "point", self._pointer)
        held = ", ".join(sorted(self._held))
        for what, way, key in _HELD.findall(code):
            name = key.strip().lower() if what == "key" else "the mouse"
            (self._held.add if way == "Down" else self._held.discard)(name)
        if held and not isinstance(found, ParseError | act.Press | act.Release | act.Wait):
            return ParseError(f"it is done with {held} held down")
        return found


# PyAutoGUI's functions of the actions at a point, and its names of keys.
_AT_POINT = {
    act.Click: "click", act.LeftDouble: "doubleClick", act.LeftTriple: "tripleClick", act.RightSingle: "rightClick",
    act.Hover: "moveTo",
}  # fmt: skip
_KEYS = {"arrowup": "up", "arrowdown": "down", "arrowleft": "left", "arrowright": "right", "meta": "win"}
_ENDS = {act.Finished: "DONE", act.CallUser: "FAIL", act.Wait: "WAIT"}
_SCROLLS = {"up": ("scroll", 5), "down": ("scroll", -5), "right": ("hscroll", 5), "left": ("hscroll", -5)}


def write_osworld(traces: Iterable[Trace], folder: Path) -> int:
    """Write trajectories as result folders of OSWorld; return the number of their steps.

    Each has a folder below `folder/pyautogui/screenshot/<model>/<domain>`. `folder` appears only when it is complete,
    and replaces an existing one. Raises what `traces` raises, BadInput for a second trajectory of the same model,
    domain and id, OSError or DiskFull where it cannot be written.
    """
    count = 0
    with atomic_folder(folder) as temporary:
        for trace in traces:
            one = trace.demonstration
            path = temporary.joinpath(
                "pyautogui", "screenshot", *map(folder_name, (str(one.facts.get("agent", "")), one.template, one.id))
            )
            if path.exists():
                refuse_equal_names(one.id, folder)
            path.mkdir(parents=True)
            write_text(path / "traj.jsonl", "".join(f"{json.dumps(line)}\n" for line in _write_lines(trace, path)))
            if trace.score is not None:
                write_text(path / "result.txt", f"{trace.score!r}\n")
            count += len(one.steps)
    return count


def _write_lines(trace: Trace, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a trajectory, and write its screens."""
    one = trace.demonstration
    names = []
    for number, step in enumerate(one.steps):
        at = trace.row(number).get("started_at")
        time = f"_{at:%Y%m%d@%H%M%S%f}" if at and number else ""
        names.append(f"step_{number}{time}.png" if step.screen else None)
        if step.screen:
            (path / names[-1]).write_bytes(one.screens[step.screen])
    for number, (step, after) in enumerate(zip(one.steps, [*names[1:], None], strict=True), 1):
        action = trace.action(number - 1)
        code = step.action if action is None else format_pyautogui(action, trace.size(number - 1))
        row, last = trace.row(number - 1), number == len(one.steps)
        line = {"step_num": number, "action": code, "thought": step.thought}
        line |= {"response": row.get("raw_text") or format_response(step.thought, step.action), "info": {}}
        line |= {"reward": row.get("reward") or 0, "done": last}
        line |= {"instruction": one.instruction} if number == 1 else {}
        line |= {"action_timestamp": f"{at:%Y%m%d@%H%M%S%f}"} if (at := row.get("started_at")) else {}
        yield line | ({"screenshot_file": after} if after else {})


def format_pyautogui(action: Action, size: tuple[int, int]) -> str:
    """Write an action as PyAutoGUI code, or as OSWorld's word for it: DONE, FAIL or WAIT.

    size: width and height of the screen in pixels, in which points are written. An action that PyAutoGUI lacks is
    written in flywheel's own grammar. Raises TypeError for what is no action.
    """
    space = pixel_space(*size)

    def at(point: Point) -> str:
        return f"{space.x.write(point.x)}, {space.y.write(point.y)}"

    match action:
        case act.Finished() | act.CallUser() | act.Wait():
            return _ENDS[type(action)]
        case (
            act.Click(point) | act.LeftDouble(point) | act.LeftTriple(point) | act.RightSingle(point) | act.Hover(point)
        ):
            return f"pyautogui.{_AT_POINT[type(action)]}({at(point)})"
        case act.Drag(start, end):
            return f"pyautogui.moveTo({at(start)})\npyautogui.dragTo({at(end)}, button='left')"
        case act.Scroll(point, direction):
            name, amount = _SCROLLS[direction]
            return f"pyautogui.{name}({amount}, {at(point)})"
        case act.Hotkey(keys):
            name = "press" if len(keys) == 1 else "hotkey"
            return f"pyautogui.{name}({', '.join(repr(_KEYS.get(key, key)) for key in keys)})"
        case act.Press(key) | act.Release(key):
            return f"pyautogui.key{'Down' if isinstance(action, act.Press) else 'Up'}({_KEYS.get(key, key)!r})"
        case act.Type(content):
            return f"pyautogui.write('{escape_text(content)}')"
        case act.TypeAt():
            return "\n".join(format_pyautogui(part, size) for part in act.split_action(action))
    return serialise_action(action, Grammar("point", space, "computer"))
