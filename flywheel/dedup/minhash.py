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
_AT_ONCE = 5_000  # episodes: their hashes come as lists of Python's numbers


def coarse(sequences: Sequences) -> np.ndarray:
    """The steps' codes with their points on a coarse grid: what a signature is made of."""
    fine = np.uint64(2 ** (WHERE - _GRID) - 1)
    nowhere = (sequences.codes & np.uint64(2 ** (2 * WHERE) - 1)) == np.uint64(NOWHERE << WHERE | NOWHERE)
    return np.where(nowhere, sequences.codes, sequences.codes & ~(fine | fine << np.uint64(WHERE)))


def signatures(sequences: Sequences) -> np.ndarray:
    """One row an episode, BANDS * ROWS columns of uint32."""
    result = np.empty((len(sequences.lengths), BANDS * ROWS), np.uint32)
    tokens = mixed(coarse(sequences))
    for first in range(0, len(result), _AT_ONCE):
        offsets = sequences.offsets[first : first + _AT_ONCE + 1]
        own = tokens[offsets[0] : offsets[-1]]
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(own, offsets - offsets[0], BANDS * ROWS, _SEED)
        result[first : first + _AT_ONCE] = np.array(matrix.to_rows(), np.uint32).reshape(-1, BANDS * ROWS)
    return result


def candidates(signed: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Pairs (earlier, later) of rows of a group that agree in a band, each once, as an array of shape (pairs, 2).

    In a crowded bucket a row is paired with those right before it: like should stand beside like.
    """
    found = []
    of_group = mixed(group.astype(np.uint64))
    for band in range(BANDS):
        key = of_group.copy()
        for column in range(band * ROWS, (band + 1) * ROWS):
            key = mixed(key ^ signed[:, column].astype(np.uint64))
        by_key = np.argsort(key, kind="stable")
        bucket = np.concatenate([[0], np.cumsum(key[by_key][1:] != key[by_key][:-1])]) if len(key) else key
        for apart in range(1, _NEIGHBOURS + 1):
            same = np.flatnonzero(bucket[apart:] == bucket[:-apart]) if apart < len(bucket) else np.empty(0, np.int64)
            if not len(same):
                break
            found.append(by_key[same] * len(signed) + by_key[same + apart])
    if not found:
        return np.empty((0, 2), np.int64)
    joined = np.sort(np.concatenate(found))  # np.unique takes four times as long
    joined = joined[np.diff(joined, prepend=-1) > 0]
    return np.stack([joined // len(signed), joined % len(signed)], 1)


def mixed(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: neighbouring numbers become far ones."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
