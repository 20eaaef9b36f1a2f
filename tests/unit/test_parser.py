"""Actions as calls: the one form that is written, the pitfalls that users of other parsers met, what is an error."""

from __future__ import annotations

import pytest

from flywheel.agent.actions import (
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    Hover,
    LeftDouble,
    LeftTriple,
    ListFiles,
    LongPress,
    Navigate,
    NavigateBack,
    OpenApp,
    ParseError,
    Point,
    Press,
    PressBack,
    PressHome,
    ReadFile,
    Release,
    RightSingle,
    RunPython,
    Scroll,
    Terminal,
    ToolCall,
    Type,
    TypeAt,
    Wait,
    WriteFile,
)
from flywheel.agent.grammar import format_response
from flywheel.agent.parsing.parser import parse_response, serialise_action


def at(x: int, y: int, coordinates: int = 100) -> Point:
    return Point((x + 0.5) / coordinates, (y + 0.5) / coordinates)


CANONICAL = [
    (Click(at(52, 31)), "click(point='<point>52 31</point>')"),
    (Click(at(5, 0)), "click(point='<point>05 00</point>')"),
    (LeftDouble(at(1, 99)), "left_double(point='<point>01 99</point>')"),
    (LeftTriple(at(1, 99)), "left_triple(point='<point>01 99</point>')"),
    (TypeAt(at(1, 99), "a\n"), "type_at(point='<point>01 99</point>', content='a\\n')"),
    (TypeAt(at(1, 99), "a", True), "type_at(point='<point>01 99</point>', content='a', clear='true')"),
    (Hover(at(10, 20)), "hover(point='<point>10 20</point>')"),
    (RightSingle(at(10, 20)), "right_single(point='<point>10 20</point>')"),
    (Drag(at(10, 20), at(30, 40)), "drag(start_point='<point>10 20</point>', end_point='<point>30 40</point>')"),
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
    (Press("'"), "press(key='\\'')"),
    (Hotkey(("ctrl", "+")), "hotkey(key='ctrl plus')"),
    (LongPress(at(52, 31)), "long_press(point='<point>52 31</point>')"),
    (OpenApp("Maps"), "open_app(app_name='Maps')"),
    (PressHome(), "press_home()"),
    (PressBack(), "press_back()"),
    (Terminal("ls 'a b'"), "terminal(command='ls \\'a b\\'')"),
    (RunPython("print('a')\n1"), "python(code='print(\\'a\\')\\n1')"),
    (ReadFile("a/b.txt"), "read_file(path='a/b.txt')"),
    (WriteFile("a.txt", "one\ntwo"), "write_file(path='a.txt', content='one\\ntwo')"),
    (ListFiles("."), "list_files(path='.')"),
    (ToolCall.of("search", {"q": "x", "n": [1]}), 'call_tool(tool=\'search\', arguments=\'{"n":[1],"q":"x"}\')'),
]


@pytest.mark.parametrize(("action", "text"), CANONICAL)
def test_one_form_is_written_and_read(action, text):
    assert serialise_action(action, 100) == text
    parsed = parse_response(f"Thought: I act.\nAction: {text}", 100)
    assert (parsed.thought, parsed.action) == ("I act.", action)


