"""Queries over the Parquet files: views, macros, formats, and one line for what is wrong."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from night import by_day

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES, fraction_metric_row
from flywheel.store.versioning import dvc_files
from flywheel.utils.confidence_intervals import wilson_interval
from flywheel.utils.errors import BadInput, DataError, DiskFull
from flywheel.utils.files import write_text


@pytest.fixture(scope="module")
def ws(tmp_path_factory) -> Workspace:
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("catalog"))
    for k in (1, 2):
        synthetic.incoming(ws, settings, k, tasks=4, samples=2)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
    return ws


@pytest.fixture(scope="module")
def catalog(ws) -> Iterator[duckdb.DuckDBPyConnection]:
    """One connection, for those who ask much."""
    with database.connect_catalog(ws) as connection:
        yield connection


def ask(catalog: Workspace | duckdb.DuckDBPyConnection, sql: str) -> list[dict]:
    asked = database.query_catalog if isinstance(catalog, Workspace) else database.run_query
    return asked(catalog, sql).to_pylist(maps_as_pydicts="strict")


def test_an_empty_workspace_has_every_table_typed(tmp_path):
    ws, _ = synthetic.workspace(tmp_path)
    for table, schema in TABLES.items():
        result = database.query_catalog(ws, f"FROM {table}")
        assert result.num_rows == 0
        assert result.column_names == ["iteration", "stage", *schema.names]
    assert ask(ws, "FROM iterations") == []
    assert ask(ws, "SELECT iteration, model FROM promotions") == [{"iteration": 0, "model": "models/base"}]


def test_iterations_tells_the_whole_turn(catalog):
    one, two = ask(catalog, "FROM iterations")
    assert (one["iteration"], one["tasks"], one["trajectories"], one["recordings"]) == (1, 4, 8, 3)
    assert one["conserved"] is True
    assert one["to_sft"] + one["to_ct"] + one["to_quarantine"] == 11
    assert (one["held_out_success_before"]["games"], one["held_out_success"]["games"]) == (0.2, 0.4)
    assert (two["held_out_success_before"]["sites"], two["held_out_success"]["sites"]) == (0.5, 0.75)
    assert (two["promoted"], two["model"]) == (True, "models/iteration=002/merged")
    assert one["minutes"] == pytest.approx(
        sum(
            r["value"]
            for r in ask(
                catalog,
                """
        SELECT value FROM metrics WHERE name = 'seconds' AND iteration = 1""",
            )
        )
        / 60
    )


def test_templates_and_the_rise_are_what_a_count_by_hand_says(catalog):
    task = {row["task_id"]: row for row in ask(catalog, "FROM tasks WHERE stage = 'synthesize'")}
    steps = ask(catalog, "SELECT trajectory_id, parse_error FROM steps")
    slots: dict[tuple, dict[str, list]] = {}
    for row in ask(
        catalog, "FROM routes r JOIN trajectories t USING (trajectory_id, iteration) WHERE t.stage = 'rollout'"
    ):
        if row["success"] is not None:
            of = task[row["task_id"]]
            slot = slots.setdefault((row["iteration"], of["world"], of["template"], of["level"]), {})
            broken = [one["parse_error"] for one in steps if one["trajectory_id"] == row["trajectory_id"]]
            slot.setdefault(row["task_id"], []).append((row["success"], broken))
    found = {(r["iteration"], r["world"], r["template"], r["level"]): r for r in ask(catalog, "FROM template_success")}
    assert found.keys() == slots.keys()
    pass_1 = {}
    for name, tasks in slots.items():
        runs = [run for of_task in tasks.values() for run in of_task]
        shares = [sum(v for v, _ in of_task) / len(of_task) for of_task in tasks.values()]
        pass_1[name] = sum(shares) / len(shares)
        errors = [error for _, broken in runs for error in broken]
        assert (found[name]["tasks"], found[name]["mixed"]) == (len(tasks), sum(0 < one < 1 for one in shares))
        assert found[name]["pass_1"] == pytest.approx(pass_1[name])
        assert found[name]["pass_k"] == pytest.approx(sum(one > 0 for one in shares) / len(shares))
        if errors:
            assert found[name]["invalid_step_fraction"] == pytest.approx(
                sum(one is not None for one in errors) / len(errors)
            )
        assert found[name]["invalid_episode_fraction"] == pytest.approx(
            sum(any(one is not None for one in broken) for _, broken in runs) / len(runs)
        )
    both = [slot for k, *slot in slots if k == 1 and (2, *slot) in slots]
    (row,) = ask(catalog, "FROM p_v1_rise WHERE domain = 'all'")
    rises = [pass_1[2, *slot] - pass_1[1, *slot] for slot in both]
    assert row["slots"] == len(both) > 0
    assert row["rise"] == pytest.approx(sum(rises) / len(rises)) == pytest.approx(row["after"] - row["before"])


def test_p_v1_counts_rollouts_alone(catalog):
    (row,) = ask(catalog, "FROM p_v1 WHERE iteration = 1 AND domain = 'all'")
    (measured,) = ask(catalog, "SELECT value, low, high, n FROM metrics WHERE iteration = 1 AND name = 'p_v1'")
    assert (row["p"], row["scored"]) == (measured["value"], measured["n"])
    assert (row["low"], row["high"]) == pytest.approx((measured["low"], measured["high"]))


def test_a_trajectory_is_followed_to_its_checkpoints(catalog):
    (row,) = ask(catalog, "FROM trajectory_lineage WHERE iteration = 2 AND destination = 'sft' LIMIT 1")
    assert row["model"] == "models/iteration=001/merged"
    assert row["run"] == "002 rollout"
    assert row["trained_checkpoints"] == ["models/iteration=002/sft"]
    (human,) = ask(catalog, "FROM trajectory_lineage WHERE trajectory_id = 'r10'")
    assert human["trained_checkpoints"] == ["models/iteration=001/ct", "models/iteration=002/ct"]
    assert ask(catalog, "SELECT trained_checkpoints AS c FROM trajectory_lineage WHERE trajectory_id = 't10001'") == [
        {"c": []}
    ]


def test_curves_are_the_figures_with_more_than_one_step(catalog):
    names = {(row["stage"], row["name"]) for row in ask(catalog, "FROM learning_curves")}
    assert {("ct", "loss"), ("rl-games", "reward"), ("rl-sites", "entropy")} <= names
    assert "seconds" not in {name for _, name in names}


def test_replay_gives_steps_in_order_with_their_screens(catalog):
    steps = ask(catalog, "FROM replay('t10003')")
    assert [row["step"] for row in steps] == list(range(len(steps)))
    assert all(row["screen"].startswith(b"\x89PNG") for row in steps)


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_the_share(case):
    successes, n = case
    share = fraction_metric_row("p_v1", successes, n)
    low, high = share["low"], share["high"]
    if n == 0:
        assert (low, high) == (None, None)
    else:
        assert 0 <= low <= successes / n <= high <= 1
        assert high > low


def test_wilson_has_the_known_values():
    assert wilson_interval(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775328), abs=1e-6)


def test_sql_and_python_agree_on_wilson(ws):
    with database.connect_catalog(ws) as connection:
        for k, n in ((0, 7), (3, 7), (7, 7), (120, 400)):
            (row,) = database.query_rows(
                connection, "SELECT wilson_low($k, $n) AS low, wilson_high($k, $n) AS high", {"k": k, "n": n}
            )
            assert (row["low"], row["high"]) == pytest.approx(wilson_interval(k, n), abs=1e-12)


@pytest.mark.parametrize("sql", by_day(["SELEC 1", "SELECT nothing FROM steps", "FROM no_such_table", "SELECT 1 +"], 2))
def test_wrong_sql_is_one_line(ws, sql):
    with pytest.raises(BadInput, match="cannot be answered") as raised:
        database.query_catalog(ws, sql)
    assert "\n" not in str(raised.value)


def test_formats_hold_the_same_rows(ws, tmp_path):
    result = database.query_catalog(ws, "SELECT iteration, name, rows FROM funnel WHERE iteration = 1")
    expected = [(row["iteration"], row["name"], row["rows"]) for row in result.to_pylist()]
    from_json = [tuple(row.values()) for row in json.loads(database.render_result(result, "json"))]
    from_csv = [
        (int(k), name, int(n))
        for k, name, n in list(csv.reader(io.StringIO(database.render_result(result, "csv"))))[1:]
    ]
    said = database.render_result(result, "parquet", tmp_path / "funnel.parquet")
    from_parquet = [tuple(row.values()) for row in pq.read_table(tmp_path / "funnel.parquet").to_pylist()]
    assert from_json == from_csv == from_parquet == expected
    assert said.startswith(f"{len(expected)} rows written to ")
    table = database.render_result(result).splitlines()
    assert table[0].split() == ["iteration", "name", "rows"]
    assert [line.split()[1] for line in table[1:]] == [name for _, name, _ in expected]


def test_screens_and_times_are_text_in_text_formats(ws):
    result = database.query_catalog(ws, "SELECT started_at, screen, token_ids FROM replay('t10003') LIMIT 1")
    (row,) = json.loads(database.render_result(result, "json"))
    assert row["started_at"].startswith("2026-11-")
    assert row["screen"].endswith(" bytes>")
    assert "[5, 6, 7]" in database.render_result(result, "csv")


def test_parquet_needs_a_file(ws):
    with pytest.raises(BadInput, match="name a file with --output"):
        database.render_result(database.query_catalog(ws, "SELECT 1"), "parquet")


@pytest.mark.parametrize("sql", by_day(["", "  ", ";", "-- nothing but a comment"], 2))
def test_an_empty_query_is_one_line(ws, sql):
    with pytest.raises(BadInput, match="the query is empty"):
        database.query_catalog(ws, sql)


def test_a_wrong_path_in_the_users_own_sql_is_not_taken_for_damage(ws):
    with pytest.raises(BadInput, match="cannot be answered") as raised:
        database.query_catalog(ws, "FROM read_parquet('/no/such/file.parquet')")
    assert "dvc" not in str(raised.value)


@pytest.mark.parametrize("form", by_day(["table", "csv", "json", "parquet"]))
def test_an_output_path_that_is_not_there_is_one_line(ws, tmp_path, form):
    out = tmp_path / "no" / "folder" / "x"
    with pytest.raises(BadInput, match="the result cannot be written"):
        database.render_result(database.query_catalog(ws, "SELECT 1 AS n"), form, out)


_ODD = """SELECT true AS b, 'nan'::DOUBLE AS f, 'inf'::DOUBLE AS g, NULL AS n, INTERVAL 1 DAY AS i,
    [1.5, 'nan'::DOUBLE] AS l, {'x': DATE '2026-01-02'} AS s,
    '\\xAA'::BLOB AS o, TIMESTAMPTZ '2026-01-02 03:04:05+00' AS t, 'a,"b"' AS q"""


def test_csv_is_as_duckdb_writes_it(ws):
    (header, row) = list(csv.reader(io.StringIO(database.render_result(database.query_catalog(ws, _ODD), "csv"))))
    assert dict(zip(header, row, strict=True)) == {
        "b": "true",
        "f": "nan",
        "g": "inf",
        "n": "",
        "i": "1 day",
        "l": "[1.5, nan]",
        "s": "{'x': 2026-01-02}",
        "o": "<1 bytes>",
        "t": "2026-01-02 03:04:05+00",
        "q": 'a,"b"',
    }


def test_json_is_json(ws):
    def strange(name: str):
        pytest.fail(f"{name} is not JSON")

    (row,) = json.loads(database.render_result(database.query_catalog(ws, _ODD), "json"), parse_constant=strange)
    assert (row["b"], row["f"], row["g"], row["n"], row["i"]) == (True, None, None, None, "1 day")
    assert (row["l"], row["s"], row["o"]) == ([1.5, None], {"x": "2026-01-02"}, "<1 bytes>")
    assert json.loads(database.render_result(database.query_catalog(ws, "FROM tasks WHERE false"), "json")) == []


def test_columns_of_one_name_are_all_there(ws):
    result = database.query_catalog(ws, 'SELECT 1 AS n, 2 AS n, 3 AS "N"')
    assert database.render_result(result, "csv").splitlines() == ["n,n_1,N_2", "1,2,3"]
    assert database.render_result(result).split() == ["n", "n_1", "N_2", "1", "2", "3"]


@pytest.fixture
def broken(ws, tmp_path) -> Workspace:
    return Workspace(Path(shutil.copytree(ws.root, tmp_path / "ws")))


def test_a_cut_off_file_fails_only_what_reads_it_and_names_its_mend(broken):
    path = partitions.partition_files(broken, "scores", 1, "score")[0]
    path.write_bytes(path.read_bytes()[:40])
    for sql in ("FROM scores", "SELECT count(*) FROM scores", "FROM trajectory_lineage", "FROM iterations"):
        with pytest.raises(DataError, match="scores") as raised:
            database.query_catalog(broken, sql)
        assert raised.value.where == f"data/scores/iteration=001/stage=score/{path.name}"
        assert "dvc checkout --force data/scores/iteration=001/stage=score`" in raised.value.fix
        assert "\n" not in str(raised.value)
    assert ask(broken, "SELECT count(*) AS n FROM trajectories") == ask(
        broken, "SELECT count(*) AS n FROM trajectories"
    )
    assert ask(broken, "DESCRIBE scores")
    assert database.query_catalog(broken, "FROM p_v1").num_rows > 0


def test_a_file_whose_rows_are_damaged_is_found_where_they_are_read(broken):
    path = partitions.partition_files(broken, "steps", 1, "rollout")[0]
    content = bytearray(path.read_bytes())
    content[4:600] = bytes(596)
    path.write_bytes(content)
    with pytest.raises(DataError, match="stage=rollout"):
        database.query_catalog(broken, "FROM steps")
    assert database.query_catalog(broken, "FROM tasks").num_rows > 0


def test_a_promotion_that_is_no_json_fails_only_what_reads_it(broken):
    broken.promotion(1).write_text('{"model": ')
    with pytest.raises(DataError, match=r"iterations/001/promotion\.json"):
        database.query_catalog(broken, "FROM promotions")
    assert database.query_catalog(broken, "FROM tasks").num_rows > 0


@pytest.mark.parametrize("newer", by_day([False, True]), ids=["alone", "beside newer ones"])
def test_a_file_with_other_columns_fails_its_tables_queries_alone(tmp_path, newer):
    ws = Workspace(tmp_path)
    row = {"trajectory_id": "t", "step": 0, "prompt_tokens": 9}
    written = partitions.write_partition(ws, "steps", 1, "rollout", [row])
    path = ws.root / written.folder / written.parts[0].name
    pq.write_table(pq.read_table(path).drop_columns(["memory"]), path)
    if newer:
        partitions.write_partition(ws, "steps", 2, "rollout", [row])
    with pytest.raises(DataError, match="steps"):
        database.query_catalog(ws, "SELECT count(memory) FROM steps")
    assert database.query_catalog(ws, "FROM tasks").num_rows == 0


@pytest.mark.parametrize("place", by_day([1, 3]), ids=["first", "last"])
def test_a_file_with_other_types_is_told_and_no_value_is_rounded_to_them(tmp_path, place):
    """Of several files DuckDB takes the first one's types: 0.6 would be 1 beside a file of integers."""
    ws = Workspace(tmp_path)
    row = {"trajectory_id": "t", "scorer": "judge", "threshold": 1.0, "success": False}
    for k in (1, 2, 3):
        written = partitions.write_partition(ws, "scores", k, "score", [{**row, "score": 0.0 if k == place else 0.6}])
        if k == place:
            path = ws.root / written.folder / written.parts[0].name
    rows = pq.ParquetFile(path).read()
    whole = rows.set_column(rows.column_names.index("score"), "score", rows["score"].cast(pa.int32()))
    pq.write_table(whole.replace_schema_metadata(rows.schema.metadata), path)
    with pytest.raises(DataError, match=rf"columns differ from table scores .*iteration=00{place}.*workspace migrate"):
        database.query_catalog(ws, "SELECT max(score) FROM scores")
    assert database.query_catalog(ws, "FROM tasks").num_rows == 0


