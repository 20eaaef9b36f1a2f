#!/bin/sh
# duckdb 1.5.6: `read_parquet` of several files reads all of them by the types of the first one: beside an INTEGER a
# fraction is rounded, and fields of a struct that the first file lacks are left out, without an error or a warning.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip --disable-pip-version-check --quiet install duckdb==1.5.6
venv/bin/python - <<'EOF'
import sys

import duckdb

connection = duckdb.connect()
connection.execute("COPY (SELECT 1 AS share, {'a': 1} AS parts) TO 'old.parquet'")
connection.execute("COPY (SELECT 0.4::DOUBLE AS share, {'a': 2, 'b': 3} AS parts) TO 'new.parquet'")
read = "SELECT share, parts FROM read_parquet(['{}.parquet', '{}.parquet']{}) ORDER BY parts.a DESC LIMIT 1"
row = (0.4, {"a": 2, "b": 3})
first_old, first_new = (connection.execute(read.format(*names, "")).fetchall()[0] for names in (("old", "new"), ("new", "old")))
by_name = connection.execute(read.format("old", "new", ", union_by_name = true")).fetchall()[0]
print("duckdb", duckdb.__version__)
print("expected: the newer row whole in any order of the files, or an error:", row)
print("seen: older file first", first_old, "; newer file first", first_new, "; union_by_name", by_name)
sys.exit((first_old, first_new, by_name) != ((0, {"a": 2}), row, row))
EOF
