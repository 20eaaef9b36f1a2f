"""Memory and prompt: what is kept in full, what as a line, and what goes first when it gets long."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

from flywheel.agent.memory import SUMMARY_CHARACTERS, PastStep, remember, summarise
from flywheel.agent.prompt import build_context, upper_bound
from flywheel.errors import BadInput
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Image, Message
from flywheel.settings import Policy


def screen(shade: int) -> bytes:
    out = io.BytesIO()
    Picture.new("RGB", (224, 224), (shade, shade, shade)).save(out, format="PNG")
    return out.getvalue()


def past(number: int) -> PastStep:
    return PastStep(screen(number), f"I did {number}.", f"click(point='<point>{number:02d} 10</point>')")


NOW = screen(200)
HISTORY = [past(number) for number in range(6)]


def test_the_first_step_is_the_screen_and_the_instruction():
    assert build_context(" Click the red tile. ", [], NOW, Policy()) == (
        Message("user", (Image(NOW), "Click the red tile.")),
    )


def test_older_steps_become_one_line_each():
    context = build_context("Go.", HISTORY, NOW, Policy(working_steps=1, episodic_steps=2))
    assert context == (Message("user", (Image(NOW), "Go.\nDone: I did 4. I did 5.")),)


def test_working_steps_count_the_present_one():
    context = build_context("Go.", HISTORY, NOW, Policy(working_steps=3, episodic_steps=1, max_context_tokens=2000))
    assert [message.role for message in context] == ["user", "assistant", "user", "assistant", "user"]
    assert context[0].parts == (Image(screen(4)),)
    assert context[1].parts == ("Thought: I did 4.\nAction: click(point='<point>04 10</point>')",)
    assert context[4].parts == (Image(NOW), "Go.\nDone: I did 3.")


def test_other_models_are_told_the_action_space_first():
    context = build_context("Go.", [], NOW, Policy(template="ui_tars", coordinates=1000, max_context_tokens=4000))
    assert context[0].parts[0].endswith("## User Instruction\nGo.")
    assert "0 to 999" in context[0].parts[0]
    assert context[-1].parts == (Image(NOW),)


def test_a_summary_is_one_short_line():
    assert summarise(PastStep(None, "a\n b", "wait()")) == "a b"
    assert summarise(PastStep(None, "", "wait()", result="ok\n")) == "wait() -> ok"
    assert len(summarise(PastStep(None, "word " * 50, ""))) <= SUMMARY_CHARACTERS


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 6))
def test_memory_keeps_the_newest_in_order(working, episodic, length):
    history = HISTORY[:length]
    memory = remember(history, working_steps=working, episodic_steps=episodic)
    kept = min(working - 1, length)
    assert list(memory.working) == history[length - kept :]
    older = [summarise(step) for step in history[: length - kept]]
    assert list(memory.episodic) == older[max(0, len(older) - episodic) :]


@given(st.integers(128, 900), st.integers(1, 5), st.integers(0, 6), st.integers(0, 6))
def test_the_limit_holds_and_the_oldest_goes_first(limit, working, episodic, length):
    policy = Policy(max_context_tokens=limit, working_steps=working, episodic_steps=episodic)
    context = build_context("Go.", HISTORY[:length], NOW, policy)
    assert upper_bound(context) <= limit
    text = "".join(part for message in context for part in message.parts if isinstance(part, str))
    kept = [number for number in range(length) if f"I did {number}." in text]
    assert kept == list(range(length - len(kept), length))


def test_the_estimate_is_an_upper_bound(project):
    encoder = Encoder.from_folder(project / "models" / "base")
    for text in ("Click the red tile.", "Ünïcödé 漢字 🙂 " * 5, "0123456789" * 9):
        context = build_context(text, HISTORY, NOW, Policy(working_steps=2, max_context_tokens=4000))
        assert len(encoder.encode(context)) <= upper_bound(context)
        exact = build_context(text, HISTORY, NOW, Policy(), count=lambda c: len(encoder.encode(c)))
        assert len(encoder.encode(exact)) <= Policy().max_context_tokens


@pytest.mark.parametrize("instruction", ["", "  \n"])
def test_an_empty_instruction_is_refused(instruction):
    with pytest.raises(BadInput, match="instruction is empty"):
        build_context(instruction, [], NOW, Policy())


def test_an_instruction_that_cannot_fit_is_refused():
    with pytest.raises(BadInput, match="max_context_tokens"):
        build_context("x" * 5000, HISTORY, NOW, Policy())


def test_a_broken_screen_is_refused():
    with pytest.raises(BadInput, match="not an image"):
        build_context("Go.", [], b"no picture", Policy())
