"""Engines: two processes, by plain torch or by DeepSpeed's ZeRO, take the steps of one by plain torch.

Those of DeepSpeed run where it is installed: `make test-deepspeed` sets it up in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import engine_worker
import pytest
from lamp_env import small_model
from made_experience import DEEPSPEED, needs_deepspeed

from flywheel.config import RlSettings
from flywheel.policy.model import load_model
from flywheel.training.rl.trainer import Learner
from flywheel.utils.errors import TrainingError

PROJECT = Path(__file__).resolve().parents[2]
SUPPORT = PROJECT / "tests" / "support"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("engines") / "model", project)


def run(model: Path, out: Path, engine: str, stage: int, processes: int) -> dict:
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(SUPPORT / "engine_worker.py"), str(model), str(out), engine, str(stage)]
    path = os.pathsep.join([str(SUPPORT), str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out.json"
    engine_worker.main(folder, out, "torch", 0)
    return json.loads(out.read_text())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("engine", "stage", "processes"),
    [
        ("torch", 0, 2),
        *(pytest.param("deepspeed", stage, count, marks=needs_deepspeed) for stage in (1, 2, 3) for count in (1, 2)),
    ],
)
def test_same_losses_as_one_process_of_plain_torch(folder, alone, tmp_path, engine, stage, processes):
    got = run(folder, tmp_path / "out.json", engine, stage, processes)
    for one, two in zip(got["figures"], alone["figures"], strict=True):
        assert one == pytest.approx(two, rel=2e-3, abs=1e-3)
    assert got["repeated"] == pytest.approx(got["figures"][-1], rel=1e-4, abs=1e-5)  # from the saved state
    assert got["weights"] == pytest.approx(alone["weights"], rel=1e-5)


@pytest.mark.skipif(DEEPSPEED, reason="deepspeed is installed")
def test_deepspeed_that_is_not_installed_is_named(folder):
    with pytest.raises(TrainingError, match=r"deepspeed is not installed \(engine\)"):
        Learner(load_model(folder), RlSettings(engine="deepspeed"), 0)
