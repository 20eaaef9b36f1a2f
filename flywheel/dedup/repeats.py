"""Near-duplicates among episodes: what has been shown already, and what it should weigh in training.

Two episodes are near one another where they have the same fate (store, author) and

    one task content         the share of steps that agree is at least `least`
    other contents           all steps but idle ones agree, the instructions' numbers and quoted texts are the same,
                             and the first and the last screen look alike: one task under two names or wordings

An episode weighs 1 / (episodes near it, itself included): so many repeats weigh together about as much as one, and none
is thrown away (the thoughts of samples differ where their actions do not). The weight depends on the set of episodes
alone, never on their order. Demonstrations of people are each wanted, and are never weighed down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.dedup import alignment, minhash
from flywheel.dedup.steps import Sequences

SAME, RENAMED = "a repeat of its task", "another task's steps on the same screens"
COLUMNS = ("trajectory_id", "content", "arguments", "fate", "steps")
Alike = Callable[[Sequence[tuple[str, str]]], Sequence[bool]]


@dataclass(frozen=True)
class NearDuplicate:
    """twin: the nearest of its neighbours, of equally near ones an earlier iteration's, then the first by id.
    similarity: share of the steps that agree with the twin's. weight: in training, beside 1."""

    trajectory_id: str
    twin: str
    similarity: float
    reason: str
    weight: float


def near_duplicates(new: pa.Table, known: pa.Table, least: float, alike: Alike) -> Iterator[NearDuplicate]:
    """One for each episode of `new` that is near another one, sorted by trajectory_id.

    new, known: tables of `COLUMNS`, each trajectory once; those of `known` are of earlier iterations, and stay as they
    are. least: share of steps, in (0, 1]. alike: of pairs of trajectories, whether their first and last screens look
    alike; asked for few pairs.
    """
    table = pa.concat_tables([known.select(COLUMNS), new.select(COLUMNS)])
    is_new = np.arange(len(table)) >= len(known)
    order = np.lexsort((_ranks(table["trajectory_id"]), is_new, _ranks(table["content"])))
    table, is_new = table.take(order), is_new[order]
    own, count, member = _collapsed(table)
    some = table.take(own)
    sequences = Sequences.of(some["steps"])
    pairs = minhash.candidates(minhash.signatures(sequences), np.arange(len(own)))
    near, similarity, renamed = _confirmed(some, sequences, pairs, least, alike)
    yield from _rows(table["trajectory_id"].to_pylist(), is_new, member, count, near, similarity, renamed)


def _ranks(column: pa.ChunkedArray) -> np.ndarray:
    return pc.rank(column.combine_chunks(), sort_keys="ascending", tiebreaker="dense").to_numpy()


def _collapsed(table: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that are alike in all but their names stand as one: its first row, how many they are, and of each row of
    the table which one is its own."""
    sequences = Sequences.of(table["steps"])
    places = np.arange(len(sequences.codes)) - np.repeat(sequences.offsets[:-1], sequences.lengths)
    with np.errstate(over="ignore"):
        mixed = minhash.mixed(sequences.codes + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        summed = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        digest = summed[sequences.offsets[1:]] - summed[sequences.offsets[:-1]]
    keys = np.stack(
        [_ranks(table[name]).astype(np.uint64) for name in ("content", "arguments", "fate")]
        + [sequences.lengths.astype(np.uint64), digest]
    )
    by_key = np.lexsort((np.arange(len(table)), *keys))
    begins = np.concatenate([[True], (keys[:, by_key][:, 1:] != keys[:, by_key][:, :-1]).any(0)])[: len(table)]
    first = by_key[begins]
    member = np.empty(len(table), np.int64)
    member[by_key] = np.cumsum(begins) - 1
    ranked = np.argsort(first)  # back to the table's order, where like stands beside like
    place = np.empty_like(ranked)
    place[ranked] = np.arange(len(ranked))
    member = place[member]
    return first[ranked], np.bincount(member, minlength=len(first)), member


def _confirmed(
    some: pa.Table, sequences: Sequences, pairs: np.ndarray, least: float, alike: Alike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs that are near, their similarity, and whether they are of two contents."""
    content, fate, said = (_ranks(some[name]) for name in ("content", "fate", "arguments"))
    pairs = pairs[fate[pairs[:, 0]] == fate[pairs[:, 1]]]
    one_task = content[pairs[:, 0]] == content[pairs[:, 1]]
    pairs = pairs[one_task | (said[pairs[:, 0]] == said[pairs[:, 1]])]
    one_task = content[pairs[:, 0]] == content[pairs[:, 1]]
    same, others = pairs[one_task], pairs[~one_task]
    similar = alignment.similarity(sequences, same)
    same, similar = same[similar >= least], similar[similar >= least]
    essential = sequences.without_idle()
    others = others[(essential.lengths[others] > 0).all(1)]
    others = others[alignment.equal(essential, others)]
    ids = some["trajectory_id"].to_pylist()
    seen = np.array(alike([(ids[i], ids[j]) for i, j in others]), bool)
    others = others[seen] if len(others) else others
    return (
        np.concatenate([same, others]),
        np.concatenate([similar, alignment.similarity(sequences, others)]),
        np.arange(len(same) + len(others)) >= len(same),
    )


def _rows(
    ids: list[str],
    is_new: np.ndarray,
    member: np.ndarray,
    count: np.ndarray,
    near: np.ndarray,
    similarity: np.ndarray,
    renamed: np.ndarray,
) -> Iterator[NearDuplicate]:
    neighbours = count.copy()
    best: dict[int, tuple[float, int, bool]] = {}
    members: dict[int, list[int]] = {}
    wanted = np.zeros(len(count), bool)
    wanted[near.ravel()] = True
    wanted |= count > 1
    # Of each collapsed row its first two names do: a row's twin is the first that is not itself.
    for row in sorted(np.flatnonzero(wanted[member]).tolist(), key=lambda row: (bool(is_new[row]), ids[row])):
        members.setdefault(int(member[row]), []).append(row)
    for (left, right), share, other in zip(near.tolist(), similarity.tolist(), renamed.tolist(), strict=True):
        neighbours[left] += count[right]
        neighbours[right] += count[left]
        for one, two in ((left, right), (right, left)):
            first = members[two][0]
            key = (-share, bool(is_new[first]), ids[first])
            if one not in best or key < best[one][0]:
                best[one] = (key, first, other)
    found = []
    for place, rows in members.items():
        for row in rows:
            if not is_new[row]:
                continue
            if len(rows) > 1:
                twin, share, other = rows[rows[0] == row], 1.0, False
            else:
                key, twin, other = best[place]
                share = -key[0]
            reason = RENAMED if other else SAME
            found.append(NearDuplicate(ids[row], ids[twin], share, reason, 1 / float(neighbours[place])))
    yield from sorted(found, key=lambda one: one.trajectory_id)
