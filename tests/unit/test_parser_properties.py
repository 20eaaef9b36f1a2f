"""The parser over everything: what is written is read back, nothing is raised, and time is linear in the text."""

from __future__ import annotations

import dataclasses
import json
import random
import time

import action_specimens as specimens
import pytest
from action_specimens import GRAMMARS
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent import actions as act
from flywheel.agent.actions import ACTION_NAMES, ParsedResponse, ParseError, Point, ToolCall
from flywheel.agent.grammar import as_grammar, format_response
from flywheel.agent.parsing import call_form, parser
from flywheel.agent.parsing.parser import parse_response, serialise_action
from flywheel.cli import bench

fractions = st.floats(0, 1, exclude_max=True)
points = st.builds(Point, fractions, fractions)
keys = st.one_of(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), st.sampled_from("+-*/'\"\\()[]{},.;:=<>`"))
texts = st.text(st.characters(codec="utf-8"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
OF_FIELD = {
    "point": points,
    "start_point": points,
    "end_point": points,
    "key": keys,
    "keys": st.lists(keys, min_size=1, max_size=3).map(tuple),
    "direction": st.sampled_from(["up", "down", "left", "right"]),
    "content": texts,
    "app_name": texts,
    "code": texts,
    "command": texts,
    "path": texts,
    "tool": texts,
    "clear": st.booleans(),
}


def of_type(kind: type) -> st.SearchStrategy:
    if kind is ToolCall:
        return st.builds(ToolCall.of, texts, st.dictionaries(texts, json_values, max_size=3))
    return st.builds(kind, **{field.name: OF_FIELD[field.name] for field in dataclasses.fields(kind)})


actions = st.one_of([of_type(kind) for kind in ACTION_NAMES])


def snapped(action, grammar):
    moved = {
        name: as_grammar(grammar).space.snap(value) for name, value in vars(action).items() if isinstance(value, Point)
    }
    return dataclasses.replace(action, **moved) if moved else action


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@given(actions)
def test_what_is_written_is_read_back(grammar, action):
    text, expected = serialise_action(action, grammar), snapped(action, grammar)
    assert parse_response(text, grammar).action == expected
    assert parse_response(format_response("I act.", text), grammar) == ParsedResponse("I act.", expected)
    assert serialise_action(expected, grammar) == text


@pytest.mark.parametrize("kind", ACTION_NAMES, ids=lambda kind: kind.__name__)
def test_every_type_in_every_grammar(kind):
    @given(of_type(kind), st.sampled_from(GRAMMARS))
    def check(action, grammar):
        assert parse_response(serialise_action(action, grammar), grammar).action == snapped(action, grammar)

    check()


@given(actions, st.sampled_from([10, 100, 1000, 1366]))
def test_a_number_of_cells_serves_as_well(action, cells):
    assert parse_response(serialise_action(action, cells), cells).action == snapped(action, cells)


thoughts = st.one_of(
    texts,
    st.lists(st.sampled_from(["Thought: ", "\n", "Action: ", "action：", "*", "#", "<think>", "I act.", " "])).map(
        "".join
    ),
)


@given(actions, thoughts, st.sampled_from([one for one in GRAMMARS if one.form != "tool_call"]))
def test_the_fast_path_reads_what_the_tolerant_one_reads(action, thought, grammar):
    text = format_response(thought, serialise_action(action, grammar))
    quick = parser._parse_plain(text, grammar)
    if quick is not None:
        assert quick == parser._parse_tolerant(text, grammar)
    if thought == "I act." and ACTION_NAMES[type(action)] in call_form._PLAIN_FORMS:
        assert quick is not None


def test_the_fast_path_is_taken_by_what_models_write_most():
    rng = random.Random(3)
    plain = [specimens.plain(rng, GRAMMARS[1]) for _ in range(500)]
    assert sum(parser._parse_plain(text, GRAMMARS[1]) is not None for text in plain) > 400


def well_formed(parsed: ParsedResponse, text: str) -> bool:
    error = parsed.action
    return not isinstance(error, ParseError) or (bool(error.reason) and 0 <= error.position <= len(text))


def test_nothing_is_raised_by_broken_output():
    """`benchmarks/parse.py --fuzz` does this a million times."""
    rng = random.Random(20_000)
    for _ in range(20_000):
        text = specimens.broken(rng, rng.choice(GRAMMARS))
        assert well_formed(parse_response(text, rng.choice(GRAMMARS)), text), text


scraps = st.lists(st.sampled_from(specimens.SCRAPS), max_size=12).map("".join)


@given(st.one_of(st.text(), scraps), st.sampled_from(GRAMMARS))
def test_nothing_is_raised(text, grammar):
    assert well_formed(parse_response(text, grammar), text)


@given(st.one_of(st.text(), scraps), st.integers(10, 2000))
def test_nothing_is_raised_for_a_number_of_cells(text, cells):
    assert well_formed(parse_response(text, cells), text)


def test_what_is_read_can_be_written_and_carried():
    """Whatever a model wrote: the action has a text, which is UTF-8 and is read as the same action."""
    rng = random.Random(7)
    for _ in range(5_000):
        grammar = rng.choice(GRAMMARS)
        action = parse_response(specimens.broken(rng, grammar), grammar).action
        if not isinstance(action, ParseError):
            text = serialise_action(action, grammar)
            text.encode()
            assert parse_response(text, grammar).action == snapped(action, grammar)


# Each of these made some pattern, here or in other parsers, try a stretch of text again and again.
ADVERSARIAL = {  # name -> what stands before, and what is repeated
    "line ends": ("", "\n"),
    "spaces at a label": ("Action: ", " "),
    "spaces at a parameter": ("Action: click(", " "),
    "commas": ("Action: click(", ", "),
    "quotes": ("Action: type(content=", "'"),
    "quotes in a string": ("Action: type(content='", "a' b', "),
    "quotes before parameters": ("Action: type(content='", "a', b = c"),
    "backslashes": ("Action: type(content='", "\\"),
    "brackets": ("Action: click(point=", "(, point="),
    "numbers": ("Action: click(point='", "1 "),
    "letters": ("Action: ", "a"),
    "labels": ("", "Action: \n"),
    "words of a label": ("", "action "),
    "calls": ("", "wait() "),
    "calls with quotes": ("", "\ntype(content='a', time=b) "),
    "calls behind one": ("Action: wait()", "; type(content='a', time=b)"),
    "calls that do not end": ("Action: wait()", "; type(content='"),
    "tags": ("", "<tool_call> "),
    "tool calls": ("<tool_call>", '{"name": "a"}\n<tool_call>'),
    "braces": ('<tool_call>{"a": ', '{"a": '),
    "fences": ("", "```\n"),
    "a fence and spaces": ("```", " "),
    "spaces behind a call": ('{"action": "wait"}', " "),
    "spaces before a brace": ("</tool_call>", " "),
    "fences with json": ("", "```json\n\n"),
    "strings of json that mix quotes": ("<tool_call>[", "\"a', "),
    "strings that mix quotes": ("Action: type(content=", "\"a', b = "),
    "strings of json": ("<tool_call>[", "'a' 'b' "),
    "keys of json": ("<tool_call>{", "a:'b' "),
    "nests of json": ("<tool_call>{", "a:{}, "),
    "ends of thinking": ("", "Action: wait() </think>"),
    "begins of thinking": ("", "<think> "),
    "ends of thinking in a text": ("Action: type(content='", "</think> 'a', "),
    "labels without an action": ("", "Action: I look.\n"),
    "labels and comments": ("", "# Action:\n"),
    "tags of functions": ("", "<function=click>"),
    "parameters in tags": ("<function=type><parameter=content>", "</parameter> a"),
    "answers": ("", "<answer>\n"),
    "commands": ("", "WAIT\n"),
    "texts of commands": ("TYPE [", "] a"),
    "fields": ("action:TYPE\t", "value:a\t"),
    "lists of calls": ("GESTURE(actions=[", "KEY_DOWN(key='a'), "),
    "values without names": ("Action: hotkey(", "'a', "),
    "values that look like parameters": ("Action: type(content='", "' , text = "),
    "paths": ("Action: type(content='", "C:\\new "),
    "sleeps": ("", "time.sleep(1)\n"),
    "imports": ("```python\n", "import pyautogui\n"),
    "triple quotes": ("Action: type(content=", "'''"),
    "keys": ("Action: hotkey(key='", "[ctrl, "),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_time_is_linear_in_the_text(name):
    """Eight times the text takes about eight times as long; with a pattern that tries again it takes 64 times."""

    def seconds(length: int, grammar) -> float:
        before, repeated = ADVERSARIAL[name]
        text, best = before + repeated * (length // len(repeated)) + "x{", float("inf")
        for _ in range(3):
            started = time.process_time()
            assert well_formed(parse_response(text, grammar), text)
            best = min(best, time.process_time() - started)
        return best

    for grammar in (GRAMMARS[0], GRAMMARS[5]):
        short, long = seconds(12_500, grammar), seconds(100_000, grammar)
        assert long < 24 * max(short, 0.0005)


def test_the_form_of_stored_rows_does_not_change():
    """Rows on disk and the embedded model were made with this form, digit for digit."""
    written = {
        act.Click(Point(0.055, 0.935)): "click(point='<point>05 93</point>')",
        act.Drag(Point(0.0, 0.999), Point(0.5, 0.25)): (
            "drag(start_point='<point>00 99</point>', end_point='<point>50 25</point>')"
        ),
        act.Scroll(Point(0.5, 0.5), "down"): "scroll(point='<point>50 50</point>', direction='down')",
        act.Hotkey(("ctrl", "c")): "hotkey(key='ctrl c')",
        act.Type("it's\n\t\\"): "type(content='it\\'s\\n\\t\\\\')",
        act.Finished(): "finished()",
        act.Press("left"): "press(key='left')",
    }
    assert {action: serialise_action(action, 100) for action in written} == written
    assert {action: serialise_action(action, GRAMMARS[0]) for action in written} == written


def test_the_benchmark_prints_its_figures(capsys):
    bench.run_benchmark("parse", ["--outputs", "200", "--rounds", "1", "--fuzz", "300"])  # no figure is asserted here
    mix, foreign, fuzz = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    keys = ["bench", "case", "unit", "ours", "peer", "peer_name", "ratio", "goal", "met"]
    assert list(mix)[: len(keys)] == list(fuzz)[: len(keys)] == keys
    assert (foreign["case"], foreign["read_as_another"], foreign["met"]) == ("foreign_forms", 0, True)
    assert (mix["case"], mix["goal"], mix["n"]) == ("mix", 50_000, 200)
    assert mix["ours_read"] > mix["peer_read"] > 0.8
    assert (fuzz["ours"], fuzz["met"], fuzz["n"]) == (0, True, 300)
