"""Holds an iteration's rows and stores against the data contracts (`contracts.py`).

A row that breaks a contract is set aside with the contract's name, its promise and what was found; the iteration goes
on, unless too many do. What spans tables and is this program's own work (`contracts.TABLES`) stops it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import duckdb

from flywheel.errors import ContractBroken
from flywheel.store import catalog, contracts
from flywheel.store.contracts import BELONGS, ORDER, SCORE, STEP, TRAJECTORY, RowContract
from flywheel.workspace import Workspace, label


@dataclass(frozen=True)
class Judged:
    """What a contract found: of so many rows so many broke it."""

    contract: RowContract
    rows: int
    broken: int


def judge(
    connection: duckdb.DuckDBPyConnection, iteration: int, incoming: Sequence[str], kept: Collection[str] = ()
) -> list[Judged]:
    """Hold the rows of an iteration against all row contracts, in two passes over its steps.

    connection: from `catalog.connect`. kept: names of contracts of steps that are known to hold (`kept.py`): what they
    alone look at is not read. Leaves four temporary tables: `judged`, one row a trajectory of the stages
    `incoming`; `judgements`, their scores; `broken` (trajectory_id, reason), of the first contract that each breaks;
    `orphans` (of_table, trajectory_id, reason, detail), what belongs to none of them.
    """
    stages = ", ".join(f"'{stage}'" for stage in incoming)
    new, scored = f"iteration = {iteration} AND stage IN ({stages})", f"iteration = {iteration} AND stage = 'score'"
    asked = [one for one in STEP if one.name not in kept]
    connection.execute(_WALKED.format(new=new, fault=_any(ORDER)))
    connection.execute(_JUDGED.format(
        new=new,
        iteration=iteration,
        step=_cases(asked),
        step_fault=_any(asked),
        order=_cases(ORDER),
        first_steps=_first(asked),
        first_order=_first(ORDER),
        held="".join(f", NULL::VARCHAR AS {one.name}" for one in STEP if one.name in kept),
    ))  # fmt: skip
    # A table of its own: of a Parquet file DuckDB believes the least and the greatest value, which leave out NaN.
    connection.execute(f"CREATE TEMP TABLE judgements AS FROM scores WHERE {scored}")
    connection.execute(
        "CREATE TEMP TABLE faults (place INTEGER, trajectory_id VARCHAR, promise VARCHAR, detail VARCHAR)"
    )
    found = []
    for rows, held in (("judged", TRAJECTORY), ("judgements", SCORE)):
        total = connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
        for contract in held:
            promise = f"{contract.name}: {contract.promise}"
            (broken,) = connection.execute(
                f"INSERT INTO faults SELECT {len(found)}, trajectory_id, ?, {contract.detail} FROM {rows} "
                f"WHERE {contract.fault}",
                [promise],
            ).fetchone()
            found.append(Judged(contract, total, broken))
    connection.execute(
        """CREATE TEMP TABLE broken AS SELECT trajectory_id, arg_min(
            promise || CASE WHEN detail <> '' THEN ' (' || detail || ')' ELSE '' END, place) AS reason
        FROM faults GROUP BY trajectory_id"""
    )
    return [*found, *_orphans(connection, new, scored)]


def broken_scores() -> str:
    """SQL of the rows (trajectory_id, reason) of `judgements` that break a contract, as `judge` tells them."""
    return " UNION ALL ".join(
        f"""SELECT trajectory_id, '{one.name}: {one.promise}' || CASE WHEN {one.detail} <> '' THEN ' (' || {one.detail}
            || ')' ELSE '' END AS reason FROM judgements WHERE {one.fault}"""
        for one in SCORE
    )


def _cases(contracts: Sequence[RowContract]) -> str:
    return ", ".join(f"CASE WHEN {one.fault} THEN coalesce({one.detail}, '') END AS {one.name}" for one in contracts)


def _any(contracts: Sequence[RowContract]) -> str:
    return " OR ".join(f"({one.fault})" for one in contracts)


def _first(contracts: Sequence[RowContract]) -> str:
    return ", ".join(f"arg_min({one.name}, step) AS {one.name}" for one in contracts)


# Steps as they lie in the files, each beside the one before it: where a trajectory's lie together and none is at odds
# with the one before it, they are in order. The others are doubted, and put in order to be judged.
_WALKED = """
CREATE TEMP TABLE walked AS
SELECT trajectory_id, count(*) AS rows, count(*) FILTER (begins) > 1 OR coalesce(bool_or({fault}), false) AS doubted
FROM (SELECT * EXCLUDE (before_step, before_start), trajectory_id IS DISTINCT FROM before AS begins,
        CASE WHEN trajectory_id = before THEN before_step END AS previous_step,
        CASE WHEN trajectory_id = before THEN before_start END AS previous_start
    FROM (SELECT trajectory_id, step, started_at, ended_at, lag(trajectory_id) OVER () AS before,
            lag(step) OVER () AS before_step, lag(started_at) OVER () AS before_start
        FROM steps WHERE {new}))
