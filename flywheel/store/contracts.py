"""Data contracts in SQL: of a step's grain, and of what spans tables. A new contract is one entry in a list
below.

`ROWS` judge single trajectories: their SQL gives (trajectory_id, detail) of each one that breaks the
contract, and the router sets it aside with the reason. `TABLES` judge what is built: their SQL gives one row
an offence, and any row stops the stage. Both see the catalog's tables and views, with `$iteration` the
iteration that is judged, and `$incoming` the stages whose trajectories are routed. Limits of single columns of
`trajectories` and `scores` stand in `expectations.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from flywheel.errors import ContractBroken
from flywheel.store import catalog
from flywheel.workspace import Workspace, label


@dataclass(frozen=True)
class Contract:
    """table: the one whose rows are judged. promise: what holds, in words; it becomes the reason in
    `quarantine`.
    """

    name: str
    table: str
    promise: str
    sql: str


# What comes in, and is routed. Episodes of `evaluate` are judged by `TABLES` alone: they join no store.
_NEW = "iteration = $iteration AND list_contains($incoming, stage)"
_CTE = f"""WITH t AS (FROM trajectories WHERE {_NEW}), s AS (FROM steps WHERE {_NEW}) """

ROWS = (
    Contract(
        "steps_counted",
        "trajectories",
        "as many rows in steps as the trajectory says",
        _CTE
        + """SELECT trajectory_id, format('{} said, {} there', coalesce(t.steps, 0), coalesce(n, 0)) AS
        detail FROM t LEFT JOIN (SELECT trajectory_id, count(*) AS n FROM s GROUP BY ALL) USING (trajectory_id)
        WHERE coalesce(t.steps, 0) <> coalesce(n, 0)""",
    ),
    Contract(
        "steps_numbered",
        "steps",
        "steps are numbered without a gap or a repetition",
        _CTE
        + """SELECT trajectory_id, format('{} steps from {} to {}', count(*), min(step), max(step)) AS
        detail FROM s GROUP BY trajectory_id
        HAVING max(step) - min(step) + 1 <> count(*) OR count(DISTINCT step) <> count(*)""",
    ),
    Contract(
        "logprobs_match",
        "steps",
        "a log-probability, 0 or less, for each sampled token",
        _CTE
        + """SELECT trajectory_id, format('step {}: {} tokens, {} log-probabilities, largest {:.3g}', step,
            coalesce(len(token_ids), 0), coalesce(len(logprobs), 0), list_max(logprobs)) AS detail
        FROM s WHERE author = 'model' AND (coalesce(len(token_ids), 0) <> coalesce(len(logprobs), 0)
            OR list_max(logprobs) > 0.001 OR list_bool_or(list_transform(logprobs, lambda v: isnan(v))))""",
    ),
    Contract(
        "image_there",
        "steps",
        "what each step's action was chosen on is there: a text, or a screen that lies in images",
        _CTE
        + """SELECT trajectory_id, format('step {}: {}', step, image_sha256) AS detail
        FROM s WHERE (image_sha256 IS NOT NULL AND image_sha256 NOT IN (SELECT sha256 FROM images))
            OR (image_sha256 IS NULL AND observation IS NULL)""",
    ),
    Contract(
        "points_on_screen",
        "steps",
        "points of actions lie on the screen",
        _CTE
        + """SELECT trajectory_id, format('step {}: {}', step, action) AS detail
        FROM s WHERE NOT (coalesce(x, 0) BETWEEN 0 AND 1 AND coalesce(y, 0) BETWEEN 0 AND 1
            AND coalesce(x2, 0) BETWEEN 0 AND 1 AND coalesce(y2, 0) BETWEEN 0 AND 1)""",
    ),
    Contract(
        "steps_in_order",
        "steps",
        "a step ends after it begins, and no step begins before the one before it",
        _CTE
        + """SELECT trajectory_id, format('step {}', step) AS detail FROM (
            SELECT *, lag(started_at) OVER (PARTITION BY trajectory_id ORDER BY step) AS previous FROM s)
        WHERE ended_at < started_at OR started_at < previous""",
    ),
    Contract(
        "task_known",
        "trajectories",
        "the task is in tasks",
        _CTE
        + """SELECT trajectory_id, task_id AS detail FROM t
        WHERE task_id NOT IN (SELECT task_id FROM tasks)""",
    ),
)

TABLES = (
    Contract(
        "unique_trajectories",
        "trajectories",
        "a trajectory_id names one trajectory, over all iterations",
        """SELECT trajectory_id, list(DISTINCT iteration) AS iterations FROM trajectories WHERE iteration <=
        $iteration GROUP BY trajectory_id HAVING count(*) > 1 AND max(iteration) = $iteration""",
    ),
    Contract(
        "unique_images",
        "images",
        "a partition holds a screen once",
        """SELECT stage, sha256 FROM images WHERE iteration = $iteration
        GROUP BY stage, sha256 HAVING count(*) > 1""",
    ),
    Contract(
        "no_orphan_step",
        "steps",
        "each step belongs to a trajectory of the same stage",
        """SELECT s.stage, s.trajectory_id, s.step FROM steps s ANTI JOIN trajectories t
            ON t.trajectory_id = s.trajectory_id AND t.stage = s.stage AND t.iteration = s.iteration
        WHERE s.iteration = $iteration""",
    ),
    Contract(
        "no_orphan_thought",
        "thoughts",
        "each thought belongs to a trajectory",
        """SELECT trajectory_id, utterance FROM thoughts WHERE iteration = $iteration
        AND trajectory_id NOT IN (SELECT trajectory_id FROM trajectories WHERE iteration = $iteration)""",
    ),
    Contract(
        "no_orphan_score",
        "scores",
        "each score belongs to a trajectory",
        """SELECT trajectory_id, scorer FROM scores WHERE iteration = $iteration
        AND trajectory_id NOT IN (SELECT trajectory_id FROM trajectories WHERE iteration = $iteration)""",
    ),
    Contract(
        "one_route",
        "routes",
        "each trajectory that came in has one destination, and no other has one",
        f"""SELECT coalesce(t.trajectory_id, r.trajectory_id) AS trajectory_id, coalesce(r.n, 0) AS routes
        FROM (SELECT trajectory_id FROM trajectories WHERE {_NEW}) t FULL JOIN
            (SELECT trajectory_id, count(*) AS n FROM routes WHERE iteration = $iteration GROUP BY ALL) r
            USING (trajectory_id)
        WHERE t.trajectory_id IS NULL OR r.n IS DISTINCT FROM 1""",
    ),
    Contract(
        "stores_follow_routes",
        "routes",
        "a trajectory lies in the store that it was routed to, and nowhere else",
        """SELECT trajectory_id, store, destination FROM (
            SELECT trajectory_id, 'sft' AS store FROM sft WHERE iteration = $iteration
            UNION ALL SELECT trajectory_id, 'ct' FROM ct WHERE iteration = $iteration
            UNION ALL SELECT trajectory_id, 'quarantine' FROM quarantine WHERE iteration = $iteration)
        FULL JOIN (FROM routes WHERE iteration = $iteration) USING (trajectory_id)
        WHERE store IS DISTINCT FROM destination""",
    ),
    Contract(
        "ct_sft_disjoint",
        "sft",
        "no trajectory is in both the CT and the SFT store, over all iterations",
        """SELECT trajectory_id FROM sft WHERE iteration <= $iteration
        INTERSECT SELECT trajectory_id FROM ct WHERE iteration <= $iteration""",
    ),
    Contract(
        "no_evaluation_task",
        "sft",
        "no task held out for evaluation is trained on",
        """SELECT store, trajectory_id, task_id FROM (
            SELECT 'sft' AS store, trajectory_id, task_id FROM sft WHERE iteration <= $iteration
            UNION ALL SELECT 'ct', trajectory_id, task_id FROM ct WHERE iteration <= $iteration
            UNION ALL SELECT checkpoint, trajectory_id, task_id FROM trained_on JOIN trajectories
                USING (trajectory_id) WHERE iteration <= $iteration)
        WHERE task_id IN (SELECT task_id FROM tasks WHERE split = 'eval')""",
    ),
    Contract(
        "conservation",
        "routes",
        "what came in = SFT + CT + quarantine",
        """SELECT iteration, trajectories + recordings AS came_in, to_sft, to_ct, to_quarantine FROM
        iterations WHERE iteration = $iteration AND NOT conserved""",
    ),
)


def check_rows(connection: duckdb.DuckDBPyConnection, iteration: int, incoming: Sequence[str]) -> dict[str, str]:
    """trajectory_id -> reason, of the trajectories of the stages `incoming` that break a row-level contract.

    connection: from `catalog.connect`. The first contract broken, in the order of `ROWS`, gives the reason.
    """
    broken: dict[str, str] = {}
    for contract in ROWS:
        for row in catalog.rows(connection, contract.sql, _asked(contract, iteration, incoming)):
            reason = f"{contract.name}: {contract.promise} ({row['detail']})"
            broken.setdefault(row["trajectory_id"], reason)
    return broken


def check_tables(ws: Workspace, iteration: int, incoming: Sequence[str]) -> None:
    """Raises ContractBroken, naming contract, table and partition, for the first table-level contract
    broken.
    """
    with catalog.connect(ws) as connection:
        for contract in TABLES:
            offences = catalog.rows(connection, contract.sql, _asked(contract, iteration, incoming))
            if offences:
                first = ", ".join(f"{name} {value}" for name, value in offences[0].items())
                raise ContractBroken(
                    f"contract {contract.name} is broken ({contract.promise}): {len(offences)} rows, first {first}",
                    where=f"data/{contract.table}/iteration={label(iteration)}",
                    fix="look at these rows with `flywheel query`, then run the stage that wrote them again",
                )


def _asked(contract: Contract, iteration: int, incoming: Sequence[str]) -> dict[str, object]:
    """The values of the contract's parameters; DuckDB refuses one that the SQL has no place for."""
    values = {"iteration": iteration, "incoming": list(incoming)}
    return {name: value for name, value in values.items() if f"${name}" in contract.sql}
