"""Where CT is passed over, the newest model is handed on as it is, or the last that CT trained."""

from __future__ import annotations

import shutil

import pytest
import synthetic

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import ct
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json, write_text


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> tuple[Workspace, Settings]:
    """Three iterations up to what training begins with, and their promoted models."""
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("three") / "ws")
    for k in (1, 2, 3):
        synthetic.incoming(ws, settings, k, tasks=3, samples=2)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
        promoted = manifest.read_promotion(ws, k)["model"]
        write_text(ws.root / promoted / "model.safetensors", f"weights of {promoted}")
    return ws, settings


def _ct(three, k: int, **changes) -> StageContext:
    ws, settings = three
    return StageContext(ws, settings.model_copy(update={"ct": settings.ct.model_copy(update=changes)}), k, "ct")


def test_it_runs_once_in_so_many_iterations(three):
    assert [ct._due(_ct(three, k, every=1)) for k in (1, 2, 3)] == [True, True, True]
    assert [ct._due(_ct(three, k, every=2)) for k in (1, 2, 3)] == [True, False, True]


def test_the_newest_model_is_handed_on(three):
    ws, _ = three
    newest = manifest.read_promotion(ws, 1)["model"]
    result = run_stage(ct.STAGE, _ct(three, 2, every=2))
    assert result.summary == {"not due": "every 2 iterations"}
    made = ws.model(2, "ct") / "model.safetensors"
    assert made.read_bytes() == (ws.root / newest / "model.safetensors").read_bytes()
    found = database.query_catalog(ws, "SELECT * FROM lineage WHERE iteration = 2 AND stage = 'ct'").to_pylist()
    assert (ws.relative(ws.model(2, "ct")), newest) in {(row["child"], row["parent"]) for row in found}
    assert "trajectory" not in {row["parent_kind"] for row in found}  # it was trained on none


def test_a_model_from_outside_the_workspace_has_the_name_that_was_promoted(three, tmp_path):
    ws, settings = three
    own, outside = Workspace(tmp_path / "ws"), tmp_path / "hub" / "snapshot"
    shutil.copytree(ws.root, own.root)
    promotion = manifest.read_promotion(own, 1)
    shutil.copytree(own.root / promotion["model"], outside)
    write_json(own.promotion(1), promotion | {"model": str(outside)})
    run_stage(ct.STAGE, _ct((own, settings), 2, every=2))
    found = database.query_catalog(own, "SELECT * FROM lineage WHERE iteration = 2 AND stage = 'ct'").to_pylist()
    assert (own.relative(own.model(2, "ct")), str(outside)) in {(row["child"], row["parent"]) for row in found}


def test_the_last_model_of_ct_is_handed_on_where_that_is_asked(three):
    ws, _ = three
    chosen = {"every": 3, "sft_init": "last_ct"}
    with pytest.raises(BadInput, match="the last model that CT trained is not there"):
        run_stage(ct.STAGE, _ct(three, 3, **chosen))
    made = ws.model(1, "ct")
    made.mkdir(parents=True)
    write_text(made / "model.safetensors", "weights of CT's first")
    run_stage(ct.STAGE, _ct(three, 3, **chosen))
    assert (ws.model(3, "ct") / "model.safetensors").read_text() == "weights of CT's first"
    found = database.query_catalog(ws, "SELECT * FROM lineage WHERE iteration = 3 AND stage = 'ct'").to_pylist()
    assert (ws.relative(ws.model(3, "ct")), ws.relative(made)) in {(row["child"], row["parent"]) for row in found}
