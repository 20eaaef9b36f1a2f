"""Row contracts that are held when a file is written, of whole columns: a fiftieth of what reading them again costs.

The partition's list names them beside the file's sha256, and that is looked at before anything is routed: what held of
the bytes then holds now, so `judging.judge` leaves such a contract's columns unread. A file that another program
wrote names none, and is judged row by row; so is one of which a single row is in doubt.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def kept(table: str, data: pa.Table) -> tuple[str, ...]:
    """Names of contracts that all of these rows keep, for certain."""
    return tuple(name for name, holds in _HELD.get(table, {}).items() if all(map(holds, data.to_batches())))


def _logprobs_match(rows: pa.RecordBatch) -> bool:
    """As `contracts.STEP` has it, of people's steps too. What compares false with anything, NaN, is in doubt."""
    tokens, logprobs = rows["token_ids"], rows["logprobs"]
    lengths = [pc.fill_null(pc.list_value_length(column), 0) for column in (tokens, logprobs)]
    ids, values = tokens.flatten(), logprobs.flatten()
    if not lengths[0].equals(lengths[1]) or ids.null_count or values.null_count:
        return False
    least, most = _ends(values)
    return len(ids) == 0 or bool(_ends(ids)[0] >= 0 and most <= 0.001 and least > -math.inf)


def _ends(values: pa.Array) -> tuple[float, float]:
    found = values.to_numpy()
    return (float(np.min(found)), float(np.max(found))) if len(found) else (0.0, 0.0)


_HELD = {"steps": {"logprobs_match": _logprobs_match}}
