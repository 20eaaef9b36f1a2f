"""Three iterations by adapters alone, as a user runs them: CT, SFT, RL, merge, gate, rollback and diff."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import minimal_iterations
import pytest
from peft import PeftModel
from processes import PATIENCE_S

from flywheel.config.workspace import Workspace
from flywheel.policy import checkpoint
from flywheel.policy.model import load_model
from flywheel.store.catalog import database

pytestmark = pytest.mark.exhaustive

_CHOSEN = (
    "iterations=3",
    "adapter.method=lora",
    "adapter.rank=4",
    "adapter.alpha=8",
    "adapter.base_dtype=bfloat16",
    "promotion.rule=always",
    "recording.sessions_per_iteration=1",
    "synthesis.train_tasks=8",
    "synthesis.eval_tasks=4",
    "synthesis.num_grounding_examples=12",
    "ct.num_examples=12",
    "sft.num_examples=12",
    "rl.gradient_checkpointing=true",
    "rl.tasks_per_step=1",
    "rl.value_pretraining_tasks=2",
)


def flywheel(ws: Workspace, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("flywheel")), *arguments, "-w", str(ws.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    ws = minimal_iterations.created(tmp_path_factory.mktemp("adapters") / "flywheel", sessions=3)
    flywheel(ws, "run", *(word for one in _CHOSEN for word in ("--set", one)))
    return ws


def test_every_model_is_an_adapter_of_the_one_base(made):
    base = checkpoint.checkpoint_digest(made.root / "models" / "base")
    for iteration in (1, 2, 3):
        for name in ("ct", "sft", "rl-games", "rl-sites", "rl-control", "merged"):
            folder = made.model(iteration, name)
            assert {file.name for file in folder.iterdir()} == {
                "adapter_config.json",
                "adapter_model.safetensors",
                "base.json",
            }
            assert checkpoint.find_base_checkpoint(folder).resolve() == made.root / "models" / "base"
            assert json.loads((folder / "base.json").read_text())["digest"] == base
            assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
            assert sum(file.stat().st_size for file in folder.iterdir()) < 1 << 20


def test_each_iteration_goes_on_with_the_adapter_that_was_promoted(made):
    rows = database.query_catalog(
        made, "select parent from lineage where relation = 'began from' and child like '%/ct' order by child"
    ).to_pylist()
    assert [row["parent"] for row in rows] == [
        "models/base",
        "models/iteration=001/merged",
        "models/iteration=002/merged",
    ]


def test_the_loss_of_recompression_stands_in_the_metrics(made):
    rows = database.query_catalog(
        made, "select iteration, value from metrics where name = 'adapter_merge_error' order by 1"
    )
    assert [row["iteration"] for row in rows.to_pylist()] == [1, 2, 3]
    assert all(0 <= row["value"] < 1 for row in rows.to_pylist())


def test_pefts_own_loader_reads_the_last_model(made):
    model = PeftModel.from_pretrained(load_model(made.root / "models" / "base"), made.model(3, "merged"))
    theirs, mine = model.merge_and_unload().state_dict(), load_model(made.model(3, "merged")).state_dict()
    assert max(float((mine[name] - one).abs().max()) for name, one in theirs.items()) < 1e-6


def test_diff_verify_and_rollback_know_adapters(made):
    assert "adapter" in flywheel(made, "iteration", "diff", "2", "3")
    flywheel(made, "workspace", "verify")
    flywheel(made, "iteration", "rollback", "1")
    assert json.loads(made.promotion(1).read_text())["model"] == "models/iteration=001/merged"
