"""The action grammar: the canonical form, the pitfalls users of other parsers met, and the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import (
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    LeftDouble,
    Navigate,
    NavigateBack,
    ParseError,
    Point,
    Press,
    Release,
    RightSingle,
    Scroll,
    Type,
    Wait,
)
from flywheel.agent.parser import parse, serialise, snap


def at(x: int, y: int, coordinates: int = 100) -> Point:
    return Point((x + 0.5) / coordinates, (y + 0.5) / coordinates)


CANONICAL = [
    (Click(at(52, 31)), "click(point='<point>52 31</point>')"),
    (Click(at(5, 0)), "click(point='<point>05 00</point>')"),
    (LeftDouble(at(1, 99)), "left_double(point='<point>01 99</point>')"),
    (RightSingle(at(10, 20)), "right_single(point='<point>10 20</point>')"),
    (
        Drag(at(10, 20), at(30, 40)),
        "drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')",
    ),
    (Hotkey(("ctrl", "c")), "hotkey(key='ctrl c')"),
    (Type("it's\n"), "type(content='it\\'s\\n')"),
    (Scroll(at(50, 50), "left"), "scroll(point='<point>50 50</point>', direction='left')"),
    (Wait(), "wait()"),
    (Finished(), "finished()"),
    (Finished("42"), "finished(content='42')"),
    (CallUser(), "call_user()"),
    (Navigate("http://a.test/?q=1"), "navigate(content='http://a.test/?q=1')"),
    (NavigateBack(), "navigate_back()"),
    (Press("left"), "press(key='left')"),
    (Release("left"), "release(key='left')"),
]


@pytest.mark.parametrize(("action", "text"), CANONICAL)
def test_one_form_is_written_and_read(action, text):
    assert serialise(action, 100) == text
    parsed = parse(f"Thought: I act.\nAction: {text}", 100)
    assert (parsed.thought, parsed.action) == ("I act.", action)


def test_larger_spaces_are_written_without_leading_zeros():
    assert serialise(Click(at(5, 712, 1000)), 1000) == "click(point='<point>5 712</point>')"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought：看\nAction：click(point='<point>52 31</point>')", Click(at(52, 31))),
        ("Action:click(point='<point>52 31</point>')", Click(at(52, 31))),
        ('Action: click(point="<point>52 31</point>")', Click(at(52, 31))),
        ("action: click(point='52 31')", Click(at(52, 31))),
        ("Action: click(start_box='<|box_start|>(52,31)<|box_end|>')", Click(at(52, 31))),
        ("Action: click(start_box='[50, 30, 54, 32]')", Click(at(52, 31))),
        ("Action: click(point='<bbox>50 30 54 32</bbox>')", Click(at(52, 31))),
        ("Action: click(point=<point>52 31</point>)", Click(at(52, 31))),
        ("Action: click(start_box=(52,31))", Click(at(52, 31))),
        ("Action: click( point = '<point>52, 31</point>' )", Click(at(52, 31))),
        ("Action: click(point='<point>52.0 31.0</point>')", Click(at(52, 31))),
        ("click(point='<point>52 31</point>')", Click(at(52, 31))),
        ("Thought: a Action: click(point='<point>52 31</point>')", Click(at(52, 31))),
        ("Action:\n```\nclick(point='<point>52 31</point>')\n```", Click(at(52, 31))),
        ("**Action:** click(point='<point>52 31</point>')", Click(at(52, 31))),
        (
            "Action: click(point='<point>52 31</point>')\n\nAction: wait()",
            Click(at(52, 31)),
        ),
        ("Action: drag(start_box='(10,20)', end_box='(30,40)')", Drag(at(10, 20), at(30, 40))),
        ("Action: scroll(point='<point>50 50</point>', direction='right')", Scroll(at(50, 50), "right")),
        ("Action: scroll(direction='left', point='<point>50 50</point>')", Scroll(at(50, 50), "left")),
        ("Action: hotkey(key='Ctrl+Shift T')", Hotkey(("ctrl", "shift", "t"))),
        ("Action: type(content='two\nlines')", Type("two\nlines")),
        ("Action: type(content='two\\nlines')", Type("two\nlines")),
        ("Action: type(content='it's fine')", Type("it's fine")),
        ("Action: type(content='say \"hi\", ok')", Type('say "hi", ok')),
        ("Action: type(content='f(x), g(y)')", Type("f(x), g(y)")),
        ("Action: type(content='Action: click(start_box=1)')", Type("Action: click(start_box=1)")),
        ("Action: type(content='first\nAction: wait()')", Type("first\nAction: wait()")),
        ("Action: type(content='C:\\\\temp')", Type("C:\\temp")),
        ("Action: type(content='')", Type("")),
        ("Action: finished(content='it\\'s done')", Finished("it's done")),
    ],
)
def test_pitfalls(text, action):
    assert parse(text, 100).action == action


@pytest.mark.parametrize(
    ("text", "reason", "where"),
    [
        ("", "no action", 0),
        ("Thought: I wonder.", "no action", 18),
        ("Action: ", "empty", 8),
        ("Action: fly(to='moon')", "unknown action 'fly'", 8),
        ("Action: click(start_box='')", "not a point", 25),
        ("Action: click()", "needs point", 8),
        ("Action: click(point='<point>52</point>')", "not a point", 21),
        ("Action: click(point='<point>150 31</point>')", "outside 0..99", 21),
        ("Action: click(point='<point>-3 31</point>')", "outside", 21),
        ("Action: click(point='<point>52 31</point>'", "closing bracket", 42),
        ("Action: type(content='abc", "not closed", 21),
        ("Action: scroll(point='<point>1 2</point>', direction='away')", "direction", 54),
        ("Action: hotkey(key='a b c d')", "3 at most", 20),
        ("Action: hotkey(key='')", "no key", 20),
        ("Action: click(colour='red')", "unknown parameter 'colour'", 14),
        ("Action: __import__('os').system('true')", "unknown action", 8),
    ],
)
def test_bad_output_is_a_value_that_says_what_and_where(text, reason, where):
    error = parse(text, 100).action
    assert isinstance(error, ParseError)
    assert reason in error.reason
    assert error.position == where


def test_the_coordinate_space_is_never_guessed():
    text = "Action: click(point='<point>50 50</point>')"
    assert parse(text, 100).action == Click(at(50, 50))
    assert parse(text, 1000).action == Click(at(50, 50, 1000))
    assert parse("Action: click(point='(1000,1000)')", 1000).action == Click(at(999, 999, 1000))


fractions = st.floats(0, 1, exclude_max=True)
points = st.builds(Point, fractions, fractions)
keys = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
contents = st.text(st.characters(codec="utf-8", exclude_characters="\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))
actions = st.one_of(
    st.builds(Click, points),
    st.builds(LeftDouble, points),
    st.builds(RightSingle, points),
    st.builds(Drag, points, points),
    st.builds(Hotkey, st.lists(keys, min_size=1, max_size=3).map(tuple)),
    st.builds(Type, contents),
    st.builds(Finished, contents),
    st.builds(Scroll, points, st.sampled_from(["up", "down", "left", "right"])),
    st.builds(Press, keys),
    st.builds(Release, keys),
    st.sampled_from([Wait(), CallUser(), NavigateBack()]),
)


def _snapped(action, coordinates):
    match action:
        case Drag(start, end):
            return Drag(snap(start, coordinates), snap(end, coordinates))
        case Click(point) | LeftDouble(point) | RightSingle(point):
            return type(action)(snap(point, coordinates))
        case Scroll(point, direction):
            return Scroll(snap(point, coordinates), direction)
    return action


@given(actions, st.sampled_from([10, 100, 1000, 1366]))
def test_what_is_written_is_read_back(action, coordinates):
    snapped = _snapped(action, coordinates)
    assert parse(serialise(action, coordinates), coordinates).action == snapped
    assert parse(f"Thought: x\nAction: {serialise(snapped, coordinates)}", coordinates).action == snapped


grammar = st.lists(
    st.sampled_from(["Thought: ", "Action", ":", "：", "click", "type", "(", ")", "'", '"', "\\", "\n", "point=",
                     "content=",
                     "<point>", "</point>", "5", " ", "[1,2", "]", ",", "1e999", "９", "-", "drag", "hotkey(key='"])
).map("".join)  # fmt: skip


@given(st.one_of(st.text(), grammar), st.integers(10, 2000))
def test_nothing_is_raised(text, coordinates):
    parsed = parse(text, coordinates)
    if isinstance(parsed.action, ParseError):
        assert parsed.action.reason
        assert 0 <= parsed.action.position <= len(text)
