"""Partitions: whole or not at all, of the schema or refused, the same bytes for the same rows."""

from __future__ import annotations

import contextlib
import errno
import itertools
import pickle
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import compaction
from flywheel.store.schema import SORT_KEYS, TABLES
from flywheel.utils.errors import DataError, DiskFull
from flywheel.utils.files import sha256_file

numbers = itertools.count()


def general(name: str, **changes) -> dict:
    return {"sample_id": name, "kind": "describe", "image_sha256": "00", "instruction": "?", "response": "!", **changes}


@pytest.fixture
def ws(tmp_path) -> Workspace:
    return Workspace(tmp_path)


names = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(40))
@given(names)
def test_what_is_written_is_read_back_sorted(tmp_path, ids):
    ws = Workspace(tmp_path / str(next(numbers)))
    manifest = partitions.write_partition(ws, "grounding_examples", 7, "synthesize", [general(name) for name in ids])
    back = partitions.read_partition(ws, "grounding_examples", 7, "synthesize")
    assert back.schema.equals(TABLES["grounding_examples"])
    assert back["sample_id"].to_pylist() == sorted(ids, key=str.encode)
    assert manifest.rows == len(ids)
    assert manifest == partitions.partition_manifest(ws, "grounding_examples", 7, "synthesize")


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_an_empty_partition_and_a_sort(ws, table):
    manifest = partitions.write_partition(ws, table, 1, "any", [])
    assert manifest.rows == 0
    assert len(manifest.parts) == 1
    assert partitions.read_partition(ws, table, 1, "any").num_rows == 0
    assert set(SORT_KEYS[table]) <= set(TABLES[table].names)
    metadata = pq.read_schema(ws.root / manifest.folder / manifest.parts[0].name).metadata
    assert (metadata[b"table"], metadata[b"schema_version"]) == (table.encode(), b"1")


def test_the_same_rows_give_the_same_bytes(ws):
    rows = [general("b"), general("a")]
    one = partitions.write_partition(ws, "grounding_examples", 1, "synthesize", rows)
    two = partitions.write_partition(ws, "grounding_examples", 1, "synthesize", rows[::-1])
    assert one == two


def test_a_partition_is_replaced_as_a_whole(ws):
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a"), general("b")])
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("c")])
    assert partitions.read_partition(ws, "grounding_examples", 1, "synthesize")["sample_id"].to_pylist() == ["c"]
    assert [path.name for path in (ws.data / "grounding_examples" / "iteration=001").iterdir()] == ["stage=synthesize"]


def test_a_reader_that_its_writer_always_outruns_holds_it_off_in_the_end(ws):
    written = itertools.count(1)
    folder = ws.partition("grounding_examples", 1, "synthesize")

    def write() -> None:
        partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general(f"s{next(written)}")])

    def read() -> list[list[str]]:
        paths = partitions.partition_files(ws, "grounding_examples", 1, "synthesize")
        with contextlib.suppress(DataError):
            with partitions.lock_partition(folder, 0.0):
                pass
            write()  # at the worst moment, whenever it may
        return [
            partitions.read_partition_file(ws, "grounding_examples", path)["sample_id"].to_pylist() for path in paths
        ]

    write()
    assert partitions.retry_while_replaced(read) == [["s5"]]
    write()  # nobody holds it off any more
    assert partitions.read_partition(ws, "grounding_examples", 1, "synthesize")["sample_id"].to_pylist() == ["s6"]


def test_a_file_that_is_lost_is_told_and_not_waited_for(ws):
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a")])
    (path,) = partitions.partition_files(ws, "grounding_examples", 1, "synthesize")
    path.unlink()
    with pytest.raises(partitions.PartMissing, match="missing") as caught:
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize")
    assert caught.value.folder == path.parent


def test_a_reader_of_compacted_files_outlasts_many_merges(tmp_path):
    """A file that is gone and in no partition, or an error that came from another process, names no folder to lock."""
    gone = compaction.find_compacted_file_fault(tmp_path / "001-010" / "steps.parquet")
    other = pickle.loads(pickle.dumps(partitions.missing_part_error(tmp_path / "part-0.parquet")))
    faults = [gone, other] * 4

    def read():
        if faults:
            raise faults.pop()
        return "read"

    assert partitions.retry_while_replaced(read) == "read"


