"""What a person did in one step is one action, whole, or is not learnt; no answer becomes half of what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, ParseError, Point
from flywheel.agent.parsing.parser import parse_demonstrated_action, parse_response
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR

SPOT = (0.25, 0.5)
# Call -> what it does to the mouse and the keys; the place is where the mouse is by then.
CALLS = {
    "pyautogui.moveTo(x=0.25, y=0.5)": [("move", SPOT)],
    "pyautogui.moveTo(0.75, 0.125)": [("move", (0.75, 0.125))],
    "pyautogui.click()": ["click"],
    "pyautogui.click(x=0.25, y=0.5)": [("move", SPOT), "click"],
    "pyautogui.doubleClick()": ["double"],
    "pyautogui.rightClick(x=0.25, y=0.5)": [("move", SPOT), "right"],
    "pyautogui.dragTo(0.75, 0.125, button='left')": [("drag", (0.75, 0.125))],
    "pyautogui.scroll(-4)": [("scroll", "down")],
    "pyautogui.hscroll(4)": [("scroll", "right")],
    "pyautogui.write(message='ab')": [("text", "ab")],
    "pyautogui.press('enter')": [("key", "enter")],
    "pyautogui.press(keys=['tab'])": [("key", "tab")],
    "pyautogui.keyDown('ctrl')": [("down", "ctrl")],
    "pyautogui.keyUp('ctrl')": [("up", "ctrl")],
    "pyautogui.hotkey('ctrl', 'c')": [("down", "ctrl"), ("key", "c"), ("up", "ctrl")],
    "pyautogui.tripleClick()": ["triple"],
    "pyautogui.click(0.25, 0.5, clicks=3)": [("move", SPOT), "triple"],
    "pyautogui.mouseDown()": ["press the button"],
}
WAITS = ("time.sleep(1)", "# a remark")


def effects(action: Action) -> list:
    """What an action does, as the calls above say it."""
    match action:
        case act.Click(point):
            return [("move", (point.x, point.y)), "click"]
        case act.LeftDouble(point):
            return [("move", (point.x, point.y)), "double"]
        case act.LeftTriple(point):
            return [("move", (point.x, point.y)), "triple"]
        case act.RightSingle(point):
            return [("move", (point.x, point.y)), "right"]
        case act.Hover(point):
            return [("move", (point.x, point.y))]
        case act.Scroll(point, direction):
            return [("move", (point.x, point.y)), ("scroll", direction)]
        case act.Drag(start, end):
            return [("move", (start.x, start.y)), ("drag", (end.x, end.y))]
        case act.Type(content):
            return [("text", content.rstrip("\n")), *[("key", "enter")] * content.count("\n")]
        case act.Press(key):
            return [("down", key)]
        case act.Release(key):
            return [("up", key)]
        case act.Hotkey((*held, key)):
            return [*(("down", one) for one in held), ("key", key), *(("up", one) for one in reversed(held))]
    raise AssertionError(action)


def pressed(done: list) -> list:
    """A key that goes down and up at once is pressed."""
    made: list = []
    for one in done:
        if one[0] == "up" and made and made[-1] == ("down", one[1]):
            made[-1] = ("key", one[1])
        else:
            made.append(one)
    return made


@given(st.lists(st.sampled_from([*CALLS, *WAITS]), min_size=1, max_size=5))
@settings(max_examples=examples(300))
def test_a_step_never_stands_for_half_of_what_was_done(lines):
    found = parse_demonstrated_action("\n".join(lines), DEMONSTRATION_GRAMMAR)
    done = [one for line in lines for one in CALLS.get(line, [])]
    if isinstance(found, act.Wait):
        assert not done
    elif not isinstance(found, ParseError):
        assert pressed(effects(found)) == pressed(done)


@given(st.lists(st.sampled_from([*CALLS, *WAITS]), min_size=1, max_size=5))
@settings(max_examples=examples(150))
def test_an_answer_is_one_of_its_actions_and_none_that_only_prepares_another(lines):
    found = parse_response("Thought: I act.\nAction: " + "\n".join(lines), DEMONSTRATION_GRAMMAR).action
    done = [one for line in lines for one in CALLS.get(line, [])]
    if isinstance(found, act.Hover | act.Press):
        assert effects(found) == done
    elif isinstance(found, act.Scroll) and found.point == Point(0.5, 0.5):
        assert done[0][0] == "scroll"
    elif not isinstance(found, act.Wait | ParseError):
        whole = pressed(effects(found))
        assert pressed(done)[: len(whole)] == whole


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        ("pyautogui.moveTo(x=0.25, y=0.5)\npyautogui.scroll(-4)", act.Scroll(Point(*SPOT), "down")),
        ("pyautogui.write(message='ab')\npyautogui.press(keys=['enter'])", act.Type("ab\n")),
        ("pyautogui.keyDown('ctrl')\npyautogui.press('c')\npyautogui.keyUp('ctrl')", act.Hotkey(("ctrl", "c"))),
        ("import time\ntime.sleep(1)\npyautogui.click(x=0.25, y=0.5)\ntime.sleep(2)", act.Click(Point(*SPOT))),
        ("computer.tripleClick(x=0.25, y=0.5)", act.LeftTriple(Point(*SPOT))),
        ("pyautogui.moveTo(x=0.25, y=0.5)\npyautogui.click(clicks=3)", act.LeftTriple(Point(*SPOT))),
        ("pyautogui.click(x=0.25, y=0.5, clicks=4)", "times"),
        ("pyautogui.moveTo(x=0.25, y=0.5))\npyautogui.click()", "nothing readable behind it"),
        ('{"action": "type", "text": "ab", "point": [0.25, 0.5]}', act.TypeAt(Point(*SPOT), "ab")),
        ("TYPE(box=[[0.25, 0.5]], text='ab', element_type='field')", act.TypeAt(Point(*SPOT), "ab")),
        ("input_text(index=3, text='ab')", "into an element by its number"),
        ('{"action": "write", "content": "ab", "element": "the search field"}', "or its words"),
        (
            "pyautogui.keyDown('ctrl')\npyautogui.click(x=0.25, y=0.5)\npyautogui.keyUp('ctrl')",
            "a key held, then click",
        ),
        ("pyautogui.keyDown(['a', 'b'])\npyautogui.keyUp(['a'])", "a key held"),
        ("pyautogui.click(x=0.25, y=0.5)\npyautogui.write('a')", "several actions in one step"),
        ("pyautogui.scroll(-4)", "a scroll without its place"),
        ("for i in range(3):\n    pyautogui.press('down')", "does not begin with an action"),
        ("pyautogui.click(0.25, 0.5) if ready else None", "more stands behind"),
        ('[{"action": "click", "point": [0.25, 0.5]}, {"action": "type", "text": "a"}]', "several actions"),
    ],
)
def test_several_calls_are_one_action_or_none(code, meant):
    found = parse_demonstrated_action(code, DEMONSTRATION_GRAMMAR)
    assert meant in found.reason if isinstance(meant, str) else found == meant
