"""Tables of an earlier version: written anew by the names of today, and nothing of them lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import made_workspaces
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aged_tables import COLUMNS, LACKING, TABLES, age_tables, files_of, old_rows
from hypothesis import given
from hypothesis import strategies as st
from made_workspaces import flywheel
from night import by_day
from processes import PATIENCE_S

from flywheel.config.workspace import FORMAT, Workspace
from flywheel.maintenance import migrate, verify
from flywheel.store import manifest, partitions, schema
from flywheel.store.catalog import database
from flywheel.store.renamed_tables import RENAMED_COLUMNS, RENAMED_TABLES, rename_rows
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import BadInput, DataError, DiskFull

DVC = Path(sys.executable).with_name("dvc")


def aged(folder: Path, place: Path, *, lacking: bool = False) -> Workspace:
    ws = Workspace(shutil.copytree(folder, place, symlinks=True))
    age_tables(ws, lacking=lacking)
    write_format(ws, FORMAT - 1)
    return ws


def write_format(ws: Workspace, number: int) -> None:
    ws.iterations_index.write_text(ws.iterations_index.read_text().replace(f"format: {FORMAT}", f"format: {number}"))


@pytest.fixture
def old(three_iterations: Path, tmp_path: Path) -> Workspace:
    return aged(three_iterations, tmp_path / "ws")


def rows_of(ws: Workspace) -> dict[str, list[dict]]:
    """All rows of all partitions, by folder."""
    folders = ws.data.glob("*/iteration=*/stage=*")
    return {
        ws.relative(folder): [
            row for path in files_of(folder) for row in pq.read_table(path, partitioning=None).to_pylist()
        ]
        for folder in folders
    }


def dvc(ws: Workspace, *words: str) -> str:
    return subprocess.run(
        [DVC, *words], cwd=ws.root, check=True, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout


def test_rows_stand_by_the_names_of_today(old, three_iterations):
    assert (old.data / "general").is_dir()
    assert pq.read_schema(next((old.data / "scores").rglob("*.parquet"))).get_field_index("v") >= 0
    code, output = flywheel(old, "workspace", "migrate")
    assert code == 0
    assert [line.partition(":")[0] for line in output.splitlines()[:3]] == [f"iterations/00{k}" for k in (1, 2, 3)]
    assert rows_of(old) == rows_of(Workspace(three_iterations))
    assert not (old.state / "migrating").exists()
    assert list(verify.find_faults(old)) == []
    assert stage_records.changed_stages(old) == {}
    assert "iterations/" not in dvc(old, "status")
    manifest.verify_manifest(old, 3)
    assert flywheel(old, "workspace", "migrate") == (0, "nothing to do: the workspace is up to date\n")


@pytest.mark.exhaustive
def test_the_cache_has_what_is_recorded(old):
    flywheel(old, "workspace", "migrate")
    before = rows_of(old)
    shutil.rmtree(old.data)
    dvc(old, "checkout")
    assert rows_of(old) == before


@pytest.mark.exhaustive
def test_columns_that_the_first_files_lacked_are_filled(three_iterations, tmp_path):
    ws = aged(three_iterations, tmp_path / "ws", lacking=True)
    for table, column in LACKING.items():
        (file, *_) = (ws.data / table).rglob("*.parquet")
        assert column not in pq.read_schema(file).names
    assert flywheel(ws, "workspace", "migrate")[0] == 0
    said = "SELECT DISTINCT {} AS value FROM {} WHERE iteration < 4"
    values = {
        (table, column): {row["value"] for row in database.query_catalog(ws, said.format(column, table)).to_pylist()}
        for table, column in (("tasks", "environment"), ("ct", "weight"), ("quarantine", "source_table"))
    }
    assert values == {
        ("tasks", "environment"): {"browser"},
        ("ct", "weight"): {1.0},
        ("quarantine", "source_table"): {"trajectories"},
    }


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.exhaustive
def test_killed_between_any_two_changes_it_goes_on(old, three_iterations, monkeypatch):
    """Killed again and again, each time some changes later; no step is skipped, and none is done to what is done."""
    changes = 0
    last = 1

    def may_die(change):
        def changed(*arguments, **options):
            nonlocal changes
            changes += 1
            if changes >= last:
                raise Killed
            return change(*arguments, **options)

        return changed

    for module, names in (
        (migrate, ("write_json", "write_text", "atomic_file")),
        (migrate.shutil, ("rmtree",)),
        (partitions, ("adopt_partition", "write_part_list")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, may_die(getattr(module, name)))
    kills = 0
    while True:
        changes = 0
        try:
            list(migrate.migrate_workspace(old))
            break
        except Killed:
            kills += 1
            last += 3
            assert old.read_format() == FORMAT - 1
    monkeypatch.undo()
    assert kills > 10
    assert rows_of(old) == rows_of(Workspace(three_iterations))
    assert list(verify.find_faults(old)) == []
    assert stage_records.changed_stages(old) == {}
    assert not (old.state / "migrating").exists()


@pytest.mark.exhaustive
def test_what_was_changed_and_not_recorded_is_still_told(old):
    """A migration does not make DVC believe in what it had not recorded."""
    path = dvc_files.dvc_lock_path(old, 2)
    entries = dvc_files.read_dvc_lock(path)
    for entry in entries.values():
        for one in (*entry.get("deps", ()), *entry.get("outs", ())):
            if one["path"] == "data/scores/iteration=002/stage=score":
                one["md5"] = f"{0:032d}.dir"
    path.write_text(dvc_files.dump_dvc_lock(entries))
    flywheel(old, "workspace", "migrate")
    assert {path for found in stage_records.changed_stages(old).values() for path in found} == {
        "data/scores/iteration=002/stage=score"
    }


def test_a_damaged_partition_is_named_and_nothing_is_changed(old):
    (file,) = (old.data / "scores" / "iteration=001" / "stage=score").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-40] + bytes(40))
    before = made_workspaces.content(old)
    with pytest.raises(DataError, match=r"data/scores/iteration=001"):
        list(migrate.migrate_workspace(old))
    assert made_workspaces.content(old) == before


@pytest.mark.exhaustive
def test_a_partition_that_is_not_here_is_asked_for(old):
    shutil.rmtree(old.data / "signatures" / "iteration=002")
    with pytest.raises(BadInput, match=r"dvc pull.*flywheel workspace migrate"):
        list(migrate.migrate_workspace(old))
    assert old.read_format() == FORMAT - 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("cached", [True, False])
def test_what_was_pruned_stays_out_and_comes_back_by_the_names_of_today(old, three_iterations, cached):
    folder = old.data / "thoughts" / "iteration=001" / "stage=ingest"
    path, md5 = old.relative(folder), dvc_files.folder_md5(folder)
    if cached:
        cache = dvc_files.find_cache_folder(old)
        text, files = dvc_files.list_folder(folder)
        for name, content in [(one["md5"], (folder / one["relpath"]).read_bytes()) for one in files] + [
            (md5, text.encode())
        ]:
            (cache / name[:2]).mkdir(exist_ok=True)
            (cache / name[:2] / name[2:]).write_bytes(content)
    dvc_files.add_pruned(old, 1, [path])
    shutil.rmtree(folder)
    code, output = flywheel(old, "workspace", "migrate")
    assert code == 0
    assert ("pruned, and not in DVC's cache" in output) is not cached
    new = path.replace("thoughts", "utterances")
    assert dvc_files.read_pruned(old, 1) == {new}
    assert not (old.root / new).exists()
    assert stage_records.changed_stages(old) == {}
    if cached:
        dvc(old, "checkout", new)
        assert rows_of(old)[new] == rows_of(Workspace(three_iterations))[new]


@pytest.mark.exhaustive
def test_there_must_be_space(old, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    before = made_workspaces.content(old)
    with pytest.raises(DiskFull, match="are free"):
        list(migrate.migrate_workspace(old))
    assert made_workspaces.content(old) == before


@pytest.mark.parametrize("begun", by_day(["again/plan.json", "rollback.json"]))
def test_what_an_earlier_version_has_half_done_is_its_to_end(old, begun):
    (old.state / begun).parent.mkdir(exist_ok=True)
    (old.state / begun).write_text("{}")
    with pytest.raises(BadInput, match="half carried out"):
        list(migrate.migrate_workspace(old))


@pytest.mark.exhaustive
def test_finished_shards_come_along(old):
    folder = old.staging(4, "synthesize") / "0123456789ab" / "synthesize"
    folder.mkdir(parents=True)
    row = {"sample_id": "g1", "kind": "where", "image_sha256": "a", "instruction": "Which?", "response": "left"}
    rows = partitions.table_from_rows("grounding_examples", [row])
    pq.write_table(old_rows("grounding_examples", rows), folder / "general.parquet")
    assert f"{old.relative(folder)}/general.parquet: -> grounding_examples" in flywheel(old, "workspace", "migrate")[1]
    assert [path.name for path in folder.iterdir()] == ["grounding_examples.parquet"]
    assert pq.ParquetFile(folder / "grounding_examples.parquet").read().to_pylist() == [row]


@pytest.mark.exhaustive
def test_rows_in_records_have_the_columns_of_today(old):
    path = old.iteration(2) / "checkup.json"
    path.write_text(json.dumps({"model": "m", "rows": [{"task_id": "k", "score": 1.0, "v": True}]}))
    flywheel(old, "workspace", "migrate")
    (row,) = database.query_catalog(old, "SELECT task_id, success FROM fresh_evaluations").to_pylist()
    assert row == {"task_id": "k", "success": True}


@pytest.mark.parametrize(
    ("query", "told"),
    by_day(
        [
            ("select v from trajectories", "v is named success now"),
            ("select r.v from routes r", "v is named success now"),
            ("from thoughts", "thoughts is named utterances now"),
            ("select twin from duplicates", "twin is named duplicate_of now"),
            ("select chance from curriculum", "chance is named sampling_prob now"),
            ("select steps from trajectory_hashes", "steps is named step_codes now"),
            ("from like_tasks(1, 2)", "like_tasks is named matched_templates now"),
            ("from sampled_less", "sampled_less is named downsampled_tasks now"),
            ("select success from tasks", 'Referenced column "success" not found'),
            ("from nothing", "nothing does not exist"),
        ],
        2,
    ),
)
def test_a_query_by_an_earlier_name_is_told_the_one_of_today(three_iterations, query, told):
    code, output = flywheel(Workspace(three_iterations), "query", query)
    assert (code, len(output.splitlines())) == (2, 1)
    assert told in output


def test_the_names_of_today_are_there(tmp_path):
    """Each table, view and macro that a name leads to has the columns that their names lead to."""
    arguments = {"matched_templates": "(1, 2)", "lineage_of": "('t')", "training_of": "('m')"}
    with database.connect_catalog(Workspace(tmp_path)) as connection:
        for table, columns in RENAMED_COLUMNS.items():
            told = connection.execute(f"DESCRIBE FROM {table}{arguments.get(table, '')}").fetchall()
            assert {name for name, *_ in told} >= set(columns.values()), table
        for new in RENAMED_TABLES.values():
            connection.execute(f"FROM {new}{arguments.get(new, '')}")
        for earlier in RENAMED_TABLES:
            with pytest.raises(duckdb.CatalogException):
                connection.execute(f"FROM {earlier}")


def values(kind: pa.DataType) -> st.SearchStrategy:
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        return st.integers(0, 99)
    if pa.types.is_floating(kind):
        return st.floats(allow_nan=False, width=32)
    if pa.types.is_timestamp(kind):
        return st.datetimes().map(lambda at: at.replace(tzinfo=None))
    return st.text(max_size=5)


@given(st.data())
def test_rows_are_the_same_by_either_names(data):
    table = data.draw(st.sampled_from(sorted({*COLUMNS, *TABLES})))
    columns = {
        field.name: values(field.type) if not field.nullable else st.none() | values(field.type)
        for field in schema.TABLES[table]
    }
    if table == "quarantine":
        columns["source_table"] = st.sampled_from(["trajectories", "utterances", "scores"])
    rows = pa.Table.from_pylist(
        data.draw(st.lists(st.fixed_dictionaries(columns), max_size=4)), schema=schema.TABLES[table]
    )
    back = rename_rows(table, old_rows(table, rows), "here")
    assert back.equals(rows)
    assert back.schema.equals(schema.TABLES[table])


def test_columns_that_no_version_had_are_refused():
    rows = pa.table({"trajectory_id": ["t"], "mood": ["fine"]})
    with pytest.raises(DataError, match="table scores has no column mood"):
        rename_rows("scores", rows, "data/scores")
