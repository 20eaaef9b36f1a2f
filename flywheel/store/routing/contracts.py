"""Read the data contracts (`contracts.yaml`), hold an iteration's rows and stores against them, show the results."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import duckdb
import yaml

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.catalog import database
from flywheel.utils.errors import ContractBroken


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


# What the contracts found is written as Great Expectations' Data Docs, each contract as an expectation on its count of
# broken rows, in a process of its own: the library, which sends nothing anywhere, takes seconds to import. The process
# does that while rows are still being judged and routed, so that neither waits for it, and its memory is not theirs.

log = logging.getLogger(__name__)
_LONGEST_S = 300.0


@contextmanager
def data_docs_process(ws: Workspace, iteration: int) -> Iterator[Callable[[Sequence[ContractResult]], None]]:
    """Start the process that writes Data Docs of `iteration`; yield a function that takes the contracts' results.

    The page is there at the end of the block, or none where there were no results. Its failure stops nothing.
    """
    command = [sys.executable, "-P", "-m", __name__, str(ws.root), str(iteration)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def show(judged: Sequence[ContractResult]) -> None:
        with suppress(BrokenPipeError):  # it has ended, and said why
            process.stdin.write(json.dumps([asdict(one) for one in judged]))
            process.stdin.close()

    try:
        yield show
    except BaseException:
        process.kill()
        process.wait()
        raise
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        log.warning("Data Docs are not written: no end after %.0f s", _LONGEST_S)
        return
    if process.returncode:  # killed, say: then it has said nothing
        log.warning("Data Docs are not written: their process ended with %d", process.returncode)


def run_data_docs_process(root: str, iteration: str) -> int:
    """Import the library, wait for results (JSON) on standard input and write the page. root: of the workspace.
    iteration: its number. Returns the exit status: 1 where the page was not written."""
    _quiet_import()
    told = sys.stdin.read()
    judged = [
        ContractResult(RowContract(**one["contract"]), one["rows"], one["broken"]) for one in json.loads(told or "[]")
    ]
    return int(bool(judged) and not write_data_docs(Workspace(Path(root)), int(iteration), judged))


def write_data_docs(ws: Workspace, iteration: int, judged: Sequence[ContractResult]) -> bool:
    """Write Data Docs of `iteration` to `report/docs` (open `index.html`), with a suite for each table.

    judged: what the contracts found. Returns whether they are written: what fails here stops nothing, since the
    contracts have been held against the rows already.
    """
    try:
        _write(ws, iteration, judged)
    except Exception as error:  # a library's page
        log.warning("Data Docs are not written: %s: %s", type(error).__name__, error)
        return False
    return True


def _write(ws: Workspace, iteration: int, judged: Sequence[ContractResult]) -> None:
    import pandas as pd

    gx = _quiet_import()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    place = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(ws.report / "docs")}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    site = {"class_name": "SiteBuilder", "site_index_builder": index, "store_backend": place}
    context.variables.data_docs_sites = {"local": site}
    source = context.data_sources.add_pandas("flywheel")
    for table in dict.fromkeys(one.contract.table for one in judged):
        own = [one for one in judged if one.contract.table == table]
        name = f"{table} {iteration_label(iteration)}"
        suite = gx.ExpectationSuite(name=name)
        for one in own:
            about = {"notes": {"format": "string", "content": [f"{one.contract.promise} ({one.rows} rows)"]}}
            suite.add_expectation(
                gx.expectations.ExpectColumnSumToBeBetween(column=one.contract.name, max_value=0, meta=about)
            )
        counts = pd.DataFrame({one.contract.name: [one.broken] for one in own})
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("whole")
        definition = gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add(suite))
        checkpoint = gx.Checkpoint(
            name=name,
            validation_definitions=[context.validation_definitions.add(definition)],
            actions=[gx.checkpoint.UpdateDataDocsAction(name="docs")],
        )
        context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": counts})


def _quiet_import():
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations as gx
        import great_expectations.expectations
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    return gx


if __name__ == "__main__":
    raise SystemExit(run_data_docs_process(*sys.argv[1:]))
