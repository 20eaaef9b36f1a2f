"""Fifty texts that want out: to other files, to the net, to other code, or to hold the server.

{secret}, {data}, {root}, {name}: paths of the workspace under attack; {out}: a file that nobody may make.
"""

from __future__ import annotations

READ = (
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd', sep = ':')",
    "SELECT * FROM read_json('/proc/self/environ')",
    "SELECT * FROM read_ndjson_objects('/etc/hostname')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "FROM '/etc/fstab.csv'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{root}/*')",
    "SELECT * FROM glob('{root}/.flywheel/*')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_text('{data}/../.flywheel/auth')",
    "SELECT * FROM read_text('{data}/./../../{name}/.flywheel/auth')",
    "SELECT * FROM read_text(['{data}/none', '{secret}'])",
    "SELECT * FROM read_text('file://{secret}')",
    "SELECT * FROM read_text('{data}/link')",
    "SELECT content FROM (FROM read_text('{root}/params.yaml'))",
    "WITH x AS (FROM read_text('{secret}')) SELECT * FROM x",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT * FROM query('FROM read_text(''{secret}'')')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT * FROM read_parquet('{root}/../*/data/*/*/*/*.parquet')",
    "SELECT getenv('HOME')",
    "SELECT * FROM sql",
    "SELECT * FROM connection",
)
WRITE = (
    "COPY (SELECT 1) TO '{out}'",
    "COPY steps TO '{data}/steps/iteration=001/stage=rollout/part-00000-01234567.parquet'",
    "COPY steps FROM '/etc/passwd'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{out}' AS other",
    "ATTACH '{secret}' AS other (READ_ONLY)",
    "CREATE VIEW passwords AS FROM read_csv('/etc/passwd')",
    "CREATE TABLE t AS SELECT 1",
    "CREATE MACRO stolen() AS TABLE FROM read_text('{secret}')",
    "DELETE FROM promotions",
    "SELECT 1; COPY (SELECT 1) TO '{out}'",
    "SELECT 1; DROP VIEW steps",
)
RUN = (
    "INSTALL httpfs",
    "LOAD '/tmp/evil.duckdb_extension'",
    "SELECT * FROM read_csv('https://example.com/a.csv')",
    "SET enable_external_access = true",
    "RESET allowed_directories",
    "PRAGMA enable_logging",
    "CALL force_checkpoint()",
)
HOLD = (
    "SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c WHERE hash(a.range, b.range, c.range) = 1",
    "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT max(a) FROM t",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(1000000)",
)
ALL = READ + WRITE + RUN + HOLD
