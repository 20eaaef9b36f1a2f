"""An iteration that is routed, and whose routes people are asked to look at before it trains."""

from __future__ import annotations

import sys
from pathlib import Path

import synthetic
from minimal_iterations import record_stages

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.stage import StageContext
from flywheel.store import partitions
from flywheel.utils.files import write_json

_OF_INGEST = ("reviews", "utterances", "events", "candidates", "images")


def routed(root: Path, **routing: object) -> Workspace:
    """Up to `route` all is recorded. routing: of the settings, other values."""
    ws, chosen = synthetic.workspace(root, routing={"review": 6, **routing})
    synthetic.incoming(ws, chosen, 1, tasks=6)
    write_json(ws.levels(1), {"open": {}})
    synthetic.routed(ws, chosen, 1)
    for table in _OF_INGEST:
        if not ws.partition(table, 1, "ingest").is_dir():
            partitions.write_partition(ws, table, 1, "ingest", [])
    record_stages(ws, ("ingest", "synthesize", "rollout", "score", "route"), 1)
    return ws


def context(ws: Workspace, settings: Settings) -> StageContext:
    """Of the stage that waits. settings: the iteration's, or some of a test's own."""
    return StageContext(ws, settings, 1, "ct")


def ask(ws: Workspace, settings: Settings) -> None:
    """A flow that waits, in this process."""
    from prefect import flow

    from flows.human_input import ask_for_route_labels
    from flows.run_progress import StageRecorder

    ctx = context(ws, settings)

    @flow(name="asks about routes")
    def asks() -> None:
        ask_for_route_labels(ctx, StageRecorder(ctx))

    asks()


if __name__ == "__main__":
    from flywheel.store.versioning import stage_records

    workspace = Workspace(Path(sys.argv[1]))
    ask(workspace, stage_records.load_iteration_params(workspace, 1))