def test_larger_spaces_are_written_without_leading_zeros():
    assert serialise_action(Click(at(5, 712, 1000)), 1000) == "click(point='<point>5 712</point>')"


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
        ("Action: click(point='<point>52 31</point>')\n\nAction: wait()", Click(at(52, 31))),
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
        ("type(content='Action: wait()')", Type("Action: wait()")),
        ("Action: type(content='C:\\\\temp')", Type("C:\\temp")),
        ("Action: type(content='')", Type("")),
        ("Action: finished(content='it\\'s done')", Finished("it's done")),
        # Punctuation of another width, and quotes of another kind at the two ends.
        ("Action：click（point＝‘<point>52 31</point>’）", Click(at(52, 31))),
        ("Action: drag(start_point='(10，20)'，end_point='(30，40)')", Drag(at(10, 20), at(30, 40))),
        ("Action: click(point='<point>５２ ３１</point>')", Click(at(52, 31))),
        ("Action: type(content=“it's”)", Type("it's")),
        ("Action: click(point='<point>52 31</point>\")", Click(at(52, 31))),
        ("Action: type(content='say it\")", Type("say it")),
        # What surrounds the call.
        ("Action:\n```python\nclick(point='<point>52 31</point>')\n```", Click(at(52, 31))),
        ("### Action: Click(point='<point>52 31</point>')", Click(at(52, 31))),
        ("Action: finished(content='it's done')<|im_end|>", Finished("it's done")),
        ("Action: type(content='it's')Thought: next", Type("it's")),
        ("<think>Hm.</think>\nAction: wait()", Wait()),
        # Other models' words.
        ("Action: left_single(start_box='(52,31)')", Click(at(52, 31))),
        ("Action: select(start_box='(10,20)', end_box='(30,40)')", Drag(at(10, 20), at(30, 40))),
        ("Action: scroll(start_box='(10,20)', end_box='(30,40)')", Drag(at(10, 20), at(30, 40))),
        ("Action: scroll(direction='down')", Scroll(Point(0.5, 0.5), "down")),
        ("Action: long_press(start_box='(52,31)', time='3')", LongPress(at(52, 31))),
        # Keys.
        ("Action: hotkey(key='ctrl + c')", Hotkey(("ctrl", "c"))),
        ("Action: hotkey(key='ctrl++')", Hotkey(("ctrl", "+"))),
        ("Action: hotkey(key='+')", Hotkey(("+",))),
        ("Action: press(key=' ')", Press("space")),
        # Escapes as in Python's strings; a path in Windows is none.
        ("Action: type(content='\\u4f60\\ud83d\\ude42')", Type("你🙂")),
        ("Action: type(content='\\ud800.')", Type("\ufffd.")),
        ("Action: type(content='C:\\docs')", Type("C:\\docs")),
        # Arguments of tools, with the slips of JSON.
        (
            "Action: call_tool(tool='search', arguments={'q': 'it\\'s', 'n': [1, 2,],})",
            ToolCall.of("search", {"q": "it's", "n": [1, 2]}),
        ),
        ("Action: call_tool(tool='now')", ToolCall("now")),
        # A tool call where a call was asked for: its numbers are the grammar's.
        (
            '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [52, 31]}}',
            Click(at(52, 31)),
        ),
    ],
)
def test_pitfalls(text, action):
    assert parse_response(text, 100).action == action


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
        ("Action: click(point='<point>52 31</point>',", "a parameter or a closing bracket", 42),
        ("Action: type(content='abc", "not closed", 21),
        ("Action: scroll(point='<point>1 2</point>', direction='away')", "direction", 54),
        ("Action: hotkey(key='a b c d')", "3 at most", 20),
        ("Action: hotkey(key='')", "no key", 20),
        ("Action: click(colour='red')", "unknown parameter 'colour'", 14),
        ("Action: __import__('os').system('true')", "unknown action", 8),
        ("Action: click(start_box='=')", "not a point", 25),
        ("Action: click(point='<point>" + "1 " * 200 + "</point>')", "not a point", 21),
        ("Action: click(point='<point>" + "9" * 999 + " 1</point>')", "not a point", 21),
        ("Action: click(point='<point>nan 1</point>')", "not a point", 21),
        ("Action: press(key='a b')", "one key", 19),
        ("Action: type()", "needs content", 8),
        ("Action: open_app()", "needs app_name", 8),
        ("Action: write_file(path='a')", "needs content", 8),
        ("Action: call_tool(tool='x', arguments='[1]')", "JSON object", 39),
        ("Action: call_tool(tool='x', arguments='{\"a\": NaN}')", "JSON", 39),
        ("Action: call_tool(tool='x', arguments='{} {}')", "JSON object", 39),
        ("Action: click(" + "time='1', " * 20 + ")", "more than 8 parameters", 102),
        ("Action: wait()\nfinished(content='x')", "finished stands alone", 15),
        ("Action: finished()\n\nAction: click(point='<point>1 2</point>')", "finished stands alone", 28),
        ("Action: finished(); call_user()", "stands alone", 20),
    ],
)
def test_bad_output_is_a_value_that_says_what_and_where(text, reason, where):
    error = parse_response(text, 100).action
    assert isinstance(error, ParseError)
    assert reason in error.reason
    assert error.position == where


def test_the_first_of_several_actions_counts():
    text = "Thought: a\nAction: press(key='a')\nrelease(key='a')\n\nwait()"
    assert parse_response(text, 100).action == Press("a")
    assert parse_response("Action: finished(content='x')\nAction: finished(content='x')", 100).action == Finished("x")


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("Thought: I act.\nAction: wait()", "I act."),
        ("Thought: one\ntwo\nAction: wait()", "one\ntwo"),
        ("I act.\nAction: wait()", "I act."),
        ("Action: wait()", ""),
        ("**Thought:** I act.\n**Action:** wait()", "I act."),
        ("Reflection: That did nothing.\nAction_Summary: I wait.\nAction: wait()", "I wait."),
        ("Action_Summary: I wait.\nAction: wait()", "I wait."),
        ("Reflection: That did nothing.\nAction: wait()", "That did nothing."),
        ("<think>I act.</think>\nAction: wait()", "I act."),
        ("Thought: \ud800.\nAction: wait()", "\ufffd."),
        ("Thought: I wonder.", "I wonder."),
    ],
)
def test_the_thought_is_what_the_best_label_says(text, thought):
    assert parse_response(text, 100).thought == thought


def test_a_step_is_written_with_its_labels_but_a_tool_call_has_its_own():
    assert format_response("a", "wait()") == "Thought: a\nAction: wait()"
    assert format_response("a", "<tool_call>\n{}\n</tool_call>") == "Thought: a\n<tool_call>\n{}\n</tool_call>"


def test_the_coordinate_space_is_never_guessed():
    text = "Action: click(point='<point>50 50</point>')"
    assert parse_response(text, 100).action == Click(at(50, 50))
    assert parse_response(text, 1000).action == Click(at(50, 50, 1000))
    assert parse_response("Action: click(point='(1000,1000)')", 1000).action == Click(at(999, 999, 1000))
