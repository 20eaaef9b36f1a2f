"""Adapt WindowsAgentArena: load task files in OSWorld's form, convert calls of `computer`, and score result folders.

https://github.com/microsoft/WindowsAgentArena. Its points are fractions of the window that its screenshots show, which
by default is the whole screen.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.evaluation.benchmarks.benchmark import AdaptedActions, OfficialScore, TaskResult, require_text
from flywheel.evaluation.benchmarks.osworld import OsworldBenchmark

_SPOKEN: dict[str, Action] = {"DONE": act.Finished(), "FAIL": act.CallUser(), "WAIT": act.Wait()}
_AT_POINTER: dict[str, Callable[[Point], Action]] = {
    "computer.mouse.single_click": act.Click,
    "computer.mouse.double_click": act.LeftDouble,
    "computer.mouse.right_click": act.RightSingle,
}
_MOVES = ("computer.mouse.move_abs", "computer.mouse.move")
_NAMES = {kind: name for name, kind in _AT_POINTER.items()}


class WindowsAgentArena(OsworldBenchmark):
    """Adapt WindowsAgentArena. An action is a block of code that calls `computer`, or DONE, FAIL, WAIT."""

    name, title = "windows-agent-arena", "WindowsAgentArena"
    source = "github.com/microsoft/WindowsAgentArena: src/win-arena-container/client/evaluation_examples_windows"
    space = "fractions of the window that the screenshot shows"
    ran = "none: no Windows here"
    examples = ("examples", "examples_noctxt")

    def explain_unplayable(self, path: Path) -> str:
        """Say why a task cannot be played here: each needs Windows."""
        return "it needs Windows"

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse a block of code, in which each statement is a call.

        A call that clicks or drags does it where an earlier call moved the pointer; a block with a call that none of
        our actions can do has no actions.
        """
        code = require_text(written, "an action")
        if code.strip() in _SPOKEN:
            return AdaptedActions((_SPOKEN[code.strip()],), {} if code.strip() == code else {"code": code})
        actions = _parse_block(code)
        if not actions:
            return AdaptedActions((), {"code": code})
        same = _format_block(actions) == code
        return AdaptedActions(tuple(actions), {} if same else {"code": code})

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> str:
        """Write a block of code. Raises ValueError for an action that `computer` cannot do."""
        return action.extras["code"] if "code" in action.extras else _format_block(action.actions)

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read results as OSWorld's; a task that the harness timed out on has no result, which is a fault."""
        return super().read_results(folder)

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as its `show_result.py` does, which is OSWorld's rule."""
        return super().score_results(results)


def _parse_block(code: str) -> list[Action]:
    try:
        statements = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError):
        return []
    found: list[Action] = []
    pointer: Point | None = None
    moved = False  # and nothing was done there yet
    for statement in statements:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
            return []
        call = statement.value
        name = ast.unparse(call.func)
        try:
            given = [ast.literal_eval(one) for one in call.args]
            named = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
        except (ValueError, TypeError, SyntaxError):
            return []
        if moved and name not in _AT_POINTER and name not in ("computer.mouse.drag", "computer.mouse.scroll"):
            found.append(act.Hover(pointer))
            moved = False
        if name in _MOVES:
            pointer = _read_fraction(given, named)
            moved = pointer is not None
            done: Action | None = act.Wait() if moved else None
        elif name in _AT_POINTER:
            done = _AT_POINTER[name](pointer) if pointer and not given and not named else None
        else:
            done = _parse_call(name, given, named, pointer)
        if done is None:
            return []
        if name not in _MOVES:
            found.append(done)
            moved = False
            pointer = getattr(done, "end_point", pointer)
    return [*found, act.Hover(pointer)] if moved else found


def _read_fraction(given: list[Any], named: dict[str, Any]) -> Point | None:
    values = [*given, *(named.get(name) for name in ("x", "y")[len(given) :])]
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < 1 for one in values)
    return Point(*map(float, values)) if len(values) == 2 and numbers else None


def _parse_call(name: str, given: list[Any], named: dict[str, Any], pointer: Point | None) -> Action | None:
    text = (given + list(named.values()))[0] if len(given) + len(named) == 1 else None
    if name == "computer.mouse.drag":
        target = _read_fraction(given, named)
        return act.Drag(pointer, target) if pointer and target else None
    if name == "computer.mouse.scroll" and text in ("up", "down"):
        return act.Scroll(pointer, text) if pointer else None
    if name == "computer.keyboard.write" and isinstance(text, str):
        return act.Type(text)
    if name in ("computer.keyboard.press", "computer.keyboard.keyDown", "computer.keyboard.keyUp") and isinstance(
        text, str
    ):
        kind = name.rpartition(".")[2]
        return {"press": act.Hotkey((text,)), "keyDown": act.Press(text), "keyUp": act.Release(text)}[kind]
    if (
        name == "computer.keyboard.hotkey"
        and len(given) > 1
        and not named
        and all(isinstance(one, str) for one in given)
    ):
        return act.Hotkey(tuple(given))
    if name == "computer.os.open_program" and isinstance(text, str):
        return act.OpenApp(text)
    return None


def _format_block(actions: Sequence[Action]) -> str:
    if len(actions) > 1 and any(type(one) in map(type, _SPOKEN.values()) for one in actions):
        raise ValueError("DONE, FAIL and WAIT stand alone")
    return "\n".join(line for action in actions for line in _format_lines(action))


def _at(point: Point) -> str:
    return f"x={point.x!r}, y={point.y!r}"


def _format_lines(action: Action) -> list[str]:
    match action:
        case act.Finished("") | act.CallUser() | act.Wait():
            return [next(word for word, one in _SPOKEN.items() if type(one) is type(action))]
        case act.Hover(point):
            return [f"computer.mouse.move_abs({_at(point)})"]
        case act.Click(point) | act.LeftDouble(point) | act.RightSingle(point):
            return [f"computer.mouse.move_abs({_at(point)})", f"{_NAMES[type(action)]}()"]
        case act.Drag(start, end):
            return [f"computer.mouse.move_abs({_at(start)})", f"computer.mouse.drag({_at(end)})"]
        case act.Scroll(point, direction) if direction in ("up", "down"):
            return [f"computer.mouse.move_abs({_at(point)})", f"computer.mouse.scroll({direction!r})"]
        case act.Hotkey(keys):
            words = ", ".join(map(repr, keys))
            return [f"computer.keyboard.{'press' if len(keys) == 1 else 'hotkey'}({words})"]
        case act.Press(key):
            return [f"computer.keyboard.keyDown({key!r})"]
        case act.Release(key):
            return [f"computer.keyboard.keyUp({key!r})"]
        case act.Type(content):
            return [f"computer.keyboard.write({content!r})"]
        case act.TypeAt():
            return [line for part in act.split_action(action) for line in _format_lines(part)]
        case act.OpenApp(app_name):
            return [f"computer.os.open_program({app_name!r})"]
    raise ValueError(f"WindowsAgentArena has no call for {action}")
