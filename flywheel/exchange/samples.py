"""The steps of a training store one by one, each with its screen: what is exported."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flywheel.errors import BadInput, DataError
from flywheel.schema import TABLES
from flywheel.store import manifest, partitions, screens
from flywheel.workspace import Workspace

OF_TRAJECTORY = [name for name in TABLES["trajectories"].names if name not in ("trajectory_id", "final_state")]
NOT_HELD = {
    "trajectories.final_state": "what the verifier read: its score is held",
    "tasks.params, tasks.checksum": "the contents of the task: its world, level and instruction are held",
    "scores": "what each scorer said: the score that counted is held",
    "thoughts, events": "sound and input events of recordings: the thought that became of them is held",
    "lineage, runs": "what came from what: the trajectory's run, weights and origin are held",
}
_AT_ONCE = 64  # trajectories whose screens are in memory


@dataclass(frozen=True)
class ExportedStep:
    """step: columns of `steps`. trajectory: those of its trajectory in `OF_TRAJECTORY`. screen: the encoded file; None
    where there was none to see."""

    step: dict[str, Any]
    trajectory: dict[str, Any]
    score: float | None
    weight: float
    screen: bytes | None = field(repr=False)


def read(ws: Workspace, store: str, iteration: int) -> Iterator[ExportedStep]:
    """Every step of the store `ct` or `sft` as the iteration's manifest has it, oldest iteration first, then by
    (trajectory_id, step). Raises BadInput for another store, DataError for what is missing or damaged."""
    if store not in ("ct", "sft"):
        raise BadInput(f"no training store is called {store}", where="export", fix="ct or sft")
    named = manifest.read(ws, iteration)

    def files(table: str, k: int) -> list[Path]:
        return [ws.resolve(shard.path) for shard in named.shards(table) if shard.iteration == k]

    for shard in named.shards(store):
        rows = partitions.read_file(ws, store, ws.resolve(shard.path)).to_pylist()
        for first in range(0, len(rows), _AT_ONCE):
            own = {row["trajectory_id"]: row for row in rows[first : first + _AT_ONCE]}
            episodes = {
                row["trajectory_id"]: {name: row[name] for name in OF_TRAJECTORY}
                for row in _of(ws, "trajectories", files("trajectories", shard.iteration), own)
            }
            steps = list(_of(ws, "steps", files("steps", shard.iteration), own))
            wanted = {row["image_sha256"] for row in steps} - {None}
            seen = screens.load(ws, files("images", shard.iteration), wanted)
            for row in sorted(steps, key=lambda row: (row["trajectory_id"], row["step"])):
                name = row["trajectory_id"]
                weight = own[name]["weight"]
                yield ExportedStep(
                    row,
                    episodes[name],
                    own[name]["score"],
                    1.0 if weight is None else weight,
                    seen.get(row["image_sha256"]),
                )


def _of(ws: Workspace, table: str, files: list[Path], ids: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows of some trajectories. Rows are sorted: row groups that cannot hold them are not read."""
    wanted = pa.array(sorted(ids), pa.string())
    column = TABLES[table].get_field_index("trajectory_id")
    for path in files:
        with partitions.opened(table, path) as file:
            for group in range(file.num_row_groups):
                known = file.metadata.row_group(group).column(column).statistics
                if known and known.has_min_max and (known.min > max(ids) or known.max < min(ids)):
                    continue
                try:
                    rows = file.read_row_group(group)
                except (pa.ArrowException, OSError) as error:
                    raise DataError(f"not a whole Parquet file: {error}", where=ws.relative(path)) from error
                rows = partitions.conformed(ws, table, path, rows, None)
                yield from rows.filter(pc.is_in(rows["trajectory_id"], value_set=wanted)).to_pylist()


SCHEMA = pa.schema(
    [
        *TABLES["steps"],
        pa.field("trajectory", pa.struct([TABLES["trajectories"].field(name) for name in OF_TRAJECTORY])),
        pa.field("score", pa.float64()),
        pa.field("weight", pa.float64()),
        pa.field("screen", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
    ]
)
"""Of an exported step as one row."""
