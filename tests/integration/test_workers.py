"""Processes that train together: the same calls in all, and an error with a name whichever of them ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from lamp_env import Lamps, settings, small_model, task
from made_experience import needs_deepspeed
from night import by_day
from processes import PATIENCE_S, alive
from safetensors.torch import load_file
from worker_members import Kept, Member

from flywheel.rewards.scorers import verifier
from flywheel.training.distributed import worker_group
from flywheel.training.distributed.worker_group import WorkerGroup
from flywheel.training.rl.run import train_rl
from flywheel.utils.errors import TrainingError


@pytest.fixture
def groups():
    """Makes groups that are closed at the end."""
    made = []

    def make(*arguments, **more) -> WorkerGroup[Member]:
        made.append(WorkerGroup(*arguments, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(("size", "total"), by_day([(2, 11.0), (1, 5.0), (3, 18.0)]))
def test_every_member_is_called(groups, size, total):
    before, made = dict(os.environ), groups(Member, size)
    assert [made.call("add", 5.0), made.call("add", 5.0)] == [total, total]
    made.close()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("fail", "said"),
    by_day(
        [
            ("raise", r"training process 2 of 2: ValueError: it does not fit \(processes\)"),
            ("die", r"training process 2 of 2: has ended \(exit status -9\)"),
            ("abort", r"training process 2 of 2: has ended \(exit status 3\), its last words: no room on the device"),
        ]
    ),
)
def test_a_process_that_fails_is_named(groups, fail, said):
    with pytest.raises(TrainingError, match=said):
        groups(partial(Member, 1, fail), 2).call("add", 1.0)


@pytest.mark.parametrize(
    ("rank", "said"), by_day([(1, r"training process 2 of 2: OSError: no room left"), (0, "no room")])
)
def test_a_member_that_cannot_be_made(rank, said):
    with pytest.raises((TrainingError, OSError), match=said):
        WorkerGroup(partial(Member, rank, "start"), 2)


def test_one_that_hangs_is_named_in_time(groups, monkeypatch):
    monkeypatch.setattr(worker_group, "GRACE_S", 0.1)
    made = groups(partial(Member, 1, "hang"), 2)
    made._limit = 0.5
    with pytest.raises(TrainingError, match=r"training process 1 of 2: has not answered in time \(0 s\)"):
        made.call("add", 1.0)
    made.close()


@pytest.mark.exhaustive
def test_one_that_dies_ends_the_call_where_the_others_do_not_see_it(groups, monkeypatch):
    made = groups(partial(Member, 1, "die"), 2)
    monkeypatch.setattr(worker_group, "GRACE_S", 0.1)  # for the one that is ended
    with pytest.raises(TrainingError, match=r"training process 2 of 2: has ended \(exit status -9\)"):
        made.call("wait_for_none")
    made.close()


@pytest.mark.exhaustive
def test_processes_that_do_not_meet_are_told_in_time(monkeypatch):
    class OneIsMissing(worker_group.SingleNodeLauncher):
        def __call__(self, start, meets):
            return worker_group.LocalRanks(start, [0], meets, self.address)

    monkeypatch.setattr(worker_group, "_RENDEZVOUS_S", 0.5)
    monkeypatch.setattr(worker_group, "GRACE_S", 0.1)
    with (
        worker_group.use_launcher(OneIsMissing()),
        pytest.raises(TrainingError, match="has not met the others in time"),
    ):
        WorkerGroup(Member, 2)


def test_processes_that_find_different_states_do_not_go_on(groups, tmp_path):
    """As on machines whose folders are not the same."""
    made = groups(Kept, 2)
    assert made.call("load_own", tmp_path) is None
    (tmp_path / "0").mkdir()
    made.call("save", tmp_path / "0" / "state", {"key": "key", "done": 3})
    with pytest.raises(TrainingError, match="the processes do not find the same saved state"):
        made.call("load_own", tmp_path)
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    assert groups(Kept, 2).call("load_own", tmp_path) == {"key": "key", "done": 3}


@pytest.mark.exhaustive
def test_an_error_of_all_is_that_error(groups):
    with pytest.raises(TrainingError, match=r"the batch is empty \(PPO\)"):
        groups(Member, 2).call("refuse")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "end",
    by_day(
        [
            "os.kill(os.getpid(), 9)",
            "workers._ranks.ask(pickle.dumps(('add', (1.0,)))); os.kill(os.getpid(), 9)",
            "sys.exit()",
        ]
    ),
    ids=["killed", "killed while they are at work", "without closing it"],
)
def test_the_others_end_with_the_leader(tmp_path, end):
    """Whatever it ends by."""
    lead = (
        "import os, pickle, sys, pathlib; from functools import partial; from worker_members import Member\n"
        "from flywheel.training.distributed import worker_group\n"
        "from flywheel.training.distributed.worker_group import WorkerGroup\n"
        "worker_group._forks.set_forkserver_preload(['worker_members'])  # no model is had here\n"
        "if __name__ == '__main__':\n"
        "    workers = WorkerGroup(partial(Member, 1, 'hang'), 2)\n"
        f"    workers.call('here', pathlib.Path(sys.argv[1])); {end}"
    )
    script = tmp_path / "lead.py"
    script.write_text(lead)
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])])
    subprocess.run(
        [sys.executable, script, tmp_path], env=os.environ | {"PYTHONPATH": path}, timeout=PATIENCE_S, check=False
    )
    other, deadline = int((tmp_path / "1").read_text()), time.monotonic() + PATIENCE_S
    while alive(other):
        assert time.monotonic() < deadline, "the other process lives on"
        time.sleep(0.05)


# A step trains on one minibatch: which turns lie in which hangs on the names of episodes, and these on the last bits of
# the weights that played them.
RL = {
    "steps": 2,
    "tasks_per_step": 3,
    "group_size": 2,
    "minibatch": 64,
    "actor_lr": 1e-3,
    "value_pretraining_steps": 4,
    "value_pretraining_tasks": 2,
    "deterministic": True,
    "max_staleness": 0,
    "length_buffer": 2,
    "pack_tokens": 300,
}


@pytest.mark.parametrize("engine", ["torch", pytest.param("deepspeed", marks=needs_deepspeed)])
def test_two_processes_come_to_what_one_comes_to(tmp_path, project, monkeypatch, engine):
    """By plain torch also where one has begun; by ZeRO 3 where the two were stopped in between."""
    monkeypatch.setattr(verifier, "score_final_state", lambda task, state: float(task.params["side"] == "left"))
    model = small_model(tmp_path / "model", project)

    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    begun, parts = (1, {}) if engine == "torch" else (2, {"engine": engine, "zero_stage": 3})

    def train(name: str, processes: int, parts: dict, **more) -> list[dict]:
        return train_rl(
            model,
            tmp_path / name / "out",
            "games",
            [task(number, max_steps=2) for number in range(5)],
            settings=settings(rl=RL | parts | {"processes": processes}, policy={"max_new_tokens": 9, "timeout_s": 60}),
            iteration=1,
            state_folder=tmp_path / name / "state",
            open_environments=Lamps.open,
            **more,
        ).curve

    alone = train("alone", 1, {})
    train("together", begun, parts, stop=lambda: True)
    together = train("together", 2, parts)
    assert [row["step"] for row in together] == [row["step"] for row in alone] == [0, 1, 2]
    for name in ("policy_loss", "value_loss", "grad_norm", "entropy", "kl", "tokens", "explained_variance"):
        assert together[-1][name] == pytest.approx(alone[-1][name], rel=2e-3, abs=1e-4), name
    one, two = (load_file(tmp_path / name / "out" / "model.safetensors") for name in ("alone", "together"))
    assert all(torch.allclose(one[name], two[name], atol=2e-4) for name in one)
