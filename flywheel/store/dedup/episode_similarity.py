"""Find pairs of episodes that may be near-duplicates, and measure how alike the steps of a pair are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rensa import RMinHash

from flywheel.store.catalog import database

# Steps as numbers: what was done, and where.
#
#     39 bits   what: verb and typed text, without case, spacing and coordinates, and the coarse end of a drag
#      1 bit    idle: the step looks, waits or scrolls, and changes nothing by itself
#     24 bits   where: x and y of the point, 12 bits each; all ones where there is none
#
# The numbers are stored for later iterations, so they depend on MD5 alone, on no library's own hash.

BITS_PER_AXIS = 12
NOWHERE = 2**BITS_PER_AXIS - 1
IDLE = np.uint64(1 << 2 * BITS_PER_AXIS)
_ROWS_PER_BATCH = 100_000

_SQL = database.read_queries("flywheel.store.dedup")


@dataclass(frozen=True)
class StepSequences:
    """Hold the steps of several episodes as numbers, one episode after the other.

    codes: uint64 [steps]; episode i has codes[offsets[i]:offsets[i + 1]]. offsets: int64 [episodes + 1], from 0 on.
    """

    codes: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lists(cls, column: pa.ChunkedArray | pa.Array) -> StepSequences:
        """Make sequences of `column`, which holds a list of codes for each episode, none of them null."""
        lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        offsets = lists.offsets.to_numpy().astype(np.int64)
        return cls(lists.values.to_numpy()[offsets[0] : offsets[-1]].astype(np.uint64), offsets - offsets[0])

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of steps of each episode: int64 [episodes]."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> StepSequences:
        """Return the sequences of some episodes, in the order of their numbers `rows`, integers [n]."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return StepSequences(self.codes[places], offsets)

    def without_idle(self) -> StepSequences:
        """Return the sequences of all episodes without the steps that only look, wait or scroll."""
        kept = (self.codes & IDLE) == 0
        return StepSequences(self.codes[kept], np.concatenate([[0], np.cumsum(kept)])[self.offsets])


def encode_steps(connection: duckdb.DuckDBPyConnection, steps: str) -> Iterator[pa.Table]:
    """Encode the steps of trajectories as numbers; yield tables of trajectory_id and step_codes (a list).

    steps: SQL of a relation with the columns trajectory_id, step, action_type, action, x, y, x2, y2. Each trajectory
    comes once. `connection` is busy until the end of the generator.
    """
    connection.execute(_SQL["step_macros"].format(bits=BITS_PER_AXIS, nowhere=NOWHERE))
    bits = {"bits": BITS_PER_AXIS, "idle_bit": 2 * BITS_PER_AXIS, "verb_bit": 2 * BITS_PER_AXIS + 1}
    rows = connection.execute(_SQL["step_codes"].format(**bits, steps=steps))
    begun = pa.table({"trajectory_id": pa.array([], pa.string()), "code": pa.array([], pa.uint64())})
    for batch in rows.to_arrow_reader(_ROWS_PER_BATCH):
        begun = pa.concat_tables([begun, pa.Table.from_batches([batch])]).combine_chunks()
        starts = _starts(begun["trajectory_id"])
        yield _as_lists(begun, starts)  # all but the last trajectory, which the next batch may continue
        begun = begun.slice(starts[-1]) if len(starts) else begun
    yield _as_lists(begun, np.append(_starts(begun["trajectory_id"]), len(begun)))


def _starts(names: pa.ChunkedArray) -> np.ndarray:
    """Return the rows at which another name begins."""
    differs = pc.not_equal(names.slice(1), names.slice(0, max(0, len(names) - 1)))
    return np.concatenate([[0][: len(names)], np.flatnonzero(differs.to_numpy()) + 1]).astype(np.int64)


def _as_lists(rows: pa.Table, ends: np.ndarray) -> pa.Table:
    codes = pa.array(rows["code"].to_numpy()[: ends[-1] if len(ends) else 0])
    return pa.table(
        {
            "trajectory_id": rows["trajectory_id"].take(pa.array(ends[:-1])),
            "step_codes": pa.ListArray.from_arrays(pa.array(ends if len(ends) else [0], pa.int32()), codes),
        }
    )


