"""Which episodes may be near one another: MinHash (Broder 1997) of their coarse steps, and locality-sensitive hashing.

A row's signature is cut into bands; two rows that agree in a band are candidates. With ROWS rows a band and BANDS
bands, a pair of Jaccard similarity s becomes one with probability 1 - (1 - s^ROWS)^BANDS: 0.96 at 0.6, 0.04 at 0.2.
"""

from __future__ import annotations

import numpy as np
from rensa import RMinHash

from flywheel.dedup.steps import NOWHERE, WHERE, Sequences

BANDS, ROWS = 24, 4
_GRID = 4  # bits an axis that a coarse step keeps: a sixteenth of the screen
_NEIGHBOURS = 32  # in a crowded bucket, a row is held against so many before it
_SEED = 22


def coarse(sequences: Sequences) -> np.ndarray:
    """The steps' codes with their points on a coarse grid: what a signature is made of."""
    fine = np.uint64(2 ** (WHERE - _GRID) - 1)
    nowhere = (sequences.codes & np.uint64(2 ** (2 * WHERE) - 1)) == np.uint64(NOWHERE << WHERE | NOWHERE)
    return np.where(nowhere, sequences.codes, sequences.codes & ~(fine | fine << np.uint64(WHERE)))


def signatures(sequences: Sequences) -> np.ndarray:
    """One row an episode, BANDS * ROWS columns of uint32."""
    digest = RMinHash.digest_matrix_from_flat_token_hashes
    matrix = digest(mixed(coarse(sequences)), sequences.offsets, BANDS * ROWS, _SEED)
    return np.array(matrix.to_rows(), np.uint32).reshape(len(sequences.offsets) - 1, BANDS * ROWS)


def candidates(signed: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Pairs (earlier, later) of rows that agree in a band, each once, as an array of shape (pairs, 2).

    order: the rows' places; in a crowded bucket a row is paired with those right before it, so like stands beside like.
    """
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    found = []
    for band in range(BANDS):
        key = np.zeros(len(signed), np.uint64)
        for column in range(band * ROWS, (band + 1) * ROWS):
            key = mixed(key ^ signed[:, column].astype(np.uint64))
        by_key = np.lexsort((rank, key))
        bucket = np.concatenate([[0], np.cumsum(key[by_key][1:] != key[by_key][:-1])]) if len(key) else key
        for apart in range(1, _NEIGHBOURS + 1):
            same = np.flatnonzero(bucket[apart:] == bucket[:-apart]) if apart < len(bucket) else np.empty(0, np.int64)
            if not len(same):
                break
            found.append(np.stack([by_key[same], by_key[same + apart]], 1))
    if not found:
        return np.empty((0, 2), np.int64)
    pairs = np.concatenate(found)
    lower, upper = pairs.min(1), pairs.max(1)
    joined = np.sort(lower * len(signed) + upper)  # np.unique takes four times as long
    joined = joined[np.diff(joined, prepend=-1) > 0]
    return np.stack([joined // len(signed), joined % len(signed)], 1)


def mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: neighbouring numbers become far ones."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
