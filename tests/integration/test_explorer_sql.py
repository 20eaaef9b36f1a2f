"""Queries that anybody may write: answered within limits, and none of them gets out."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import duckdb
import hostile_sql
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from explorer_store import rollouts
from night import by_day

from flywheel.config.workspace import Workspace
from flywheel.ui.explorer import sql as explorer_sql
from flywheel.ui.explorer.sql import SqlWorkerPool
from flywheel.ui.explorer.sql_worker import SqlLimits
from flywheel.utils import credentials
from flywheel.utils.errors import BadInput, FlywheelError, QueryTimeout

pytestmark = pytest.mark.asyncio(loop_scope="module")
DUCKDB_2 = int(duckdb.__version__.partition(".")[0]) >= 2
LIMITS = SqlLimits(seconds=30.0, memory=128 * 2**20, rows=100, export_rows=1000, bytes=4 * 2**20)


@pytest.fixture(scope="module")
def ws(tmp_path_factory) -> Workspace:
    ws = Workspace(tmp_path_factory.mktemp("asked"))
    rollouts(ws, 1)
    ws.params.write_text("seed: 31337\n", encoding="utf-8")
    credentials.workspace_credentials(ws.state)
    (ws.data / "link").symlink_to(credentials.credentials_path(ws.state))
    return ws


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sql(ws):
    found = SqlWorkerPool(ws, LIMITS)
    yield found
    await found.aclose()


def files(ws: Workspace) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(ws.root.rglob("*")) if path.is_file()}


async def test_fifty_hostile_texts_get_nothing_and_the_next_question_is_answered(ws, tmp_path):
    assert len(set(hostile_sql.ALL)) == 50
    out = tmp_path / "out.csv"
    places = {
        "secret": credentials.credentials_path(ws.state),
        "data": ws.data,
        "root": ws.root,
        "name": ws.root.name,
        "out": out,
    }
    before, succeeded = files(ws), []
    said = ""
    sql = SqlWorkerPool(ws, replace(LIMITS, seconds=2.0))
    try:
        for text in hostile_sql.ALL:
            try:
                succeeded.append((text, (await sql.ask(text.format(**places))).data))
            except FlywheelError as refused:
                said += f"{refused}\n"
        assert (await sql.ask("SELECT count(*) FROM trajectories")).data == b"[[6]]"
    finally:
        await sql.aclose()
    assert succeeded == []
    assert len(said.splitlines()) == 50, "each is told in one line"
    assert "31337" not in said
    assert credentials.workspace_credentials(ws.state) not in said
    assert files(ws) == before
    assert not out.exists()


async def test_what_is_asked_is_told_as_a_page_can_show_it(sql):
    result = await sql.ask(
        "SELECT 1 AS a, 'x' AS a, [1, NULL] AS l, {'k': 'v'} AS s, blob 'abc' AS b, "
        "12345678901234567890::HUGEINT AS h, 'nan'::DOUBLE AS n, TIMESTAMP '2026-01-02 03:04:05' AS t, "
        "repeat('y', 3000) AS long, NULL AS nothing"
    )
    assert [column["name"] for column in result.told["columns"]][:3] == ["a", "a", "l"]
    (row,) = json.loads(result.data)
    assert row[:8] == [
        1,
        "x",
        "[1,null]",
        '{"k":"v"}',
        "(3 bytes)",
        "12345678901234567890",
        "nan",
        "2026-01-02T03:04:05",
    ]
    assert row[8].endswith("… (3,000 characters)")
    assert row[9] is None


@pytest.mark.parametrize(
    "asked",
    by_day(
        [
            "FROM iterations",
            "DESCRIBE steps",
            "SHOW TABLES",
            "SUMMARIZE tasks",
            "VALUES (1)",
            "PIVOT tasks ON world IN ('shop', 'settings') USING count(*)",
            "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b",
            "FROM (PIVOT tasks ON world USING count(*) GROUP BY domain);",
            "-- why so slow\nEXPLAIN /* ; */ SELECT ';'",
            "explain Analyze FROM steps WHERE step = 1;",
            "EXPLAIN (SELECT 1)",
        ],
        6,
    ),
)
async def test_questions_of_each_kind_are_answered(sql, asked):
    assert (await sql.ask(asked)).told["rows"] > 0


async def test_a_plan_is_told_line_by_line_and_a_pivot_leaves_nothing(sql):
    plan = await sql.ask("EXPLAIN FROM steps")
    assert plan.told["plan"]
    assert any("PARQUET" in line for (line,) in json.loads(plan.data))
    pivot = await sql.ask("PIVOT tasks ON world USING count(*) GROUP BY domain")
    assert (not pivot.told["plan"], json.loads(pivot.data)) == (True, [["sites", 1, 2]])
    left = await sql.ask("SELECT count(*) FROM duckdb_types() WHERE type_name LIKE '%pivot%'")
    assert left.data == b"[[0]]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the query is empty"),
        ("-- nothing", "the query is empty"),
        ("SELEC 1", "the query cannot be answered: Parser Error"),
        ("FROM nowhere", "the query cannot be answered: Catalog Error: Table with name nowhere does not exist"),
        ("SELECT 1; SELECT 2", "these are several statements; type one query"),
        ("SELECT '\ud800'", "the query has half a character (a lone surrogate); take it out"),
        ("DROP VIEW steps", "drop is no question"),
        ("EXPLAIN SELECT 1; SELECT 2", "these are several statements; type one query"),
        ("EXPLAIN EXPLAIN SELECT 1", "the query cannot be answered: Parser Error"),
        ("EXPLAIN COPY steps TO 'x.csv'", "copy is no question"),
        ("EXPLAIN ANALYZE DELETE FROM steps", "delete is no question"),
        ("EXPLAIN SET threads = 1", "set is no question"),
        ("EXPLAIN PIVOT tasks ON world USING count(*)", "a PIVOT within a command names its values"),
        ("PIVOT tasks ON world USING count(*); SELECT 1", "these are several statements"),
        ("CREATE TABLE t AS FROM (PIVOT tasks ON world USING count(*))", "a PIVOT within a command names its values"),
        ("CREATE TEMP TABLE t AS FROM tasks; PIVOT t ON world USING count(*)", "these are several statements"),
        ("SELECT error('mine')", "the query cannot be answered: Invalid Input Error: mine"),
        pytest.param(
            "SELECT '\0'", "the query cannot be answered", marks=pytest.mark.skipif(DUCKDB_2, reason="it has an answer")
        ),
    ],
)
async def test_what_is_no_question_is_one_line(sql, text, said):
    with pytest.raises(BadInput) as refused:
        await sql.ask(text)
    assert str(refused.value).startswith(said)


async def test_a_result_is_cut_where_it_is_too_long_and_says_so(sql):
    short, long = await sql.ask("FROM range(100)"), await sql.ask("FROM range(101)")
    assert (short.told["rows"], short.told["cut"]) == (100, False)
    assert (long.told["rows"], long.told["cut"]) == (100, True)
    heavy = (await sql.ask("SELECT repeat('x', 1000000) FROM range(90)", "csv")).told
    assert (heavy["rows"], heavy["cut"]) == (4, True)


async def test_exports_are_whole(sql):
    table = pq.read_table(
        io.BytesIO((await sql.ask("SELECT range AS n, repeat('y', 3000) AS t FROM range(300)", "parquet")).data)
    )
    assert table["n"].to_pylist() == list(range(300))
    assert len(table["t"][0].as_py()) == 3000
    wide = "SELECT 'a,b' AS x, NULL AS y, [1, 2] AS l, blob 'ab' AS b, 'red'::ENUM('red') AS e, TRUE AS t, 0.5 AS x"
    lines = (await sql.ask(wide, "csv")).data.decode().splitlines()
    assert lines == ['"x","y","l","b","e","t","x"', '"a,b",,"[1,2]","YWI=","red",true,0.5']


async def test_a_small_result_that_would_be_a_large_file_is_refused(sql):
    long = "'" + "x" * 100_000 + "'"
    with pytest.raises(BadInput, match="needs more than the 128 MiB"):
        await sql.ask(f"SELECT {long}::ENUM({long}) FROM range(1000000) LIMIT 1000000", "csv")
    assert (await sql.ask("SELECT 1")).data == b"[[1]]"


async def test_a_query_that_takes_too_long_is_ended_and_its_process_goes_on(ws):
    sql = SqlWorkerPool(ws, replace(LIMITS, seconds=0.5))
    try:
        with pytest.raises(QueryTimeout, match=r"longer than the 0\.5 s"):
            await sql.ask(hostile_sql.HOLD[0])
        (before,) = sql._all
        assert (await sql.ask("SELECT 1")).data == b"[[1]]"
        assert sql._all == {before}
    finally:
        await sql.aclose()


@pytest.mark.exhaustive
async def test_one_that_does_not_heed_its_time_is_ended_from_outside(ws, monkeypatch):
    monkeypatch.setattr(explorer_sql, "_GRACE_S", 0.0)
    sql = SqlWorkerPool(ws, SqlLimits(seconds=0.5))
    try:
        assert (await sql.ask("SELECT 1")).data == b"[[1]]"
        (held,) = sql._all
        held.send_signal(19)  # it is stopped: what it is told it does not hear
        with pytest.raises(QueryTimeout, match="and was ended"):
            await sql.ask("SELECT 2")
        assert held.returncode is not None
        assert (await sql.ask("SELECT 3")).data == b"[[3]]"
    finally:
        await sql.aclose()


async def test_a_process_that_dies_is_told_and_replaced(sql):
    assert (await sql.ask("SELECT 1")).data == b"[[1]]"
    for process in sql._all:
        process.kill()
        await process.wait()
    with pytest.raises(FlywheelError, match="ended the process"):
        await sql.ask("SELECT 2")
    assert (await sql.ask("SELECT 3")).data == b"[[3]]"


async def test_new_partitions_are_seen(ws, sql):
    assert (await sql.ask("SELECT count(*) FROM trajectories WHERE iteration = 9")).data == b"[[0]]"
    rollouts(ws, 9)
    assert (await sql.ask("SELECT count(*) FROM trajectories WHERE iteration = 9")).data == b"[[6]]"
