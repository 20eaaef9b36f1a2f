"""Actions as tool calls, in the manner of Qwen2.5-VL and Qwen3-VL: the form written, slips, errors."""

from __future__ import annotations

import pytest

from flywheel.agent import actions as act
from flywheel.agent.actions import ParseError, Point, ToolCall
from flywheel.agent.grammar import Grammar, grid_space
from flywheel.agent.parsing.parser import parse_response, serialise_action

COMPUTER = Grammar("tool_call", grid_space(1000), "browser")
MOBILE = Grammar("tool_call", grid_space(1000), "mobile")
FUNCTIONS = Grammar("tool_call", grid_space(1000), "computer", functions=True)


def at(x: int, y: int) -> Point:
    return Point((x + 0.5) / 1000, (y + 0.5) / 1000)


def call(arguments: str, name: str = "computer_use") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("action", "grammar", "text"),
    [
        (act.Click(at(935, 406)), COMPUTER, call('{"action": "left_click", "coordinate": [935, 406]}')),
        (act.LeftDouble(at(0, 999)), COMPUTER, call('{"action": "double_click", "coordinate": [0, 999]}')),
        (act.LeftTriple(at(0, 999)), COMPUTER, call('{"action": "triple_click", "coordinate": [0, 999]}')),
        (
            act.TypeAt(at(5, 6), "a", clear=True),
            COMPUTER,
            call('{"action": "type", "coordinate": [5, 6], "text": "a", "delete_existing_text": true}'),
        ),
        (
            act.TypeAt(at(5, 6), "a"),
            MOBILE,
            call('{"action": "type", "coordinate": [5, 6], "text": "a"}', "mobile_use"),
        ),
        (act.Hover(at(5, 6)), COMPUTER, call('{"action": "mouse_move", "coordinate": [5, 6]}')),
        (act.RightSingle(at(5, 6)), COMPUTER, call('{"action": "right_click", "coordinate": [5, 6]}')),
        (
            act.Drag(at(1, 2), at(3, 4)),
            COMPUTER,
            call('{"action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4]}'),
        ),
        (act.Hotkey(("ctrl", "c")), COMPUTER, call('{"action": "key", "keys": ["ctrl", "c"]}')),
        (act.Press("+"), COMPUTER, call('{"action": "key_down", "keys": ["plus"]}')),
        (act.Release("a"), COMPUTER, call('{"action": "key_up", "keys": ["a"]}')),
        (act.Type('say "hi"\n漢'), COMPUTER, call('{"action": "type", "text": "say \\"hi\\"\\n漢"}')),
        (act.Scroll(at(1, 2), "up"), COMPUTER, call('{"action": "scroll", "coordinate": [1, 2], "pixels": 500}')),
        (act.Scroll(at(1, 2), "down"), COMPUTER, call('{"action": "scroll", "coordinate": [1, 2], "pixels": -500}')),
        (act.Scroll(at(1, 2), "left"), COMPUTER, call('{"action": "hscroll", "coordinate": [1, 2], "pixels": -500}')),
        (act.Scroll(at(1, 2), "right"), COMPUTER, call('{"action": "hscroll", "coordinate": [1, 2], "pixels": 500}')),
        (act.Wait(), COMPUTER, call('{"action": "wait", "time": 1}')),
        (act.Finished(), COMPUTER, call('{"action": "terminate", "status": "success"}')),
        (act.Finished("42"), COMPUTER, call('{"action": "answer", "text": "42"}')),
        (act.CallUser(), COMPUTER, call('{"action": "terminate", "status": "failure"}')),
        (act.Navigate("http://a.test/"), COMPUTER, call('{"action": "navigate", "text": "http://a.test/"}')),
        (act.Click(at(1, 2)), MOBILE, call('{"action": "click", "coordinate": [1, 2]}', "mobile_use")),
        (
            act.LongPress(at(1, 2)),
            MOBILE,
            call('{"action": "long_press", "coordinate": [1, 2], "time": 1}', "mobile_use"),
        ),
        (
            act.Drag(at(1, 2), at(3, 4)),
            MOBILE,
            call('{"action": "swipe", "coordinate": [1, 2], "coordinate2": [3, 4]}', "mobile_use"),
        ),
        (act.OpenApp("Maps"), MOBILE, call('{"action": "open", "text": "Maps"}', "mobile_use")),
        (act.PressHome(), MOBILE, call('{"action": "system_button", "button": "Home"}', "mobile_use")),
        (act.PressBack(), MOBILE, call('{"action": "system_button", "button": "Back"}', "mobile_use")),
        (act.Terminal("ls"), COMPUTER, call('{"command": "ls"}', "terminal")),
        (act.RunPython("1 + 1"), COMPUTER, call('{"code": "1 + 1"}', "python")),
        (act.WriteFile("a", "b"), COMPUTER, call('{"path": "a", "content": "b"}', "write_file")),
        (ToolCall.of("find", {"q": 1}), COMPUTER, call('{"name": "find", "arguments": {"q": 1}}', "call_tool")),
        (ToolCall.of("find", {"q": 1}), FUNCTIONS, call('{"q": 1}', "find")),
        (ToolCall.of("click", {}), FUNCTIONS, call('{"name": "click", "arguments": {}}', "call_tool")),
    ],
)
def test_one_form_is_written_and_read(action, grammar, text):
    assert serialise_action(action, grammar) == text
    parsed = parse_response(f"Thought: I act.\n{text}", grammar)
    assert (parsed.thought, parsed.action) == ("I act.", action)


