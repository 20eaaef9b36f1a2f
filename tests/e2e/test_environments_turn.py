"""A kind of environment that the flywheel has never heard of, registered and nothing more: whole turns, and RL.

Chromium is not to be had here: whatever opened a browser would fail.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import lamp_env
import pytest
import yaml
from lamp_env import Lamps, score_lamp, small_model
from text_env import STORE, Shelves, StoreWorld

from flywheel.agent.prompt import build_context
from flywheel.config import Settings, SupervisedSettings, parse_settings
from flywheel.config.workspace import Workspace
from flywheel.envs.registry import BACKENDS, EnvLimits
from flywheel.envs.tasks import open_levels
from flywheel.envs.tasks.drawing import make_task
from flywheel.maintenance import status
from flywheel.pipeline import dag, iterations
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.store import manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.versioning import stage_records
from flywheel.training.data import Example, ShuffledDataset
from flywheel.training.refresh import find_wanted
from flywheel.training.rl.run import train_rl
from flywheel.training.sft import train_supervised
from flywheel.ui.report import pages
from flywheel.utils.files import write_text

pytestmark = pytest.mark.slow
SAID = {name: f"Thought: {name}.\nAction: type(content='set lamp {name}')" for name in ("on", "off")}
SMALL = {
    "sandbox": {"executable": "no-such-browser", "kinds": {"shelves": {"places": 3}}},
    "recording": {"sessions_per_iteration": 0},
    "synthesis": {
        "domains": {"stores": ["store"]},
        "held_out": [],
        "train_tasks": 6,
        "eval_tasks": 4,
        "num_grounding_examples": 0,
    },
    "policy": {"max_new_tokens": 24, "timeout_s": 60},
    "rollout": {"n_rollouts": 4, "temperature": 1.0},
    "ct": {"num_examples": 12},
    "sft": {"num_examples": 12, "lr": 1e-5},
    "rl": {
        "steps": 2,
        "tasks_per_step": 2,
        "group_size": 2,
        "length_buffer": 2,
        "value_pretraining_tasks": 2,
        "value_pretraining_steps": 2,
        "temperature": 1.0,
    },
    "merge": {"weights": {"stores": 1.0}},
    "evaluation": {"stages": True},
    "promotion": {"tasks": 20, "margin": 0.4, "tasks_per_look": 10},
}


def settings(**blocks) -> Settings:
    return parse_settings(
        {name: {**SMALL.get(name, {}), **blocks.get(name, {})} for name in {*SMALL, *blocks}}, where="test"
    )


def store_task(number: int, level: int = 1, **changes):
    return replace(make_task(STORE, ("on", "off")[number % 2], level, number, "train", "stores"), **changes)


@pytest.fixture(scope="module")
def base(tmp_path_factory, project):
    """A model that has learnt the command, and turns the lamp on or off at random."""
    folder = tmp_path_factory.mktemp("shelves")
    model, chosen, samples = small_model(folder / "new", project), settings(), []
    encoder = Encoder.from_folder(model)
    for number in range(32):
        task = store_task(number, 1 + number // 2 % 2)
        shown = "\n".join(f"{key}={value}" for key, value in sorted(task.params["store"].items()))
        context = build_context(task.instruction, (), None, chosen.policy, observation=shown)
        response = tuple(encoder.encode_text(SAID[("on", "off")[number // 4 % 2]]))
        samples.append(Example(encoder.encode(context), response, None, f"t{number:02d}", 0, "stores"))
    block = SupervisedSettings(lr=5e-3, batch=16)
    dataset = ShuffledDataset(samples * 20, block.batch, seed=1)
    train_supervised(model, folder / "base", dataset, settings=block, state_folder=folder / "state")
    return folder / "base"


@pytest.fixture
def shelves(monkeypatch) -> Shelves:
    made = Shelves()
    monkeypatch.setitem(BACKENDS, "shelves", made)
    return made


def test_a_whole_turn(shelves, base, tmp_path):
    ws, chosen = Workspace(tmp_path / "ws"), settings()
    write_text(ws.params, yaml.safe_dump(chosen.model_dump(mode="json")))
    stage_records.init_dvc_project(ws)
    shutil.copytree(base, ws.root / "models" / "base")
    iterations.run_preflight(ws, chosen)
    manifest.init_first_checkpoint(ws, checkpoint_digest(base), "models/base")
    begin_iteration(ws, 1, chosen)
    for name in dag.stage_order(chosen.synthesis.domains, closing=True):
        run_stage(dag.find_stage(name), StageContext.open(ws, 1, name))

    def rows(table, stage):
        return partitions.read_partition(ws, table, 1, stage).to_pylist()

    assert {row["environment"] for row in rows("tasks", "synthesize")} == {"shelves"}
    assert open_levels.read_open_levels(ws, 1) == {"store": 2}
    (told,) = database.query_catalog(ws, "FROM held_out_success_by_stage WHERE domain = 'all'").to_pylist()
    assert told["merged"] == told["rl"]  # the one specialist
    assert all(0 <= told[name] <= 1 for name in ("before", "ct", "sft", "rl", "merged"))
    kept = [row["policy_version"] for row in rows("trajectories", "evaluate")]
    assert {name[:12] for name in kept} <= {checkpoint_digest(ws.model(1, "merged"))[:12], checkpoint_digest(base)[:12]}
    for stage in ("rollout", "rl-stores", "evaluate"):
        steps = rows("steps", stage)
        assert {step["image_sha256"] for step in steps} == {None}
        assert all("lamp=" in step["observation"] for step in steps)
        assert rows("images", stage) == []
    verified = {row["trajectory_id"] for row in rows("scores", "score") if row["success"]}
    assert 0 < len(verified) < 24
    assert {row["trajectory_id"] for row in rows("sft", "route")} == verified
    assert len(rows("ct", "route")) + len(rows("quarantine", "route")) == 24 - len(verified)
    assert rows("ct", "route")
    for name in ("ct", "sft", "rl-stores", "merged"):
        assert checkpoint_digest(ws.model(1, name)) != checkpoint_digest(base)
    assert all(lender.most <= 3 for lender in shelves.opened)
    page = pages.write_trajectory_page(ws, min(verified)).read_text()
    assert '<pre class="read">' in page
    assert "lamp=" in page
    assert "no screen" not in page


def test_two_sources_by_their_shares_and_tasks_that_come_back(shelves, base, tmp_path, monkeypatch):
    """A turn of two kinds, and the next one's tasks: half of them where the model is weak or mixed."""
    monkeypatch.setitem(BACKENDS, "vaults", Shelves("vaults", StoreWorld(**{**vars(STORE), "name": "vault"})))
    monkeypatch.setattr(StoreWorld, "environment", property(lambda self: {"vault": "vaults"}.get(self.name, "shelves")))
    ws = Workspace(tmp_path / "ws")
    synthesis = {"domains": {"stores": ["store", "vault"]}, "train_tasks": 8, "shares": {"stores/vault": 0.25}}
    chosen = settings(synthesis={**synthesis, "refresh": 0.5}, rl={"steps": 1}, evaluation={"stages": False})
    write_text(ws.params, yaml.safe_dump(chosen.model_dump(mode="json")))
    stage_records.init_dvc_project(ws)
    shutil.copytree(base, ws.root / "models" / "base")
    iterations.run_preflight(ws, chosen)
    manifest.init_first_checkpoint(ws, checkpoint_digest(base), "models/base")

    def tasks(iteration):
        rows = partitions.read_partition(ws, "tasks", iteration, "synthesize").to_pylist()
        return [row for row in rows if row["split"] == "train"]

    begin_iteration(ws, 1, chosen)
    for name in dag.stage_order(chosen.synthesis.domains, closing=True):
        run_stage(dag.find_stage(name), StageContext.open(ws, 1, name))
    assert Counter((row["world"], row["environment"], row["drawn_for"]) for row in tasks(1)) == {
        ("store", "shelves", "even"): 6,
        ("vault", "vaults", "even"): 2,
    }
    rl = {row["name"]: row["value"] for row in partitions.read_partition(ws, "metrics", 1, "rl-stores").to_pylist()}
    assert 0 <= rl["group_variance"] <= 0.25
    assert 0 <= rl["groups_all_success"] + rl["groups_all_failed"] <= 1
    # What the record of the first turn says is what its scores say.
    counts = {}
    kind_of = {row["task_id"]: (row["world"], row["template"], row["level"]) for row in tasks(1)}
    rollouts = partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    played = {row["trajectory_id"]: kind_of[row["task_id"]] for row in rollouts}
    for row in partitions.read_partition(ws, "scores", 1, "score").to_pylist():
        won, n = counts.get(played[row["trajectory_id"]], (0, 0))
        counts[played[row["trajectory_id"]]] = won + row["success"], n + 1
    assert open_levels.read_outcomes(ws, 1) == {1: counts}
    wanted = find_wanted({1: counts})
    assert wanted  # the model turns the lamp at random

    begin_iteration(ws, 2, chosen)
    run_stage(dag.find_stage("synthesize"), StageContext.open(ws, 2, "synthesize"))
    back = [row for row in tasks(2) if row["drawn_for"] != "even"]
    assert len(back) == 4
    for row in back:
        assert wanted[row["world"], row["template"], row["level"]][0] == row["drawn_for"]
    assert Counter(row["world"] for row in tasks(2) if row["drawn_for"] == "even") == {"store": 3, "vault": 1}
    assert not {row["params"] for row in tasks(1)} & {row["params"] for row in tasks(2)}
    told = status.read_workspace_status(ws)
    assert told.drawn_for == Counter(row["drawn_for"] for row in tasks(2))
    assert "the newest training tasks were drawn for: 4 even" in " ".join(line for _, line in status.status_lines(told))
    page = pages.write_report(ws).read_text()
    assert "Why the training tasks were drawn" in page


