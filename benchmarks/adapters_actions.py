"""Random actions in each benchmark's own form, and of ours, for `flywheel bench adapters`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point

SCREEN = (1920, 1080)  # pixels
PHONE = (1080, 2400)
_WORDS = ("Oslo", "naïve", "日本", "a b", 'say "x"', "it's", "\\n", "", "x" * 200, "😀", "line\ntwo", "\t", "{}", "#!")
_KEYS = ("a", "enter", "tab", "f5", "esc", "left", "delete")
_MODIFIERS = ("ctrl", "alt", "shift")


def _text(rng: random.Random) -> str:
    return "".join(rng.choices(_WORDS, k=rng.randint(1, 3)))


def _place(rng: random.Random, screen: tuple[int, int]) -> tuple[int, int]:
    return rng.choice([rng.randrange(screen[0]), 0, screen[0] - 1]), rng.choice([rng.randrange(screen[1]), 0])


def _point(rng: random.Random, screen: tuple[int, int]) -> Point:
    x, y = _place(rng, screen)
    return Point(x / screen[0], y / screen[1])


def _keys(rng: random.Random) -> tuple[str, ...]:
    return (*rng.sample(_MODIFIERS, rng.randint(0, 2)), rng.choice(_KEYS))


def terminus(rng: random.Random) -> dict[str, Any]:
    """Draw an answer of Terminus."""
    keys = ("ls -la\n", "C-c", "C-d", "", "q", "cat <<'E'\na\nE\n", f"echo {_text(rng)}\n", _text(rng), "\n")
    commands = [{"keystrokes": rng.choice(keys)} for _ in range(rng.randint(0, 4))]
    for command in commands:
        if rng.random() < 0.7:
            command["duration"] = rng.choice([0.1, 1, 30.5])
    answer = {"analysis": _text(rng), "plan": _text(rng), "commands": commands}
    return answer | rng.choice([{}, {"task_complete": True}, {"task_complete": False}, {"extra": 1}])


def computer_13(rng: random.Random) -> dict[str, Any]:
    """Draw an action of OSWorld's action space computer_13, flat or with `parameters`."""
    x, y = _place(rng, SCREEN)
    at = {"x": x, "y": y}
    kind, given = rng.choice(
        [
            ("MOVE_TO", at), ("CLICK", at), ("CLICK", at | {"num_clicks": rng.randint(1, 3)}), ("CLICK", {}),
            ("CLICK", at | {"button": rng.choice(["left", "right", "middle"])}), ("RIGHT_CLICK", at),
            ("DOUBLE_CLICK", at), ("DRAG_TO", at), ("SCROLL", {"dx": 0, "dy": rng.randint(-10, 10)}),
            ("TYPING", {"text": _text(rng)}),
            ("PRESS", {"key": rng.choice(_KEYS)}), ("KEY_DOWN", {"key": "ctrl"}), ("KEY_UP", {"key": "ctrl"}),
            ("HOTKEY", {"keys": list(_keys(rng))}), ("WAIT", {}), ("FAIL", {}), ("DONE", {}), ("MOUSE_DOWN", {}),
            ("CLICK", {"x": x + 0.5, "y": y}), ("PRESS", {"key": "\t"}),
        ]
    )  # fmt: skip
    return {"action_type": kind, **given} if rng.random() < 0.5 else {"action_type": kind, "parameters": given}


def pyautogui(rng: random.Random) -> str:
    """Draw code of PyAutoGUI."""
    x, y = _place(rng, SCREEN)
    return rng.choice(
        [
            f"pyautogui.click({x}, {y})", f"pyautogui.click(x={x}, y={y}, button='right')", "DONE", "FAIL", "WAIT",
            f"import pyautogui\npyautogui.moveTo({x}, {y})\npyautogui.click()", f"pyautogui.write({_text(rng)!r})",
            f"pyautogui.doubleClick({x}, {y})", f"pyautogui.scroll({rng.choice([-5, 5, 300])})",
            f"pyautogui.press({rng.choice(_KEYS)!r})", f"pyautogui.hotkey({', '.join(map(repr, _keys(rng)))})",
            f"pyautogui.click({x}, {y})\ntime.sleep(1)\npyautogui.write('a')", "while True: pyautogui.press('a')",
            f"pyautogui.moveTo({x}, {y})\npyautogui.dragTo({y}, {x % SCREEN[1]}, button='left')",
        ]
    )  # fmt: skip


def windows_block(rng: random.Random) -> str:
    """Draw a block of code of WindowsAgentArena."""
    x, y = rng.randrange(10**6) / 10**6, rng.randrange(10**6) / 10**6
    move = f"computer.mouse.move_abs(x={x!r}, y={y!r})"
    return rng.choice(
        [
            move, f"{move}\ncomputer.mouse.single_click()", f"{move}\ncomputer.mouse.double_click()", "DONE", "WAIT",
            f"{move}\ncomputer.mouse.right_click()", f"{move}\ncomputer.mouse.drag(x={y!r}, y={x!r})", "FAIL",
            f"{move}\ncomputer.mouse.scroll('down')", f"computer.keyboard.write({_text(rng)!r})",
            f"computer.keyboard.press({rng.choice(_KEYS)!r})", "computer.keyboard.hotkey('ctrl', 's')",
            "computer.os.open_program('msedge')", f"computer.mouse.move_id(id={rng.randint(0, 40)})",
            "computer.mouse.single_click()", f"{move}\ncomputer.clipboard.copy_text({_text(rng)!r})",
        ]
    )  # fmt: skip


