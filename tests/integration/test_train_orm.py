"""An outcome reward model is trained on a workspace whose truth is to be seen on the last screen, and scores by it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import synthetic
from lamp_env import screen, small_model
from synthetic_rows import START, step, task, trajectory

from flywheel.config import OrmSettings, PolicySettings, Settings, SupervisedSettings
from flywheel.envs.base import Task
from flywheel.pipeline import iterations
from flywheel.policy import open_policy
from flywheel.policy.protocol import SamplingParams
from flywheel.rewards.outcome import Calibration, VerdictInput, VerdictReader, build_verdict_context
from flywheel.rewards.scorer import ScorerSet, ScoringInput
from flywheel.rewards.scorers.orm import OutcomeScorer
from flywheel.store.images import image_digest, image_rows
from flywheel.store.partitions import write_partition
from flywheel.store.schema import Trajectory
from flywheel.training.outcome_reward import trainer
from flywheel.training.outcome_reward.labels import load_labelled
from flywheel.utils.errors import BadInput

ENDED = Trajectory("t", "x", "games")
PROJECT = Path(__file__).resolve().parents[2]
SCREENS = {(done, n): screen("left" if done else "right", n) for done in (True, False) for n in range(4)}
RECIPE = {
    "reads": VerdictInput(2),
    "sft_steps": 60,
    "rl_steps": 8,
    "sft": SupervisedSettings(lr=2e-3, batch=16, freeze_vision=False),
    "rl": SupervisedSettings(lr=2e-4, batch=16, freeze_vision=False),
}


def workspace(root: Path, truth=lambda n: n % 2 == 0):
    """Eighty tasks of four trajectories of two steps; the last screen is lit on the left where the task was done. All
    say the same."""
    ws, settings = synthetic.workspace(root)
    synthetic.begin_iteration(ws, 1, settings)
    tasks = [task(f"task{n:02d}", "games", "tiles") for n in range(80)]
    rows, steps, scores = [], [], []
    for n in range(320):
        done, at = truth(n), START + timedelta(seconds=n)
        row = trajectory(f"t{n:03d}", tasks[n // 4], at=at, sample=n % 4, reward=float(done), steps=2)
        shown = [SCREENS[not done, n % 4], SCREENS[done, n % 3]]
        steps += [
            step(row, k, total=2, kind="finished" if k else "click") | {"image_sha256": image_digest(shown[k])}
            for k in range(2)
        ]
        score = {"scorer": "verifier:tiles", "score": float(done), "threshold": 1.0, "success": done, "detail": ""}
        rows.append(row)
        scores.append({"trajectory_id": row["trajectory_id"]} | score)
    lost = trajectory("t999", tasks[0], at=START, steps=1)  # its screen is not stored
    demonstration = trajectory("t998", tasks[0], at=START, source="recording", author="human")
    steps += [step(lost, 0, total=1) | {"image_sha256": "f" * 64}, *(step(demonstration, k, total=3) for k in range(3))]
    scores += [{**scores[0], "trajectory_id": name} for name in ("t998", "t999")]
    write_partition(ws, "tasks", 1, "synthesize", tasks)
    write_partition(ws, "trajectories", 1, "rollout", [*rows, demonstration, lost])
    write_partition(ws, "steps", 1, "rollout", steps)
    images = {image_digest(png): png for png in SCREENS.values()}
    write_partition(ws, "images", 1, "rollout", sorted(image_rows(images), key=lambda one: one["sha256"]))
    write_partition(ws, "scores", 1, "score", scores)
    return ws


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The workspace, and the folder of an ORM that was trained on it."""
    folder = tmp_path_factory.mktemp("orm")
    ws = workspace(folder / "ws")
    recipe = trainer.OrmRecipe(small_model(folder / "begin", PROJECT), **RECIPE)
    seen = []
    out = trainer.train_orm(ws, (1, 1), folder / "models" / "orm", recipe, seen.append)
    assert [one["stage"] for one in seen] == ["sft"] * 60 + ["rl"] * 8
    return ws, out


def test_labels_are_the_models_own_trajectories_with_all_screens(made, tmp_path):
    found, images = load_labelled(made[0], (1, 1), tmp_path)
    assert [one.trajectory_id for one in found] == [f"t{n:03d}" for n in range(320)]
    assert [one.truth for one in found] == [n % 2 == 0 for n in range(320)]
    assert {one.claims_success for one in found} == {True}
    assert [len(one.steps) for one in found] == [2] * 320
    assert images[found[3].steps[1].image_sha256] == SCREENS[False, 0]
    assert load_labelled(made[0], (2, 3), tmp_path)[0] == []


