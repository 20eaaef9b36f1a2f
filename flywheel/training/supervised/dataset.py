"""From the training stores to samples: what an iteration's manifest names, read and encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flywheel.agent.history_summary import Summarizer
from flywheel.policy.encoding import Encoder
from flywheel.schema import empty, from_row
from flywheel.settings import Policy
from flywheel.store import partitions, screens
from flywheel.store.manifest import Cumulative
from flywheel.training.samples import Sample, agent_samples, general_samples
from flywheel.trajectory import Step, Trajectory
from flywheel.workspace import Workspace


@dataclass(frozen=True)
class Store:
    """Rows of a training store, with the rows of trajectories and steps they stand for."""

    rows: list[dict[str, Any]]
    trajectories: pa.Table
    steps: pa.Table

    @property
    def ids(self) -> list[str]:
        return [row["trajectory_id"] for row in self.rows]


def load_store(
    ws: Workspace, manifest: Cumulative, store: str, wants: Callable[[dict[str, Any]], bool] = lambda row: True
) -> Store:
    """The rows of the store `ct` or `sft`, as the manifest has it, that are wanted; their trajectories and steps."""
    every = (row for path in manifest.paths(ws, store) for row in partitions.read_file(ws, store, path).to_pylist())
    rows = [row for row in every if wants(row)]
    wanted = pa.array([row["trajectory_id"] for row in rows], pa.string())
    found = {}
    for table in ("trajectories", "steps"):
        parts = [partitions.read_file(ws, table, path) for path in manifest.paths(ws, table)]
        kept = [part.filter(pc.is_in(part["trajectory_id"], value_set=wanted)) for part in parts]
        found[table] = pa.concat_tables([empty(table), *kept])
    return Store(rows, found["trajectories"], found["steps"])


def store_samples(
    ws: Workspace,
    manifest: Cumulative,
    store: Store,
    encoder: Encoder,
    policy: Policy,
    weights: dict[str, float],
    summarizer: Summarizer | None = None,
) -> list[Sample]:
    """Samples of every step of the store. weights: by trajectory_id, 1 where absent. summarizer: as the rollout's."""
    wanted = set(store.steps["image_sha256"].drop_null().to_pylist())
    images = screens.load(ws, manifest.paths(ws, "images"), wanted)
    trajectories = [from_row("trajectories", Trajectory, row) for row in store.trajectories.to_pylist()]
    steps = [from_row("steps", Step, row) for row in store.steps.to_pylist()]
    return agent_samples(trajectories, steps, images, encoder, policy, weights=weights, summarizer=summarizer)


def general_data_samples(ws: Workspace, manifest: Cumulative, encoder: Encoder, policy: Policy) -> list[Sample]:
    """Samples of the newest iteration's general data."""
    rows, files = [], []
    for shard in manifest.shards("general"):
        if shard.iteration == manifest.iteration:
            rows += partitions.read_file(ws, "general", ws.resolve(shard.path)).to_pylist()
    for shard in manifest.shards("images"):
        if (shard.iteration, shard.stage) == (manifest.iteration, "synthesize"):
            files.append(ws.resolve(shard.path))
    images = screens.load(ws, files, {row["image_sha256"] for row in rows})
    return general_samples(rows, images, encoder, policy)
