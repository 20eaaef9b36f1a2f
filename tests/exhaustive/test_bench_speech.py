"""The speech bench: its figures are counted as its docstring says, and its sentences are no part of the recogniser."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(scope="module")
def speech(project):
    sys.path.insert(0, str(project / "benchmarks"))
    try:
        import speech
    finally:
        sys.path.remove(str(project / "benchmarks"))
    return speech


def test_the_held_out_sentences_are_three_kinds_of_sixty_and_not_what_the_language_model_is_made_from(speech):
    from flywheel.recordings.asr.pocketsphinx import generate_sentences

    made = {" ".join(sentence) for sentence in generate_sentences()}
    held_out, tuned = speech.sentences(), {text for _, text in speech.sentences(speech.TUNING)}
    assert {kind: sum(kind == one for one, _ in held_out) for kind in ("plain", "interfaces", "aloud")} == {
        "plain": 60,
        "interfaces": 60,
        "aloud": 60,
    }
    assert len({text for _, text in held_out} - made - tuned) == 180
    assert all(text == text.lower() and text.replace(" ", "").isalpha() for _, text in held_out)


def test_rates_are_over_words_and_the_interval_is_of_their_difference(speech):
    heard = [speech.Heard("plain", "slt", 10, 1, 4, 0.95), speech.Heard("aloud", "rms", 30, 3, 4, 0.4)] * 40
    assert speech.rates(heard) == (0.1, 0.2)
    low, high = speech.interval(heard, 7)
    assert low < -0.1 < high < 0
    assert speech._by_confidence(heard) == {"0.0 to 0.5": [0.1, 40], "0.9 to 1.0": [0.1, 40]}


def test_both_recognisers_hear_the_same_sound_and_the_case_fails_where_one_kind_is_worse(speech, monkeypatch):
    given = []

    class Fixed:
        def __init__(self, adapted=True):
            self.ours = adapted

        def recognize(self, samples, rate):
            from flywheel.recordings.asr.recognizer import Word

            given.append(samples.tobytes())
            texts = ["take", "the", "red", "one"] if self.ours else ["take", "the", "green"]
            return tuple(Word(text, 0.0, 0.1, 0.9) for text in texts)

    monkeypatch.setattr(speech, "PocketSphinx", Fixed)
    monkeypatch.setattr(speech, "spoken", lambda text, voice: speech.np.zeros(1600, speech.np.float32))
    case = speech.word_error_rate([("aloud", "take the red one"), ("plain", "take the red")], ["slt"], 7)
    assert (case.ours, case.peer, case.ratio) == (pytest.approx(1 / 7), pytest.approx(3 / 7), pytest.approx(1 / 3))
    assert given[0] == given[1]
    assert case.met
    assert case.extra["aloud"] == [0.0, 0.5, 4]
    worse = speech.word_error_rate([("aloud", "take the red one"), ("plain", "take the green")], ["slt"], 7)
    assert not worse.met
