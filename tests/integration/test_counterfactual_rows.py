"""Counterfactual runs beside an iteration's own: never in a store, never in a figure, and not taken for leftovers."""

from __future__ import annotations

import synthetic

from flywheel.maintenance import rollback
from flywheel.pipeline.stages.route import INCOMING
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.schema import COUNTERFACTUAL
from flywheel.store.versioning import stage_records

VIEWS = ("p_v1", "task_success", "template_success", "headroom", "funnel", "trained_on", "preference_pairs")
COUNTED = {view: f"FROM {view}" for view in VIEWS}
COUNTED["iterations"] = "SELECT * EXCLUDE (minutes) FROM iterations"  # they differ by the time that routing took


def add_counterfactuals(ws) -> set[str]:
    """Rows like the rollouts', all of them verified, as `flywheel model counterfactual` leaves them."""
    names = {}
    for table in ("trajectories", "steps", "scores", "images"):
        stage = "score" if table == "scores" else "rollout"
        rows = partitions.read_partition(ws, table, 1, stage).to_pylist()
        for row in rows if table != "images" else ():
            names[row["trajectory_id"]] = row["trajectory_id"] = f"c{row['trajectory_id']}"
            row |= {"source": COUNTERFACTUAL, "start_step": 0} if table == "trajectories" else {}
            row |= {"score": 1.0, "success": True} if table == "scores" else {}
        partitions.write_partition(ws, table, 1, COUNTERFACTUAL, rows)
    return set(names.values())


def test_no_store_and_no_figure_sees_them(tmp_path):
    assert COUNTERFACTUAL not in INCOMING, "routing reads the partitions of these stages alone"
    figures, stores = [], []
    for name in ("without", "with"):
        ws, settings = synthetic.workspace(tmp_path / name)
        synthetic.incoming(ws, settings, 1)
        mine = add_counterfactuals(ws) if name == "with" else set()
        synthetic.routed(ws, settings, 1)
        with database.connect_catalog(ws) as connection:
            figures.append({view: database.query_rows(connection, sql) for view, sql in COUNTED.items()})
            stores.append(
                {
                    table: {row["trajectory_id"] for row in database.query_rows(connection, f"FROM {table}")}
                    for table in ("routes", "sft", "ct", "quarantine")
                }
            )
            seen = database.query_rows(connection, f"FROM trajectory_outcomes WHERE source = '{COUNTERFACTUAL}'")
    assert {row["trajectory_id"] for row in seen} == mine
    assert {(row["stage"], row["destination"], row["success"]) for row in seen} >= {(COUNTERFACTUAL, None, True)}
    assert figures[0]["p_v1"]
    assert figures[1] == figures[0]
    assert stores[1] == stores[0]


def test_they_are_of_no_stage_and_yet_not_removed_but_with_their_iteration(tmp_path):
    ws, settings = synthetic.workspace(tmp_path)
    synthetic.incoming(ws, settings, 1)
    add_counterfactuals(ws)
    partitions.write_partition(ws, "scores", 1, "renamed", [])
    assert stage_records.remove_orphaned_outputs(ws, 1) == ["data/scores/iteration=001/stage=renamed"]
    assert ws.partition("steps", 1, COUNTERFACTUAL).is_dir()
    rollback.discard_iteration(ws, rollback.plan_discard(ws, 1))
    assert not ws.partition("steps", 1, COUNTERFACTUAL).exists()
