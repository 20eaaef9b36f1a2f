"""A step as one number, so that episodes are compared as sequences of numbers: what was done, and where.

    39 bits   what: verb and typed text, without case, spacing and coordinates, and the coarse end of a drag
     1 bit    idle: the step looks, waits or scrolls, and changes nothing by itself
    24 bits   where: x and y of the point, 12 bits each; all ones where there is none

The numbers are kept for later iterations: they depend on MD5 alone, on no library's own hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WHERE = 12  # bits an axis
NOWHERE = 2**WHERE - 1
IDLE = np.uint64(1 << 2 * WHERE)
_IDLE_VERBS = ("wait", "hover", "scroll")
_POINTING = ("click", "left_double", "right_single", "hover", "drag", "long_press")  # nothing is told but points
_AT_ONCE = 100_000  # rows

# What is hashed. Digits of an action with a point are its coordinates.
_TOLD = f"""concat_ws(' ', action_type, CASE
    WHEN action_type IN {_POINTING} THEN ''
    WHEN action IS NULL THEN 'no action'
    WHEN x IS NOT NULL THEN lower(translate(action, '0123456789.', ''))
    ELSE trim(regexp_replace(lower(action), '(\\s|\\\\n)+', ' ', 'g')) END,
    round(x2 * 16), round(y2 * 16))"""
# Most steps point at one place: of them nothing but the verb is hashed, and that once.
_VERBS = " ".join(f"WHEN action_type = '{verb}' THEN md5_number_lower('{verb} ')" for verb in _POINTING)
_HASH = f"""CASE WHEN x2 IS NOT NULL OR y2 IS NOT NULL THEN md5_number_lower({_TOLD}) {_VERBS}
    ELSE md5_number_lower({_TOLD}) END"""
_CODE = f"""({_HASH} >> {2 * WHERE + 1} << {2 * WHERE + 1})
    | (CASE WHEN action_type IN {_IDLE_VERBS} THEN 1 ELSE 0 END::UBIGINT << {2 * WHERE})
    | (place(x) << {WHERE}) | place(y)"""


@dataclass(frozen=True)
class Sequences:
    """The steps of several episodes, one after the other: those of episode i are codes[offsets[i]:offsets[i + 1]]."""

    codes: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, column: pa.ChunkedArray | pa.Array) -> Sequences:
        """From a column of lists of codes."""
        lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        offsets = lists.offsets.to_numpy().astype(np.int64)
        return cls(lists.values.to_numpy()[offsets[0] : offsets[-1]].astype(np.uint64), offsets - offsets[0])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> Sequences:
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Sequences(self.codes[places], offsets)

    def without_idle(self) -> Sequences:
        kept = (self.codes & IDLE) == 0
        return Sequences(self.codes[kept], np.concatenate([[0], np.cumsum(kept)])[self.offsets])


def encode(connection: duckdb.DuckDBPyConnection, steps: str) -> Iterator[pa.Table]:
    """Columns trajectory_id and steps (list of codes), each trajectory once, some at a time; the connection is busy
    until the last of them.

    steps: SQL of a relation with the columns trajectory_id, step, action_type, action, x, y, x2, y2.
    """
    connection.execute(
        f"CREATE OR REPLACE TEMP MACRO place(v) AS "
        f"coalesce(greatest(0, least(floor(v * {NOWHERE}), {NOWHERE - 1})), {NOWHERE})::UBIGINT"  # NaN is the greatest
    )
    # Sorted, though they lie so in their files: what DuckDB streams by several threads comes in no certain order.
    rows = connection.execute(f"SELECT trajectory_id, {_CODE} AS code FROM ({steps}) ORDER BY trajectory_id, step")
    begun = pa.table({"trajectory_id": pa.array([], pa.string()), "code": pa.array([], pa.uint64())})
    for batch in rows.to_arrow_reader(_AT_ONCE):
        begun = pa.concat_tables([begun, pa.Table.from_batches([batch])]).combine_chunks()
        starts = _starts(begun["trajectory_id"])
        yield _listed(begun, starts)  # all but the last one, which may go on
        begun = begun.slice(starts[-1]) if len(starts) else begun
    yield _listed(begun, np.append(_starts(begun["trajectory_id"]), len(begun)))


def _starts(names: pa.ChunkedArray) -> np.ndarray:
    """Places at which another name begins."""
    differs = pc.not_equal(names.slice(1), names.slice(0, max(0, len(names) - 1)))
    return np.concatenate([[0][: len(names)], np.flatnonzero(differs.to_numpy()) + 1]).astype(np.int64)


def _listed(rows: pa.Table, ends: np.ndarray) -> pa.Table:
    codes = pa.array(rows["code"].to_numpy()[: ends[-1] if len(ends) else 0])
    return pa.table(
        {
            "trajectory_id": rows["trajectory_id"].take(pa.array(ends[:-1])),
            "steps": pa.ListArray.from_arrays(pa.array(ends if len(ends) else [0], pa.int32()), codes),
        }
    )
