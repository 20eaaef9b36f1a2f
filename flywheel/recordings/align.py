"""Align spoken thoughts with actions: find the step that each utterance is about (section 2.4.1).

The microphone and the screen have clocks of their own, so their offset is estimated together with the alignment.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flywheel.recordings.refine import word_similarity


@dataclass(frozen=True)
class SpokenUtterance:
    """Hold one utterance: its times in seconds on the audio's clock, and its words in lower case."""

    start_s: float
    end_s: float
    words: tuple[str, ...]


@dataclass(frozen=True)
class TimedAction:
    """Hold one recorded action. time_s: when it began, in seconds on the screen's clock. words: of its target, typed
    text and keys, in lower case."""

    time_s: float
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alignment:
    """Hold the alignment of utterances with steps.

    offset_s: seconds to add to the audio's clock to get the screen's. steps: the index of each utterance's action, not
    decreasing. scores: the posterior of each choice, in (0, 1].
    """

    offset_s: float
    steps: tuple[int, ...]
    scores: tuple[float, ...]


LEAD_S = 0.6  # mean seconds from the end of an utterance to its action
TOLERANCE_S = 0.8  # spread of that lead, in seconds
WORDS_WEIGHT = 3.0  # what a full match of words is worth, in units of TOLERANCE_S
FAR = 4.0  # distance, in units of TOLERANCE_S, beyond which any more counts a quarter
SYNC_TOLERANCE_S = 0.7  # seconds of error of the sync mark that cost as much as one utterance TOLERANCE_S away
_SIMILAR = 0.72
_ROUNDING = 1e-9  # sums of S that differ by less are equal


def align_utterances(
    spoken: Sequence[SpokenUtterance], acted: Sequence[TimedAction], sync_s: float | None = None
) -> Alignment:
    """Find the clocks' offset and the action that each utterance is about.

    These are the offset d and the monotone alignment s_1 <= ... <= s_n of highest score

        S(d, s) = sum_i [ w overlap(i, s_i) - h(|t_{s_i} - (e_i + d) - l| / tau) ] - h(|d - sync| / sigma)

    with e_i the end of utterance i, t_k the time of action k, l = LEAD_S, tau = TOLERANCE_S, w = WORDS_WEIGHT, sigma =
    SYNC_TOLERANCE_S, and h(z) = z up to FAR, from there on rising at a quarter (a thought that strays from its action
    does not pull all others). Without a sync mark the last term is absent: then shifting all utterances shifts the
    offset by as much and changes nothing else. d is one of the differences at which some utterance meets some action
    exactly, where the maximum of such a sum lies, or `sync_s`. For each d the best s is found by dynamic programming.
    overlap(i, k) in [0, 1] is the share of the words of action k that utterance i contains, rare words counting more.
    The score of a choice is its posterior among all monotone alignments at d, each weighted by exp S.

    spoken: n utterances in order of time. acted: m actions in order of time. sync_s: the offset in seconds that was
    read from both clocks at the start, wrong by up to a second; None where it was not. Without utterances or actions
    the alignment is empty, with offset `sync_s` or 0.
    """
    if not spoken or not acted:
        return Alignment(sync_s or 0.0, (), ())
    words = WORDS_WEIGHT * word_overlap(spoken, acted)
    meets = np.array([a.time_s for a in acted])[None, :] - np.array([u.end_s for u in spoken])[:, None] - LEAD_S
    offset = _best_offset(words, meets, sync_s)
    gain = words - _robust(np.abs(meets - offset) / TOLERANCE_S)
    steps = _best_steps(gain)
    posterior = _posterior(gain)
    scores = tuple(float(posterior[i, k]) for i, k in enumerate(steps))
    return Alignment(offset, steps, scores)


def _best_offset(words: np.ndarray, meets: np.ndarray, sync_s: float | None) -> float:
    """Return the offset of the highest S over all alignments; of equally good ones the least, `sync_s` last.

    words, meets: (n, m), the weighted word overlap, and the offset at which utterance and action meet. The search is
    exact, by branch and bound: over an interval of offsets, S is at most what it would be if each pair, and `sync_s`,
    were as near as it is anywhere in the interval. Intervals of the highest bound are halved first; those with a bound
    below an S found so far are skipped. An hour of speech takes some hundred bounds, of O(nm) each.
    """

    def bound(low: float, high: float) -> float:
        away = np.maximum(np.maximum(low - meets, meets - high), 0.0)
        value = _best_score(words - _robust(away / TOLERANCE_S))
        if sync_s is not None:
            value -= float(_robust(np.array(max(low - sync_s, sync_s - high, 0.0) / SYNC_TOLERANCE_S)))
        return value

    offsets = np.sort(meets.ravel())
    offsets = offsets[np.concatenate(([True], np.diff(offsets) > 1e-3))]  # offsets within a millisecond count as one
    found = [] if sync_s is None else [(sync_s, bound(sync_s, sync_s))]
    best = max((value for _, value in found), default=-math.inf)
    open_intervals = [(-bound(offsets[0], offsets[-1]), 0, len(offsets))]
    while open_intervals:
        negative, first, end = heapq.heappop(open_intervals)
        if -negative < best - _ROUNDING:
            break
        if end - first == 1:  # the bound of a single offset is its S
            found.append((float(offsets[first]), -negative))
            best = max(best, -negative)
            continue
        middle = int(np.searchsorted(offsets[first:end], (offsets[first] + offsets[end - 1]) / 2, "right")) + first
        for part in ((first, middle), (middle, end)):
            value = bound(offsets[part[0]], offsets[part[1] - 1])
            if value >= best - _ROUNDING:
                heapq.heappush(open_intervals, (-value, *part))
    return min((offset == sync_s, offset) for offset, value in found if value >= best - _ROUNDING)[1]


