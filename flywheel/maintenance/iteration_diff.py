"""Compare two iterations: rows, distributions, metrics, and tasks solved in one of them alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from flywheel.config.workspace import Workspace
from flywheel.evaluation import gate
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import DataError

Row = dict[str, Any]
_COUNTS = "count(*) FILTER (WHERE iteration = $a) AS before, count(*) FILTER (WHERE iteration = $b) AS after"
_ROWS = f"""SELECT {{}} AS place, '{{}}' AS "table", stage, {_COUNTS} FROM {{}} WHERE iteration IN ($a, $b)
    GROUP BY stage"""
# Columns by which routed trajectories are counted: name -> SQL of the value.
_KINDS = {"status": "t.status", "domain": "t.domain", "source": "t.source", "destination": "r.destination"}
_NUMBERS = {"steps": "t.steps", "score": "r.score", "reward": "t.reward"}
_ROUTED = "trajectories t JOIN routes r USING (trajectory_id, iteration) WHERE iteration IN ($a, $b)"
_KIND = f"SELECT '{{}}' AS name, {{}} AS value, {_COUNTS} FROM {_ROUTED} GROUP BY value"
# By iteration: how many have one, the mean, and the quantiles 0, 0.1, 0.5, 0.9, 1.
_NUMBER = f"""SELECT '{{0}}' AS name, iteration, count({{1}}) AS n, avg({{1}}) AS mean,
    quantile_disc({{1}}, [0, 0.1, 0.5, 0.9, 1]) AS quantiles FROM {_ROUTED} GROUP BY iteration"""
# The last point of each; of those that both have, with the difference.
_METRICS = """WITH last AS (SELECT iteration, stage, domain, name, arg_max(value, step) AS value FROM metrics
        WHERE iteration IN ($a, $b) GROUP BY ALL)
    SELECT stage, name, domain, x.value AS before, y.value AS after, y.value - x.value AS difference
    FROM (FROM last WHERE iteration = $a) x FULL JOIN (FROM last WHERE iteration = $b) y
        USING (stage, name, domain) ORDER BY ALL"""
# Training templates and levels that both played, of which one solved some and the other none.
_TEMPLATES = """WITH played AS (
        SELECT iteration, world, template, level, count(*) AS n, count(*) FILTER (WHERE success) AS solved
        FROM (SELECT r.iteration, t.world, t.level, t.task_id, r.success FROM routes r
                JOIN trajectories t USING (trajectory_id, iteration)
            WHERE r.iteration IN ($a, $b) AND t.stage = 'rollout' AND r.success IS NOT NULL)
            JOIN (SELECT task_id, any_value(template) AS template FROM tasks
                WHERE iteration IN ($a, $b) GROUP BY ALL) USING (task_id)
        GROUP BY ALL)
    SELECT world, template, level, x.solved / x.n AS before, y.solved / y.n AS after
    FROM (FROM played WHERE iteration = $a) x JOIN (FROM played WHERE iteration = $b) y
        USING (world, template, level)
    WHERE (x.solved = 0) <> (y.solved = 0) ORDER BY ALL"""


def compare_iterations(ws: Workspace, before: int, after: int) -> dict[str, Any]:
    """Compare the iterations numbered `before` and `after`.

    Returns these numbers by their names, and lists of rows: `rows` (counts by table and stage), `kinds` (counts) and
    `numbers` (mean, quantiles) of the routed trajectories, `metrics` (single figures), `held_out` and `templates`
    (tasks gained and lost). Raises BadInput for an iteration that has not been begun.
    """
    stage_records.check_iterations_begun(ws, (before, after))
    rows = " UNION ALL ".join(_ROWS.format(place, table, table) for place, table in enumerate(TABLES))
    kinds, numbers = (
        " UNION ALL ".join(sql.format(*one) for one in columns.items())
        for sql, columns in ((_KIND, _KINDS), (_NUMBER, _NUMBERS))
    )
    with database.connect_catalog(ws) as connection:
        query = partial(database.query_rows, connection, parameters={"a": before, "b": after})
        templates = query(_TEMPLATES)
        return {
            "before": before,
            "after": after,
            "rows": query(f"SELECT * EXCLUDE (place) FROM ({rows}) ORDER BY place, stage"),
            "kinds": query(f"{kinds} ORDER BY name, value"),
            "numbers": query(f"{numbers} ORDER BY name, iteration"),
            "metrics": query(_METRICS),
            "held_out": _held_out(ws, before, after),
            "templates": {
                "gained": [row for row in templates if row["after"]],
                "lost": [row for row in templates if row["before"]],
            },
        }


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