CLICK = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [52, 31]}}'


@pytest.mark.parametrize(
    "text",
    [
        CLICK,
        f"Thought: a\nAction: {CLICK}",
        f"Action: Click the button.\n<tool_call>\n{CLICK}\n</tool_call>",
        f"```json\n{CLICK}\n```",
        f"<tool_call>{CLICK}</tool_call><|im_end|>",
        f"<tool_call>\n{CLICK[:-1]}\n</tool_call>",
        f"<tool_call>\n[{CLICK}, {CLICK}]\n</tool_call>",
        f"<tool_call>\n{CLICK}\n</tool_call>\n<tool_call>\n{{",
        CLICK.replace('"', "'"),
        CLICK.replace('"', "“"),
        CLICK.replace("31]", "31,],").replace(": ", "："),
        CLICK.replace('"arguments"', "arguments").replace('"name"', "name"),
        CLICK.replace("[52, 31]", "[51.5, 31.0]").replace("51.5", "52.0"),
        CLICK.replace("[52, 31]", '"(52, 31)"'),
        CLICK.replace("[52, 31]", "[50, 30, 54, 32]"),
        CLICK.replace("[52, 31]", "[[52, 31]]"),
        CLICK.replace("[52, 31]", '{"x": 52, "y": 31}'),
        '{"action": "left_click", "coordinate": [52, 31]}',
        '{"name": "left_click", "arguments": {"coordinate": [52, 31]}}',
        '{"name": "click", "arguments": {"point": [52, 31]}}',
        '{"action": "click", "arguments": {"coordinate": [52, 31]}}',
        '{"name": "computer_use", "arguments": "{\\"action\\": \\"left_click\\", \\"coordinate\\": [52, 31]}"}',
        '{"type": "function", "function": ' + CLICK + "}",
        "Thought: a\nAction: click(point='<point>52 31</point>')",
    ],
)
def test_slips(text):
    assert parse_response(text, COMPUTER).action == act.Click(at(52, 31))


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ('{"action": "type", "text": "it\'s "quoted", ok"}', act.Type('it\'s "quoted", ok')),
        ('{"action": "type", "text": "two\nlines"}', act.Type("two\nlines")),
        ('{"action": "type", "text": "</tool_call>"}', act.Type("</tool_call>")),
        ('{"action": "type", "text": "\\ud83d\\ude42\\ud800"}', act.Type("🙂\ufffd")),
        ('{"action": "type", "text": 42}', act.Type("42")),
        ('{"action": "type", "text": "a", "coordinate": []}', act.Type("a")),
        ('{"action": "type", "text": "a", "coordinate": [1, 2], "clear": false}', act.TypeAt(at(1, 2), "a")),
        ('{"action": "key", "keys": ["Ctrl+C"]}', act.Hotkey(("ctrl", "c"))),
        ('{"action": "key", "text": "ctrl+shift+t"}', act.Hotkey(("ctrl", "shift", "t"))),
        ('{"action": "scroll", "pixels": -3}', act.Scroll(Point(0.5, 0.5), "down")),
        ('{"action": "scroll", "coordinate": [1, 2], "scroll_direction": "left"}', act.Scroll(at(1, 2), "left")),
        ('{"action": "swipe", "coordinate": [1, 2], "direction": "up"}', act.Scroll(at(1, 2), "down")),
        ('{"action": "system_button", "button": "Enter"}', act.Hotkey(("enter",))),
        ('{"action": "interact", "text": "Please log in."}', act.CallUser()),
        ('{"action": "terminate", "status": "success", "text": "42"}', act.Finished("42")),
    ],
)
def test_other_words_and_texts(arguments, action):
    assert parse_response(call(arguments), COMPUTER).action == action


