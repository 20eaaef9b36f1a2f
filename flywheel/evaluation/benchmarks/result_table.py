"""Keep a benchmark's results in a Parquet file, a row for each episode, so that a killed evaluation can go on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.evaluation.benchmarks.benchmark import TaskResult
from flywheel.utils.errors import BadInput
from flywheel.utils.files import atomic_file, disk_full_errors, file_lock

_LOCK_S = 30.0
_SCHEMA = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("budget", pa.int64(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("fault", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("parts", pa.string(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
    ]
)


class ResultTable:
    """Hold the results of one benchmark in a Parquet file.

    path: the file, made with the first result. Each result is on disk when `add` returns; a kill in between leaves the
    file as it was. A fault is no result that stands: its episode is played again, and its row replaced.
    """

    def __init__(self, path: Path, benchmark: str) -> None:
        self.path, self.benchmark = path, benchmark

    def read(self) -> list[TaskResult]:
        """Return the results, sorted by task, seed and budget. Raises BadInput for a file of another form or of another
        benchmark."""
        if not self.path.exists():
            return []
        try:
            table = pq.read_table(self.path)
        except (pa.ArrowException, OSError) as error:
            raise BadInput("no Parquet file of results", where=self.path, fix=f"move it away: {error}") from None
        if not table.schema.equals(_SCHEMA):
            what = "its columns are not those of a benchmark's results"
            raise BadInput(what, where=self.path, fix="name another file")
        rows = table.to_pylist()
        if others := {row["benchmark"] for row in rows} - {self.benchmark}:
            raise BadInput(f"it holds results of {', '.join(sorted(others))}", where=self.path, fix="name another file")
        found = [
            TaskResult(**{**row, "parts": json.loads(row["parts"])})
            for row in ({name: value for name, value in row.items() if name != "benchmark"} for row in rows)
        ]
        return sorted(found, key=lambda one: one.key)

    def add(self, results: Iterable[TaskResult]) -> None:
        """Add results; one replaces an earlier one of its task, seed and budget. Raises BadInput as `read`, DataError
        where another process holds the file, DiskFull, OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path.with_name(f".{self.path.name}.lock"), _LOCK_S, "writing results"):
            held = {one.key: one for one in self.read()} | {one.key: one for one in results}
            rows = [
                {
                    "benchmark": self.benchmark, "task": one.task, "seed": one.seed, "budget": one.budget,
                    "score": one.score, "fault": one.fault, "category": one.category,
                    "parts": json.dumps(dict(one.parts), sort_keys=True), "seconds": one.seconds,
                }
                for _, one in sorted(held.items())
            ]  # fmt: skip
            with disk_full_errors(self.path), atomic_file(self.path) as temporary:
                pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), temporary)

    def list_missing(self, keys: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        """List those of `keys` (task, seed, budget) that have no score yet, in order. Raises BadInput as `read`."""
        done = {one.key for one in self.read() if not one.fault}
        return [key for key in dict.fromkeys(keys) if key not in done]
