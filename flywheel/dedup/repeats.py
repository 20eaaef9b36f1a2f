"""Near-duplicates among episodes: what has been shown already, and what it should weigh in training.

Two episodes are near one another where they have the same fate (store, author) and

    one task content         the share of steps that agree is at least `least`
    other contents           all steps but idle ones agree, the instructions' numbers and quoted texts are the same,
                             and the first and the last screen look alike: one task under two names or wordings

An episode weighs 1 / (episodes near it, itself included): so many repeats weigh together about as much as one, and none
is thrown away (the thoughts of samples differ where their actions do not). The weight depends on the set of episodes
alone, never on their order. Demonstrations of people are each wanted, and are never weighed down.

Memory does not grow with the episodes, but with the most of one content, or of one sequence of actions: DuckDB puts
like beside like, on disk where need be, and so many at a time are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.dedup import alignment, candidates, minhash
from flywheel.dedup.rows import insert
from flywheel.dedup.steps import WHERE, Sequences

SAME, RENAMED = "a repeat of its task", "another task's steps on the same screens"
COLUMNS = ("trajectory_id", "content", "arguments", "fate", "steps", "first_screen", "last_screen", "new")
Screens = tuple[str | None, str | None]  # an episode's first and last one, by sha256
Alike = Callable[[Sequence[tuple[Screens, Screens]]], Sequence[bool]]
_AT_ONCE = 20_000  # episodes

# Rows that are alike in all but their names stand as one, with its first two names: a row's twin is the first that is
# not itself. Of equally near ones an earlier iteration's comes first, then the first by id.
_TABLES = """
CREATE OR REPLACE TABLE dedup_ones (number BIGINT, key UBIGINT, told UBIGINT, content VARCHAR, count BIGINT,
    new BOOLEAN, first VARCHAR, second VARCHAR, steps UBIGINT[], first_screen VARCHAR, last_screen VARCHAR);
CREATE OR REPLACE TABLE dedup_members (number BIGINT, trajectory_id VARCHAR);
CREATE OR REPLACE TABLE dedup_near (number BIGINT, other BIGINT, similarity DOUBLE, renamed BOOLEAN);
"""
_BY_CONTENT = """
SELECT trajectory_id, content, fate, hash(fate, arguments) AS told, steps, first_screen, last_screen, new FROM ({})
ORDER BY content, fate, told, new, trajectory_id"""
_BY_KEY = """SELECT number, key, told, content, steps, first_screen, last_screen FROM dedup_ones
WHERE key IN (SELECT key FROM dedup_ones GROUP BY key HAVING min(content) <> max(content))
ORDER BY key, content, number"""
_FOUND = f"""
CREATE OR REPLACE TABLE near_duplicates AS
WITH around AS (
    SELECT near.number, sum(other.count) AS others,
        arg_min({{'twin': first, 'similarity': similarity, 'renamed': renamed}}, (-similarity, new, first)) AS best
    FROM dedup_near near JOIN dedup_ones other ON other.number = near.other GROUP BY near.number)
SELECT trajectory_id,
    CASE WHEN count = 1 THEN best.twin WHEN trajectory_id = first THEN second ELSE first END AS twin,
    CASE WHEN count = 1 THEN best.similarity ELSE 1.0 END AS similarity,
    CASE WHEN count = 1 AND best.renamed THEN '{RENAMED.replace("'", "''")}' ELSE '{SAME}' END AS reason,
    1.0 / (count + coalesce(others, 0)) AS weight