def test_an_answer_and_its_end_are_one_step():
    text = call('{"action": "answer", "text": "42"}') + "\n" + call('{"action": "terminate", "status": "success"}')
    assert parse_response(text, COMPUTER).action == act.Finished("42")


@pytest.mark.parametrize(
    ("text", "reason", "where"),
    [
        ("Thought: I wonder.", "no action", 18),
        (call("{}"), "names no action", 12),
        (call('{"action": "left_click"}'), "click needs point", 12),
        (call('{"action": "left_click", "coordinate": []}'), "not a point: '[]'", 12),
        (call('{"action": "left_click", "coordinate": [true, 1]}'), "not a point", 12),
        (call('{"action": "left_click", "coordinate": [1001, 5]}'), "1001 lies outside 0..999", 12),
        (call('{"action": "left_click", "coordinate": [1e999, 5]}'), "inf lies outside", 12),
        (call('{"action": "left_click", "coordinate": [NaN, 5]}'), "a JSON value was expected", 90),
        (call('{"action": "left_click", "coordinate": [' + "9" * 400 + ", 5]}"), "a huge number lies outside", 12),
        (call('{"action": "left_click", "coordinate": [' + "9" * 9999 + ", 5]}"), "the number is too long", 90),
        (call('{"action": "left_click_drag", "path": [[1.5, 2], [' + "9" * 400 + ", 3]]}"), "leaves every screen", 12),
        (call('{"action": "left_click_drag", "path": [[1.5, 2], [1e999, 3]]}'), "leaves every screen", 12),
        (call('{"action": "middle_click", "coordinate": [1, 2]}'), "no such action here: middle_click", 12),
        (call('{"action": "type", "text": [1]}'), "not a text: [1]", 12),
        (call('{"action": "type", "text": "hel').split("}")[0], "the string is not closed", 77),
        (call('{"action": "left_click", "coordinate": [10, 2').split("}")[0], "a JSON value was expected", 95),
        (call('{"action": "scroll", "pixels": 0}'), "not an amount", 12),
        (call('{"action": "system_button", "button": "Menu"}'), "no such action here: the button menu", 12),
        (call('{"q": 1}', "find"), "unknown action 'find'", 12),
        (call('{"name": "x", "arguments": [1]}', "call_tool"), "not a text", 12),
        ("<tool_call>\n" + "[" * 100_000, "nested too deeply", 12),
        ("<tool_call>\n" + '{"a":' * 100_000, "nested too deeply", 12),
        (call("{" + "'a': {" * 50), "nested too deeply", 236),
        (call('{"action": "wait"}') + call('{"action": "answer", "text": "x"}'), "finished stands alone", 94),
        (call('{"action": "interact"}') + call('{"action": "terminate"}'), "stands alone", 98),
    ],
)
def test_bad_output_is_a_value_that_says_what_and_where(text, reason, where):
    error = parse_response(text, COMPUTER).action
    assert isinstance(error, ParseError)
    assert reason in error.reason
    assert error.position == where


def test_equal_calls_of_tools_are_equal_values():
    one, other = ToolCall("t", '{"b": 1, "a": [1, 2]}'), ToolCall.of("t", {"a": [1, 2], "b": 1})
    assert one == other
    assert len({one, other}) == 1
    assert one.arguments == '{"a":[1,2],"b":1}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": NaN}', '{"a": 1e999}', "[" * 99_999, '{"a":' * 40 + "1" + "}" * 40]
)
def test_arguments_of_a_tool_are_a_json_object(text):
    with pytest.raises(ValueError, match=r"JSON|deep|Expecting|Out of range"):
        ToolCall("t", text)


def test_arguments_without_end_are_nested_too_deeply():
    deep = []
    for _ in range(99_999):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        ToolCall.of("t", {"a": deep})
