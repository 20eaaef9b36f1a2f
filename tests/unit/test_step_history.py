"""Memory: what each step finds in it, and that neither it nor the work for it grows with the trajectory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.history import (
    SUMMARY_CHARACTERS,
    HistorySummary,
    PastStep,
    RuleSummarizer,
    StepHistory,
    build_memory,
    summarise_step,
    truncate_middle,
)
from flywheel.agent.prompt import build_context, count_tokens_upper_bound
from flywheel.config import PolicySettings


def past(number: int) -> PastStep:
    kind = ("click", "type", "scroll", "")[number % 4]
    return PastStep(None, f"I did {number}.", "wait()", "ok" * number, kind, f"word {number}", f"shop/{number % 11}")


HISTORY = [past(number) for number in range(600)]


class Watched:
    """The rules, with a record of what they were asked to digest."""

    name = "watched"

    def __init__(self, characters: int, every: int) -> None:
        self.every, self.asked, self._rules = every, [], RuleSummarizer(characters)

    def digest(self, before, aged):
        self.asked.append((before.steps, len(aged)))
        return self._rules.digest(before, aged)


def test_a_summary_is_one_short_line():
    assert summarise_step(PastStep(None, "a\n b", "wait()")) == "a b"
    assert summarise_step(PastStep(None, "", "wait()", tool_result="ok\n")) == "wait() -> ok"
    assert summarise_step(PastStep(None, "", "")) == "No action."
    assert len(summarise_step(PastStep(None, "word " * 50, ""))) <= SUMMARY_CHARACTERS


@given(st.text(max_size=300), st.integers(0, 120))
def test_a_middle_that_is_left_out_is_counted(text, characters):
    short = truncate_middle(text, characters)
    assert len(short) <= characters or short == text
    if len(text) > characters >= 60:
        assert f"[{len(text) - characters} characters left out]" in short
        assert (short[0], short[-1]) == (text[0], text[-1])


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 12), st.sampled_from([0, 200]))
def test_every_step_is_in_one_place(working, episodic, length, summary_max_chars):
    """The newest in full, then lines, then, where one is asked for, the digest: in order, none twice, none lost."""
    policy = PolicySettings(history_n_images=working, history_n_text=episodic, summary_max_chars=summary_max_chars)
    memory = build_memory(HISTORY[:length], policy)
    kept = min(working - 1, length)
    lines = min(episodic, length - kept)
    assert list(memory.working) == HISTORY[length - kept : length]
    assert list(memory.episodic) == [summarise_step(step) for step in HISTORY[length - kept - lines : length - kept]]
    assert memory.before == (length - kept - lines if summary_max_chars else 0)
    assert bool(memory.digest) == bool(memory.before)


@pytest.mark.parametrize("every", [1, 3, 8])
def test_a_step_that_waits_for_the_digest_keeps_its_line(every):
    policy = PolicySettings(history_n_images=3, history_n_text=2, summary_max_chars=300)
    memories, past_steps, watched = [], None, Watched(300, every)
    past_steps = StepHistory(policy, watched)
    for step in HISTORY[:60]:
        past_steps.add(step)
        memories.append(past_steps.memory())
    for number, memory in enumerate(memories, 1):
        assert memory.before + len(memory.episodic) + len(memory.working) == number
        assert min(2, number - 2 if number > 2 else 0) <= len(memory.episodic) <= 2 + every - 1
    begins, counts = zip(*watched.asked, strict=True)
    assert set(counts) == {every}
    assert list(begins) == list(range(0, every * len(begins), every))


def test_500_steps_keep_a_bounded_prompt_and_bounded_work():
    """Each step is digested once, and the context of the 500th costs as many counts and tokens as that of the 50th."""
    policy = PolicySettings(history_n_images=5, summary_max_chars=300, max_context_tokens=700, result_characters=400)
    watched, counts, tokens = Watched(300, 1), [], []
    steps = StepHistory(policy, watched)
    for step in HISTORY[:500]:
        steps.add(step)
        counted = []

        def count(context, counted=counted) -> int:
            counted.append(count_tokens_upper_bound(context))
            return counted[-1]

        tokens.append(count_tokens_upper_bound(build_context("Buy all of it.", steps.memory(), PNG, policy, count)))
        counts.append(len(counted))
    assert max(tokens) <= 700
    assert max(counts) <= 7  # as it is, the least, and a search among some 18 in between
    assert max(tokens[450:]) <= max(tokens[50:450]) + 30
    assert sum(aged for _, aged in watched.asked) == 500 - 4 - 4
    assert {aged for _, aged in watched.asked} == {1}


def test_what_rules_say_of_500_steps():
    memory = build_memory(HISTORY[:500], PolicySettings(summary_max_chars=400))
    assert memory.before == 496
    assert memory.digest == (
        "click 124, type 124, scroll 124, no action 124; "
        "typed 'word 488', 'word 489', 'word 490', 'word 491', 'word 492', 'word 493', 'word 494', 'word 495'; "
        "pages shop/4, shop/5, shop/6, shop/7, shop/8, shop/9, shop/10, shop/0."
    )
    assert build_memory(HISTORY[:500], PolicySettings(summary_max_chars=60)).digest == (
        "click 124, type 124, scroll 124, no action 124."
    )


def test_a_stored_digest_takes_the_place_of_a_new_one():
    policy = PolicySettings(history_n_text=2, summary_max_chars=100)
    watched = Watched(100, 1)
    past_steps = StepHistory(policy, watched)
    for step in HISTORY[:6]:
        past_steps.add(step)
    past_steps.recall(4, "four things", "a model")
    memory = past_steps.memory()
    assert (memory.before, memory.digest, memory.episodic) == (
        4,
        "four things",
        tuple(map(summarise_step, HISTORY[4:6])),
    )
    assert not watched.asked
    past_steps.add(HISTORY[6])
    assert past_steps.memory().before == 5  # what follows is made here, and its counts go back to the beginning
    assert past_steps.digest == RuleSummarizer(100).digest(HistorySummary(), HISTORY[:5])
    past_steps.recall(3, "older", "a model")
    assert past_steps.digest.steps == 5


PNG = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde\x00\x00\x00\x0c"
    b"IDATx\x9cc\xf8\xff\xff?\x00\x05\xfe\x02\xfe\r\xefF\xb8\x00\x00\x00\x00IEND\xaeB`\x82"
)
