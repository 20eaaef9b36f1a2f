"""A workspace's first server gets a copy of an empty database that was made before: the same tables, and no rows."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE_S

from flows.ops import prefect_server_main


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The database that the first server of a user made, that of the second, and the user's cache."""
    folder = tmp_path_factory.mktemp("begun")
    return _look(folder / "first", folder), _look(folder / "second", folder), folder


def _look(home: Path, cache: Path) -> Path:
    environment = {**os.environ, "PREFECT_HOME": str(home), "XDG_CACHE_HOME": str(cache)}
    said = subprocess.run(
        [sys.executable, "-c", "from flows.ops.prefect_server_main import prepare_database; prepare_database()"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert said.returncode == 0, said.stderr
    return home / "prefect.db"


def _asked(file: Path, question: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute(question).fetchall()


def test_the_second_has_the_tables_of_the_first(begun):
    question = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    first, second, _ = begun
    assert _asked(second, question) == _asked(first, question)
    assert _asked(second, "SELECT * FROM alembic_version") == _asked(first, "SELECT * FROM alembic_version")


def test_what_is_copied_has_no_rows(begun):
    """What is in it would be in all workspaces."""
    _, second, _ = begun
    names = [name for (name,) in _asked(second, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert "flow_run" in names
    assert [name for name in names if _asked(second, f'SELECT * FROM "{name}" LIMIT 1')] == ["alembic_version"]


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:70_000], lambda whole: b"x" * 5000])
def test_a_damaged_one_is_not_copied(begun, tmp_path, monkeypatch, damage):
    kept = next(begun[2].rglob("empty-*.db"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = tmp_path / "flywheel" / "prefect" / kept.name
    mine.parent.mkdir(parents=True)
    mine.write_bytes(damage(kept.read_bytes()))
    assert not prefect_server_main.copy_empty_database(tmp_path / "prefect.db")
    assert [path.name for path in tmp_path.rglob("*.db*")] == []
    prefect_server_main.cache_empty_database(begun[0])
    assert prefect_server_main.copy_empty_database(tmp_path / "prefect.db")


def test_a_home_that_cannot_be_written_costs_time_alone(begun, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    prefect_server_main.cache_empty_database(begun[0])
    assert not prefect_server_main.copy_empty_database(tmp_path / "prefect.db")
