"""Read the data contracts (`contracts.yaml`), hold an iteration's rows and stores against them, show the results."""

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
    """Declare a contract of single rows.

    name: in results. promise: what holds, in words. fault: SQL, true of a row that breaks it. detail: SQL, what was
    found there. table: the one whose rows are judged.
    """

    name: str
    promise: str
    fault: str
    detail: str = "''"
    table: str = "steps"


@dataclass(frozen=True)
class TableContract:
    """Declare a contract that spans tables.

    name: in errors. table: whose rows the stage wrote. promise: what holds, in words. sql: gives one row an offence. It
    sees the catalog's tables and views, `$iteration` that is judged, and `$incoming`, the stages whose trajectories are
    routed.
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
# What its steps break, a trajectory does.
_OF_STEPS = (
    RowContract(one.name, one.promise, f"{one.name} IS NOT NULL", one.name, "trajectories")
    for one in (*STEP_ORDER_CONTRACTS, *STEP_CONTRACTS)
)
_BEFORE, _AFTER = _declared("trajectories", "trajectories"), _declared("trajectory_tasks", "trajectories")
TRAJECTORY_CONTRACTS = (*_BEFORE, *_OF_STEPS, *_AFTER)

# Tables whose rows must belong to an incoming trajectory, and what a row of each is called.
ORPHAN_TABLES = (("steps", "step"), ("scores", "score"), ("utterances", "utterance"))

# A row that breaks a contract is quarantined with the contract's name, its promise and what was found; the iteration
# goes on, unless there are too many. A broken contract that spans tables (`TABLE_CONTRACTS`) stops it, since flywheel
# itself wrote those rows.


@dataclass(frozen=True)
class ContractResult:
    """What a contract found: of so many `rows` so many, `broken`, broke it."""

    contract: RowContract
    rows: int
    broken: int


def check_row_contracts(
    connection: duckdb.DuckDBPyConnection, iteration: int, incoming: Sequence[str], kept: Collection[str] = ()
) -> list[ContractResult]:
    """Hold the rows of an iteration against all row contracts, in two passes over its steps.

    connection: from `connect_catalog`. incoming: the stages whose trajectories are held. kept: names of contracts of
    steps that are known to hold (`partitions.py`): what they alone look at is not read. Leaves four temporary tables:
    `judged`, one row a trajectory; `judgements`, their scores; `broken` (trajectory_id, reason), of the first contract
    that each breaks; `orphans` (source_table, trajectory_id, reason, detail), what belongs to none of them. Returns
    what each contract found. Raises duckdb.Error for a damaged file.
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
    """Return SQL of the rows (trajectory_id, reason) of `judgements` that break a contract, as `check_row_contracts`
    tells them."""
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
    """Check an iteration's stores against the contracts that span tables; nothing is changed.

    incoming: the stages whose trajectories came in. staged: where the iteration's new partitions lie before they are
    published; None: nowhere. Raises ContractBroken, naming contract, table and partition, for the first that is broken,
    DataError for a damaged or missing file of a table, or a damaged list of what was pruned.
    """
    reads = "\n".join(contract.sql for contract in TABLE_CONTRACTS)
    with database.connect_catalog(ws, staged, reads=reads) as connection:
        for contract in TABLE_CONTRACTS:
            values = {"iteration": iteration, "incoming": list(incoming)}  # DuckDB refuses one that has no place
            asked = {name: value for name, value in values.items() if f"${name}" in contract.sql}
            offences = database.query_rows(connection, contract.sql, asked)
            if offences:
                first = ", ".join(f"{name} {value}" for name, value in offences[0].items())
                raise ContractBroken(
                    f"contract {contract.name} is broken ({contract.promise}): {len(offences)} rows, first {first}",
                    where=f"data/{contract.table}/iteration={iteration_label(iteration)}",
                    fix="look at these rows with `flywheel query`, then run the stage that wrote them again",
                )


# What the contracts found, as a page that needs nothing else. What they found before is kept in `.flywheel`, so that it
# can say since when a contract is broken, or holds.

log = logging.getLogger(__name__)
_ITERATIONS_SHOWN = 10


def write_data_docs(ws: Workspace, iteration: int, judged: Sequence[ContractResult]) -> bool:
    """Write Data Docs, `report/docs/index.html`: each contract, its promise, rows judged and broken, and since when.

    iteration: whose rows were judged. judged: what the contracts found. Returns whether the page is written: what fails
    here stops nothing, since the contracts have been held against the rows already.
    """
    kept = ws.state / "contracts.json"
    try:
        found = _read_results(kept, iteration)
        found[iteration] = {one.contract.name: [one.rows, one.broken] for one in judged}
        write_json(kept, {str(k): results for k, results in found.items()})
        write_text(ws.report / "docs" / "index.html", _render_data_docs(ws, iteration, judged, found))
    except (OSError, DiskFull) as error:
        log.warning("Data Docs are not written: %s: %s", type(error).__name__, error)
        return False
    return True


_Results = dict[int, dict[str, list[int]]]  # iteration -> name of a contract -> rows judged, rows broken


def _read_results(path: Path, iteration: int) -> _Results:
    """Of the iterations before; none where there is no such file, or it is damaged: it only looks back."""
    try:
        found = {
            int(k): {name: [int(rows), int(broken)] for name, (rows, broken) in results.items()}
            for k, results in json.loads(path.read_text(encoding="utf-8")).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {k: found[k] for k in sorted(found) if k < iteration}


def _render_data_docs(ws: Workspace, iteration: int, judged: Sequence[ContractResult], found: _Results) -> str:
    import jinja2  # no stage but this one shows a page

    tables: dict[str, list[dict[str, Any]]] = {}
    shown = [k for k in found if k > iteration - _ITERATIONS_SHOWN]
    for one in judged:
        before = {k: results[one.contract.name][1] for k, results in found.items() if one.contract.name in results}
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
    """The first of the newest iterations in a row that are all broken, or all not. broken: rows by iteration."""
    newest_first = sorted(broken, reverse=True)
    same = itertools.takewhile(lambda k: bool(broken[k]) == bool(broken[newest_first[0]]), newest_first)
    return list(same)[-1]
