"""Check an iteration's tables against the data contracts of `contracts.yaml`, and show the results on a page.

`route` checks an iteration's rows and stores, `promote` and rerouting check the stores again.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import yaml

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.catalog import database
from flywheel.utils.errors import ContractBroken, DiskFull
from flywheel.utils.files import write_json, write_text


@dataclass(frozen=True)
class RowContract:
    """Hold a promise about single rows, and the SQL that finds rows that break it.

    name: in results. promise: what holds, in words. fault: SQL, true for a row that breaks it. detail: SQL, what was
    found in that row. table: whose rows are checked.
    """

    name: str
    promise: str
    fault: str
    detail: str = "''"
    table: str = "steps"


@dataclass(frozen=True)
class TableContract:
    """Hold a promise that spans tables, and the SQL that finds what breaks it.

    name: in errors. table: whose rows the stage wrote. promise: what holds, in words. sql: returns one row per
    violation. It sees the catalogue's tables and views, `$iteration`, the one to check, and `$incoming`, the stages
    whose trajectories are routed.
    """

    name: str
    table: str
    promise: str
    sql: str


_DECLARED = yaml.safe_load(resources.files("flywheel.store.routing").joinpath("contracts.yaml").read_text("utf-8"))
_SQL = database.read_queries("flywheel.store.routing")


def _declared(contracts: str, table: str) -> tuple[RowContract, ...]:
    return tuple(RowContract(**one, table=table) for one in _DECLARED[contracts])


STEP_CONTRACTS, STEP_ORDER_CONTRACTS = _declared("steps", "steps"), _declared("step_order", "steps")
SCORE_CONTRACTS = _declared("scores", "scores")
TABLE_CONTRACTS = tuple(TableContract(**one) for one in _DECLARED["tables"])
# A trajectory breaks what its steps break.
_OF_STEPS = (
    RowContract(one.name, one.promise, f"{one.name} IS NOT NULL", one.name, "trajectories")
    for one in (*STEP_ORDER_CONTRACTS, *STEP_CONTRACTS)
)
_BEFORE, _AFTER = _declared("trajectories", "trajectories"), _declared("trajectory_tasks", "trajectories")
TRAJECTORY_CONTRACTS = (*_BEFORE, *_OF_STEPS, *_AFTER)

# Tables whose rows must belong to an incoming trajectory, and what a row of each is called.
ORPHAN_TABLES = (("steps", "step"), ("scores", "score"), ("utterances", "utterance"))

# A row that breaks a contract is quarantined with the contract's name, its promise and what was found; the iteration
# goes on, unless there are too many. A broken contract that spans tables (`TABLE_CONTRACTS`) stops the iteration, since
# flywheel itself wrote those rows.


@dataclass(frozen=True)
class ContractResult:
    """Hold the result of a row contract: number of `rows` checked, and how many of them are `broken`."""

    contract: RowContract
    rows: int
    broken: int


def check_row_contracts(
    connection: duckdb.DuckDBPyConnection, iteration: int, incoming: Sequence[str], kept: Collection[str] = ()
) -> list[ContractResult]:
    """Check the rows of an iteration against all row contracts; list what breaks them in temporary tables.

    connection: from `connect_catalog`. incoming: the stages whose trajectories are checked, one at least. kept: names
    of step contracts that are known to hold (`partitions.py`); columns that only they need are not read. Creates the
    temporary tables `judged`, one row per trajectory; `judgements`, their scores; `broken` (trajectory_id, reason), the
    first contract that each breaks; `orphans` (source_table, trajectory_id, reason, detail, n), the n rows of each id
    that belongs to no trajectory. Returns the result of each contract. Raises duckdb.Error for a damaged file.
    """
    stages = ", ".join(f"'{stage}'" for stage in incoming)
    new, scored = f"iteration = {iteration} AND stage IN ({stages})", f"iteration = {iteration} AND stage = 'score'"
    asked = [one for one in STEP_CONTRACTS if one.name not in kept]
    connection.execute(_SQL["walked"].format(new=new, fault=_any(STEP_ORDER_CONTRACTS)))
    connection.execute(_SQL["judged"].format(
        new=new,
        iteration=iteration,
        step=_cases(asked),
        step_fault=_any(asked),
        order=_cases(STEP_ORDER_CONTRACTS),
        first_steps=_first(asked),
        first_order=_first(STEP_ORDER_CONTRACTS),
        held="".join(f", NULL::VARCHAR AS {one.name}" for one in STEP_CONTRACTS if one.name in kept),
    ))  # fmt: skip
    connection.execute(_SQL["tables"].format(scored=scored))
    found = []
    for rows, held in (("judged", TRAJECTORY_CONTRACTS), ("judgements", SCORE_CONTRACTS)):
        total = connection.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0]
        for contract in held:
            promise = f"{contract.name}: {contract.promise}"
            ((broken,),) = connection.execute(
                f"INSERT INTO faults SELECT {len(found)}, trajectory_id, ?, {contract.detail} FROM {rows} "
                f"WHERE {contract.fault}",
                [promise],
            ).fetchall()
            found.append(ContractResult(contract, total, broken))
    connection.execute(_SQL["broken"])
    return [*found, *_find_orphans(connection, new, scored)]


def broken_scores_sql() -> str:
    """Return SQL for the scores that break a contract, with the same reasons that `check_row_contracts` gives.

    It reads the table `judgements`, and gives the columns trajectory_id and reason.
    """
    return " UNION ALL ".join(_SQL["broken_scores"].format(**vars(one)) for one in SCORE_CONTRACTS)


def _cases(contracts: Sequence[RowContract]) -> str:
    return ", ".join(f"CASE WHEN {one.fault} THEN coalesce({one.detail}, '') END AS {one.name}" for one in contracts)


def _any(contracts: Sequence[RowContract]) -> str:
    return " OR ".join(f"({contract.fault})" for contract in contracts)


def _first(contracts: Sequence[RowContract]) -> str:
    return ", ".join(f"arg_min({contract.name}, step) AS {contract.name}" for contract in contracts)


def _find_orphans(connection: duckdb.DuckDBPyConnection, new: str, scored: str) -> list[ContractResult]:
    found = []
    for table, name in ORPHAN_TABLES:
        promise = f"each {name} belongs to a trajectory that came in"
        contract = RowContract(f"no_orphan_{name}", promise, "", table=table)
        where = scored if table == "scores" else new
        reason = f"contract: {contract.name}: {promise}"
        connection.execute(_SQL["insert_orphans"].format(table=table, where=where), [table, reason])
        ((rows, broken),) = connection.execute(_SQL["count_orphans"].format(table=table, where=where)).fetchall()
        found.append(ContractResult(contract, rows, broken))
    return found


def check_table_contracts(
    ws: Workspace, iteration: int, incoming: Sequence[str], staged: Workspace | None = None
) -> None:
    """Raise ContractBroken where an iteration's tables break a contract that spans tables; nothing is changed.

    incoming: the stages whose trajectories came in. staged: workspace with the iteration's new partitions before they
    are published, or None. The error names contract, table and partition of the first that is broken. Raises DataError
    for a damaged or missing file of a table, one that is being replaced for half a minute, or a damaged list of pruned
    outputs, FlywheelError where a query needs more memory than it may take, DiskFull.
    """
    reads = "\n".join(contract.sql for contract in TABLE_CONTRACTS)
    with database.connect_catalog(ws, staged, reads=reads) as connection:
        for contract in TABLE_CONTRACTS:
            values = {"iteration": iteration, "incoming": list(incoming)}  # DuckDB refuses unused ones
            asked = {name: value for name, value in values.items() if f"${name}" in contract.sql}
            offences = database.query_rows(connection, contract.sql, asked)
            if offences:
                first = ", ".join(f"{name} {value}" for name, value in offences[0].items())
                raise ContractBroken(
                    f"contract {contract.name} is broken ({contract.promise}): {len(offences)} rows, first {first}",
                    where=f"data/{contract.table}/iteration={iteration_label(iteration)}",
                    fix="look at these rows with `flywheel query`, then run the stage that wrote them again",
                )


# The results of the contracts as a self-contained page. Earlier results are stored in `.flywheel`, so that the page can
# say since when a contract is broken, or holds.

log = logging.getLogger(__name__)
_ITERATIONS_SHOWN = 10


def write_data_docs(ws: Workspace, iteration: int, judged: Sequence[ContractResult]) -> bool:
    """Write Data Docs, the page `report/docs/index.html`: each contract, rows checked and broken, and since when.

    iteration: whose rows were checked. judged: the results. Returns whether the page is written: an error of writing
    stops nothing, since the contracts have been checked already.
    """
    kept = ws.state / "contracts.json"
    try:
        found = _read_results(kept, iteration)
        found[iteration] = {one.contract.name: [one.rows, one.broken] for one in judged}
        write_json(kept, {str(k): results for k, results in _drop_old_results(found, iteration).items()})
        write_text(ws.report / "docs" / "index.html", _render_data_docs(ws, iteration, judged, found))
    except (OSError, DiskFull) as error:
        log.warning("Data Docs are not written: %s: %s", type(error).__name__, error)
        return False
    return True


_Results = dict[int, dict[str, list[int]]]  # iteration -> name of a contract -> rows judged, rows broken


def _read_results(path: Path, iteration: int) -> _Results:
    """Read the results of earlier iterations; {} where the file is missing or damaged: they only serve the page."""
    try:
        found = {
            int(k): {name: [int(rows), int(broken)] for name, (rows, broken) in results.items()}
            for k, results in json.loads(path.read_text(encoding="utf-8")).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {k: found[k] for k in sorted(found) if k < iteration}


def _drop_old_results(found: _Results, iteration: int) -> _Results:
    """Return what later pages need: of iterations that they show no more, only when each contract last changed."""
    names = {name for results in found.values() for name in results}
    since = {name: _find_change(_broken_by_iteration(found, name)) for name in names}
    left = {
        k: {name: rows for name, rows in results.items() if k > iteration - _ITERATIONS_SHOWN or since[name] == k}
        for k, results in found.items()
    }
    return {k: results for k, results in left.items() if results}


def _broken_by_iteration(found: _Results, name: str) -> dict[int, int]:
    return {k: results[name][1] for k, results in found.items() if name in results}


def _render_data_docs(ws: Workspace, iteration: int, judged: Sequence[ContractResult], found: _Results) -> str:
    import jinja2  # only this stage renders a page

    tables: dict[str, list[dict[str, Any]]] = {}
    shown = [k for k in found if k > iteration - _ITERATIONS_SHOWN]
    for one in judged:
        before = _broken_by_iteration(found, one.contract.name)
        tables.setdefault(one.contract.table, []).append({
            "name": one.contract.name,
            "promise": one.contract.promise,
            "rows": one.rows,
            "broken": one.broken,
            "since": iteration_label(_find_change(before)),
            "before": [before.get(k) for k in shown],
        })  # fmt: skip
    text = resources.files("flywheel.store.routing").joinpath("data_docs.html").read_text("utf-8")
    return jinja2.Template(text, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).render(
        workspace=ws.root.name,
        iteration=iteration_label(iteration),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        tables=tables,
        iterations=[iteration_label(k) for k in shown],
        spanning=TABLE_CONTRACTS,
        broken=sum(one.broken > 0 for one in judged),
        contracts=len(judged),
    )


def _find_change(broken: Mapping[int, int]) -> int:
    """Return the first of the newest consecutive iterations that are all broken, or all not. broken: by iteration."""
    newest_first = sorted(broken, reverse=True)
    same = itertools.takewhile(lambda k: bool(broken[k]) == bool(broken[newest_first[0]]), newest_first)
    return list(same)[-1]
