"""The stand-in for PyAutoGUI takes the arguments that PyAutoGUI takes, by place and by name."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import flywheel.envs.computer_server as computer_server

SHIM = Path(computer_server.__file__).parent / "pyautogui_shim" / "pyautogui.py"
MOVED, CLICKED = "duration tween logScreenshot _pause", "interval button duration tween logScreenshot _pause"
DRAGGED = "duration tween button logScreenshot _pause mouseDownUp"
PARAMETERS = {  # of PyAutoGUI 0.9.54
    "moveTo": f"x y {MOVED}",
    "moveRel": f"xOffset yOffset {MOVED}",
    "mouseDown": f"x y button {MOVED}",
    "mouseUp": f"x y button {MOVED}",
    "click": f"x y clicks {CLICKED}",
    "doubleClick": f"x y {CLICKED}",
    "tripleClick": f"x y {CLICKED}",
    "rightClick": f"x y interval {MOVED}",
    "middleClick": f"x y interval {MOVED}",
    "dragTo": f"x y {DRAGGED}",
    "dragRel": f"xOffset yOffset {DRAGGED}",
    "scroll": "clicks x y logScreenshot _pause",
    "hscroll": "clicks x y logScreenshot _pause",
    "keyDown": "key logScreenshot _pause",
    "keyUp": "key logScreenshot _pause",
    "press": "keys presses interval logScreenshot _pause",
    "write": "message interval logScreenshot _pause",
}


class Hands:
    """Writes down what is asked of the display."""

    size = (640, 480)

    def __init__(self, name):
        self.at, self.acts = (10, 10), []

    def position(self):
        return self.at

    def move(self, x, y):
        self.at = x, y

    def button(self, name, down):
        self.acts.append((name, down, self.at))

    def key(self, name, down):
        self.acts.append((name, down))

    def scroll(self, direction, notches):
        self.acts.append((direction, notches, self.at))

    def text(self, text):
        self.acts.append(text)


@pytest.fixture
def gui(monkeypatch):
    names = {"x11": {}, "from_pyautogui": {"ctrl": "Control"}}
    monkeypatch.setitem(sys.modules, "x11", SimpleNamespace(KEY_NAMES=names, X11Input=Hands))
    monkeypatch.setenv("DISPLAY", ":99")
    spec = importlib.util.spec_from_file_location("shim_of_pyautogui", SHIM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_function_has_pyautoguis_parameters(gui, name):
    assert list(inspect.signature(getattr(gui, name)).parameters) == PARAMETERS[name].split()


def test_arguments_that_change_nothing_are_taken_by_name(gui):
    quiet = {"logScreenshot": False, "_pause": False}
    gui.moveTo(20, 30, tween=None, **quiet)
    gui.click(5, 6, clicks=2, tween=None, **quiet)
    gui.mouseDown(button="secondary", duration=0.0, **quiet)
    gui.hotkey("ctrl", "c", interval=0.0, **quiet)
    gui.write("a", **quiet)
    gui.scroll(-2, x=7, **quiet)
    twice = [("left", True, (5, 6)), ("left", False, (5, 6))] * 2
    keys = [("Control", True), ("c", True), ("c", False), ("Control", False)]
    assert gui._hands.acts == [*twice, ("right", True, (5, 6)), *keys, "a", ("down", 2, (7, 6))]
    gui.moveRel(None, 4)
    assert gui.position() == (7, 10)
    gui._hands.acts.clear()
    gui.dragTo(9, 9, button="middle", mouseDownUp=False, **quiet)
    gui.hotkey(["ctrl", "v"])
    assert gui._hands.acts == [("Control", True), ("v", True), ("v", False), ("Control", False)]


def test_a_misspelt_argument_is_an_error(gui):
    with pytest.raises(TypeError):
        gui.click(1, 2, buton="right")
