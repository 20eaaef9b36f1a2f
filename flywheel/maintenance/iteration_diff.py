"""Compare two iterations: row counts, distributions, metrics, tasks and templates won and lost, merged adapters."""

from __future__ import annotations

from functools import partial
from typing import Any

from flywheel.config.workspace import Workspace
from flywheel.evaluation import gate
from flywheel.policy import checkpoint
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.store.schema import TABLES
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import DataError

Row = dict[str, Any]
_QUERIES = database.read_queries("flywheel.maintenance")
# Columns by which routed trajectories are counted: name -> SQL of the value.
_KINDS = {"status": "t.status", "domain": "t.domain", "source": "t.source", "destination": "r.destination"}
_NUMBERS = {"steps": "t.steps", "score": "r.score", "reward": "t.reward"}


def compare_iterations(ws: Workspace, before: int, after: int) -> dict[str, Any]:
    """Compare two iterations in their data, metrics, held-out success and adapters.

    before, after: their numbers. Returns a mapping. `before`, `after`: these numbers. Four lists of rows, most with the
    columns `before` and `after`: `rows` (row counts by `table` and `stage`), `kinds` (counts of routed trajectories by
    `name` and `value`), `numbers` (of the same trajectories, by `name` and `iteration`: `n`, `mean`, and `quantiles` at
    0, 0.1, 0.5, 0.9, 1), `metrics` (last points by `stage`, `name`, `domain`, with `difference`). `held_out`: `known`
    (False where an iteration was not evaluated), `gained` and `lost` (task ids), `both` (tasks that both solve) and
    `tasks` (all that both played), counted. `templates`: `gained` and `lost`, rows of `world`, `template` and `level`
    of which one iteration solved some training tasks and the other none, with the shares solved. `adapters`: a row for
    each of the two merged models that is on disk and an adapter, with `iteration`, `weights`, `base` (digests), `rank`,
    `bytes`. `adapter_distance`: the difference of the two adapters relative to the first
    (`training.adapter_merging.adapter_distance`), or None. Raises BadInput for an iteration that has not been begun;
    DataError for a damaged file, or where DVC's file of an iteration is lost; ModelError for a damaged adapter;
    FlywheelError as `run_query`.
    """
    stage_records.check_iterations_begun(ws, (before, after))
    rows, kinds, numbers = (
        " UNION ALL ".join(_QUERIES[name].format(**values) for values in each)
        for name, each in (
            ("table_rows", [{"place": place, "table": table} for place, table in enumerate(TABLES)]),
            ("routed_kinds", [{"name": name, "column": column} for name, column in _KINDS.items()]),
            ("routed_numbers", [{"name": name, "column": column} for name, column in _NUMBERS.items()]),
        )
    )
    with database.connect_catalog(ws) as connection:
        query = partial(database.query_rows, connection, parameters={"a": before, "b": after})
        templates = query(_QUERIES["templates"])
        return {
            "before": before,
            "after": after,
            "rows": query(f"SELECT * EXCLUDE (place) FROM ({rows}) ORDER BY place, stage"),
            "kinds": query(f"{kinds} ORDER BY name, value"),
            "numbers": query(f"{numbers} ORDER BY name, iteration"),
            "metrics": query(_QUERIES["metrics"]),
            "held_out": _held_out(ws, before, after),
            "templates": {
                "gained": [row for row in templates if row["after"]],
                "lost": [row for row in templates if row["before"]],
            },
            **_compare_adapters(ws, before, after),
        }


def _compare_adapters(ws: Workspace, before: int, after: int) -> dict[str, Any]:
    found = {k: ws.model(k, "merged") for k in (before, after) if checkpoint.is_adapter(ws.model(k, "merged"))}
    rows = [
        {
            "iteration": k,
            "weights": checkpoint.checkpoint_digest(folder),
            "base": checkpoint.adapter_base_digest(folder),
            "rank": checkpoint.read_adapter_config(folder)["r"],
            "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        }
        for k, folder in found.items()
    ]
    apart = None
    if len(found) == 2:
        from flywheel.training.adapter_merging import adapter_distance  # imports torch

        apart = adapter_distance(*found.values())
    return {"adapters": rows, "adapter_distance": apart}


def _held_out(ws: Workspace, before: int, after: int) -> dict[str, Any]:
    """Compare which held-out tasks the model promoted after each iteration solves (in over half of its episodes)."""
    solved, models = [], []
    for k in (before, after):
        try:
            models.append(manifest.read_promotion(ws, k)["digest"])
            outcome = gate.read_held_out_outcomes(ws, k).get(models[-1])
        except DataError:  # not evaluated yet
            outcome = None
        if outcome is None:
            return {"known": False, "gained": [], "lost": [], "both": 0, "tasks": 0}
        solved.append(outcome)
    like = solved[0].keys() & solved[1].keys()
    won = [{task for task in like if one[task] > 0.5} for one in solved]
    return {
        "known": True,
        "gained": sorted(won[1] - won[0]),
        "lost": sorted(won[0] - won[1]),
        "both": len(won[0] & won[1]),
        "tasks": len(like),
    }
