"""Alignment of thoughts with actions: exact known answers, and properties that hold for any recording."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.recordings import align
from flywheel.recordings.align import (
    FAR,
    LEAD_S,
    SYNC_TOLERANCE_S,
    TOLERANCE_S,
    WORDS_WEIGHT,
    SpokenUtterance,
    TimedAction,
    align_utterances,
    split_words,
    word_overlap,
)
from flywheel.recordings.refine import word_similarity

times = st.lists(st.floats(0.5, 6.0), min_size=1, max_size=6)
shifts = st.floats(-50, 50)
vocabulary = st.lists(st.sampled_from(["red", "blue", "cart", "open", "left", "tile"]), max_size=3).map(tuple)


def spoken_at(*ends: float, words: tuple[str, ...] = ()) -> list[SpokenUtterance]:
    return [SpokenUtterance(end - 1.0, end, words) for end in ends]


@st.composite
def recordings(draw):
    gaps, words = draw(times), draw(st.lists(vocabulary, min_size=6, max_size=6))
    acted = [TimedAction(float(t), w) for t, w in zip(np.cumsum(gaps), words, strict=False)]
    said, heard = draw(times), draw(st.lists(vocabulary, min_size=6, max_size=6))
    spoken = [SpokenUtterance(float(t) - 0.4, float(t), w) for t, w in zip(np.cumsum(said), heard, strict=False)]
    return spoken, acted


@given(recordings(), shifts)
def test_a_shift_of_the_audio_clock_changes_the_offset_alone(recording, shift):
    spoken, acted = recording
    moved = [SpokenUtterance(u.start_s + shift, u.end_s + shift, u.words) for u in spoken]
    here, there = align_utterances(spoken, acted), align_utterances(moved, acted)
    assert there.steps == here.steps
    assert there.offset_s + shift == pytest.approx(here.offset_s, abs=1e-6)
    assert there.scores == pytest.approx(here.scores, abs=1e-6)
    marked, marked_moved = align_utterances(spoken, acted, 0.2), align_utterances(moved, acted, 0.2 - shift)
    assert marked_moved.steps == marked.steps
    assert marked_moved.offset_s + shift == pytest.approx(marked.offset_s, abs=2e-3)
    assert marked_moved.scores == pytest.approx(marked.scores, abs=5e-3)


@given(recordings(), st.none() | st.floats(-2, 2))
def test_steps_never_decrease_and_scores_are_probabilities(recording, sync):
    spoken, acted = recording
    found = align_utterances(spoken, acted, sync)
    assert len(found.steps) == len(found.scores) == len(spoken)
    assert all(a <= b for a, b in pairwise(found.steps))
    assert all(0 <= step < len(acted) for step in found.steps)
    assert all(0 < score <= 1 + 1e-9 for score in found.scores)


@given(st.lists(st.floats(2.0, 9.0), min_size=1, max_size=6, unique=True), st.floats(-5, 5))
def test_thoughts_spoken_just_before_their_actions_are_found_with_the_offset(gaps, offset):
    at = np.cumsum(gaps)
    acted = [TimedAction(float(t)) for t in at]
    spoken = spoken_at(*(float(t) - LEAD_S - offset for t in at))
    found = align_utterances(spoken, acted, sync_s=offset)
    assert found.steps == tuple(range(len(gaps)))
    assert found.offset_s == pytest.approx(offset, abs=2e-3)


def test_several_thoughts_may_belong_to_one_action_and_an_action_may_have_none():
    acted = [TimedAction(5.0), TimedAction(15.0), TimedAction(25.0)]
    found = align_utterances(spoken_at(2.8, 4.4, 24.4), acted, sync_s=0.0)
    assert found.steps == (0, 0, 2)
    assert found.offset_s == pytest.approx(0.0, abs=1e-9)


def test_words_decide_where_time_is_in_doubt():
    acted = [TimedAction(10.0, ("click", "red", "mug")), TimedAction(13.0, ("click", "cart"))]
    between = 12.0 - LEAD_S  # two seconds after the one, one before the other
    for words, step in [(("i", "click", "the", "red", "mug"), 0), (("i", "open", "the", "cart"), 1), (("um",), 1)]:
        assert align_utterances([SpokenUtterance(between - 0.5, between, words)], acted, sync_s=0.0).steps == (step,)


def test_words_find_the_offset_without_a_sync_mark():
    acted = [TimedAction(3.0, ("red",)), TimedAction(9.0, ("green",)), TimedAction(11.0, ("blue",))]
    # Only "green" and "blue" were said, three seconds early on the audio's clock.
    spoken = [
        SpokenUtterance(4.5, 9.0 - LEAD_S - 3.0, ("green",)),
        SpokenUtterance(7.0, 11.0 - LEAD_S - 3.0, ("blue",)),
    ]
    found = align_utterances(spoken, acted)
    assert found.steps == (1, 2)
    assert found.offset_s == pytest.approx(3.0)


def test_one_stray_thought_does_not_pull_the_others():
    acted = [TimedAction(t) for t in (5.0, 10.0, 15.0, 20.0)]
    spoken = spoken_at(5.0 - LEAD_S, 10.0 - LEAD_S, 15.0 - LEAD_S, 20.0 - LEAD_S, 45.0)
    found = align_utterances(spoken, acted, sync_s=0.0)
    assert found.steps == (0, 1, 2, 3, 3)
    assert found.offset_s == pytest.approx(0.0, abs=2e-3)


def test_nothing_said_or_nothing_done_aligns_nothing():
    assert align_utterances([], [TimedAction(1.0)], 0.5).steps == ()
    assert align_utterances(spoken_at(1.0), []).steps == ()
    assert align_utterances([], [], 0.5).offset_s == 0.5


def monotone(n: int, m: int) -> list[tuple[int, ...]]:
    return [s for s in product(range(m), repeat=n) if all(a <= b for a, b in pairwise(s))]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_dynamic_programming_agrees_with_trying_all(n, m, seed):
    gain = np.random.default_rng(seed).normal(0, 2, (n, m))
    ways = monotone(n, m)
    values = np.array([sum(gain[i, k] for i, k in enumerate(s)) for s in ways])
    assert align._best_score(gain) == pytest.approx(values.max())
    assert align._best_steps(gain) == ways[int(values.argmax())]
    weight = np.exp(values) / np.exp(values).sum()
    for i, k in product(range(n), range(m)):
        expected = sum(w for w, s in zip(weight, ways, strict=True) if s[i] == k)
        assert align._posterior(gain)[i, k] == pytest.approx(expected, abs=1e-9)


def robust(z):
    return np.where(z <= FAR, z, FAR + (z - FAR) / 4)


@given(recordings(), st.one_of(st.none(), shifts))
def test_the_offset_is_the_best_of_all(recording, sync):
    """Of every offset at which an utterance meets an action, and the sync mark, none has a higher score."""
    spoken, acted = recording
    words = WORDS_WEIGHT * word_overlap(spoken, acted)
    meets = np.array([[a.time_s - u.end_s - LEAD_S for a in acted] for u in spoken])

    def score(offset: float) -> float:
        mark = 0.0 if sync is None else float(robust(np.array(abs(offset - sync) / SYNC_TOLERANCE_S)))
        return align._best_score(words - robust(np.abs(meets - offset) / TOLERANCE_S)) - mark

    best = max(score(offset) for offset in [*meets.ravel(), *([] if sync is None else [sync])])
    found = align_utterances(spoken, acted, sync)
    assert score(found.offset_s) == pytest.approx(best, abs=0.02 * len(spoken))  # a millisecond is one offset


@pytest.mark.parametrize("sync", [None, 0.3])
@pytest.mark.parametrize("said", [True, False])
def test_few_offsets_of_a_long_session_are_tried(monkeypatch, sync, said):
    """Of 13 minutes with 19,200 offsets: what is tried decides how long an hour takes."""
    draw = np.random.default_rng(5)
    acted = [TimedAction(5.0 * k + 3 * float(draw.random()), (f"w{k % 90}",)) for k in range(160)]
    spoken = [
        SpokenUtterance(end - 2, end, (f"w{k % 90}",) if said else ())
        for k in range(0, 160, 2)
        for end in [acted[k].time_s - 1.2 + float(draw.normal(0, 0.5))]
    ]
    tried = 0
    plain = align._best_score

    def counted(gain):
        nonlocal tried
        tried += 1
        return plain(gain)

    monkeypatch.setattr(align, "_best_score", counted)
    found = align_utterances(spoken, acted, sync)
    assert tried < 1_000
    assert found.offset_s == pytest.approx(0.6, abs=0.3)
    assert np.mean(np.array(found.steps) == np.arange(0, 160, 2)) > 0.9


letters = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4).map(tuple)


@given(st.lists(letters, min_size=1, max_size=3), st.lists(letters, min_size=1, max_size=4))
def test_a_word_that_was_misheard_counts_by_its_similarity(said, targets):
    result = word_overlap([SpokenUtterance(0, 1, one) for one in said], [TimedAction(0.0, one) for one in targets])
    weight = {w: np.log(1 + len(targets) / sum(w in one for one in targets)) for one in targets for w in one}
    for (i, heard), (k, target) in product(enumerate(said), enumerate(targets)):
        near = {w: max((word_similarity(w, other) for other in heard), default=0.0) for w in set(target)}
        found = sum(weight[w] * share for w, share in near.items() if share >= 0.72)
        total = sum(weight[w] for w in set(target))
        assert result[i, k] == pytest.approx(found / total if total else 0.0)


def test_overlap_is_exact():
    acted = [TimedAction(0.0, ("click", "red")), TimedAction(1.0, ("click", "blue")), TimedAction(2.0)]
    result = word_overlap([SpokenUtterance(0, 1, ("red",)), SpokenUtterance(0, 1, ("click", "blue"))], acted)
    # click is in two of three actions and weighs log 2.5; a colour is in one and weighs log 4.
    red = np.log(4) / (np.log(4) + np.log(2.5))
    np.testing.assert_allclose(result, [[red, 0, 0], [1 - red, 1, 0]])


def test_words_of_a_label():
    assert split_words("Open Red-Mug 2!") == ("open", "red", "mug", "2")
