"""Route every trajectory to exactly one store (section 2.3): V = 1 to SFT, the rest to CT; nothing is thrown away.

SQL over tables of any size. What V is says `reward.verdict`; here stands the same rule for a whole table of scores, and
a test holds the two against each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from flywheel.store import lineage
from flywheel.store.decisions import Said

DESTINATIONS = ("sft", "ct", "quarantine")

# Rows are numbered where an aggregate would hold one of each trajectory: of texts DuckDB holds these in memory.
# Of several scorers the one that is satisfied least speaks: V = 0 before none before V = 1, then the lowest score.
_VERDICTS = """
SELECT trajectory_id, said FROM (
    SELECT trajectory_id, {
        'score': score, 'v': v, 'scorer': coalesce(scorer, ''), 'detail': coalesce(detail, ''),
        'place': CASE v WHEN false THEN 0 WHEN true THEN 2 ELSE 1 END, 'held': CASE WHEN v IS NULL THEN 0 ELSE score END
    } AS said
    FROM (SELECT * EXCLUDE (v), CASE WHEN score BETWEEN 0 AND 1 THEN score >= threshold END AS v FROM judgements))
QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY said.place, said.held, said.scorer, said.detail) = 1
"""

# `unjudged`: why there is no V; what differs from trajectory to trajectory in brackets.
_DECIDED = f"""
CREATE OR REPLACE TEMP TABLE decided AS
WITH verdicts AS ({_VERDICTS}), known AS (
    SELECT t.*, b.reason AS broken, p.solved, p.reviewer, s.said.v AS v,
        CASE WHEN v IS NOT NULL THEN s.said.score END AS score,
        CASE WHEN s.said IS NULL THEN 'no score' WHEN s.said.detail = '' THEN 'score is not a number'
            ELSE 'no score' || CASE WHEN s.said.scorer <> '' THEN ' by ' || s.said.scorer ELSE '' END
                || ' (' || s.said.detail || ')' END AS unjudged
    FROM (SELECT trajectory_id, status, source, error FROM incoming
            QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY status, source, error) = 1) t
        LEFT JOIN verdicts s USING (trajectory_id) LEFT JOIN broken b USING (trajectory_id)
        LEFT JOIN people p USING (trajectory_id)
)
SELECT trajectory_id, decision.destination, decision.reason, score, v FROM (
    SELECT trajectory_id, score, v, CASE
        WHEN broken IS NOT NULL THEN {{'destination': 'quarantine', 'reason': 'contract: ' || broken}}
        WHEN status IS NULL OR status NOT IN ('completed', 'truncated') THEN {{'destination': 'quarantine',
            'reason': 'status ' || coalesce(status, 'none') || CASE WHEN error <> '' THEN ': ' || error ELSE '' END}}
        WHEN source IN ('recording', 'import') THEN
            {{'destination': 'ct', 'reason': 'human demonstration: continual training'}}
        WHEN solved THEN {{'destination': 'sft', 'reason': 'solved, as a person says (' || reviewer || ')'}}
        WHEN NOT solved THEN {{'destination': 'ct', 'reason': 'not solved, as a person says (' || reviewer || ')'}}
        WHEN v IS NULL THEN {{'destination': 'quarantine', 'reason': unjudged}}
        WHEN score >= $low AND score < $high THEN {{'destination': 'quarantine',
            'reason': format('doubted: score {{:.2f}} is in [$low, $high)', score)}}
        WHEN v THEN {{'destination': 'sft', 'reason': format('verified: score {{:.2f}}', score)}}
        WHEN NOT $verified_only THEN
            {{'destination': 'sft', 'reason': format('not verified, and not asked to be: score {{:.2f}}', score)}}
        ELSE {{'destination': 'ct', 'reason': format('not verified: score {{:.2f}}', score)}}
    END AS decision FROM known)
"""


def decide(
    connection: duckdb.DuckDBPyConnection,
    *,
    verified_only: bool = True,
    band: tuple[float, float] | None = None,
    people: Mapping[str, Said] | None = None,
) -> None:
    """Make the temporary table `decided`, with the columns of `routes`, one row for each trajectory of `incoming`.

    connection: with the tables or views `incoming` (rows of `trajectories`), `judgements` (rows of `scores`, one or
    several a trajectory, each with its threshold) and `broken` (trajectory_id, reason: of the row contracts).
    verified_only: False where SFT takes what failed too, as `sft.verified_only`. Demonstrations of people go to CT:
    they are data for continual training (section 2.4), not the newest model's. band: scores from its low end on and
    below its high end are doubted. people: what they say of single trajectories goes before what scorers say; V
    stays the scorers', so that both can be held against each other.
    """
    said = people or {}
    columns = {
        "trajectory_id": pa.array(said, pa.string()),
        "solved": pa.array([one.solved for one in said.values()], pa.bool_()),
        "reviewer": pa.array([one.reviewer for one in said.values()], pa.string()),
    }
    connection.register("people", pa.table(columns))
    low, high = band or (0.0, 0.0)
    sql = _DECIDED.replace("$verified_only", str(verified_only).lower())
    connection.execute(sql.replace("$low", f"{low:g}").replace("$high", f"{high:g}"))
    connection.unregister("people")


def stores(iteration: int, version: int = 0) -> dict[str, str]:
    """table -> SQL of its rows, in the table's order, once it is `decided`, and the near-duplicates have `weights`
    (trajectory_id, weight); `quarantine` is made by `set_aside`."""
    joined = """SELECT trajectory_id, task_id, domain, source, d.score, steps, policy_version,
            coalesce(weight, 1.0) AS weight
        FROM incoming JOIN decided d USING (trajectory_id) LEFT JOIN weights USING (trajectory_id)
        WHERE destination = '{}' ORDER BY trajectory_id"""
    return {
        "routes": "SELECT trajectory_id, destination, reason, score, v FROM decided ORDER BY trajectory_id",
        "sft": joined.format("sft"),
        "ct": joined.format("ct"),
        "lineage": lineage.routed(iteration, version),
    }


SET_ASIDE = """SELECT i.*, d.reason FROM incoming i JOIN decided d USING (trajectory_id)
WHERE destination = 'quarantine' ORDER BY trajectory_id"""


def set_aside(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of `quarantine` for rows of `SET_ASIDE`. A trajectory keeps its whole row as JSON in `record`, so that it
    can be mended and routed again."""
    for row in rows:
        record = {name: value for name, value in row.items() if name not in ("reason", "iteration", "stage")}
        yield {
            "trajectory_id": row["trajectory_id"],
            "reason": row["reason"],
            "detail": row["error"] or "",
            "record": json.dumps(record, default=_json, sort_keys=True, ensure_ascii=False),
            "of_table": "trajectories",
        }


def _json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
