"""Rows that Python made, into a table of DuckDB's."""

from __future__ import annotations

import duckdb
import pyarrow as pa


def insert(connection: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """By the columns' names."""
    connection.register("inserted", rows)
    connection.execute(f"INSERT INTO {table} BY NAME FROM inserted")
    connection.unregister("inserted")
