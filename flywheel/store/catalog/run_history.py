"""Query how the stages of iterations ran: states, durations, failures, inputs and outputs.

The queries use the catalogue's own views (`catalog_history.sql`) over these iterations alone, so their cost does not
grow with the number of other iterations. An incomplete iteration has no table `runs` yet: it is described by what
Prefect reported when its last run ended, what DVC recorded, and its finished shards on disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from flywheel.config import run_lock
from flywheel.config.workspace import Workspace
from flywheel.store import lineage, partitions
from flywheel.store.catalog import compaction, database
from flywheel.store.schema import empty_table
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import sha256_file

Row = dict[str, Any]
_BEFORE = 10  # iterations that the view `stage_trend` looks back
_SQL = database.read_queries("flywheel.store.catalog")


def query_iteration_history(ws: Workspace, which: Sequence[int]) -> list[Row]:
    """Return a row for each iteration of `which`, in that order, also for one that Prefect knows no run of.

    Keys: `iteration`; `state` (complete, running, unfinished); `recorded` of `stages`, both counts; `tries` and
    `failed`, counts; `first_started`, `last_ended` (datetimes); `seconds` of all tries; `longest`, the slowest stage,
    and its `longest_seconds`; `at_stage` and `reason` of the last failure. From `first_started` on, None where unknown.
    Raises BadInput for an iteration that has not been begun; DataError for a missing or damaged record or table of one,
    where DVC's file of any is lost, or the list of pruned outputs is damaged; and as `run_query`.
    """
    known = {row["iteration"]: row for row in _query(ws, which, _SQL["iterations"])}
    facts = ("first_started", "last_ended", "seconds", "longest", "longest_seconds", "at_stage", "reason")
    found, at_work, run = [], _at_work(ws), run_lock.read_run_at_work(ws)
    for k in which:
        recorded, stages = dvc_files.recorded_stages(ws, k), stage_records.stage_names(ws, k)
        state = "complete" if dvc_files.is_iteration_complete(ws, k) else "running" if k == at_work else "unfinished"
        row = {"iteration": k, "state": state, "recorded": len(recorded), "stages": len(stages)}
        row |= {name: known.get(k, {}).get(name) or 0 for name in ("tries", "failed")}
        row |= {name: known.get(k, {}).get(name) for name in facts}
        if run and run.iteration == k:
            row |= {"tries": row["tries"] + 1, "first_started": row["first_started"] or _moment(run.began)}
            row |= {"last_ended": None, "seconds": (row["seconds"] or 0) + time.time() - run.began}
        found.append(row)
    return found


def query_stage_history(ws: Workspace, which: Sequence[int], name: str = "") -> list[Row]:
    """Return a row for each stage of the iterations `which`, in the order in which the stages run.

    A stage without a run has a row too. name: the only stage wanted; "": all; an unknown one gives no row. Keys:
    `iteration`, `stage`, `state` (of Prefect's last try, or recorded, running, `waits for ...`, begun, not begun),
    counts (`tries`, `failed`, `shards`, `retries`, and `staged`, shards that lie finished on disk), `first_started`,
    `last_ended` (datetimes), `last_seconds` of the last try, `seconds` of all, `median_before` of the same in the ten
    iterations before, `ratio` to it, `iterations_before` that have the stage, and `reason` of the last failure; None
    where unknown. Raises BadInput for an iteration that has not been begun; DataError for a missing or damaged record
    or table of one or of the ten before it, or where DVC's file of any is lost; and as `run_query`.
    """
    earlier = {k for one in which for k in range(max(1, one - _BEFORE), one + 1)}
    known = {(row["iteration"], row["stage"]): row for row in _query(ws, sorted(earlier), _SQL["stages"])}
    asked = [(k, stage) for k in which for stage in stage_records.stage_names(ws, k) if name in ("", stage)]
    found = [_stage(ws, *one, known.get(one, {})) for one in asked]
    if (run := run_lock.read_run_at_work(ws)) and run.iteration in which:
        usual, begun = query_usual_seconds(ws, run.iteration), {one.stage: one for one in run.stages}
        for row in (row for row in found if row["iteration"] == run.iteration):
            _add_run_at_work(row, begun.get(row["stage"]), usual.get(row["stage"]))
    return found


def _add_run_at_work(row: Row, now: run_lock.StageAtWork | None, usual: float | None) -> None:
    """Add what the run at work does for a stage to the stage's row; it is not recorded yet."""
    row["median_before"] = usual if row["median_before"] is None else row["median_before"]
    if now is None:
        return
    if now.ended is None:
        row["state"] = f"waits for {now.waits_for}" if now.waits_for else "running"
    row["seconds"] = (row["seconds"] or 0) * (row["tries"] > 0) + (now.ended or time.time()) - now.began
    row["tries"] += 1
    row["first_started"] = row["first_started"] or _moment(now.began)
    if row["median_before"]:
        row["ratio"] = row["seconds"] / row["median_before"]


def _moment(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC)


def query_usual_seconds(ws: Workspace, iteration: int) -> dict[str, float]:
    """Return the median seconds that each stage took in the ten iterations before `iteration`, by name.

    Pauses do not count; stages that ran in none of them are left out. Raises DataError for a missing or damaged record
    or table of one, or where DVC's file of any is lost; and as `run_query`.
    """
    before = [k for k in stage_records.list_iterations(ws) if iteration - _BEFORE <= k < iteration]
    rows = _query(ws, before, "SELECT stage, median(seconds) AS usual FROM stage_runs GROUP BY stage")
    return {row["stage"]: row["usual"] for row in rows if row["usual"] is not None}


def query_failures(ws: Workspace, which: Sequence[int], stage: str = "") -> list[Row]:
    """Return the failures of the iterations `which`, oldest first: rows of the view `failures`.

    Of nested runs only the innermost is there. which: numbers; one that has not been begun gives no rows. stage: the
    only one wanted; "": all. Keys: `iteration`, `stage`, `run` (its name), `kind` (flow or task), `state`, `attempts`,
    `ended_at`, `message`, `run_id`. Raises DataError for a missing or damaged record or table of one, and as
    `run_query`.
    """
    return _query(ws, which, "FROM failures WHERE $stage IN ('', stage)", {"stage": stage})


def query_stage_attempts(ws: Workspace, iteration: int, stage: str) -> tuple[list[Row], list[Row]]:
    """Return the attempts of an iteration's stage, and the tasks of these attempts, as two lists of rows, oldest first.

    stage: its name. Keys of an attempt: `try` (from 1), `state`, `started_at`, `ended_at`, `seconds`, `message`,
    `run_id`; of a task also `task` and `attempts`. Both are [] where no run is known. Raises DataError for a missing or
    damaged record or table, and as `run_query`.
    """
    key = {"iteration": iteration, "stage": stage}
    with closing(_connect(ws, [iteration])) as connection:
        tries = database.query_rows(connection, f"{_SQL['tries']} ORDER BY try", key)
        return tries, database.query_rows(connection, _SQL["tasks"].format(tries=_SQL["tries"]), key)


def query_stage_artifacts(ws: Workspace, iteration: int, stage: str) -> list[Row]:
    """Return the inputs and outputs of an iteration's stage, with their hashes.

    They are rows of the view `stage_artifacts` with two more columns. stage: its name; an unknown one gives no rows.
    Keys: `iteration`, `stage`, `role` (input or output), `kind` (partition, checkpoint or record), `path` relative to
    the workspace, `files` and `bytes`, `md5` as DVC records it; `rows` of a partition that is on disk, else None;
    `sha256`, a list: the hash of each file on disk, or for a checkpoint that this iteration made the digest of its
    weights in lineage. Raises DataError for a missing or damaged record, table or list, FlywheelError as `run_query`.
    """
    try:
        every = _query(ws, [iteration], "FROM stage_artifacts")
    except BadInput as error:  # the SQL is correct, so the dvc.lock that it reads is not
        where = ws.relative(dvc_files.dvc_lock_path(ws, iteration))
        raise DataError(f"not a dvc.lock: {error.what}", where=where, fix="restore it with `git checkout`") from None
    makers = {row["path"]: row["stage"] for row in every if row["kind"] == "checkpoint" and row["role"] == "output"}
    found = []
    for row in (row for row in every if row["stage"] == stage):
        path, rows, sha256 = ws.resolve(row["path"]), None, []
        if row["kind"] == "partition":
            files = partitions.read_part_list(path)
            rows, sha256 = files and sum(file.rows for file in files), [one.sha256 for one in files or ()]
        elif row["path"] in makers:
            sha256 = lineage.find_weights_names(ws, iteration, makers[row["path"]], row["path"])
        elif path.is_file():
            sha256 = [sha256_file(path)]
        found.append({**row, "rows": rows, "sha256": sha256})
    return found


def read_run_history(ws: Workspace, iteration: int) -> list[Row]:
    """Read what Prefect reported of the iteration's runs when the last of them ended: rows of `runs`, as JSON values.

    Returns [] where there is no report. Raises DataError for a damaged file.
    """
    path = ws.run_history(iteration)
    if not path.is_file():
        return []
    fix = "remove it: what earlier runs of this iteration took and why they failed is then not known"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"not valid JSON: {error}", where=ws.relative(path), fix=fix) from None
    try:
        if not isinstance(rows, list):
            raise TypeError(type(rows).__name__)
        run_history_rows(rows)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a list of runs: {error!r}", where=ws.relative(path), fix=fix) from None
    return rows


