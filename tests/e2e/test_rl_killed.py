"""`kill -9` of the trainer at random moments: no episode is lost, none is used twice, and it goes on at its step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from lamp_env import small_model
from processes import PATIENCE_S
from safetensors.torch import load_file

STEPS, BATCH = 3, 4
RL = {
    "steps": STEPS,
    "tasks_per_step": 2,
    "group_size": 2,
    "minibatch": 4,
    "value_pretraining_steps": 2,
    "value_pretraining_tasks": 2,
    "actor_lr": 1e-3,
    "deterministic": True,
    "length_buffer": 2,
}
REPLAY = {"replay_fraction": 0.25, "tasks_per_step": 1, "group_size": 4}
STARTS = {"fresh_tasks": True, "restored_start_fraction": 0.5, "true_start_tail": 0.0}


def runs(folder: Path, project: Path, seed: int, kills: int, **block) -> dict:
    model = small_model(folder / "model", project)
    script = project / "tests" / "support" / "killed_runs.py"
    arguments = [str(folder), str(model), str(seed), str(kills), json.dumps(RL | block)]
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_that_each_counts_once(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    used: dict[int, list] = defaultdict(list)
    for line in lines:
        if "step" in line:
            used[line["step"]].append(line["used"])
    assert sorted(used) == list(range(STEPS))
    for step, batches in used.items():
        assert all(batch == batches[0] for batch in batches), f"step {step} was begun with other episodes"
    final = [tuple(pair) for step in used for pair in used[step][0]]
    assert len(final) == len({ordinal for ordinal, _ in final}) == STEPS * BATCH  # none twice
    accepted = [(line["accepted"], line["id"]) for line in lines if "accepted" in line]
    of_training = [pair for pair in accepted if pair in set(final)]
    assert len(of_training) == len(set(of_training))  # what had finished was not done again
    end = json.loads((folder / "end.json").read_text())
    assert end["steps"] == list(range(STEPS + 1))  # 0: value pretraining
    assert list(end["trajectories"]) == [name for _, name in final]  # what lineage will say
    pool = folder / "state" / "pool"
    assert not list(pool.glob("*.zip"))  # none lost: all that finished was trained on
    assert [batch["batch"] for batch in map(json.loads, (pool / "log.jsonl").open()) if "batch" in batch] == [
        *range(STEPS)
    ]


def test_ten_kills_of_a_stream(tmp_path, project):
    got = runs(tmp_path, project, 1, 10, max_staleness=2, deterministic=False, max_logprob_diff_off_policy=10.0)
    assert got["kills"] == 10, got
    check_that_each_counts_once(tmp_path / "whole")
    check_that_each_counts_once(tmp_path / "killed")


@pytest.mark.parametrize("block", [{}, STARTS, REPLAY], ids=["true starts", "restored starts, fresh tasks", "replay"])
def test_kills_change_no_bit_of_a_deterministic_run(tmp_path, project, block):
    got = runs(tmp_path, project, 2, 3, max_staleness=0, **block)
    assert got["kills"] == 3, got
    check_that_each_counts_once(tmp_path / "killed")
    one, two = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("whole", "killed"))
    before = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], before[name]) for name in one)
    logs = [(tmp_path / name / "state" / "pool" / "log.jsonl").read_text() for name in ("whole", "killed")]
    groups = [[line for line in log.splitlines() if '"group"' in line] for log in logs]
    assert groups[0] == groups[1]
    assert any('"start"' in line for line in groups[0]) == ("restored_start_fraction" in block)
    ends = [json.loads((tmp_path / name / "end.json").read_text()) for name in ("whole", "killed")]
    assert ends[0]["trajectories"] == ends[1]["trajectories"]
    assert ends[0]["replayed"] == ends[1]["replayed"]
    assert bool(sum(ends[0]["replayed"])) == ("replay_fraction" in block)