class LampKind(Shelves):
    """The lamps of `lamp_env.py`, which are pictures, as a kind of their own."""

    def limits(self, settings):
        return EnvLimits(places=2, call_s=30, open_s=30)

    def verifier(self, task):
        return lambda params, state: score_lamp(task, state)

    @asynccontextmanager
    async def open(self, settings, root):
        self.opened.append(Lamps())
        yield self.opened[-1]


def test_rl_of_two_kinds_at_once(shelves, base, tmp_path, monkeypatch):
    """Pictures and texts in one batch, a stream of both, each within its own places."""
    pictures = LampKind("lamps")
    monkeypatch.setitem(BACKENDS, "lamps", pictures)
    tasks = [store_task(number, task_id=f"store{number}") for number in range(4)]
    tasks += [replace(lamp_env.task(number, max_steps=2), environment="lamps", domain="stores") for number in range(4)]
    played = []
    result = train_rl(
        base,
        tmp_path / "out",
        "stores",
        tasks,
        settings=settings(
            rl={"steps": 3, "tasks_per_step": 4, "max_staleness": 1, "max_logprob_diff_off_policy": 10.0}
        ),
        iteration=1,
        state_folder=tmp_path / "state",
        on_episode=played.append,
    )
    pretraining, *steps = result.curve
    assert pretraining["value_pretraining_loss"] >= 0
    assert [point["step"] for point in steps] == [1, 2, 3]
    assert all(point["mismatch"] < 1e-4 for point in steps if "mismatch" in point)  # what is trained on was sampled
    assert any("mismatch" in point for point in steps)
    used = [episode for episode in played if episode.id in result.trajectories]
    assert {bool(episode.images) for episode in used} == {True, False}
    assert any(episode.trajectory.status == "truncated" and not episode.images for episode in used)  # V reads a text
    (texts,), (shown,) = shelves.opened, pictures.opened
    assert texts.most <= 3
    assert shown.most <= 2
