"""Write what the contracts found as Great Expectations' Data Docs, in a process of its own.

The rows were judged in SQL (`contracts.py`); here each contract is one expectation on its count of broken rows. The
library, which sends nothing anywhere, takes seconds to import. A process of its own does that while the rows are still
being judged and routed, so that neither waits for it, and its memory is not theirs.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.routing.contracts import ContractResult, RowContract

log = logging.getLogger(__name__)
_LONGEST_S = 300.0


@contextmanager
def data_docs_process(ws: Workspace, iteration: int) -> Iterator[Callable[[Sequence[ContractResult]], None]]:
    """Start the process that writes the page; yields a function that takes the contracts' results.

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
    """Import the library, wait for results on standard input and write the page. Returns 1 where it was not written."""
    _quiet_import()
    told = sys.stdin.read()
    judged = [
        ContractResult(RowContract(**one["contract"]), one["rows"], one["broken"]) for one in json.loads(told or "[]")
    ]
    return int(bool(judged) and not write_data_docs(Workspace(Path(root)), int(iteration), judged))


def write_data_docs(ws: Workspace, iteration: int, judged: Sequence[ContractResult]) -> bool:
    """Write Data Docs to `report/docs` (open `index.html`), with a suite for each table; whether they are written. What
    fails here stops nothing: the contracts have been held against the rows already."""
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
    context.variables.data_docs_sites = {"local": _site(ws.report / "docs")}
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


def _site(docs: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)},
    }


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