# Candidate pairs: MinHash (Broder 1997) of the episodes' coarse steps, and locality-sensitive hashing.
#
# An episode's signature is cut into bands; two episodes that agree in a band are candidates. With ROWS numbers per band
# and BANDS bands, a pair of Jaccard similarity s is a candidate with probability 1 - (1 - s^ROWS)^BANDS: 0.96 at 0.6,
# 0.04 at 0.2.

BANDS, ROWS = 24, 4
_GRID = 4  # bits per axis that a coarse step keeps: a sixteenth of the screen
_NEIGHBOURS = 32  # in a crowded bucket, a row is paired with so many before it
_SEED = 22
_EPISODES_PER_BATCH = 5_000  # hashes of a batch are lists of Python integers


def coarsen_steps(sequences: StepSequences) -> np.ndarray:
    """Put the points of the codes of `sequences` on a coarse grid, for signatures: uint64 [steps]."""
    fine = np.uint64(2 ** (BITS_PER_AXIS - _GRID) - 1)
    nowhere = (sequences.codes & np.uint64(2 ** (2 * BITS_PER_AXIS) - 1)) == np.uint64(
        NOWHERE << BITS_PER_AXIS | NOWHERE
    )
    return np.where(nowhere, sequences.codes, sequences.codes & ~(fine | fine << np.uint64(BITS_PER_AXIS)))


def minhash_signatures(sequences: StepSequences) -> np.ndarray:
    """Compute the MinHash signature of each episode of `sequences`: uint32 [episodes, BANDS * ROWS]."""
    result = np.empty((len(sequences.lengths), BANDS * ROWS), np.uint32)
    tokens = splitmix64(coarsen_steps(sequences))
    for first in range(0, len(result), _EPISODES_PER_BATCH):
        offsets = sequences.offsets[first : first + _EPISODES_PER_BATCH + 1]
        own = tokens[offsets[0] : offsets[-1]]
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(own, offsets - offsets[0], BANDS * ROWS, _SEED)
        result[first : first + _EPISODES_PER_BATCH] = np.array(matrix.to_rows(), np.uint32).reshape(-1, BANDS * ROWS)
    return result


