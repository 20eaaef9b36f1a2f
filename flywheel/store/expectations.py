"""What the contracts found, as Great Expectations' Data Docs: a page of each iteration that can be read offline.

The rows were judged in SQL (`contracts.py`); here each contract is one expectation on its count of broken rows. The
library is imported when first used (seconds), and sends nothing anywhere.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flywheel.store.contracts import Judged
from flywheel.workspace import Workspace, label

log = logging.getLogger(__name__)


def write_page(ws: Workspace, iteration: int, judged: Sequence[Judged]) -> None:
    """Write Data Docs to `report/docs` (open `index.html`), with a suite for each table. What fails here stops nothing:
    the contracts have been held against the rows already."""
    try:
        _write(ws, iteration, judged)
    except Exception as error:  # a library's page
        log.warning("Data Docs are not written: %s: %s", type(error).__name__, error)


def _write(ws: Workspace, iteration: int, judged: Sequence[Judged]) -> None:
    gx = _quiet_import()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    context.variables.data_docs_sites = {"local": _site(ws.report / "docs")}
    source = context.data_sources.add_pandas("flywheel")
    for table in dict.fromkeys(one.contract.table for one in judged):
        own = [one for one in judged if one.contract.table == table]
        name = f"{table} {label(iteration)}"
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
