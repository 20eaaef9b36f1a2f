"""Compare two iterations: rows, distributions, metrics, and tasks solved in one of them alone."""

from __future__ import annotations

from typing import Any

import duckdb

from flywheel.config.workspace import Workspace
from flywheel.evaluation import gate
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import DataError

Row = dict[str, Any]

# Columns by which routed trajectories are counted: name -> SQL of the value.
_KINDS = {"status": "t.status", "domain": "t.domain", "source": "t.source", "destination": "r.destination"}
_NUMBERS = {"steps": "t.steps", "score": "r.score", "reward": "t.reward"}
_ROUTED = "trajectories t JOIN routes r USING (trajectory_id, iteration) WHERE iteration IN ({a}, {b})"


def compare_iterations(ws: Workspace, before: int, after: int) -> dict[str, Any]:
    """Compare the iterations numbered `before` and `after`.

    Returns these numbers by their names, and lists of rows: `rows` (counts by table and stage), `kinds` (counts) and
    `numbers` (mean, quantiles) of the routed trajectories, `metrics` (single figures), `held_out` and `templates`
    (tasks gained and lost). Raises BadInput for an iteration that has not been begun.
    """
    stage_records.check_iterations_begun(ws, (before, after))
    with database.connect_catalog(ws) as connection:
        at = {"a": before, "b": after}
        return {
            "before": before,
            "after": after,
            "rows": _rows(connection, at),
            "kinds": _kinds(connection, at),
            "numbers": _numbers(connection, at),
            "metrics": _metrics(connection, at),
            "held_out": _held_out(ws, before, after),
            "templates": _templates(connection, at),
        }


def _rows(connection: duckdb.DuckDBPyConnection, at: dict[str, int]) -> list[Row]:
    counts = " UNION ALL ".join(
        f"""SELECT {place} AS place, '{table}' AS "table", stage,
            count(*) FILTER (WHERE iteration = {at["a"]}) AS before,
            count(*) FILTER (WHERE iteration = {at["b"]}) AS after
        FROM {table} WHERE iteration IN ({at["a"]}, {at["b"]}) GROUP BY stage"""
        for place, table in enumerate(TABLES)
    )
    return database.query_rows(connection, f"SELECT * EXCLUDE (place) FROM ({counts}) ORDER BY place, stage")


def _kinds(connection: duckdb.DuckDBPyConnection, at: dict[str, int]) -> list[Row]:
    counts = " UNION ALL ".join(
        f"""SELECT '{name}' AS name, {value} AS value, count(*) FILTER (WHERE iteration = {at["a"]}) AS before,
            count(*) FILTER (WHERE iteration = {at["b"]}) AS after FROM {_ROUTED.format(**at)} GROUP BY value"""
        for name, value in _KINDS.items()
    )
    return database.query_rows(connection, f"{counts} ORDER BY name, value")


def _numbers(connection: duckdb.DuckDBPyConnection, at: dict[str, int]) -> list[Row]:
    """Summarise by iteration: how many have one, the mean, and the quantiles 0, 0.1, 0.5, 0.9, 1."""
    summaries = " UNION ALL ".join(
        f"""SELECT '{name}' AS name, iteration, count({value}) AS n, avg({value}) AS mean,
            quantile_disc({value}, [0, 0.1, 0.5, 0.9, 1]) AS quantiles FROM {_ROUTED.format(**at)} GROUP BY iteration"""
        for name, value in _NUMBERS.items()
    )
    return database.query_rows(connection, f"{summaries} ORDER BY name, iteration")


def _metrics(connection: duckdb.DuckDBPyConnection, at: dict[str, int]) -> list[Row]:
    """Compare the last point of each; of those that both have, with the difference."""
    return database.query_rows(
        connection,
        f"""WITH last AS (SELECT iteration, stage, domain, name, arg_max(value, step) AS value FROM metrics
            WHERE iteration IN ({at["a"]}, {at["b"]}) GROUP BY ALL)
        SELECT stage, name, domain, x.value AS before, y.value AS after, y.value - x.value AS difference
        FROM (FROM last WHERE iteration = {at["a"]}) x FULL JOIN (FROM last WHERE iteration = {at["b"]}) y
            USING (stage, name, domain) ORDER BY ALL""",
    )


def _held_out(ws: Workspace, before: int, after: int) -> dict[str, Any]:
    """Held-out tasks that the newest model after each iteration solves and the other one does not. A task counts as
    solved where more than half of its episodes were."""
    solved, models = [], []
    for k in (before, after):
        try:
            models.append(manifest.read_promotion(ws, k)["digest"])
            outcome = gate.read_outcomes(ws, k).get(models[-1])
        except DataError:  # not evaluated yet
            outcome = None
        if outcome is None:
            return {"known": False, "gained": [], "lost": [], "both": 0, "tasks": 0}
        solved.append(outcome)
    like = solved[0].keys() & solved[1].keys()
    won = [{task for task in like if one[task] > 0.5} for one in solved]
    return {
        "known": True,
        "gained": sorted(won[1] - won[0]),
        "lost": sorted(won[0] - won[1]),
        "both": len(won[0] & won[1]),
        "tasks": len(like),
    }


def _templates(connection: duckdb.DuckDBPyConnection, at: dict[str, int]) -> dict[str, list[Row]]:
    """Training templates and levels that both played, of which one solved some and the other none."""
    rows = database.query_rows(
        connection,
        f"""WITH played AS (
            SELECT iteration, world, template, level, count(*) AS n, count(*) FILTER (WHERE success) AS solved
            FROM (SELECT r.iteration, t.world, t.level, t.task_id, r.success FROM routes r
                    JOIN trajectories t USING (trajectory_id, iteration)
                WHERE r.iteration IN ({at["a"]}, {at["b"]}) AND t.stage = 'rollout' AND r.success IS NOT NULL)
                JOIN (SELECT task_id, any_value(template) AS template FROM tasks
                    WHERE iteration IN ({at["a"]}, {at["b"]}) GROUP BY ALL) USING (task_id)
            GROUP BY ALL)
        SELECT world, template, level, x.solved / x.n AS before, y.solved / y.n AS after
        FROM (FROM played WHERE iteration = {at["a"]}) x JOIN (FROM played WHERE iteration = {at["b"]}) y
            USING (world, template, level)
        WHERE (x.solved = 0) <> (y.solved = 0) ORDER BY ALL""",
    )
    return {"gained": [row for row in rows if row["after"]], "lost": [row for row in rows if row["before"]]}