def test_a_table_that_is_damaged_fails_filters_too(tmp_path):
    """A filter on what the damaged table stands for must not be answered with no rows."""
    ws = Workspace(tmp_path)
    written = partitions.write_partition(ws, "scores", 1, "score", [{"trajectory_id": "t", "score": 1.0}])
    path = ws.root / written.folder / written.parts[0].name
    path.write_bytes(path.read_bytes()[:40])
    for sql in ("FROM scores WHERE stage = 'score'", "SELECT sum(score) FROM scores WHERE iteration = 1"):
        with pytest.raises(DataError, match="not a whole Parquet file"):
            database.query_catalog(ws, sql)
    assert database.query_catalog(ws, "DESCRIBE scores").num_rows == 2 + len(TABLES["scores"].names)


def test_a_recorded_partition_that_is_not_here_is_no_empty_table(broken):
    """Its table's queries say what is missing and what to type; those of other tables are answered."""
    folder = "data/quarantine/iteration=001/stage=route"
    write_text(
        dvc_files.dvc_lock_path(broken, 1), f"stages:\n  route:\n    outs:\n    - path: {folder}\n      md5: abc\n"
    )
    assert database.query_catalog(broken, "SELECT count(*) AS n FROM quarantine").to_pylist()[0]["n"] > 0
    shutil.rmtree(broken.root / folder)
    for sql in ("SELECT count(*) FROM quarantine", "FROM iterations"):
        with pytest.raises(DataError, match="a partition that is recorded is not here") as raised:
            database.query_catalog(broken, sql)
        assert raised.value.where == folder
    assert database.query_catalog(broken, "SELECT count(*) AS n FROM sft").to_pylist()[0]["n"] > 0
    dvc_files.add_pruned(broken, 1, [folder])
    assert database.query_catalog(broken, "FROM iterations").num_rows > 0


def test_the_catalogs_types_are_those_that_duckdb_has_for_the_schemas():
    own = (("iteration", pa.int32()), ("stage", pa.string()))
    with duckdb.connect() as connection:
        for table, schema in TABLES.items():
            told = connection.from_arrow(pa.schema([*own, *schema]).empty_table())
            kinds = dict(zip(told.columns, map(str, told.types), strict=True))
            assert database._column_types()[table] == kinds, table


def test_an_interrupt_and_a_full_disk_are_told_as_what_they_are(ws):
    with database.connect_catalog(ws) as connection:
        stopped = database.explain_duckdb_error(connection, duckdb.InterruptException("INTERRUPT Error: Interrupted!"))
        full = database.explain_duckdb_error(
            connection, duckdb.IOException('IO Error: Could not write file "x": No space left on device')
        )
    assert not isinstance(stopped, BadInput)
    assert "interrupted" in str(stopped)
    assert isinstance(full, DiskFull)
    assert "free some space" in str(full)
