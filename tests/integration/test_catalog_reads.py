"""A connection that holds only what a query reads answers as one that holds everything."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from night import NIGHT, by_day

from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database
from flywheel.utils.errors import BadInput

_VIEWS = "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1"
_TABLES = "SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY 1"
_MACROS = """SELECT function_name || '(' || array_to_string(list_transform(parameters,
        lambda name: if(name IN ('id', 'model'), '''t''', '1')), ', ') || ')'
    FROM duckdb_functions() WHERE NOT internal AND function_type = 'table_macro' ORDER BY 1"""
# Those that read the most, and one of each kind.
_BY_DAY = ["iterations", "scorers_vs_humans", "reviews", "steps"]


def names(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    return [name for (name,) in connection.execute(sql).fetchall()]


def answer(connection: duckdb.DuckDBPyConnection, sql: str) -> object:
    return connection.execute(sql).description, connection.fetchall()


def test_every_table_view_and_macro_answers_the_same(three_iterations: Path) -> None:
    ws = Workspace(three_iterations)
    with database.connect_catalog(ws) as whole:
        of = [*names(whole, _VIEWS), *names(whole, _TABLES), *names(whole, _MACROS)]
        assert len(of) > 60
        for name in of if NIGHT else [*_BY_DAY, *names(whole, _MACROS)[:1]]:
            sql = f"SELECT count(*), bit_xor(hash(COLUMNS(*)::VARCHAR)) FROM {name}"
            with database.connect_catalog(ws, reads=sql) as some:
                assert answer(some, sql) == answer(whole, sql), name


def test_no_more_is_there_than_a_query_reads(three_iterations: Path) -> None:
    with database.connect_catalog(Workspace(three_iterations), reads="SELECT * FROM Routes") as some:
        assert "routes" in names(some, _VIEWS)
        assert "steps" not in names(some, _VIEWS)
        with pytest.raises(duckdb.CatalogException):
            some.execute("FROM steps")


@pytest.mark.parametrize(
    "sql",
    by_day(
        ["SHOW TABLES", "FROM duckdb_views()", "FROM query('FROM rou' || 'tes')", "SELECT * FROM pg_catalog.pg_views"]
    ),
)
def test_what_lists_or_reads_by_a_computed_name_has_all(three_iterations: Path, sql: str) -> None:
    ws = Workspace(three_iterations)
    with database.connect_catalog(ws) as whole:
        assert len(database.query_catalog(ws, sql)) == len(database.run_query(whole, sql)) > 0


def test_a_wrong_name_is_told_the_names_of_all(three_iterations: Path) -> None:
    with pytest.raises(BadInput, match="Did you mean") as told:
        database.query_catalog(Workspace(three_iterations), "FROM stepps")
    assert '"steps"' in str(told.value)


def test_a_folder_that_is_no_iteration_is_passed_over(three_iterations: Path, tmp_path: Path) -> None:
    """Such as a copy that somebody made by hand."""
    ws = Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))
    views = ["iterations", "promotions", "dvc_lock", "stage_artifacts", "decision_files"]
    before = [database.query_catalog(ws, f"FROM {view} ORDER BY ALL") for view in views]
    assert min(len(rows) for rows in before[:4]) > 0
    for name in ("old", "001.bak", "backup-001"):
        shutil.copytree(ws.iteration(1), ws.root / "iterations" / name)
    assert [database.query_catalog(ws, f"FROM {view} ORDER BY ALL") for view in views] == before
