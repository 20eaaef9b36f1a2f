"""The prompt that belongs to each text form: what a model that does not know its action space from training is told.

The call forms are asked for in the words that UI-TARS's checkpoints were trained with (the action lines), the tool
form by signatures in the manner of Qwen2.5-VL and Qwen3-VL.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from flywheel.agent.grammar import Grammar

_LINES = {
    "click": "click({one})",
    "left_double": "left_double({one})",
    "right_single": "right_single({one})",
    "hover": "hover({one})",
    "long_press": "long_press({one})",
    "drag": "drag({start}, {end})",
    "hotkey": "hotkey(key='ctrl c')  # lower case, keys separated by spaces, three at most",
    "press": "press(key='left')  # hold a key down",
    "release": "release(key='left')",
    "type": "type(content='xxx')  # escape ', \" and line ends with a backslash; end with \\n to submit",
    "scroll": "scroll({one}, direction='down or up or right or left')",
    "open_app": "open_app(app_name='xxx')",
    "press_home": "press_home()",
    "press_back": "press_back()",
    "navigate": "navigate(content='address')",
    "navigate_back": "navigate_back()",
    "wait": "wait()",
    "finished": "finished(content='xxx')",
    "call_user": "call_user()  # when the task cannot be solved, or needs the user",
    "terminal": "terminal(command='xxx')  # a shell command",
    "python": "python(code='xxx')  # what it computes is kept for the next call",
    "read_file": "read_file(path='xxx')",
    "write_file": "write_file(path='xxx', content='xxx')",
    "list_files": "list_files(path='xxx')",
    "call_tool": "call_tool(tool='xxx', arguments='{{\"name\": \"value\"}}')",
}
_POINTER = ("click", "left_double", "right_single", "drag")
_ENDS = ("wait", "finished", "call_user")
SPACES: dict[str, tuple[str, ...]] = {
    "computer": (*_POINTER, "hover", "hotkey", "type", "scroll", *_ENDS),
    "browser": (
        *_POINTER,
        "hover",
        "hotkey",
        "press",
        "release",
        "type",
        "scroll",
        "navigate",
        "navigate_back",
        *_ENDS,
    ),
    "mobile": ("click", "long_press", "type", "scroll", "drag", "open_app", "press_home", "press_back", *_ENDS),
    "game": (*_POINTER, "hotkey", "press", "release", "type", "scroll", *_ENDS),
}
FUNCTIONS = ("terminal", "python", "read_file", "write_file", "list_files", "call_tool")

_CALLS = """You are a GUI agent. You are given a task and your action history, with screenshots. Perform the next \
action to complete the task.

## Output Format
Thought: ...
Action: ...

## Action Space
{lines}

## Note
- Write a small plan and the next action with its target in one sentence in `Thought`.
- finished and call_user stand alone in a step.
- {numbers}

## User Instruction
"""

_TOOLS = """You are a GUI agent. You are given a task and your action history, with screenshots. Perform the next \
action to complete the task.

# Tools
You are given the signatures of functions within <tools></tools> tags:
<tools>
{signatures}
</tools>

Say what you think in one sentence, then call one function, as a JSON object with its name and arguments within \
<tool_call></tool_call> tags:
Thought: ...
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

# Task
"""


@lru_cache(maxsize=64)
def instructions(grammar: Grammar) -> str:
    """What stands before the task; "" for a model that knows its actions from training (minimal)."""
    if grammar.form == "minimal":
        return ""
    if grammar.form == "tool_call":
        signatures = [_screen_tool(grammar), *(_FUNCTION_TOOLS if grammar.functions else ())]
        return _TOOLS.format(signatures="\n".join(json.dumps(_signature(*one)) for one in signatures))
    return _CALLS.format(lines="\n".join(action_lines(grammar)), numbers=_numbers(grammar))


def action_lines(grammar: Grammar) -> list[str]:
    """The calls of the grammar's action space, an example each, some with a word about it behind `  #`."""
    names = SPACES[grammar.actions] + (FUNCTIONS if grammar.functions else ())
    return [_LINES[name].format(**_places(grammar)) for name in names]


def recalled(action: str, grammar: Grammar) -> str:
    """A past action as the model itself wrote it, for its history.

    UI-TARS 1.5 marks its boxes with special tokens, which servers leave out of the text they answer with, so the
    stored text has none (bytedance/UI-TARS, README_deploy.md puts them back in the same way).
    """
    if grammar.form != "ui_tars_1_5":
        return action
    return _BOX.sub(r"\1'<|box_start|>\2<|box_end|>'", action)


_BOX = re.compile(r"((?:start|end)_box=)'(\(\d+,\d+\))'")


def _places(grammar: Grammar) -> dict[str, str]:
    if grammar.form in ("minimal", "point"):
        places = {
            "one": "point='<point>x y</point>'",
            "start": "start_point='<point>x1 y1</point>'",
            "end": "end_point='<point>x2 y2</point>'",
        }
    else:
        places = {
            "one": "start_box='<|box_start|>(x,y)<|box_end|>'",
            "start": "start_box='<|box_start|>(x1,y1)<|box_end|>'",
            "end": "end_box='<|box_start|>(x2,y2)<|box_end|>'",
        }
    return places