def test_it_learns_to_see_the_truth_though_all_claim_success(made, tmp_path):
    ws, out = made
    found, images = load_labelled(ws, (1, 1), tmp_path)
    said = trainer.compute_yes_probabilities(out, Calibration.read(out).reads, found, images)
    assert np.mean((said > 0.5) == [one.truth for one in found]) > 0.95


def test_it_scores_by_the_settings_as_any_scorer(made, tmp_path):
    ws, out = made
    found, images = load_labelled(ws, (1, 1), tmp_path)
    chosen = Settings.model_validate(
        {"routing": {"scorers": {"default": ["orm"]}}, "orm": {"checkpoint": str(out.parent / "orm")}}
    )
    panel = ScorerSet(chosen)
    assert panel.needs() == {"steps", "screens"}
    row = synthetic.task("x", "games", "tiles")
    about = {"params": {}, **{name: row[name] for name in ("task_id", "domain", "world", "template", "level", "seed")}}
    about |= {name: row[name] for name in ("instruction", "max_steps", "split", "verifier", "threshold", "checksum")}
    verdicts = [panel.score_trajectory(ScoringInput(Task(**about), ENDED, one.steps, images))[0] for one in found[:40]]
    known = [(verdict.v, one.truth) for verdict, one in zip(verdicts, found, strict=False) if verdict.v is not None]
    assert len(known) >= 36
    assert sum(v == truth for v, truth in known) / len(known) > 0.9
    assert {verdict.version.split()[0] for verdict in verdicts} == {"orm@1"}
    assert all("certain" in verdict.detail or "to review" in verdict.detail for verdict in verdicts)


def test_its_folder_is_a_checkpoint_that_answers_as_the_policy_does(made, tmp_path):
    ws, out = made
    found, images = load_labelled(ws, (1, 1), tmp_path)
    policy = open_policy(out, PolicySettings(guided_decoding="never"))
    reader = VerdictReader(out, VerdictInput(2))
    contexts = [
        build_verdict_context(one.instruction, one.steps, images, reader.encoder.count, reader.reads)
        for one in found[:12]
    ]

    async def ask():
        try:
            return [(await policy.complete(context, SamplingParams(0.0, 4))).text for context in contexts]
        finally:
            await policy.close()

    said = reader.probabilities(contexts)
    assert asyncio.run(ask()) == ["yes" if p > 0.5 else "no" for p in said]
    assert trainer.compute_yes_probabilities(out, reader.reads, found[:12], images) == pytest.approx(said, abs=1e-4)


def test_the_next_one_is_the_next_version_and_says_what_it_was_made_of(made):
    ws, out = made
    assert out.name == "orm@1"
    card = (out / "README.md").read_text()
    assert "| games | " in card
    assert "60 steps of SFT, 8 of RL" in card
    again = trainer.train_orm(
        ws, (1, 1), out.with_name("orm"), replace(trainer.OrmRecipe(out, **RECIPE), sft_steps=1, rl_steps=0)
    )
    assert again.name == "orm@2"
    assert Calibration.read(again).weights != Calibration.read(out).weights


def test_a_verdict_of_another_checkpoint_is_refused(made):
    with pytest.raises(BadInput, match="lacks calibration"):
        OutcomeScorer(OrmSettings(checkpoint=str(PROJECT / "models" / "base")))


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        (lambda n: True, "one class"),
        (lambda n: n < 5, "too few labels"),
        (lambda n: n % 10 == 0, "no domain has 20 labels of each kind"),
    ],
)
def test_labels_that_cannot_train_or_calibrate_are_refused_before_training(tmp_path, truth, words):
    ws = workspace(tmp_path / "ws", truth)
    with pytest.raises(BadInput, match=words):
        trainer.train_orm(ws, (1, 1), tmp_path / "orm", trainer.OrmRecipe(PROJECT / "models" / "base"))
    assert not list(tmp_path.glob("orm*"))


@pytest.mark.parametrize(
    ("reward", "words"),
    [("orn", r"no scorer is called 'orn' \(rl.reward\).*orm"), ("orm", "no such checkpoint.*models/orm")],
)
def test_a_run_whose_reward_is_not_there_is_refused_before_it_begins(tmp_path, monkeypatch, reward, words):
    monkeypatch.chdir(tmp_path)  # where there is no models/orm
    ws, _ = synthetic.workspace(tmp_path / "ws")
    still = {"recording": {"sessions_per_iteration": 0}}
    (ws.root / "models").mkdir(exist_ok=True)
    (ws.root / "models" / "base").symlink_to(PROJECT / "models" / "base")
    with pytest.raises(BadInput, match=words):
        iterations.run_preflight(ws, Settings.model_validate({"rl": {"reward": reward}} | still))