def _robust(z: np.ndarray) -> np.ndarray:
    return np.where(z <= FAR, z, FAR + (z - FAR) / 4)


def word_overlap(spoken: Sequence[SpokenUtterance], acted: Sequence[TimedAction]) -> np.ndarray:
    """Compute the weighted share of each action's words that each utterance contains.

    Returns float64 [utterances, actions], in [0, 1]. A word weighs log(1 + n / m) where m of n actions have it, so a
    word of all actions weighs little. A misheard word counts by its similarity, where that is 0.72 or more.
    """
    count = Counter(word for action in acted for word in set(action.words))
    targets, said = sorted(count), sorted({word for utterance in spoken for word in utterance.words})
    if not targets or not said:
        return np.zeros((len(spoken), len(acted)))
    similar = _similarities(said, targets)
    column, row = {word: k for k, word in enumerate(targets)}, {word: i for i, word in enumerate(said)}
    weight = np.zeros((len(targets), len(acted)))
    for k, action in enumerate(acted):
        for word in set(action.words):
            weight[column[word], k] = math.log(1 + len(acted) / count[word])
    heard = np.zeros((len(spoken), len(targets)))
    for i, utterance in enumerate(spoken):
        if utterance.words:
            heard[i] = similar[sorted({row[word] for word in utterance.words})].max(axis=0)
    total = weight.sum(axis=0)
    return np.divide(heard @ weight, total, out=np.zeros((len(spoken), len(acted))), where=total > 0)


def _similarities(said: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Return (said, targets): `word_similarity` where it is _SIMILAR or more, else 0. Neither list repeats a word.

    Two words are at most as similar as their letters in any order, which leaves few pairs to compare.
    """
    letters = {letter: i for i, letter in enumerate(sorted(set("".join(targets))))}

    def count_letters(words: Sequence[str]) -> np.ndarray:
        counts = np.zeros((len(words), len(letters)), dtype=np.int16)
        for i, word in enumerate(words):
            for letter in word:
                if letter in letters:
                    counts[i, letters[letter]] += 1
        return counts

    result = np.zeros((len(said), len(targets)))
    sizes, of_targets = np.array([len(word) for word in targets]), count_letters(targets)
    for i, (word, own) in enumerate(zip(said, count_letters(said), strict=True)):
        most = 2 * np.minimum(own, of_targets).sum(axis=1) / (len(word) + sizes)
        for k in np.flatnonzero(most >= _SIMILAR):
            similarity = word_similarity(targets[k], word)
            result[i, k] = similarity if similarity >= _SIMILAR else 0.0
    return result


def _best_score(gain: np.ndarray) -> float:
    """Return the highest sum of gain[i, s_i] over all s that do not decrease. gain: (n, m)."""
    best = gain[0]
    for row in gain[1:]:
        best = np.maximum.accumulate(best) + row
    return float(best.max())


def _best_steps(gain: np.ndarray) -> tuple[int, ...]:
    """Return the s of the sum that `_best_score` returns; among equals the earliest steps. gain: (n, m)."""
    n, m = gain.shape
    best = gain[0].copy()
    back = np.zeros((n, m), dtype=int)
    for i in range(1, n):
        reached = np.maximum.accumulate(best)
        # The first index at which the running maximum was reached.
        new = np.concatenate(([True], best[1:] > reached[:-1]))
        back[i] = np.maximum.accumulate(np.where(new, np.arange(m), 0))
        best = reached + gain[i]
    steps = [int(np.argmax(best))]
    for i in range(n - 1, 0, -1):
        steps.append(int(back[i, steps[-1]]))
    return tuple(reversed(steps))


def _posterior(gain: np.ndarray) -> np.ndarray:
    """Return (n, m): the probability of s_i = k if every s that does not decrease weighs exp(sum_i gain[i, s_i])."""
    n, m = gain.shape
    forward, backward = np.zeros((n, m)), np.zeros((n, m))
    forward[0] = gain[0]
    for i in range(1, n):
        forward[i] = np.logaddexp.accumulate(forward[i - 1]) + gain[i]
    for i in range(n - 2, -1, -1):
        backward[i] = np.logaddexp.accumulate((backward[i + 1] + gain[i + 1])[::-1])[::-1]
    joint = forward + backward
    return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))


_WORD = re.compile(r"[a-z]+|\d+")


def split_words(text: str) -> tuple[str, ...]:
    """Split `text` (a label, a typed text, an instruction) into lower-case words of a-z and numbers, in order."""
    return tuple(_WORD.findall(text.lower()))
