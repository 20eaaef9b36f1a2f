"""What stands before the end of thinking is thought, in every form: no draft of an action is carried out."""

from __future__ import annotations

import dataclasses
import random

import action_specimens as specimens
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import Click, ParseError, Point, Type, Wait
from flywheel.agent.grammar import Grammar, grid_space
from flywheel.agent.parsing.lexing import AMBIGUOUS, ONLY_THOUGHT
from flywheel.agent.parsing.parser import parse_response, serialise_action

POINT = Grammar("point", grid_space(1000))
TOOL = Grammar("tool_call", grid_space(1000))
TAGS = {
    "think": ("<think>", "</think>"),
    "thinking": ("<thinking>", "</thinking>"),
    "seed": ("<seed:think>", "</seed:think>"),
    "capitals": ("<THINK>", "</THINK>"),
    "thought": ("<|begin_of_thought|>", "<|end_of_thought|>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "brackets": ("[THINK]", "[/THINK]"),
}
MEANT = Click(Point(0.2505, 0.7505))
DRAFTS = (
    "Action: wait()",
    "wait()",
    "I try\n\nAction: type(content='x')\n",
    "Action: finished(content='I'm done')",
    '<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait"}}\n</tool_call>',
    '{"action": "wait"}',
    "<seed:tool_call><function=wait></function></seed:tool_call>",
    '<answer>do(action="Back")</answer>',
    "actions:\nPRESS_BACK",
    "explain:a\taction:WAIT\tvalue:1\tsummary:b",
    "```python\npyautogui.press('enter')\n```",
    "Action: type(content='half of a te",
    '<tool_call>\n{"name": "computer_use", "arguments": {"action": "type", "text": "',
)
drafts = st.lists(st.sampled_from((*DRAFTS, "I think.", "\n", 'It\'s "so". ')), min_size=1, max_size=4).map("\n".join)
grammars = st.sampled_from((POINT, TOOL))


@pytest.mark.parametrize("tag", TAGS)
def test_a_draft_is_never_carried_out(tag):
    opening, closing = TAGS[tag]

    @given(drafts, drafts, grammars, st.booleans())
    def check(draft, second, grammar, opened):
        action = f"Thought: I click.\nAction: {serialise_action(MEANT, POINT)}"
        begin = "" if opened else opening
        for thought in (draft, f"{draft}{closing}\n{opening}{second}", f"{draft}{opening}{second}{closing}"):
            nested = thought.endswith(closing)  # one more is open than the prompt opened
            if nested and opened:
                continue
            parsed = parse_response(f"{begin}{thought}{closing}\n{action}", grammar)
            if isinstance(parsed.action, ParseError):  # a draft cut within a quote that the action closes
                assert parsed.action.reason.startswith(AMBIGUOUS)
            else:
                assert parsed.action == MEANT
            assert isinstance(parse_response(f"{begin}{thought}{closing}", grammar).action, ParseError)

    check()


@pytest.mark.parametrize("tag", TAGS)
def test_thinking_that_does_not_end_holds_no_action(tag):
    @given(drafts, grammars)
    def check(draft, grammar):
        error = parse_response(f"{TAGS[tag][0]}{draft}", grammar).action
        assert isinstance(error, ParseError)
        assert error.reason.startswith(ONLY_THOUGHT)

    check()


@given(drafts, grammars)
def test_thinking_that_the_prompt_opened_holds_no_action_before_it_ends(draft, grammar):
    grammar = dataclasses.replace(grammar, thinks=True)
    assert isinstance(parse_response(draft, grammar).action, ParseError)
    assert parse_response(f"{draft}\n</think>\nAction: {serialise_action(MEANT, POINT)}", grammar).action == MEANT


def test_a_cut_anywhere_in_thinking_holds_no_action():
    text = "<think>First Action: wait()\nor type(content='x')\n</think>\nThought: a\nAction: wait()"
    for end in range(1, text.index("Thought")):
        assert isinstance(parse_response(text[:end], POINT).action, ParseError), text[:end]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Action: type(content='the tag </think> ends it')", Type("the tag </think> ends it")),
        ("Thought: a\nAction: type(content='<think>')", Type("<think>")),
        ('{"action": "type", "text": "a </think> b"}', Type("a </think> b")),
        ("<function=type><parameter=content>a </think> b</parameter></function>", Type("a </think> b")),
        ("<think>a</think>\nAction: type(content='</think>')", Type("</think>")),
        ("Action: click(point='<point>1 2</point>')\n<think>Or wait.</think>\nAction: wait()", Wait()),
        ("Action: wait()<|im_end|>\n<think>next</think>Action: press_home()", Wait()),
    ],
)
def test_a_tag_within_a_text_is_text(text, action):
    assert parse_response(text, POINT).action == action


def test_the_thought_is_what_the_thinking_says():
    assert parse_response("<think>I wait.</think>\nAction: wait()", POINT).thought == "I wait."
    assert parse_response("<think>Long.</think>\nThought: Short.\nAction: wait()", POINT).thought == "Short."
    assert parse_response("<think>I wonder", POINT).thought == "I wonder"


def test_what_is_written_is_read_back_whatever_tags_it_types():
    rng = random.Random(5)
    for grammar in specimens.GRAMMARS:
        for opening, closing in TAGS.values():
            for draft in rng.sample(DRAFTS, 4):
                action = Type(f"{opening}{draft}{closing}\n{draft}")
                assert (
                    parse_response(f"Thought: a\nAction: {serialise_action(action, grammar)}", grammar).action == action
                )