def _numbers(grammar: Grammar) -> str:
    if grammar.space.kind == "fractions":
        return "Points are fractions of the screen's width and height, 0 to 1, with four digits."
    if grammar.space.kind == "pixels":
        return "Points are pixels of the screenshot, counted from its upper left corner."
    return f"Points count from 0 to {grammar.space.x.last} over the screen's width and height."


# Actions of the screen's tool: what each is, told beside those that Qwen's own tools have.
_ABOUT = {
    "left_click": "click at the coordinate",
    "double_click": "double-click at the coordinate",
    "right_click": "click with the right button at the coordinate",
    "left_click_drag": "drag from start_coordinate to coordinate",
    "mouse_move": "move the pointer to the coordinate, and press nothing",
    "key": "press the keys together and let them go",
    "key_down": "hold the key down",
    "key_up": "let the key go",
    "type": "type the text; a line end submits it",
    "scroll": "turn the wheel at the coordinate by pixels: positive is up, negative is down",
    "hscroll": "the same sideways: positive is right, negative is left",
    "click": "touch the coordinate",
    "long_press": "touch the coordinate for time seconds",
    "swipe": "move the finger from coordinate to coordinate2",
    "system_button": "press the button",
    "open": "open the app that the text names",
    "navigate": "go to the address in the text",
    "navigate_back": "go back to the page before",
    "wait": "wait time seconds",
    "answer": "end the task with an answer, the text",
    "terminate": "end the task with its status",
}
_MOUSE = ("left_click", "double_click", "right_click", "left_click_drag")
_CLOSE = ("wait", "answer", "terminate")
_TOOL_ACTIONS: dict[str, tuple[str, ...]] = {
    "computer": (*_MOUSE, "mouse_move", "key", "type", "scroll", "hscroll", *_CLOSE),
    "browser": (
        *_MOUSE,
        "mouse_move",
        "key",
        "key_down",
        "key_up",
        "type",
        "scroll",
        "hscroll",
        "navigate",
        "navigate_back",
        *_CLOSE,
    ),
    "mobile": ("click", "long_press", "swipe", "type", "system_button", "open", *_CLOSE),
    "game": (*_MOUSE, "key", "key_down", "key_up", "type", "scroll", "hscroll", *_CLOSE),
}
_PLACE = {"type": "array", "items": {"type": "number"}, "description": "[x, y] from the upper left corner"}
_TEXT = {"type": "string"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "coordinate": _PLACE,
    "start_coordinate": _PLACE,
    "coordinate2": _PLACE,
    "keys": {"type": "array", "items": _TEXT, "description": "three at most, lower case"},
    "text": _TEXT,
    "pixels": {"type": "number"},
    "button": {"type": "string", "enum": ["Back", "Home", "Enter"]},
    "time": {"type": "number"},
    "status": {"type": "string", "enum": ["success", "failure"]},
}
_NEEDED_BY = {
    "start_coordinate": {"left_click_drag"},
    "coordinate2": {"swipe"},
    "keys": {"key"},
    "pixels": {"scroll"},
    "button": {"system_button"},
}
_FUNCTION_TOOLS = (
    ("terminal", "Run a shell command.", {"command": _TEXT}, ["command"]),
    ("python", "Run Python code; what it computes is kept for the next call.", {"code": _TEXT}, ["code"]),
    ("read_file", "Read a file.", {"path": _TEXT}, ["path"]),
    ("write_file", "Replace a file's content.", {"path": _TEXT, "content": _TEXT}, ["path", "content"]),
    ("list_files", "List a folder.", {"path": _TEXT}, ["path"]),
    ("call_tool", "Call a tool by its name.", {"name": _TEXT, "arguments": {"type": "object"}}, ["name"]),
)


def _screen_tool(grammar: Grammar) -> tuple[str, str, dict[str, Any], list[str]]:
    mobile = grammar.actions == "mobile"
    actions = _TOOL_ACTIONS[grammar.actions]
    size = "{}x{}".format(*grammar.space.size)
    scale = _numbers(grammar) if grammar.space.kind == "fractions" else f"The screen's resolution is {size}."
    what = "Touch a phone's screen." if mobile else "Use the mouse and the keyboard."
    about = "\n".join(f"* `{action}`: {_ABOUT[action]}." for action in actions)
    options = {
        name: option for name, option in _OPTIONS.items() if name not in _NEEDED_BY or _NEEDED_BY[name] & set(actions)
    }
    action = {"type": "string", "enum": list(actions), "description": about}
    told = f"{what} {scale} Point at the middle of an element."
    return "mobile_use" if mobile else "computer_use", told, {"action": action, **options}, ["action"]


def _signature(name: str, about: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
