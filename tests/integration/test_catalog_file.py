"""The catalogue as a DuckDB file: what a stranger asks who has DuckDB and pandas, and nothing of flywheel."""

from __future__ import annotations

import duckdb
import pandas as pd
import pytest
import synthetic
from click.testing import CliRunner

from flywheel.cli import main
from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES
from flywheel.utils.errors import BadInput

QUESTIONS = (
    "FROM iterations",
    "FROM p_v1",
    "FROM pass_at(2)",
    "FROM p_v1_rise",
    "FROM promotions",
    "FROM lineage_of('t10003')",
    "SELECT step, action, screen FROM replay('t10003')",
    "FROM curriculum ORDER BY ALL",
)


@pytest.fixture(scope="module")
def ws(tmp_path_factory) -> Workspace:
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("it's"))  # a path that SQL must quote
    synthetic.incoming(ws, settings, 1, tasks=4, samples=2)
    synthetic.routed(ws, settings, 1)
    synthetic.outgoing(ws, 1)
    return ws


@pytest.fixture(scope="module")
def file(ws, tmp_path_factory):
    path = tmp_path_factory.mktemp("elsewhere") / "catalog.duckdb"
    database.write_catalog_file(ws, path)
    return path


def test_plain_duckdb_answers_as_flywheel_does(ws, file):
    with duckdb.connect(file, read_only=True) as one, duckdb.connect(file, read_only=True) as other:
        for sql in QUESTIONS:
            expected = database.query_catalog(ws, sql).to_pylist(maps_as_pydicts="strict")
            assert one.execute(sql).to_arrow_table().to_pylist(maps_as_pydicts="strict") == expected, sql
        count = "SELECT count(*) FROM steps"
        assert other.execute(count).fetchone() == one.execute(count).fetchone()


@pytest.mark.exhaustive
def test_it_is_attached_beside_tables_of_ones_own(ws, file):
    expected = database.query_catalog(ws, "SELECT domain, p FROM p_v1").to_pylist()
    with duckdb.connect() as own:
        own.execute(f"ATTACH '{file}' AS flywheel (READ_ONLY)")
        assert own.execute("SELECT domain, p FROM flywheel.p_v1").to_arrow_table().to_pylist() == expected
        own.execute("USE flywheel")
        assert own.execute("FROM lineage_of('t10003')").fetchall()


def test_pandas_has_it_as_a_frame(ws, file):
    with duckdb.connect(file, read_only=True) as connection:
        frame = connection.sql("FROM p_v1").df()
        meaning = connection.sql("SELECT comment FROM duckdb_columns() WHERE table_name = 'p_v1' AND column_name = 'p'")
        assert meaning.fetchall() == [("verified / scored; `low`, `high`: its 95% interval",)]
    assert frame["p"].tolist() == (frame["verified"] / frame["scored"]).tolist()
    assert frame["domain"].tolist() == database.query_catalog(ws, "SELECT domain FROM p_v1")["domain"].to_pylist()


def test_pandas_reads_a_table_s_folder_too(ws):
    frame = pd.read_parquet(ws.data / "routes")
    assert (
        sorted(frame["trajectory_id"])
        == database.query_catalog(ws, "SELECT trajectory_id FROM routes ORDER BY ALL")["trajectory_id"].to_pylist()
    )
    assert {*frame["iteration"].astype(int)} == {1}


@pytest.mark.exhaustive
def test_a_partition_that_was_replaced_is_an_error_until_it_is_written_anew(tmp_path):
    ws, path = Workspace(tmp_path / "ws"), tmp_path / "catalog.duckdb"
    row = {"trajectory_id": "t", "destination": "ct"}
    partitions.write_partition(ws, "routes", 1, "route", [row])
    database.write_catalog_file(ws, path)
    partitions.write_partition(ws, "routes", 1, "route", [row, row | {"trajectory_id": "u"}])
    with duckdb.connect(path, read_only=True) as connection:
        with pytest.raises(duckdb.IOException):
            connection.execute("SELECT count(*) FROM routes")
        database.write_catalog_file(ws, path)  # under the eyes of one who reads
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (0,)
    with duckdb.connect(path, read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM routes").fetchone() == (2,)
        assert {path.name for path in tmp_path.iterdir()} == {"ws", "catalog.duckdb"}


def test_what_is_no_catalogue_is_not_overwritten(tmp_path):
    path = tmp_path / "steps.parquet"
    path.write_bytes(b"PAR1 and so on")
    with pytest.raises(BadInput, match="no catalogue"):
        database.write_catalog_file(Workspace(tmp_path), path)
    with pytest.raises(BadInput, match="cannot be written"):
        database.write_catalog_file(Workspace(tmp_path), tmp_path / "no" / "folder" / "x.duckdb")
    assert path.read_bytes() == b"PAR1 and so on"


def test_the_command_writes_it_and_without_a_file_tells_what_there_is(ws, tmp_path):
    (ws.root / "dvc.yaml").touch()
    path = tmp_path / "c.duckdb"
    done = CliRunner().invoke(main, ["data", "catalog", str(path), "--workspace", str(ws.root)])
    assert (done.exit_code, done.output) == (0, f"{path}\n")
    with duckdb.connect(path, read_only=True) as connection:
        assert {name for (name,) in connection.execute("SHOW TABLES").fetchall()} >= {*TABLES, "iterations"}
    told = CliRunner().invoke(main, ["data", "catalog"])
    assert told.exit_code == 0
    assert "### replay(id)" in told.output