def run_history_rows(runs: Iterable[Row]) -> list[Row]:
    """Build rows of the table `runs` from rows of `read_run_history`: times become datetimes.

    Raises KeyError, TypeError or ValueError for a row without `started_at` and `ended_at` in ISO 8601 (or null).
    """
    times = ("started_at", "ended_at")
    return [
        {**row, **{name: datetime.fromisoformat(row[name]) if row[name] else None for name in times}} for row in runs
    ]


def _query(ws: Workspace, which: Iterable[int], sql: str, parameters: Any = None) -> list[Row]:
    with closing(_connect(ws, which)) as connection:
        return database.query_rows(connection, sql, parameters)


def _connect(ws: Workspace, which: Iterable[int]) -> duckdb.DuckDBPyConnection:
    """Open a connection with the views of `catalog_history.sql` over these iterations alone."""
    none = compaction.add_partition_keys(empty_table("runs"), 0, dvc_files.LAST_STAGE)
    runs = pa.concat_tables([none, *(_runs(ws, k) for k in which)])
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("given", runs)
    connection.execute("CREATE TABLE runs AS FROM given")
    database.create_file_view(
        connection, "dvc_lock", [path for k in which if (path := dvc_files.dvc_lock_path(ws, k)).exists()]
    )
    connection.execute(database.catalog_views_sql("catalog_history.sql"))
    return connection