GROUP BY trajectory_id
"""

_JUDGED = """
CREATE TEMP TABLE judged AS
WITH whole AS (SELECT DISTINCT i.sha256 FROM images i WHERE {new} AND sha256(i.bytes) = i.sha256),
offences AS (SELECT trajectory_id, {first_steps} FROM (
    SELECT trajectory_id, step, {step}
    FROM (SELECT s.*, whole.sha256 IS NOT NULL AS there FROM (FROM steps WHERE {new}) s
        LEFT JOIN whole ON whole.sha256 = s.image_sha256)
    WHERE {step_fault}) GROUP BY trajectory_id
), disorder AS (SELECT trajectory_id, {first_order} FROM (
    SELECT trajectory_id, step, {order} FROM (
        SELECT trajectory_id, step, started_at, ended_at, lag(step) OVER own AS previous_step,
            lag(started_at) OVER own AS previous_start
        FROM (FROM steps WHERE {new}) SEMI JOIN (FROM walked WHERE doubted) USING (trajectory_id)
        WINDOW own AS (PARTITION BY trajectory_id ORDER BY step))) GROUP BY trajectory_id
), known AS (SELECT task_id, bool_or(split = 'eval') AS held_out FROM tasks GROUP BY task_id),
earlier AS (
    SELECT trajectory_id, max(iteration) AS before FROM trajectories WHERE iteration < {iteration} GROUP BY ALL),
own AS (FROM trajectories WHERE {new}),
several AS (SELECT trajectory_id, count(*) AS same FROM own GROUP BY trajectory_id HAVING count(*) > 1)
SELECT t.trajectory_id, t.task_id, t.status, t.source, t.author, t.domain, t.steps, t.reward, t.started_at, t.ended_at,
    coalesce(several.same, 1) AS same, earlier.before, known.held_out, walked.rows,
    disorder.* EXCLUDE (trajectory_id), offences.* EXCLUDE (trajectory_id){held}
FROM own t LEFT JOIN walked USING (trajectory_id) LEFT JOIN disorder USING (trajectory_id)
    LEFT JOIN offences USING (trajectory_id) LEFT JOIN several USING (trajectory_id) LEFT JOIN known USING (task_id)
    LEFT JOIN earlier USING (trajectory_id)
"""


def _orphans(connection: duckdb.DuckDBPyConnection, new: str, scored: str) -> list[Judged]:
    connection.execute(
        "CREATE TEMP TABLE orphans (of_table VARCHAR, trajectory_id VARCHAR, reason VARCHAR, detail VARCHAR)"
    )
    found = []
    for table, name in BELONGS:
        contract = RowContract(f"no_orphan_{name}", table, f"each {name} belongs to a trajectory that came in", "")
        where = scored if table == "scores" else new
        reason = f"contract: {contract.name}: {contract.promise}"
        connection.execute(
            f"INSERT INTO orphans SELECT ?, trajectory_id, ?, format('{{}} rows', count(*)) FROM {table} "
            f"ANTI JOIN judged USING (trajectory_id) WHERE {where} GROUP BY trajectory_id",
            [table, reason],
        )
        rows, broken = connection.execute(
            f"SELECT (SELECT count(*) FROM {table} WHERE {where}), (SELECT count(*) FROM orphans WHERE of_table = ?)",
            [table],
        ).fetchone()
        found.append(Judged(contract, rows, broken))
    return found


def check_tables(ws: Workspace, iteration: int, incoming: Sequence[str], staged: Workspace | None = None) -> None:
    """Hold the stores against the contracts that span tables. staged: where the iteration's new partitions lie, before
    they are seen. Raises ContractBroken, naming contract, table and partition, for the first that is broken.
    """
    with catalog.connect(ws, staged) as connection:
        for contract in contracts.TABLES:
            values = {"iteration": iteration, "incoming": list(incoming)}  # DuckDB refuses one that has no place
            asked = {name: value for name, value in values.items() if f"${name}" in contract.sql}
            offences = catalog.rows(connection, contract.sql, asked)
            if offences:
                first = ", ".join(f"{name} {value}" for name, value in offences[0].items())
                raise ContractBroken(
                    f"contract {contract.name} is broken ({contract.promise}): {len(offences)} rows, first {first}",
                    where=f"data/{contract.table}/iteration={label(iteration)}",
                    fix="look at these rows with `flywheel query`, then run the stage that wrote them again",
                )
