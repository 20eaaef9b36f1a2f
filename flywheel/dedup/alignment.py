"""How near two episodes are: 1 - edits / steps of the longer one, by the edit distance of their steps (Levenshtein).

Two steps are the same where the same was done within a fiftieth of the screen. All pairs are reckoned side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flywheel.dedup.steps import NOWHERE, WHERE, Sequences

_NEAR = round(0.02 * NOWHERE)
_AT_ONCE = 20_000  # pairs
_WHERE = np.uint64(NOWHERE)


def similarity(sequences: Sequences, pairs: np.ndarray) -> np.ndarray:
    """Of each pair of rows, in [0, 1]; 1 for two episodes without steps. pairs: shape (n, 2)."""
    lengths = sequences.lengths[pairs]
    longest = lengths.max(1, initial=0)
    result = np.ones(len(pairs))
    order = np.argsort(longest, kind="stable")
    for start in range(0, len(order), _AT_ONCE):
        rows = order[start : start + _AT_ONCE]
        edits = _edits(_padded(sequences, pairs[rows, 0]), _padded(sequences, pairs[rows, 1]), lengths[rows])
        result[rows] = 1 - edits / np.maximum(longest[rows], 1)
    return result


def equal(sequences: Sequences, pairs: np.ndarray) -> np.ndarray:
    """Whether each pair of rows agrees in all of its steps."""
    lengths = sequences.lengths[pairs]
    result = lengths[:, 0] == lengths[:, 1]
    for place in (0, -1):  # most pairs that differ do so here already
        told = np.flatnonzero(result & (lengths[:, 0] > 0))
        ends = sequences.offsets[pairs[told]] if place == 0 else sequences.offsets[pairs[told] + 1] - 1
        result[told] = _same(*(_parts(sequences.codes[end]) for end in ends.T))
    told = np.flatnonzero(result)
    for start in range(0, len(told), _AT_ONCE):
        rows = told[start : start + _AT_ONCE]
        left, right = (sequences.take(own) for own in pairs[rows].T)
        agree = np.concatenate([[0], np.cumsum(_same(_parts(left.codes), _parts(right.codes)))])
        result[rows] = agree[left.offsets[1:]] - agree[left.offsets[:-1]] == left.lengths
    return result


def _padded(sequences: Sequences, rows: np.ndarray) -> np.ndarray:
    """Steps as rows, episodes as columns."""
    lengths = sequences.lengths[rows]
    places = np.arange(lengths.max(initial=0))[:, None]
    inside = places < lengths
    padded = np.zeros((len(places), len(rows)), np.uint64)
    padded[inside] = sequences.codes[(sequences.offsets[rows] + places)[inside]]
    return padded


def _edits(left: np.ndarray, right: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    own, other = _parts(left), _parts(right)
    before = np.repeat(np.arange(len(right) + 1, dtype=np.int32)[:, None], len(lengths), 1)
    columns = np.arange(len(lengths))
    result = before[lengths[:, 1], columns]
    for i in range(len(left)):
        row = np.empty_like(before)
        row[0] = i + 1
        differs = ~_same([part[i] for part in own], other)
        replaced = before[:-1] + differs
        kept = np.minimum(replaced, before[1:] + 1)
        for j in range(len(right)):
            np.minimum(kept[j], row[j] + 1, out=row[j + 1])
        ends = lengths[:, 0] == i + 1
        result[ends] = row[lengths[ends, 1], columns[ends]]
        before = row
    return result


def _parts(codes: np.ndarray) -> tuple[np.ndarray, ...]:
    where = np.uint64(WHERE)
    return codes >> where + where, (codes >> where & _WHERE).astype(np.int32), (codes & _WHERE).astype(np.int32)


def _same(step: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    what, x, y = step
    return (what == others[0]) & (np.abs(x - others[1]) <= _NEAR) & (np.abs(y - others[2]) <= _NEAR)
