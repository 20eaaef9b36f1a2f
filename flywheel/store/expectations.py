"""Great Expectations at the grain of a trajectory: limits of columns, checked on each new partition, with
Data Docs.

It runs on pandas frames of one partition (its SQL path fails on DuckDB). It is imported when first used
(seconds), and sends nothing anywhere. A new expectation is one entry in `SUITES`.
"""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from flywheel.store.routing import STATUSES
from flywheel.workspace import Workspace, label

log = logging.getLogger(__name__)

# table -> (expectation, its arguments, what it promises). A row that breaks one sets its trajectory aside.
SUITES: dict[str, tuple[tuple[str, dict[str, Any], str], ...]] = {
    "trajectories": (
        ("ExpectColumnValuesToBeUnique", {"column": "trajectory_id"}, "trajectory_id is unique"),
        ("ExpectColumnValuesToBeInSet", {"column": "status", "value_set": list(STATUSES)}, "status is known"),
        (
            "ExpectColumnValuesToBeInSet",
            {"column": "source", "value_set": ["rollout", "recording", "annotation", "import"]},
            "source is known",
        ),
        ("ExpectColumnValuesToBeInSet", {"column": "author", "value_set": ["model", "human"]}, "author is known"),
        ("ExpectColumnValuesToNotBeNull", {"column": "domain"}, "domain is set"),
        ("ExpectColumnValuesToNotBeNull", {"column": "status"}, "status is set"),
        ("ExpectColumnValuesToBeBetween", {"column": "steps", "min_value": 0}, "steps are 0 or more"),
        ("ExpectColumnValuesToBeBetween", {"column": "reward", "min_value": -1, "max_value": 1}, "reward in [-1, 1]"),
        (
            "ExpectColumnPairValuesAToBeGreaterThanB",
            {
                "column_A": "ended_at",
                "column_B": "started_at",
                "or_equal": True,
                "ignore_row_if": "either_value_is_missing",
            },
            "a trajectory ends after it begins",
        ),
    ),
    "scores": (
        ("ExpectColumnValuesToNotBeNull", {"column": "scorer"}, "scorer is named"),
        ("ExpectColumnValuesToBeBetween", {"column": "score", "min_value": 0, "max_value": 1}, "score in [0, 1]"),
        (
            "ExpectColumnValuesToBeBetween",
            {"column": "threshold", "min_value": 0, "max_value": 1},
            "threshold in [0, 1]",
        ),
    ),
}


def validate(ws: Workspace, iteration: int, frames: dict[str, pd.DataFrame]) -> dict[str, str]:
    """trajectory_id -> reason, of the rows of `frames` (table -> rows of a new partition) that break an
    expectation.

    Writes Data Docs to `report/docs` (open `index.html`).
    """
    gx = _quiet_import()
    docs = ws.report / "docs"
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    context.variables.data_docs_sites = {"local": _site(docs)}
    source = context.data_sources.add_pandas("flywheel")
    broken: dict[str, str] = {}
    for table, frame in frames.items():
        name = f"{table} {label(iteration)}"
        suite = gx.ExpectationSuite(name=name)
        promises = {}
        for number, (kind, arguments, promise) in enumerate(SUITES[table]):
            promises[number] = promise
            suite.add_expectation(getattr(gx.expectations, kind)(**arguments, meta={"number": number}))
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("whole")
        definition = gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add(suite))
        checkpoint = gx.Checkpoint(
            name=name,
            validation_definitions=[context.validation_definitions.add(definition)],
            actions=[gx.checkpoint.UpdateDataDocsAction(name="docs")],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["trajectory_id"]},
        )
        outcome = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": _naive(frame)})
        for result in (r for run in outcome.run_results.values() for r in run.results):
            promise = promises[result.expectation_config.meta["number"]]
            for row in result.result.get("unexpected_index_list") or ():
                broken.setdefault(row["trajectory_id"], f"{table}: {promise}")
            if result.exception_info.get("exception_message"):
                log.warning("expectation %s on %s: %s", promise, table, result.exception_info["exception_message"])
    return broken


def _naive(frame: pd.DataFrame) -> pd.DataFrame:
    """Times in UTC without their zone, which pandas 3 and Great Expectations do not agree on."""
    zoned = frame.select_dtypes("datetimetz").columns
    return frame.assign(**{name: frame[name].dt.tz_localize(None) for name in zoned})


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
