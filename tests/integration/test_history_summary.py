"""Digests: one suite that rules, a language model, and a language model that fails must all pass."""

from __future__ import annotations

import logging
import re
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_server import Server, said
from night import examples
from processes import PATIENCE_S

from flywheel.agent.history import HistorySummary, PastStep, RuleSummarizer, StepCounts
from flywheel.config import LanguageModelSettings, PolicySettings, Settings, parse_settings
from flywheel.policy.client.language_model import ModelSummarizer, OpenAIChatModel, open_summarizer
from flywheel.utils.errors import BadInput

CHARACTERS = 120


def step(number: int) -> PastStep:
    return PastStep(None, f"I did {number}.", "", f"<r{number}>", "click", "", f"shop/{number}")


def record(asked: dict) -> tuple[int, object]:
    """What a model might answer: a record of all it was told, far too long and over several lines."""
    return said("A record\n of " + asked["messages"][1]["content"] * 3)


@pytest.fixture(params=["rules", "language model", "broken model"])
def summarizer(request):
    if request.param == "rules":
        yield RuleSummarizer(CHARACTERS)
        return
    with Server(record if request.param == "language model" else lambda asked: (401, "no")) as server:
        yield ModelSummarizer(OpenAIChatModel(server.settings()), CHARACTERS)


def folded(summarizer, steps: list[PastStep]) -> HistorySummary:
    digest = HistorySummary()
    for begin in range(0, len(steps), summarizer.every):
        digest = summarizer.digest(digest, steps[begin : begin + summarizer.every])
    return digest


def test_a_digest_is_one_bounded_line_that_counts_its_steps(summarizer):
    for number in (1, 8, 40):
        digest = folded(summarizer, [step(n) for n in range(number)])
        assert digest.steps == number
        assert 0 < len(digest.text) <= CHARACTERS
        assert digest.text == " ".join(digest.text.split())
        assert digest.counts.actions == (("click", number),)


def test_a_digest_is_signed(summarizer):
    signature = folded(summarizer, [step(1)]).by
    assert signature in ("rules", "stub", "rules, since stub failed: status 401: no")


def test_the_same_history_gives_the_same_digest(summarizer):
    steps = [step(n) for n in range(20)]
    assert folded(summarizer, steps) == folded(summarizer, list(steps))


texts = st.one_of(st.text(max_size=200), st.sampled_from(["\ud800", "\n\n", "'\"\\", "x" * 5000, ""]))
steps = st.builds(PastStep, st.none(), texts, texts, texts, st.sampled_from(["", "type", "click"]), texts, texts)


@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, min_size=1, max_size=20))
def test_any_steps_can_be_digested(summarizer, history):
    digest = folded(summarizer, history)
    assert digest.steps == len(history)
    assert len(digest.text) <= CHARACTERS


@given(st.lists(steps, max_size=30), st.integers(0, 30), st.integers(0, 400))
def test_a_tally_may_be_made_in_parts_and_is_bounded(history, place, characters):
    whole = StepCounts().with_steps(history)
    assert StepCounts().with_steps(history[:place]).with_steps(history[place:]) == whole
    assert sum(n for _, n in whole.actions) == len(history)
    assert max(len(whole.pages), len(whole.typed)) <= 8
    assert len(whole.text(characters)) <= characters


# -- the language model ----------------------------------------------------------------------------------------------
def test_a_model_is_told_the_digest_so_far_and_the_new_steps_alone():
    history = [step(n) for n in range(40)]
    with Server(record) as server:
        final = folded(ModelSummarizer(OpenAIChatModel(server.settings()), CHARACTERS), history)
        told = [body["messages"][1]["content"] for _, body, _ in server.requests]
    assert len(told) == 5
    for number, text in enumerate(told):
        assert [int(n) for n in re.findall(r"<r(\d+)>", text.rpartition("Steps since:")[2])] == list(
            range(8 * number, 8 * number + 8)
        )
    assert told[0].startswith("Record of steps 1 to 0:\nNothing yet.\n")
    assert told[4].startswith("Record of steps 1 to 32:\nA record of")
    assert "40. I did 39. -> <r39>" in told[4]
    assert max(map(len, told)) < 8 * 40 + CHARACTERS + 100
    assert final.text.endswith("...")


def test_what_was_asked_once_is_not_asked_again():
    answers = iter(range(100))
    with Server(lambda asked: said(f"answer {next(answers)}")) as server:
        summarizer = ModelSummarizer(OpenAIChatModel(server.settings()), CHARACTERS)
        found = [folded(summarizer, [step(n) for n in range(16)]) for _ in range(5)]
        other = folded(summarizer, [step(n) for n in range(15)])
        assert len(server.requests) == 3
    assert {digest.text for digest in found} == {"answer 1"}
    assert other.text == "answer 2"


def test_samples_of_one_task_that_ask_at_once_read_one_answer():
    answers, together = iter(range(100)), threading.Barrier(4, timeout=PATIENCE_S)

    def answer(asked: dict):
        together.wait()
        return said(f"answer {next(answers)}")

    found = []
    with Server(answer) as server:
        summarizer = ModelSummarizer(OpenAIChatModel(server.settings()), CHARACTERS)
        threads = [threading.Thread(target=lambda: found.append(folded(summarizer, [step(1)]))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4
    assert len({digest.text for digest in found}) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((0, ""), "no answer in 3 s"),
        ((200, "<html>"), "the answer is not JSON"),
        (said(" \n "), "answered nothing"),
        ((404, "no such model"), "status 404"),
    ],
)
def test_a_model_that_fails_is_replaced_by_rules_that_say_so(answer, why, caplog):
    history = [step(n) for n in range(16)]
    with Server(said("Eight clicks."), answer, said("Well again.")) as server, caplog.at_level(logging.WARNING):
        summarizer = ModelSummarizer(OpenAIChatModel(server.settings(timeout_s=3.0, retries=0)), CHARACTERS)
        first = summarizer.digest(HistorySummary(), history[:8])
        second = summarizer.digest(first, history[8:])
        assert (first.text, first.by) == ("Eight clicks.", "stub")
        assert second.text == RuleSummarizer(CHARACTERS).digest(HistorySummary(), history).text
        assert second.by.startswith("rules, since stub failed: ")
        assert why in second.by
        assert "a digest of 16 steps is by rules" in caplog.text
        assert summarizer.digest(second, [step(16)]).by == "stub"


def test_an_endpoint_that_is_no_address_is_bad_input():
    with pytest.raises(BadInput, match=r"language_model\.endpoint"):
        OpenAIChatModel(LanguageModelSettings(endpoint="http://h:port/v1", model="stub"))


# -- the settings ----------------------------------------------------------------------------------------------------
def test_the_settings_choose_the_summarizer():
    assert open_summarizer(Settings()).name == "rules"
    chosen = Settings(
        policy=PolicySettings(summarizer="language_model", summary_max_chars=90),
        language_model=LanguageModelSettings(endpoint="http://127.0.0.1:1/v1", model="qwen"),
    )
    assert open_summarizer(chosen).name == "qwen"
    assert open_summarizer(chosen) is open_summarizer(chosen.model_copy())  # its answers are shared


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ({"policy": {"summarizer": "language_model", "summary_max_chars": 9}}, r"language_model\.endpoint must name"),
        (
            {"policy": {"summarizer": "language_model"}, "language_model": {"endpoint": "http://h/v1", "model": "m"}},
            r"policy\.summary_max_chars must be above 0",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(raw, what):
    with pytest.raises(BadInput, match=what):
        parse_settings(raw, where="params.yaml")