def lsh_candidate_pairs(signed: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Find the pairs of rows that may be near-duplicates, by locality-sensitive hashing: int64 [pairs, 2].

    A pair is the numbers (earlier, later) of two rows of one group whose signatures agree in a band of ROWS numbers;
    each comes once. signed: signature of each row, uint32 [rows, BANDS * ROWS]. group: number of each row's group,
    integers [rows]. In a crowded bucket a row is paired only with the 32 right before it, so similar rows should be
    neighbours.
    """
    found = []
    of_group = splitmix64(group.astype(np.uint64))
    for band in range(BANDS):
        key = of_group.copy()
        for column in range(band * ROWS, (band + 1) * ROWS):
            key = splitmix64(key ^ signed[:, column].astype(np.uint64))
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


def splitmix64(values: np.ndarray) -> np.ndarray:
    """Mix 64-bit numbers by the finaliser of SplitMix64, so that close numbers become distant ones.

    values: uint64 of any shape, which the result has too.
    """
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


# Pairs that are compared: all of a small group, the candidates of a large one.

CROWDED_GROUP = 64  # rows of a group above which only candidates are compared


def candidate_pairs(group: np.ndarray, sequences: StepSequences) -> np.ndarray:
    """Find the pairs (earlier, later) of rows of one group that may be near-duplicates: int64 [pairs, 2], each once.

    group: number of each row's group, integers [rows], equal ones side by side. sequences: the steps of each row. Of a
    small group all pairs are returned.
    """
    begins = np.flatnonzero(np.diff(group, prepend=group[:1] - 1)) if len(group) else np.empty(0, np.int64)
    sizes = np.diff(begins, append=len(group))
    crowded = np.repeat(sizes > CROWDED_GROUP, sizes)
    few, many = np.flatnonzero(~crowded), np.flatnonzero(crowded)
    found = [_all_pairs(group[few], few)]
    if len(many):
        signed = minhash_signatures(sequences.take(many))
        found.append(many[lsh_candidate_pairs(signed, group[many])])
    return np.concatenate(found)


def _all_pairs(group: np.ndarray, rows: np.ndarray) -> np.ndarray:
    found = [np.empty((0, 2), np.int64)]
    for apart in range(1, CROWDED_GROUP):
        same = np.flatnonzero(group[apart:] == group[:-apart])
        if not len(same):
            break
        found.append(np.stack([rows[same], rows[same + apart]], 1))
    return np.concatenate(found)


# Similarity: 1 - edits / steps of the longer episode, by the edit distance of their steps (Levenshtein). Two steps are
# the same where the same was done within a fiftieth of the screen. All pairs of a batch are computed at once.

_NEAR_DISTANCE = round(0.02 * NOWHERE)
_PAIRS_PER_BATCH = 20_000
_AXIS_MASK = np.uint64(NOWHERE)


def sequence_similarity(sequences: StepSequences, pairs: np.ndarray) -> np.ndarray:
    """Compute the similarity of each pair of episodes: float64 [n], in [0, 1]; 1 for two without steps.

    It is 1 - edits / steps of the longer one (Levenshtein). Two steps agree where the same was done, within a fiftieth
    of the screen's width and height. pairs: numbers of episodes in `sequences`, integers [n, 2].
    """
    lengths = sequences.lengths[pairs]
    longest = lengths.max(1, initial=0)
    result = np.ones(len(pairs))
    order = np.argsort(longest, kind="stable")
    for start in range(0, len(order), _PAIRS_PER_BATCH):
        rows = order[start : start + _PAIRS_PER_BATCH]
        edits = _edit_distances(_padded(sequences, pairs[rows, 0]), _padded(sequences, pairs[rows, 1]), lengths[rows])
        result[rows] = 1 - edits / np.maximum(longest[rows], 1)
    return result


def sequences_equal(sequences: StepSequences, pairs: np.ndarray) -> np.ndarray:
    """Tell for each pair of episodes whether all of their steps agree, as in `sequence_similarity`: bool [n].

    pairs: numbers of episodes in `sequences`, integers [n, 2].
    """
    lengths = sequences.lengths[pairs]
    result = lengths[:, 0] == lengths[:, 1]
    for place in (0, -1):  # most pairs that differ do so at an end
        told = np.flatnonzero(result & (lengths[:, 0] > 0))
        ends = sequences.offsets[pairs[told]] if place == 0 else sequences.offsets[pairs[told] + 1] - 1
        result[told] = _steps_agree(*(_split_codes(sequences.codes[end]) for end in ends.T))
    told = np.flatnonzero(result)
    for start in range(0, len(told), _PAIRS_PER_BATCH):
        rows = told[start : start + _PAIRS_PER_BATCH]
        left, right = (sequences.take(own) for own in pairs[rows].T)
        agree = np.concatenate([[0], np.cumsum(_steps_agree(_split_codes(left.codes), _split_codes(right.codes)))])
        result[rows] = agree[left.offsets[1:]] - agree[left.offsets[:-1]] == left.lengths
    return result


def _padded(sequences: StepSequences, rows: np.ndarray) -> np.ndarray:
    """Return the codes of episodes `rows` as uint64 [longest, rows]: a row per step, a column per episode, padded with
    0."""
    lengths = sequences.lengths[rows]
    places = np.arange(lengths.max(initial=0))[:, None]
    inside = places < lengths
    padded = np.zeros((len(places), len(rows)), np.uint64)
    padded[inside] = sequences.codes[(sequences.offsets[rows] + places)[inside]]
    return padded


def _edit_distances(left: np.ndarray, right: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    own, other = _split_codes(left), _split_codes(right)
    before = np.repeat(np.arange(len(right) + 1, dtype=np.int32)[:, None], len(lengths), 1)
    columns = np.arange(len(lengths))
    result = before[lengths[:, 1], columns]
    for i in range(len(left)):
        row = np.empty_like(before)
        row[0] = i + 1
        differs = ~_steps_agree([part[i] for part in own], other)
        replaced = before[:-1] + differs
        kept = np.minimum(replaced, before[1:] + 1)
        for j in range(len(right)):
            np.minimum(kept[j], row[j] + 1, out=row[j + 1])
        ends = lengths[:, 0] == i + 1
        result[ends] = row[lengths[ends, 1], columns[ends]]
        before = row
    return result


def _split_codes(codes: np.ndarray) -> tuple[np.ndarray, ...]:
    where = np.uint64(BITS_PER_AXIS)
    return codes >> where + where, (codes >> where & _AXIS_MASK).astype(np.int32), (codes & _AXIS_MASK).astype(np.int32)


def _steps_agree(step: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    what, x, y = step
    return (what == others[0]) & (np.abs(x - others[1]) <= _NEAR_DISTANCE) & (np.abs(y - others[2]) <= _NEAR_DISTANCE)
