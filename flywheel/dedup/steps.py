"""A step as one number, so that episodes are compared as sequences of numbers: what was done, and where.

    39 bits   what: verb and typed text, without case, spacing and coordinates, and the coarse end of a drag
     1 bit    idle: the step looks, waits or scrolls, and changes nothing by itself
    24 bits   where: x and y of the point, 12 bits each; all ones where there is none

The numbers are kept for later iterations: they depend on MD5 alone, on no library's own hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

WHERE = 12  # bits an axis
NOWHERE = 2**WHERE - 1
IDLE = np.uint64(1 << 2 * WHERE)
_IDLE_VERBS = ("wait", "hover", "scroll")
_POINTING = ("click", "left_double", "right_single", "hover", "drag", "long_press")  # nothing is told but points

# `steps`: a relation with the columns of the table `steps`. Digits of an action with a point are its coordinates.
_ENCODE = f"""
SELECT trajectory_id, list(code ORDER BY step) AS steps FROM (
    SELECT trajectory_id, step,
        (md5_number_lower(what) >> {2 * WHERE + 1} << {2 * WHERE + 1})
        | (CASE WHEN action_type IN {_IDLE_VERBS} THEN 1 ELSE 0 END::UBIGINT << {2 * WHERE})
        | (place(x) << {WHERE}) | place(y) AS code
    FROM (
        SELECT trajectory_id, step, action_type, x, y, concat_ws(' ', action_type, CASE
            WHEN action_type IN {_POINTING} THEN ''
            WHEN action IS NULL THEN 'no action'
            WHEN x IS NOT NULL THEN lower(translate(action, '0123456789.', ''))
            ELSE trim(regexp_replace(lower(action), '(\\s|\\\\n)+', ' ', 'g')) END,
            round(x2 * 16), round(y2 * 16)) AS what
        FROM steps))
GROUP BY trajectory_id ORDER BY trajectory_id"""


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


def encode(connection: duckdb.DuckDBPyConnection, steps: str) -> pa.Table:
    """Columns trajectory_id and steps (list of codes), sorted by trajectory_id.

    steps: SQL of a relation with the columns trajectory_id, step, action_type, action, x, y, x2, y2.
    """
    connection.execute(
        f"CREATE OR REPLACE TEMP MACRO place(v) AS "
        f"coalesce(greatest(0, least(floor(v * {NOWHERE}), {NOWHERE - 1})), {NOWHERE})::UBIGINT"  # NaN is the greatest
    )
    return connection.execute(f"WITH steps AS ({steps}) {_ENCODE}").to_arrow_table()
