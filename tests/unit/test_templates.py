"""The prompts: what they tell is what the parser reads, and what belongs to another action space is not told."""

from __future__ import annotations

import json
import re

import pytest
from action_specimens import GRAMMARS

from flywheel.agent import prompt
from flywheel.agent.actions import ACTION_NAMES, ParseError
from flywheel.agent.grammar import Grammar, grid_space, norm1000_space, pixel_space
from flywheel.agent.parsing.parser import parse_response

FORMS = [
    Grammar(form, space, actions, functions)
    for form, space in (
        ("point", grid_space(1000)),
        ("ui_tars_1_5", pixel_space(1932, 1092)),
        ("ui_tars_1_0", norm1000_space()),
        ("tool_call", grid_space(1000)),
        ("tool_call", pixel_space(1932, 1092)),
    )
    for actions in ("computer", "browser", "mobile", "game")
    for functions in (False, True)
]
CALLS = [grammar for grammar in FORMS if grammar.form != "tool_call"]
TOOLS = [grammar for grammar in FORMS if grammar.form == "tool_call"]


def lines(grammar: Grammar) -> list[str]:
    told = prompt.format_instructions(grammar)
    return told.split("## Action Space\n")[1].split("\n\n")[0].splitlines()


@pytest.mark.parametrize("grammar", CALLS, ids=str)
def test_each_line_that_is_told_is_read_as_its_action(grammar):
    told = []
    for line in lines(grammar):
        example = re.sub(r"\b[xy]\d?\b", "0", line.split("  #")[0]).replace("down or up or right or left", "up")
        action = parse_response(f"Thought: a\nAction: {example}", grammar).action
        assert not isinstance(action, ParseError), (line, action)
        told.append(ACTION_NAMES[type(action)])
    functions = prompt.SDK_FUNCTIONS if grammar.functions else ()
    assert tuple(told) == prompt.ACTION_SPACES[grammar.actions] + functions


def test_what_the_prompts_offer_beyond_the_usual():
    """The prompt and the mask of the default run stay as they are."""
    offered = {(grammar.form, grammar.actions) for grammar in FORMS if "triple" in prompt.format_instructions(grammar)}
    calls = {form for form, _ in offered} - {"tool_call"}
    assert offered == {(form, "computer") for form in calls} | {("tool_call", "computer"), ("tool_call", "browser")}
    assert calls
    for grammar in FORMS:
        signatures = " ".join(prompt.list_action_signatures(grammar))
        assert ("left_triple" in signatures) == (grammar.actions == "computer")
        assert "type_at" not in signatures


# What the signature's actions are called with.
_SPOT, _KEYS = ("coordinate",), ("keys",)
NEEDS = {
    "left_click": _SPOT,
    "double_click": _SPOT,
    "triple_click": _SPOT,
    "right_click": _SPOT,
    "click": _SPOT,
    "mouse_move": _SPOT,
    "long_press": ("coordinate", "time"),
    "left_click_drag": ("start_coordinate", "coordinate"),
    "swipe": ("coordinate", "coordinate2"),
    "key": _KEYS,
    "key_down": _KEYS,
    "key_up": _KEYS,
    "type": ("text",),
    "scroll": ("coordinate", "pixels"),
    "hscroll": ("pixels",),
    "navigate": ("text",),
    "open": ("text",),
    "system_button": ("button",),
    "wait": ("time",),
    "answer": ("text",),
    "terminate": ("status",),
}


@pytest.mark.parametrize("grammar", TOOLS, ids=str)
def test_each_action_of_a_signature_is_known(grammar):
    told = prompt.format_instructions(grammar)
    signatures = [json.loads(line) for line in told.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()]
    functions = {one["function"]["name"]: one["function"]["parameters"] for one in signatures}
    screen = "mobile_use" if grammar.actions == "mobile" else "computer_use"
    assert set(functions) == {screen, *(prompt.SDK_FUNCTIONS if grammar.functions else ())}
    options = functions[screen]["properties"]
    values = {
        "coordinate": [0, 1],
        "start_coordinate": [1, 0],
        "coordinate2": [1, 1],
        "keys": ["a"],
        "text": "x",
        "pixels": 5,
        "button": "Home",
        "time": 1,
        "status": "success",
    }
    assert set(options) <= {"action", *values}
    for action in options["action"]["enum"]:
        arguments = {"action": action} | {name: values[name] for name in NEEDS.get(action, ())}
        assert set(arguments) <= {"action", *options}
        text = json.dumps({"name": screen, "arguments": arguments})
        assert not isinstance(parse_response(f"<tool_call>\n{text}\n</tool_call>", grammar).action, ParseError), action


def test_the_numbers_are_told():
    def told(form, space):
        return prompt.format_instructions(Grammar(form, space))

    assert "from 0 to 99 " in told("point", grid_space(100))
    assert "from 0 to 1000 " in told("ui_tars_1_0", norm1000_space())
    assert "pixels of the screenshot" in told("ui_tars_1_5", pixel_space(1932, 1092))
    assert "resolution is 1000x1000" in told("tool_call", grid_space(1000))
    assert "resolution is 1932x1092" in told("tool_call", pixel_space(1932, 1092))


def test_a_model_that_knows_its_actions_is_told_nothing():
    assert prompt.format_instructions(GRAMMARS[0]) == ""


def test_the_box_tokens_that_servers_leave_out_are_put_back_into_the_history():
    newer, older = (Grammar(form, norm1000_space()) for form in ("ui_tars_1_5", "ui_tars_1_0"))
    text = "drag(start_box='(1,2)', end_box='(30,40)')"
    marked = "drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='<|box_start|>(30,40)<|box_end|>')"
    assert prompt.restore_box_tokens(text, newer) == marked
    assert prompt.restore_box_tokens(marked, newer) == marked
    assert prompt.restore_box_tokens(text, older) == text
    typed = "type(content='start_box=\\'(1,2)\\'')"
    assert prompt.restore_box_tokens(typed, newer) == typed