def android(rng: random.Random) -> dict[str, Any]:
    """Draw a JSON action of AndroidWorld."""
    x, y = _place(rng, PHONE)
    at = {"x": x, "y": y}
    return rng.choice(
        [
            {"action_type": "click", **at}, {"action_type": "double_tap", **at}, {"action_type": "long_press", **at},
            {"action_type": "click", "index": rng.randint(0, 60)}, {"action_type": "input_text", "text": _text(rng)},
            {"action_type": "input_text", **at, "text": _text(rng), "clear_text": rng.random() < 0.5},
            {"action_type": "keyboard_enter"}, {"action_type": "navigate_home"}, {"action_type": "navigate_back"},
            {"action_type": "scroll", "direction": rng.choice(["up", "down", "left", "right"])},
            {"action_type": "swipe", "direction": "up"}, {"action_type": "open_app", "app_name": "Clock"},
            {"action_type": "wait"}, {"action_type": "answer", "text": _text(rng)},
            {"action_type": "status", "goal_status": rng.choice(["complete", "infeasible"])},
            {"action_type": "unknown"},
        ]
    )  # fmt: skip


def search_call(rng: random.Random) -> Any:
    """Draw a call or an answer of BrowseComp-Plus."""
    arguments = json.dumps({"query": _text(rng)}, separators=rng.choice([(",", ":"), (", ", ": ")]))
    call = {"type": "function_call", "name": "search", "arguments": arguments}
    document = {**call, "name": "get_document", "arguments": '{"docid":"7"}', "call_id": "call_1"}
    return rng.choice([call, document, f"Exact Answer: {_text(rng)}\nConfidence: 80%"])


def game_move(rng: random.Random) -> str:
    """Draw an action of LMGame-Bench's games."""
    return rng.choice(
        ["up", "down", "left", "right", "no_op", "push up", "rotate_left", "((0, 1), (0, 2))", "('right_a', 4)"]
    )


def history_line(rng: random.Random) -> str:
    """Draw a line of a history of Online-Mind2Web."""
    x, y = _place(rng, SCREEN)
    return rng.choice(
        [
            f"Click at ({x}, {y})", f"Hover at ({x}, {y})", f"Drag from ({x}, {y}) to (5, 6)", f'Type "{_text(rng)}"',
            "Navigate to https://example.org/a?b=c", "Navigate back", "Press ENTER", "Press CONTROL+A",
            "Scroll (delta_x=0, delta_y=300)", "<button> Search -> CLICK", "<input> City -> TYPE: Oslo",
        ]
    )  # fmt: skip


def prediction(rng: random.Random) -> dict[str, Any]:
    """Draw a prediction of SWE-bench."""
    patch = rng.choice([f"diff --git a/x b/x\n+{_text(rng)}\n", "", None])
    return {"instance_id": "a__b-1", "model_name_or_path": "m", "model_patch": patch}


THEIRS: dict[str, list[Callable[[random.Random], Any]]] = {
    "terminal-bench": [terminus], "osworld": [computer_13, pyautogui], "swe-bench": [prediction],
    "windows-agent-arena": [windows_block], "android-world": [android], "browsecomp-plus": [search_call],
    "lmgame-bench": [game_move], "online-mind2web": [history_line],
}  # fmt: skip
SCREENS = {"osworld": SCREEN, "android-world": PHONE, "online-mind2web": SCREEN}


def draw_ours(rng: random.Random, screen: tuple[int, int]) -> Action:
    """Draw an action of ours, of any kind."""
    at, to = _point(rng, screen), _point(rng, screen)
    return rng.choice(
        [
            act.Click(at), act.LeftDouble(at), act.LeftTriple(at), act.RightSingle(at), act.Hover(at), act.Drag(at, to),
            act.Hotkey(_keys(rng)), act.Type(_text(rng)), act.TypeAt(at, _text(rng), rng.random() < 0.5),
            act.Scroll(at, rng.choice(["up", "down", "left", "right"])), act.Wait(), act.Finished(_text(rng)),
            act.CallUser(), act.Navigate("https://example.org/"), act.NavigateBack(), act.Press("shift"),
            act.Release("shift"), act.LongPress(at), act.OpenApp("Clock"), act.PressHome(), act.PressBack(),
            act.Terminal(f"echo {_text(rng)}"), act.ToolCall.of("search", {"query": _text(rng)}),
            act.ToolCall.of("act", {"action": "rotate_left"}), act.Finished(), act.Scroll(Point(0.5, 0.5), "down"),
        ]
    )  # fmt: skip