def _runs(ws: Workspace, iteration: int) -> pa.Table:
    folder = ws.relative(ws.partition("runs", iteration, dvc_files.LAST_STAGE))
    if dvc_files.is_iteration_complete(ws, iteration) and folder not in dvc_files.read_pruned(ws, iteration):
        rows = partitions.read_partition(ws, "runs", iteration, dvc_files.LAST_STAGE)
    else:
        rows = partitions.table_from_rows("runs", run_history_rows(read_run_history(ws, iteration)))
    return compaction.add_partition_keys(rows, iteration, dvc_files.LAST_STAGE)


def _stage(ws: Workspace, iteration: int, stage: str, known: Row) -> Row:
    recorded = dvc_files.recorded_stages(ws, iteration)
    state = known.get("state")
    if stage in recorded:
        state = state if state == "Completed" else "recorded"
    elif iteration == _at_work(ws):
        left = (name for name in stage_records.stage_names(ws, iteration) if name not in recorded)
        state = "running" if stage == next(left) else state
    staged = ws.staging(iteration, stage)
    finished = len(list(staged.glob("*/*/result.json")))
    row = {"iteration": iteration, "stage": stage, "state": state or ("begun" if staged.is_dir() else "not begun")}
    row |= {name: known.get(name, 0) for name in ("tries", "failed", "shards", "retries")} | {"staged": finished}
    row["shards"] = max(row["shards"], finished)
    facts = ("first_started", "last_ended", "last_seconds", "seconds", "median_before", "ratio", "iterations_before")
    row |= {name: known.get(name) for name in (*facts, "reason")}
    if not known and stage in recorded and ws.partition("metrics", iteration, stage).is_dir():  # it ran without Prefect
        metrics = partitions.read_partition(ws, "metrics", iteration, stage).to_pylist()
        (work,) = (metric for metric in metrics if metric["name"] == "seconds")
        row |= {"seconds": work["value"], "shards": work["n"]}
    return row


def _at_work(ws: Workspace) -> int | None:
    """Return the iteration that a run is making now, or None."""
    return max(stage_records.active_iterations(ws), default=None) if run_lock.is_workspace_busy(ws) else None