@pytest.mark.parametrize("backwards", [False, True])
def test_many_rows_are_cut_into_files_each_in_order(ws, monkeypatch, backwards):
    monkeypatch.setattr(partitions, "_RUN_BYTES", 400)
    rows = [general(f"s{n:03d}") for n in range(40)]
    with partitions.open_partition_writer(ws, "grounding_examples", 1, "synthesize") as writer:
        for first in range(0, 40, 5):
            batch = rows[first : first + 5]
            writer.write(partitions.table_from_rows("grounding_examples", batch[::-1] if backwards else batch))
    found = [
        pq.read_table(path, partitioning=None)
        for path in partitions.partition_files(ws, "grounding_examples", 1, "synthesize")
    ]
    assert len(found) >= 3
    assert all(part["sample_id"].to_pylist() == sorted(part["sample_id"].to_pylist()) for part in found)
    back = partitions.read_partition(ws, "grounding_examples", 1, "synthesize")["sample_id"].to_pylist()
    assert back == [row["sample_id"] for row in rows]
    pages = pq.ParquetFile(partitions.partition_files(ws, "grounding_examples", 1, "synthesize")[0]).metadata.row_group(
        0
    )
    assert [one.column_index for one in pages.sorting_columns] == [0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (general("a", kin="x"), r"has no column kin \(row 0\) \(flywheel/store/tables.sql\); did you mean kind\?"),
        (
            general(None),
            r"column sample_id is empty in a row \(flywheel/store/tables.sql\); give each row its sample_id",
        ),
        (general("a", kind=3.5), "does not fit table grounding_examples"),
    ],
)
def test_rows_that_do_not_fit_are_refused(ws, row, message):
    with pytest.raises(DataError, match=message):
        partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [row])
    assert not ws.data.exists()


def test_a_column_of_a_record_is_sought_where_its_fields_stand():
    with pytest.raises(
        DataError, match=r"no column thougth \(row 0\) \(flywheel/store/schema.py\); did you mean thought"
    ):
        partitions.table_from_rows("steps", [{"thougth": "so"}])


def test_a_time_that_is_not_a_number_is_refused():
    with pytest.raises(DataError, match="does not fit table runs"):
        partitions.table_from_rows("runs", [{"started_at": float("nan")}])


def test_rows_are_found_by_their_key_alone(ws):
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a"), general("b")])
    files = partitions.table_files(ws, "grounding_examples")
    found = partitions.find_rows(ws, "grounding_examples", files, "sample_id", {"b", "c"}, ())
    assert found.to_pylist() == [{"sample_id": "b"}]


def test_a_file_that_the_list_does_not_name_is_not_linked(ws):
    manifest = partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a")])
    other = ws.root / manifest.folder / "part-00001-00000000.parquet"
    with (
        partitions.open_partition_writer(ws, "grounding_examples", 2, "synthesize") as writer,
        pytest.raises(DataError, match="a file of the partition is missing"),
    ):
        partitions.link_partition_files(ws, writer, "grounding_examples", 1, "synthesize", only=other)


def test_a_table_of_another_schema_is_refused(ws):
    with pytest.raises(DataError, match="do not have the schema of table grounding_examples"):
        partitions.write_partition(ws, "grounding_examples", 1, "synthesize", pa.table({"sample_id": ["a"]}))


def test_a_cut_off_file_is_named_with_what_to_do(ws):
    manifest = partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a")])
    path = ws.root / manifest.folder / manifest.parts[0].name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a whole Parquet file") as raised:
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize")
    assert raised.value.where == f"data/grounding_examples/iteration=001/stage=synthesize/{path.name}"
    assert "dvc checkout --force data/grounding_examples/iteration=001/stage=synthesize" in raised.value.fix


def test_a_missing_partition_names_its_stage(ws):
    with pytest.raises(DataError, match="run the stage score first"):
        partitions.read_partition(ws, "scores", 3, "score")


def test_a_full_disk_leaves_the_old_partition_and_no_half_one(ws, monkeypatch):
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a")])

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(partitions.pq, "write_table", full)
    with pytest.raises(DiskFull, match="the disk is full"):
        partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("b")])
    assert partitions.read_partition(ws, "grounding_examples", 1, "synthesize")["sample_id"].to_pylist() == ["a"]
    assert [path.name for path in (ws.data / "grounding_examples" / "iteration=001").iterdir()] == ["stage=synthesize"]


