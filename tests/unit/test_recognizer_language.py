"""The language model of interface speech: its probabilities are probabilities, and its sentences can be pronounced."""

from __future__ import annotations

import pytest

from flywheel.recordings.asr.pocketsphinx import DISCOUNT, TrigramModel, generate_sentences


def read(text: str) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
    """Probabilities and back-off weights of an ARPA model."""
    probability, backoff, order = {}, {}, 0
    for line in text.splitlines():
        if line.endswith("-grams:"):
            order = int(line[1])
        elif order and line and not line.startswith("\\"):
            value, *rest = line.split()
            gram = tuple(rest[:order])
            probability[gram] = 10 ** float(value)
            backoff[gram] = 10 ** float(rest[order]) if len(rest) > order else 1.0
    return probability, backoff


def score(model, gram: tuple[str, ...]) -> float:
    probability, backoff = model
    if gram in probability:
        return probability[gram]
    return backoff.get(gram[:-1], 1.0) * score(model, gram[1:])


CORPUS = [["i", "click", "red"], ["i", "click", "blue"], ["red"]]


@pytest.mark.parametrize("history", [(), ("i",), ("click",), ("i", "click"), ("<s>", "red"), ("blue", "i")])
def test_what_may_follow_sums_to_one(history):
    model = read(TrigramModel(CORPUS).arpa())
    words = ["i", "click", "red", "blue", "</s>"]
    assert sum(score(model, (*history, word)) for word in words) == pytest.approx(1.0, abs=2e-3)


def test_known_probabilities():
    model = read(TrigramModel(CORPUS).arpa())
    red = 2 / 10  # 10 words and ends in the corpus, 2 of them red
    assert score(model, ("red",)) == pytest.approx(red, rel=1e-3)
    # After click came red and blue, once each.
    after = (1 - DISCOUNT) / 2 + DISCOUNT * 2 / 2 * red
    assert score(model, ("click", "red")) == pytest.approx(after, rel=1e-3)


def test_sentences_are_the_same_each_time_and_lower_case():
    made = generate_sentences(200)
    assert made == generate_sentences(200)
    assert all(sentence and all(word == word.lower() and " " not in word for word in sentence) for sentence in made)
    assert any("wait" in sentence for sentence in made)
