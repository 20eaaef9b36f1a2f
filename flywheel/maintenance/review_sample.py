"""Draw the trajectories that people review before an iteration trains.

The draw follows from what is on disk and the seed: whoever asks, and however often, is given the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb

from flywheel.config import Settings
from flywheel.store.catalog import database

EVEN, DOUBTFUL = "even", "doubtful"
Row = dict[str, Any]

# Of the model's own trajectories, those that V decides, or that it leaves open; not what is broken. By md5, since
# DuckDB's own hash may be another one in its next version.
_CANDIDATES = """
CREATE OR REPLACE TEMP TABLE candidates AS
WITH judged AS (
    SELECT trajectory_id, count(DISTINCT v) > 1 OR count(v) < count(*) OR bool_or(
        score < 1 AND abs(score - threshold) <= $near) AS doubtful
    FROM scores WHERE iteration = $iteration AND stage = 'score' GROUP BY ALL)
SELECT t.trajectory_id, t.domain, t.world, t.instruction, r.destination, r.reason, r.score, r.v,
    j.doubtful OR r.v IS NULL AS doubtful, md5($seed || t.trajectory_id) AS key
FROM routes r JOIN trajectories t USING (iteration, trajectory_id) JOIN judged j USING (trajectory_id)
WHERE r.iteration = $iteration AND t.stage = 'rollout'
    AND NOT regexp_matches(r.reason, '^(contract: |status )')
"""
# In turns: one of each domain and store, then the next of each.
_IN_TURNS = """
SELECT * EXCLUDE (key, doubtful, turn) FROM (
    SELECT *, row_number() OVER (PARTITION BY domain, destination ORDER BY key) AS turn FROM candidates WHERE {which})
ORDER BY turn, key LIMIT $size
"""


def draw_review_sample(connection: duckdb.DuckDBPyConnection, iteration: int, settings: Settings) -> list[Row]:
    """Rows of `trajectory_id`, `domain`, `world`, `instruction`, `destination`, `reason`, `score`, `v` and `drawn`, at
    most `routing.review`, of an iteration that is routed. Those drawn evenly come first."""
    rule = settings.routing
    seed = f"{settings.seed}|{iteration}|"
    connection.execute(_CANDIDATES, {"iteration": iteration, "near": rule.review_near, "seed": seed})
    evenly, doubtful = (
        database.query_rows(connection, _IN_TURNS.format(which=which), {"size": rule.review})
        for which in ("true", "doubtful")
    )
    wanted = min(round(rule.review * rule.review_doubtful), len(doubtful))
    chosen = {row["trajectory_id"]: row | {"drawn": EVEN} for row in evenly[: rule.review - wanted]}
    for rows, drawn in ((doubtful, DOUBTFUL), (evenly, EVEN)):
        for row in rows[: rule.review]:
            if len(chosen) < rule.review:
                chosen.setdefault(row["trajectory_id"], row | {"drawn": drawn})
    return list(chosen.values())


def read_scorer_verdicts(
    connection: duckdb.DuckDBPyConnection, iteration: int, which: Iterable[str]
) -> dict[str, list[Row]]:
    """trajectory_id -> what each scorer says of it: `scorer`, `score`, `threshold`, `v`, `detail`."""
    said = database.query_rows(
        connection,
        """SELECT trajectory_id, scorer, score, threshold, v, detail FROM scores
        WHERE iteration = $iteration AND stage = 'score' AND list_contains($which, trajectory_id)
        ORDER BY trajectory_id, scorer""",
        {"iteration": iteration, "which": list(which)},
    )
    found: dict[str, list[Row]] = {}
    for row in said:
        found.setdefault(row.pop("trajectory_id"), []).append(row)
    return found