def test_a_column_that_only_a_later_row_has_is_refused_and_not_dropped(ws):
    with pytest.raises(DataError, match=r"table grounding_examples has no column colour \(row 2\)"):
        partitions.write_partition(
            ws, "grounding_examples", 1, "synthesize", [general("a"), general("b"), general("c", colour="red")]
        )
    assert not ws.partition("grounding_examples", 1, "synthesize").exists()


def a_file(ws, count=3000) -> tuple[Workspace, object]:
    rows = [general(f"s{number:05d}", response=f"answer {number * 7919 % 1009}") for number in range(count)]
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", rows)
    return partitions.partition_files(ws, "grounding_examples", 1, "synthesize")[0]


def test_no_flipped_bit_is_read_in_silence(ws):
    """Wherever it is in the file, a whole reading names it; a reading of some columns never gives other values."""
    path = a_file(ws)
    sound, right = (
        path.read_bytes(),
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize", ["sample_id"]),
    )
    for place in range(0, len(sound), max(1, len(sound) // 150)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        with pytest.raises(DataError, match="not a whole Parquet file"):
            partitions.read_partition(ws, "grounding_examples", 1, "synthesize")
        with contextlib.suppress(DataError):
            assert partitions.read_partition(ws, "grounding_examples", 1, "synthesize", ["sample_id"]) == right


@pytest.mark.parametrize(
    "metadata", [{"table": "sft", "schema_version": "1"}, {"table": "grounding_examples", "schema_version": "99"}, {}]
)
def test_a_file_of_another_table_or_version_is_refused(ws, metadata):
    path = a_file(ws, 3)
    rows = pq.read_table(path, partitioning=None).replace_schema_metadata(metadata)
    pq.write_table(rows, path)
    partitions.write_part_list(
        path.parent, "grounding_examples", [partitions.describe_part_file(path, 3, sha256_file(path))]
    )
    with pytest.raises(DataError, match="expected grounding_examples, version 1"):
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize")


@pytest.mark.parametrize(
    "damage", ["", "{}", "[]", '{"version": 9, "table": "grounding_examples", "parts": []}', '{"version": 1']
)
def test_a_damaged_list_is_named(ws, damage):
    path = a_file(ws, 3).with_name(partitions.PARTS_FILE)
    path.write_text(damage)
    with pytest.raises(DataError, match="not a list of a partition's files") as raised:
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize")
    assert raised.value.where == "data/grounding_examples/iteration=001/stage=synthesize/_parts.json"


def test_a_lost_list_or_file_is_no_empty_partition(ws):
    path = a_file(ws, 3)
    path.rename(path.with_suffix(".gone"))
    with pytest.raises(DataError, match="a file of the partition is missing"):
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize")
    path.with_suffix(".gone").rename(path)
    path.with_name(partitions.PARTS_FILE).unlink()
    with pytest.raises(DataError, match="no such partition"):
        partitions.read_partition(ws, "grounding_examples", 1, "synthesize")


def test_partitions_of_earlier_versions_are_read_and_replaced(ws):
    path = a_file(ws, 3)
    path.with_name(partitions.PARTS_FILE).unlink()
    path.rename(path.with_name("part-00000.parquet"))
    assert partitions.read_partition(ws, "grounding_examples", 1, "synthesize").num_rows == 3
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [general("a")])
    assert partitions.read_partition(ws, "grounding_examples", 1, "synthesize").num_rows == 1
    assert len(list(path.parent.iterdir())) == 2


def test_a_list_that_counts_other_rows_is_told(tmp_path):
    ws = Workspace(tmp_path)
    partitions.write_partition(ws, "grounding_examples", 1, "synthesize", [{"sample_id": "a"}])
    (path,) = partitions.partition_files(ws, "grounding_examples", 1, "synthesize")
    (listed,) = partitions.read_part_list(path.parent)
    partitions.write_part_list(path.parent, "grounding_examples", [replace(listed, rows=2)])
    with pytest.raises(DataError, match="it has 1 rows, and its list says 2"):
        partitions.verify_partition(ws, "grounding_examples", 1, "synthesize")


def test_files_come_oldest_iteration_first_beyond_a_thousand(ws):
    for k in (1000, 999, 2):
        partitions.write_partition(ws, "grounding_examples", k, "synthesize", [general("one")])
    found = [path.parts[-3] for path in partitions.table_files(ws, "grounding_examples")]
    assert found == ["iteration=002", "iteration=999", "iteration=1000"]
