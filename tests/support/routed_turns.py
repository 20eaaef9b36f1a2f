"""An iteration that is routed, and whose routes people are asked to look at before it trains."""

from __future__ import annotations

import sys
from pathlib import Path

import synthetic

from flywheel.files import write_json
from flywheel.settings import Settings
from flywheel.stages.base import Context
from flywheel.store import partitions, versioning
from flywheel.workspace import Workspace

_OF_INGEST = ("reviews", "thoughts", "events", "images")


def routed(root: Path, **routing: object) -> Workspace:
    """Up to `route` all is recorded. routing: of the settings, other values."""
    ws, chosen = synthetic.workspace(root, routing={"review": 6, **routing})
    synthetic.incoming(ws, chosen, 1, tasks=6)
    write_json(ws.levels(1), {"open": {}})
    synthetic.routed(ws, chosen, 1)
    for table in _OF_INGEST:
        if not ws.partition(table, 1, "ingest").is_dir():
            partitions.write(ws, table, 1, "ingest", [])
    for stage in ("ingest", "synthesize", "rollout", "score", "route"):
        versioning.commit(ws, stage, 1)
    return ws


def context(ws: Workspace, settings: Settings) -> Context:
    """Of the stage that waits. settings: the iteration's, or some of a test's own."""
    return Context(ws, settings, 1, "ct")


def ask(ws: Workspace, settings: Settings) -> None:
    """A flow that waits, in this process."""
    from prefect import flow

    from flows.route_review import ask_about_routes

    @flow(name="asks about routes")
    def asks() -> None:
        ask_about_routes(context(ws, settings))

    asks()


if __name__ == "__main__":
    from flywheel.store import frozen

    workspace = Workspace(Path(sys.argv[1]))
    ask(workspace, frozen.load(workspace, 1))
