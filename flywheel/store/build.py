"""Build the training stores of an iteration from what came in: check, route, write, check again, chain the
manifest.

Rows are read from and written to disk here; the decisions are in `routing.py`, the promises in
`contracts.py` and `expectations.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from flywheel.settings import Settings
from flywheel.store import (
    catalog,
    contracts,
    duplicates,
    expectations,
    manifest,
    metrics,
    partitions,
    routing,
    sessions,
)
from flywheel.store.partitions import PartitionManifest
from flywheel.workspace import Workspace

STAGE = "route"


@dataclass(frozen=True)
class Built:
    """manifests: one a table written. metrics: rows for the table `metrics`, not written here.

    routed: destination -> trajectories. reasons: of the trajectories set aside -> how many.
    """

    manifests: tuple[PartitionManifest, ...]
    metrics: tuple[dict, ...]
    routed: dict[str, int]
    reasons: dict[str, int]


def build(ws: Workspace, iteration: int, settings: Settings, read: Sequence[tuple[str, str]]) -> Built:
    """Route the trajectories that came in; write `routes`, `sft`, `ct`, `quarantine`, `lineage`, `duplicates`, what
    later iterations need to find those, and the iteration's manifest.

    read: (table, stage) of all that came in: what the stores point into is named in the manifest. Raises
    ContractBroken for a table-level contract, DataError for a damaged partition.
    """
    sources = [stage for table, stage in read if table == "trajectories"]
    incoming = pa.concat_tables([partitions.read(ws, "trajectories", iteration, stage) for stage in sources]).sort_by(
        "trajectory_id"
    )
    scores = partitions.read(ws, "scores", iteration, "score")
    frames = {"trajectories": incoming.to_pandas(), "scores": scores.to_pandas()}
    broken = expectations.validate(ws, iteration, frames)
    with catalog.connect(ws) as connection:
        broken |= contracts.check_rows(connection, iteration, sources)
    trajectories = incoming.to_pylist()
    asked = [
        row
        for name, stage in read
        if name == "tasks"
        for row in partitions.read(ws, name, iteration, stage).to_pylist()
    ]
    broken = duplicates.near_evaluation(trajectories, asked) | broken
    routes = routing.route(trajectories, scores.to_pylist(), broken, verified_only=settings.sft.verified_only)
    near = duplicates.find(ws, iteration, read, trajectories, routes, asked, settings.routing)
    stores = routing.build_stores(trajectories, routes, iteration, near.weights)
    tables = {"routes": routes, **stores, **near.tables}
    manifests = tuple(partitions.write(ws, table, iteration, STAGE, rows) for table, rows in tables.items())
    contracts.check_tables(ws, iteration, sources)
    taken = [session.id for session in sessions.listed(ws, iteration)]
    data = [one for one in read if one[0] != "scores"]  # routes hold what the scores said
    data += [(table, STAGE) for table in duplicates.KEPT]
    manifest.write(ws, iteration, window=settings.sft.window, sessions=taken, data=data)
    return Built(manifests, *_figures(trajectories, routes))


def _figures(trajectories: list[dict], routes: list[dict]) -> tuple[tuple[dict, ...], dict[str, int], dict[str, int]]:
    routed = dict.fromkeys(routing.DESTINATIONS, 0)
    by_domain: dict[tuple[str, str], int] = {}
    reasons: dict[str, int] = {}
    for trajectory, decision in zip(trajectories, routes, strict=True):
        destination = decision["destination"]
        routed[destination] += 1
        key = (destination, trajectory["domain"])
        by_domain[key] = by_domain.get(key, 0) + 1
        if destination == "quarantine":
            reason = decision["reason"].split(" (")[0]
            reasons[reason] = reasons.get(reason, 0) + 1
    rows = [metrics.row(f"to_{destination}", count) for destination, count in routed.items()]
    rows += [metrics.row(f"to_{destination}", n, domain=domain) for (destination, domain), n in by_domain.items()]
    return tuple(rows), routed, reasons
