"""Refinement: known sentences by the rules, properties, and a language model that fails in every way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_server import Server, said

from flywheel.config import LanguageModelSettings, Settings, parse_settings
from flywheel.policy.client.language_model import LanguageModelError, LanguageModelTimeout, OpenAIChatModel
from flywheel.recordings.refine import ModelRefiner, RefinerInput, RuleRefiner, open_refiner
from flywheel.utils.errors import BadInput


def refine(text: str, vocabulary: str = "", confidence: float = 1.0) -> str:
    words = tuple(text.split())
    return RuleRefiner().refine(RefinerInput(words, (confidence,) * len(words), "", frozenset(vocabulary.split())))


@pytest.mark.parametrize(
    ("heard", "thought"),
    [
        ("um let me see i click the red tile", "I click the red tile."),
        ("i click the blue no wait the red tile", "I click the red tile."),
        ("i pick the green sorry the purple moon", "I pick the purple moon."),
        ("i click red sorry blue", "I click blue."),
        ("i open the cart no i open the menu", "I open the menu."),
        ("i i click i click the the tile", "I click the tile."),
        ("so take the green leaf", "I take the green leaf."),
        ("now press left", "Now I press left."),
        ("i'm done with it and", "I'm done with it."),
        ("there is no item", "There is no item."),
        ("i wait for the page", "I wait for the page."),
        ("i scroll down and i'd look", "I scroll down and I'd look."),
        ("um uh okay", ""),
        ("okay done", ""),
        ("", ""),
    ],
)
def test_rules_by_example(heard, thought):
    assert refine(heard) == thought


def test_misheard_words_are_mended_from_the_screen_where_they_were_doubtful():
    assert refine("i click the carp", "cart", confidence=0.3) == "I click the cart."
    assert refine("i click the carp", "cart", confidence=0.99) == "I click the carp."
    assert refine("i click the carp", "menu", confidence=0.3) == "I click the carp."
    # A word that the interface itself could mean stands, however doubtful and similar.
    assert refine("i click the heart", "chart hearty", confidence=0.1) == "I click the heart."


SPOKEN = "i click the red blue tile no wait um sorry okay press left cart it"
words = st.lists(st.sampled_from(SPOKEN.split()), max_size=14)


@given(words)
def test_a_thought_is_one_sentence_of_words_that_were_said(said):
    thought = refine(" ".join(said))
    if thought:
        assert thought[0].isupper()
        assert thought.endswith(".")
        assert set(thought[:-1].lower().split()) <= {*said, "i"}
        assert not {"um"} & set(thought[:-1].lower().split())
    assert thought == " ".join(thought.split())


@given(words)
def test_what_is_refined_stays_as_it_is(said):
    once = refine(" ".join(said))
    kept = refine(once.rstrip(".").lower())
    # A second look finds nothing new where no repair marker is left.
    if not {"no", "wait", "sorry"} & set(once.lower().split()):
        assert kept == once


def test_a_model_refines_and_signs_with_its_name():
    with Server(said(" I click\n the red tile. "), said("NONE.")) as server:
        refiner = ModelRefiner(OpenAIChatModel(server.settings()))
        heard = RefinerInput(("um", "red", "tile"), (1, 1, 1), "Clear the tiles.", frozenset({"tile"}))
        assert refiner.refine(heard) == "I click the red tile."
        assert refiner.refine(heard) == ""
        assert refiner.refine(RefinerInput((), ())) == ""
    assert refiner.name == "stub"
    assert len(server.requests) == 2
    path, body, _ = server.requests[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"]) == ("stub", 0)
    assert "Heard: um red tile" in body["messages"][1]["content"]
    assert "Task: Clear the tiles." in body["messages"][1]["content"]


def test_a_busy_server_is_asked_again():
    with Server((503, "busy"), (429, "slow down"), said("yes")) as server:
        assert OpenAIChatModel(server.settings(retries=2)).complete("s", "u") == "yes"


def test_a_server_that_stays_broken_is_an_error_and_not_the_rules():
    with (
        Server((500, "x"), (500, "x")) as server,
        pytest.raises(LanguageModelError, match=r"status 500: x \(2 tries\)"),
    ):
        ModelRefiner(OpenAIChatModel(server.settings(retries=1))).refine(RefinerInput(("hi",), (1.0,)))


def test_a_server_that_is_not_there_is_named():
    with Server() as server:
        settings = server.settings(retries=0)
    with pytest.raises(LanguageModelError, match="no connection") as caught:
        OpenAIChatModel(settings).complete("s", "u")
    assert caught.value.where == f"{settings.endpoint}/chat/completions"


def test_an_answer_that_does_not_come_is_a_timeout():
    with Server((0, "")) as server, pytest.raises(LanguageModelTimeout, match=r"no answer in 0\.2 s"):
        OpenAIChatModel(server.settings(timeout_s=0.2)).complete("s", "u")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((401, "no key"), "status 401: no key"),
        ((200, "<html>"), "the answer is not JSON"),
        ((200, {"choices": []}), "not an answer of a chat completion"),
        (said(None), "holds no text"),
    ],
)
def test_answers_of_no_use_are_told_apart_and_not_asked_for_again(answer, what):
    with Server(answer) as server, pytest.raises(LanguageModelError, match=what):
        OpenAIChatModel(server.settings()).complete("s", "u")
    assert len(server.requests) == 1


def test_the_key_is_read_from_the_variable_that_is_named(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with Server(said("a"), said("b")) as server:
        OpenAIChatModel(server.settings(key_variable="MY_KEY")).complete("s", "u")
        OpenAIChatModel(server.settings(key_variable="NO_SUCH_KEY")).complete("s", "u")
    assert server.requests[0][2]["Authorization"] == "Bearer secret"
    assert "Authorization" not in server.requests[1][2]


def test_the_settings_choose_the_refiner():
    assert open_refiner(Settings()).name == "rules"
    named = Settings(language_model=LanguageModelSettings(endpoint="http://127.0.0.1:1/v1", model="qwen"))
    assert open_refiner(named).name == "qwen"
    with pytest.raises(BadInput, match="must name a model"):
        parse_settings({"language_model": {"endpoint": "http://127.0.0.1:1/v1"}}, where="params.yaml")
