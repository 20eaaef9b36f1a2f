"""Which episodes of a group are held against one another: all of a small one; of a crowded one those that are alike by
their hashes."""

from __future__ import annotations

import numpy as np

from flywheel.dedup import minhash
from flywheel.dedup.steps import Sequences

CROWDED = 64
"""Rows of a group from which on not all pairs are looked at."""


def pairs(group: np.ndarray, sequences: Sequences) -> np.ndarray:
    """Pairs (earlier, later) of rows of one group, each once, as an array of shape (pairs, 2).

    group: of each row, any numbers, equal ones side by side.
    """
    begins = np.flatnonzero(np.diff(group, prepend=group[:1] - 1)) if len(group) else np.empty(0, np.int64)
    sizes = np.diff(begins, append=len(group))
    crowded = np.repeat(sizes > CROWDED, sizes)
    few, many = np.flatnonzero(~crowded), np.flatnonzero(crowded)
    found = [_beside(group[few], few)]
    if len(many):
        signed = minhash.signatures(sequences.take(many))
        found.append(many[minhash.candidates(signed, group[many])])
    return np.concatenate(found)


def _beside(group: np.ndarray, rows: np.ndarray) -> np.ndarray:
    found = [np.empty((0, 2), np.int64)]
    for apart in range(1, CROWDED):
        same = np.flatnonzero(group[apart:] == group[:-apart])
        if not len(same):
            break
        found.append(np.stack([rows[same], rows[same + apart]], 1))
    return np.concatenate(found)
