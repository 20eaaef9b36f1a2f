"""Map table and column names of earlier versions to the present ones, and convert rows to the present columns."""

from __future__ import annotations

import json
import re
from importlib import resources

import pyarrow as pa
import pyarrow.compute as pc

from flywheel.store.schema import TABLES
from flywheel.utils.errors import DataError

_DECLARED = json.loads(resources.files("flywheel.store").joinpath("renamed_tables.json").read_text(encoding="utf-8"))
# Tables, views and macros: name in earlier versions -> present name.
RENAMED_TABLES: dict[str, str] = _DECLARED["tables"]
# Present name of a table, view or macro -> its columns: name in earlier versions -> present name.
RENAMED_COLUMNS: dict[str, dict[str, str]] = _DECLARED["columns"]
# Present name of a table -> column -> default for rows written before the column existed; without one, null.
_DEFAULTS: dict[str, dict[str, str | float]] = _DECLARED["defaults"]
_TABLE_NAMES: dict[str, str] = _DECLARED["table_names"]  # present name of a table -> its column with table names


def describe_renamed_table(name: str) -> str:
    """Tell in words what the table, view or macro `name` of an earlier version is called now; "" for other names."""
    new = RENAMED_TABLES.get(name.lower())
    return f"{name} is named {new} now" if new else ""


def describe_renamed_column(name: str, query: str) -> str:
    """Tell in words what the column `name` of an earlier version is called now; "" for other names.

    query: text that names its tables, such as the SQL. A name that some table still has is described only where the
    query names the table in which it was renamed.
    """
    words = {RENAMED_TABLES.get(word, word) for word in re.findall(r"\w+", query.lower())}
    found = {table: columns[name.lower()] for table, columns in RENAMED_COLUMNS.items() if name.lower() in columns}
    named = {table: new for table, new in found.items() if table in words}
    if not named and any(name.lower() in schema.names for schema in TABLES.values()):
        return ""
    tables: dict[str, list[str]] = {}
    for table, new in (named or found).items():
        tables.setdefault(new, []).append(table)
    if len(tables) < 2:
        return "".join(f"{name} is named {new} now" for new in tables)
    return f"{name} is now named " + ", ".join(f"{new} in {' and '.join(of)}" for new, of in tables.items())


def is_of_earlier_schema(table: str, schema: pa.Schema) -> bool:
    """Tell whether rows with the columns `schema` have to be converted to the present columns of `table`.

    table: old or present name; KeyError for a name that no version had.
    """
    return table in RENAMED_TABLES or not schema.equals(TABLES[table])


def rename_rows(table: str, rows: pa.Table, where: object) -> pa.Table:
    """Convert `rows` of an earlier version to the present columns; missing values become null or a default.

    table: its present name. where: the file, for the error. Raises DataError for columns that no earlier version had
    or that are there under old and new name, and for values that do not fit the present columns.
    """
    schema, renamed = TABLES[table], RENAMED_COLUMNS.get(table, {})
    rows = rows.rename_columns([renamed.get(name, name) for name in rows.column_names])
    if len(set(rows.column_names)) < rows.num_columns:
        raise DataError(f"rows of table {table} have a column twice", where=where, fix="nothing was changed")
    if unknown := sorted(set(rows.column_names) - set(schema.names)):
        raise DataError(f"table {table} has no column {', '.join(unknown)}", where=where, fix="nothing was changed")
    columns = []
    try:
        for field in schema:
            column = rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
            if (default := _DEFAULTS.get(table, {}).get(field.name)) is not None:
                column = pc.fill_null(column, default)
            if _TABLE_NAMES.get(table) == field.name:
                column = pa.array([RENAMED_TABLES.get(value, value) for value in column.to_pylist()], field.type)
            columns.append(column)
        return pa.Table.from_arrays(columns, names=schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"rows do not fit table {table}: {error}", where=where, fix="nothing was changed") from None
