"""A workspace whose rollout takes seconds, for tests that do it on other machines, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import minimal_iterations
import yaml

from flywheel import config
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag, stage
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import manifest, partitions

TASKS = 4
_SMALL = {
    "synthesis.domains": {"control": ["control"]},
    "synthesis.levels": [1],
    "synthesis.held_out": [],
    "synthesis.train_tasks": TASKS,
    "synthesis.eval_tasks": 2,
    "synthesis.num_grounding_examples": 0,
    "recording.sessions_per_iteration": 0,
    "rollout.n_rollouts": 1,
    "rollout.tasks_per_shard": 2,
    "policy.max_new_tokens": 24,
    "merge.weights": {"control": 1.0},
}
# What is not the same from run to run: the time, the port of a page's server, the last digits of a batch's figures.
_CHANGES = {"started_at", "ended_at", "url", "logprobs"}


def synthesized(root: Path, sandbox: dict[str, Any], other: Mapping[str, Any] = MappingProxyType({})) -> Workspace:
    """With the tasks of iteration 1. sandbox: of the block `sandbox`, other values. other: of any block."""
    ws = minimal_iterations.created(root)
    changes = _SMALL | {f"sandbox.{name}": value for name, value in sandbox.items()} | other
    ws.params.write_text(yaml.safe_dump(config.load_settings(ws.params, changes).model_dump(mode="json")))
    manifest.init_first_checkpoint(ws, "base", "models/base")
    begin_iteration(ws, 1, config.load_settings(ws.params))
    stage.run_stage(dag.find_stage("synthesize"), stage.StageContext.open(ws, 1, "synthesize"))
    return ws


def played(ws: Workspace) -> dict[str, list]:
    """What the stage rollout wrote."""
    tables = {
        table: partitions.read_partition(ws, table, 1, "rollout") for table in ("trajectories", "steps", "images")
    }
    return {
        table: rows.drop_columns(list(_CHANGES & {*rows.column_names})).to_pylist() for table, rows in tables.items()
    }