FROM dedup_members JOIN dedup_ones USING (number) LEFT JOIN around USING (number)
WHERE count > 1 OR others > 0
"""


def near_duplicates(connection: duckdb.DuckDBPyConnection, episodes: str, least: float, alike: Alike) -> None:
    """Make the table `near_duplicates`, one row for each new episode that is near another one: trajectory_id; twin, the
    nearest of its neighbours; similarity, the share of steps that agree with the twin's; reason; weight, in training.

    episodes: SQL of a relation with `COLUMNS`, each trajectory once, which other cursors of the database see; those
    that are not new are of earlier iterations, and stay as they are. least: share of steps, in (0, 1]. alike: of pairs
    of episodes' screens, whether the first and the last look alike; asked for few pairs.
    """
    connection.execute(_TABLES)
    number = 0
    for rows in _together(connection, _BY_CONTENT.format(episodes), "content"):
        number += _of_one_content(connection, rows, number, least)
    for rows in _together(connection, _BY_KEY, "key"):
        _of_others(connection, rows, alike)
    connection.execute(_FOUND)
    connection.execute("DROP TABLE dedup_ones; DROP TABLE dedup_members; DROP TABLE dedup_near")


def _together(connection: duckdb.DuckDBPyConnection, sql: str, by: str) -> Iterator[pa.Table]:
    """The rows, some at a time, those that are alike in the column `by` never apart. They come in its order."""
    with connection.cursor() as cursor:
        held: list[pa.Table] = []
        for batch in cursor.execute(sql).to_arrow_reader(_AT_ONCE):
            rows = pa.Table.from_batches([batch])
            if not len(rows):
                continue
            # All that is held goes but what is as the last row is: that may go on.
            last = pc.index(rows[by], rows[by][-1]).as_py()
            if last or (held and held[-1][by][-1] != rows[by][0]):
                before = pa.concat_tables([*held, rows.slice(0, last)])
                held = [rows.slice(last)]
                yield before.combine_chunks()
            else:
                held.append(rows)
        if held:
            yield pa.concat_tables(held).combine_chunks()


def _of_one_content(connection: duckdb.DuckDBPyConnection, rows: pa.Table, number: int, least: float) -> int:
    """Rows by content, fate and arguments: which are one, and which of those are near one another. Returns how many
    there are; they are numbered from `number` on."""
    sequences = Sequences.of(rows["steps"])
    content, told = _codes(rows["content"]), rows["told"].to_numpy()
    first, second, count, member = _collapsed(content, told, sequences)
    ones, some = rows.take(pa.array(first)), sequences.take(first)
    numbers = np.arange(number, number + len(first))
    names = rows["trajectory_id"]
    insert(connection, "dedup_ones", pa.table({
        "number": numbers, "key": _keys(told[first], some), "told": ones["told"], "content": ones["content"],
        "count": count, "new": ones["new"], "first": ones["trajectory_id"],
        "second": names.take(pa.array(second, mask=second < 0)), "steps": ones["steps"],
        "first_screen": ones["first_screen"], "last_screen": ones["last_screen"],
    }))  # fmt: skip
    new = rows["new"].to_numpy()
    mine = {"number": numbers[member[new]], "trajectory_id": names.filter(rows["new"])}
    insert(connection, "dedup_members", pa.table(mine))
    found = candidates.pairs(_groups(content[first], _codes(ones["fate"])), some)
    similar = alignment.similarity(some, found)
    near = similar >= least
    _tell(connection, numbers[found[near]], similar[near], renamed=False)
    return len(first)


def _of_others(connection: duckdb.DuckDBPyConnection, rows: pa.Table, alike: Alike) -> None:
    """Rows by key: which of them are near one another though they are of two contents."""
    sequences = Sequences.of(rows["steps"])
    pairs = candidates.pairs(rows["key"].to_numpy(), sequences)
    content, told = _codes(rows["content"]), rows["told"].to_numpy()
    pairs = pairs[(content[pairs[:, 0]] != content[pairs[:, 1]]) & (told[pairs[:, 0]] == told[pairs[:, 1]])]
    pairs = pairs[alignment.equal(sequences.without_idle(), pairs)]
    screens = list(zip(rows["first_screen"].to_pylist(), rows["last_screen"].to_pylist(), strict=True))
    seen = alike([(screens[i], screens[j]) for i, j in pairs.tolist()])
    pairs = pairs[np.array(seen, bool)] if len(pairs) else pairs
    _tell(connection, rows["number"].to_numpy()[pairs], alignment.similarity(sequences, pairs), renamed=True)


def _collapsed(
    content: np.ndarray, told: np.ndarray, sequences: Sequences
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of the rows that stand as one: the first and the second (-1: none), how many they are; and of each row which one
    it is."""
    length = minhash.mixed(sequences.lengths.astype(np.uint64))
    key = minhash.mixed(minhash.mixed(content.astype(np.uint64)) ^ told ^ length) ^ _digests(sequences)
    by_key = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[by_key], prepend=~key[by_key[:1]]))
    count = np.diff(begins, append=len(key))
    first, second = by_key[begins], np.where(count > 1, by_key[np.minimum(begins + 1, len(key) - 1)], -1)
    order = np.argsort(first)  # that of the rows
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    member = np.empty(len(key), np.int64)
    member[by_key] = np.repeat(place, count)
    return first[order], second[order], count[order], member


def _keys(told: np.ndarray, sequences: Sequences) -> pa.Array:
    """The same for all rows that can be near one another under two contents; none for those that only idle."""
    essential = sequences.without_idle()
    done = Sequences(essential.codes >> np.uint64(2 * WHERE), essential.offsets)
    lengths = essential.lengths
    return pa.array(minhash.mixed(told ^ lengths.astype(np.uint64)) ^ _digests(done), mask=lengths == 0)


def _digests(sequences: Sequences) -> np.ndarray:
    """One number an episode, of its codes and their order."""
    places = np.arange(len(sequences.codes)) - np.repeat(sequences.offsets[:-1], sequences.lengths)
    with np.errstate(over="ignore"):
        mixed = minhash.mixed(sequences.codes + places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        summed = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        return summed[sequences.offsets[1:]] - summed[sequences.offsets[:-1]]


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """Equal values as equal numbers."""
    return column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)


def _groups(content: np.ndarray, fate: np.ndarray) -> np.ndarray:
    return content * (fate.max(initial=0) + 1) + fate


def _tell(connection: duckdb.DuckDBPyConnection, pairs: np.ndarray, similarity: np.ndarray, *, renamed: bool) -> None:
    """Each of a pair is near the other."""
    if not len(pairs):
        return
    both = np.concatenate([pairs, pairs[:, ::-1]])
    told = {"number": both[:, 0], "other": both[:, 1], "similarity": np.tile(similarity, 2)}
    insert(connection, "dedup_near", pa.table({**told, "renamed": np.full(len(both), renamed)}))
