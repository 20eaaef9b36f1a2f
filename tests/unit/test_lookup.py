"""Rows by a key: those that reading all of them would give."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.schema import TABLES
from flywheel.utils.errors import DataError


@given(
    files=st.lists(st.lists(st.integers(0, 30), max_size=20), min_size=1, max_size=3),
    wanted=st.sets(st.integers(-2, 33), max_size=8),
    group=st.integers(1, 7),
)
def test_rows_are_those_that_a_filter_gives(tmp_path_factory, files, wanted, group):
    ws, paths, every = Workspace(tmp_path_factory.mktemp("ws")), [], []
    for k, numbers in enumerate(files):
        rows = [{"trajectory_id": f"t{n:02d}", "step": place} for place, n in enumerate(sorted(numbers))]
        every += rows
        folder = ws.partition("steps", k, "rollout")
        folder.mkdir(parents=True)
        # As an earlier version wrote them: a file without a list.
        paths.append(folder / "part-00000.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema=TABLES["steps"]), paths[-1], row_group_size=group)
    names = {f"t{n:02d}" for n in wanted}
    found = partitions.find_rows(ws, "steps", paths, "trajectory_id", names, ("misclick", "step", "trajectory_id"))
    assert found.column_names == ["trajectory_id", "step", "misclick"]
    assert found.to_pylist() == [row | {"misclick": None} for row in every if row["trajectory_id"] in names]
    seen = pa.concat_tables(partitions.scan_columns(ws, "steps", paths, ("step",)))["step"].to_pylist() if every else []
    assert seen == [row["step"] for row in every]


def test_a_damaged_page_is_told_where_it_is_read(ws):
    rng = np.random.default_rng(0)
    rows = [{"sha256": f"{n:064d}", "bytes": rng.bytes(2000)} for n in range(300)]  # three row groups
    partitions.write_partition(ws, "images", 1, "rollout", rows)
    (path,) = partitions.partition_files(ws, "images", 1, "rollout")
    raw = bytearray(path.read_bytes())
    at = raw.index(rows[250]["bytes"][:100])
    raw[at] ^= 1
    path.write_bytes(raw)
    columns = ("sha256", "bytes")
    assert (
        partitions.find_rows(ws, "images", [path], "sha256", {f"{5:064d}"}, columns)["bytes"][0].as_py()
        == rows[5]["bytes"]
    )
    with pytest.raises(DataError, match=r"not a whole Parquet file.*images/iteration=001/stage=rollout"):
        partitions.find_rows(ws, "images", [path], "sha256", {f"{205:064d}"}, columns)
