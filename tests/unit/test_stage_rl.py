"""The stage around RL: what the curriculum begins from, which figures and episodes are kept, and what is shown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import fmean

import pyarrow as pa
import pytest
import synthetic
import synthetic_rows
from lamp_env import LEFT, LampEnv, Lamps, Scripted, settings, small_model, task

from flywheel.envs.base import Verdict
from flywheel.evaluation.evaluator import JudgedEpisode
from flywheel.pipeline.stage import StageContext, read_shards, run_stage, shard_folder
from flywheel.pipeline.stages import rl as stage_rl
from flywheel.pipeline.stages.rl import EpisodeArchive
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.rollout.episode import run_rollout
from flywheel.store import partitions
from flywheel.training.rl.curriculum import PastOutcomes, describe_curriculum
from flywheel.utils.progress import replace_listener


@pytest.fixture
def episodes():
    tasks = [task(n, max_steps=2) for n in (1, 2)]
    policy = Scripted(lambda context, sampling: LEFT)
    sandbox = Lamps(lambda lease: LampEnv())
    return asyncio.run(run_rollout(tasks, 2, policy, sandbox, iteration=1, settings=settings(), temperature=1.0))


def test_rows_of_all_episodes_are_kept_and_screens_of_the_first_sample(episodes, tmp_path):
    kept = EpisodeArchive(tmp_path, "run-1", every=2)
    for episode in episodes:
        kept.add(episode)
    again = EpisodeArchive(
        tmp_path, "run-1", every=2
    )  # after a kill: what had ended is still there, and one told twice is one
    for episode in episodes[1:]:
        again.add_scores(JudgedEpisode(task(1), episode, (Verdict(0.25, 0.5, "verifier"), Verdict(1.0, 0.5, "judge"))))
    again.add_scores(JudgedEpisode(task(1), episodes[0], (Verdict(1.0, 1.0, "verifier"),)))
    again.add(episodes[0])  # begun again, and not scored yet
    again.stage(tmp_path)
    results = {"rl-games": (tmp_path, None)}
    trajectories, steps = (read_shards(results, name) for name in ("trajectories", "steps"))
    assert sorted(trajectories["trajectory_id"].to_pylist()) == sorted(episode.id for episode in episodes)
    assert set(trajectories["run_id"].to_pylist()) == {"run-1"}
    assert steps.num_rows == sum(len(episode.steps) for episode in episodes)
    scores = read_shards(results, "scores", "trajectory_id", "scorer").to_pylist()
    assert {(row["trajectory_id"], row["scorer"], row["success"]) for row in scores} == {
        (episode.id, scorer, scorer == "judge") for episode in episodes[1:] for scorer in ("verifier", "judge")
    }
    first = [episode for episode in episodes if episode.trajectory.sample == 0]
    wanted = {row.image_sha256 for episode in first for row in episode.steps}
    wanted |= {episode.trajectory.final_image_sha256 for episode in first}
    assert set(read_shards(results, "images", "sha256")["sha256"].to_pylist()) == wanted


def test_the_stage_writes_every_table_also_what_a_killed_run_had_finished(episodes, tmp_path, project):
    ws, chosen = synthetic.workspace(tmp_path / "ws")
    chosen = chosen.model_copy(update={"rl": chosen.rl.model_copy(update={"steps": 0})})
    synthetic.incoming(ws, chosen, 1, tasks=6, samples=1)
    small_model(ws.model(1, "sft"), project)
    ctx, stage = StageContext(ws, chosen, 1, "rl-games"), stage_rl.STAGE
    archive = EpisodeArchive(shard_folder(stage, ctx, "rl-games"), "", every=1)
    begun = replace(episodes[0].trajectory, parent_id="t-parent", start_step=1)
    archive.add(replace(episodes[0], trajectory=begun))
    for _ in range(2):  # told again where a run goes on
        archive.add_task(task(3))
    outcome = run_stage(stage, ctx)
    rows = {
        table: partitions.read_partition(ws, table, 1, "rl-games").num_rows
        for table in ("trajectories", "steps", "images", "scores", "tasks", "curriculum", "lineage", "metrics")
    }
    games = [
        row
        for row in partitions.read_partition(ws, "tasks", 1, "synthesize").to_pylist()
        if (row["domain"], row["split"]) == ("games", "train")
    ]
    assert (rows["trajectories"], rows["steps"], rows["curriculum"]) == (1, len(episodes[0].steps), len(games))
    assert rows["metrics"] == 1  # its seconds
    (fresh,) = ctx.read_tasks("rl-games").values()
    assert fresh == task(3)
    links = partitions.read_partition(ws, "lineage", 1, "rl-games").to_pylist()
    assert [
        (row["child"], row["parent"], row["parent_kind"]) for row in links if row["relation"] == "restored from"
    ] == [(begun.trajectory_id, "t-parent", "trajectory")]
    assert (outcome.summary["RL steps"], outcome.summary["episodes kept"]) == (0, 1)
    assert outcome.summary["tasks sampled less"].endswith(f"of {len(games)}")
    assert (ws.model(1, "rl-games") / "model.safetensors").is_file()


def without_environments(settings, tasks, **how):
    raise AssertionError("an environment is opened")


def test_rl_of_a_domain_with_too_few_live_groups_is_skipped(tmp_path, project, monkeypatch):
    """Its specialist is the SFT checkpoint; a domain at the limit, and one that was not measured, are trained."""
    ws, chosen = synthetic.workspace(tmp_path / "ws", rl={"min_live_groups": 1.0})
    synthetic.incoming(ws, chosen, 1, tasks=6, samples=4)
    small_model(ws.model(1, "sft"), project)
    monkeypatch.setattr(stage_rl, "open_environments", without_environments)
    ctx = StageContext(ws, chosen, 1, "rl-games")
    tasks = ctx.read_tasks("synthesize", "train")
    prior = stage_rl.count_past_outcomes(ctx, tasks)
    own = [counts for name, counts in prior.tasks.items() if tasks[name].domain == "games"]
    live = fmean(0 < won < n for won, n in own)  # a group is all samples of its task
    assert {n for _, n in own} == {3, 4}
    assert 0 < live < 1
    lines = []
    with replace_listener(lambda stage, line: lines.append((stage, line))):
        outcome = run_stage(stage_rl.STAGE, ctx)
    why = outcome.summary["skipped"]
    measured = f"{live:.2f} of the groups of 4 are live ({len(own)} tasks)"
    assert why == f"{measured}, below rl.min_live_groups 1: the specialist is the SFT checkpoint"
    assert ("rl-games", why) in lines
    assert (outcome.summary["RL steps"], outcome.summary["episodes kept"]) == (0, 0)
    assert checkpoint_digest(ws.model(1, "rl-games")) == checkpoint_digest(ws.model(1, "sft"))
    for least, expected in ((0.0, ""), (live, "")):
        rl = chosen.rl.model_copy(update={"min_live_groups": least})
        at = StageContext(ws, chosen.model_copy(update={"rl": rl}), 1, "rl-games")
        assert stage_rl.explain_skip(at, tasks, prior) == expected
    assert stage_rl.explain_skip(ctx, tasks, PastOutcomes.of([])) == ""


def test_figures_of_a_world_or_an_interface_go_by_its_name():
    curve = [
        {"step": 0, "value_pretraining_loss": 0.2},
        {"step": 1, "success": 0.5, "success_tiles": 0.25, "curriculum_level": 1.5, "curriculum_level_tiles": 2.0},
        {"step": 2, "explained_variance": 0.3, "explained_variance_gui": 0.2, "reward_sdk": 0.9},
    ]
    rows = {
        (row["domain"], row["name"], row["step"]): row["value"]
        for row in stage_rl.rl_metric_rows(curve, "games", {"tiles"})
    }
    assert rows == {
        ("games", "value_pretraining_loss", 0): 0.2,
        ("games", "success", 1): 0.5,
        ("games/tiles", "success", 1): 0.25,
        ("games", "curriculum_level", 1): 1.5,
        ("games/tiles", "curriculum_level", 1): 2.0,
        ("games", "explained_variance", 2): 0.3,
        ("games/gui", "explained_variance", 2): 0.2,
        ("games/sdk", "reward", 2): 0.9,
    }


def test_the_curriculum_begins_from_rejection_sampling(tmp_path):
    ws, chosen = synthetic.workspace(tmp_path)
    synthetic.incoming(ws, chosen, 1, tasks=6, samples=4)
    ctx = StageContext(ws, chosen, 1, "rl-games")
    one, two = (replace(task(n), task_id=f"i1-task{n:02d}", world="tiles", template="one") for n in (0, 4))
    found = stage_rl.count_past_outcomes(ctx, {one.task_id: one, two.task_id: two})
    scores = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    of_task = {
        row["trajectory_id"]: row["task_id"]
        for row in partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    }
    mine = [row["success"] for row in scores if of_task.get(row["trajectory_id"]) == one.task_id]
    assert found.tasks[one.task_id] == (sum(mine), len(mine))
    assert set(found.tasks) == {one.task_id, two.task_id}
    won, n = found.kinds["tiles", "one", 1]
    assert (won, n) == tuple(map(sum, zip(*found.tasks.values(), strict=True)))


def test_successes_are_the_verified_rollouts_of_the_domain(tmp_path):
    ws, chosen = synthetic.workspace(tmp_path)
    synthetic.incoming(ws, chosen, 1, tasks=6, samples=4)
    ctx = StageContext(ws, chosen, 1, "rl-games")
    assert stage_rl.find_successes(ctx) == []  # no episode begins within one
    chosen = chosen.model_copy(update={"rl": chosen.rl.model_copy(update={"restored_start_fraction": 0.75})})
    found = stage_rl.find_successes(replace(ctx, settings=chosen))
    games = {name for name, one in ctx.read_tasks("synthesize", "train").items() if one.domain == "games"}
    rows = {row["trajectory_id"]: row for row in ctx.read_rows("trajectories", "rollout")}
    won = {row["trajectory_id"] for row in ctx.read_rows("scores", "score") if row["success"]}
    assert {one.trajectory_id for one in found} == {name for name in won if rows[name]["task_id"] in games} != set()
    for one in found:
        assert (one.source, one.task.task_id) == ("rollouts", rows[one.trajectory_id]["task_id"])
        assert [step.step for step in one.steps] == list(range(rows[one.trajectory_id]["steps"]))
        assert all(step.action and step.image_sha256 for step in one.steps)
    corrected = found[0].trajectory_id  # what a solver solved is none of the model's
    changed = [row | ({"source": "correction"} if name == corrected else {}) for name, row in rows.items()]
    partitions.write_partition(ws, "trajectories", 1, "rollout", changed)
    left = stage_rl.find_successes(replace(ctx, settings=chosen))
    assert {one.trajectory_id for one in left} == {one.trajectory_id for one in found} - {corrected}
    own = chosen.model_copy(update={"rl": chosen.rl.model_copy(update={"start_sources": ["corrections"]})})
    (solved,) = stage_rl.find_successes(replace(ctx, settings=own))
    assert (solved.trajectory_id, solved.source) == (corrected, "corrections")


def test_with_fresh_contents_verified_recordings_of_earlier_iterations_are_successes_too(tmp_path):
    ws, chosen = synthetic.workspace(tmp_path)
    synthetic.incoming(ws, chosen, 1, tasks=6, samples=1)
    verdict = {"scorer": "verifier:shop", "threshold": 1.0, "detail": ""}
    shown = [
        {"trajectory_id": name, "score": score, "success": score == 1.0, **verdict}
        for name, score in (("r10", 1.0), ("r11", 0.5))
    ]
    scores = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    partitions.write_partition(ws, "scores", 1, "score", scores + shown)
    rl = chosen.rl.model_copy(update={"restored_start_fraction": 0.5, "start_sources": ["recordings"]})
    chosen = chosen.model_copy(update={"rl": rl})
    (own,) = stage_rl.find_successes(StageContext(ws, chosen, 1, "rl-sites"))
    assert (own.trajectory_id, own.source, own.task.task_id, len(own.steps)) == ("r10", "recordings", "i1-rec", 3)
    synthetic.routed(ws, chosen, 1)
    synthetic.outgoing(ws, 1)
    synthetic.incoming(ws, chosen, 2, tasks=6, samples=1)
    assert stage_rl.find_successes(StageContext(ws, chosen, 2, "rl-sites")) == []
    fresh = chosen.model_copy(update={"rl": rl.model_copy(update={"fresh_tasks": True})})
    assert stage_rl.find_successes(StageContext(ws, fresh, 2, "rl-sites")) == [own]
    assert stage_rl.find_successes(StageContext(ws, fresh, 2, "rl-games")) == []


def test_in_words():
    rows = [{"reason": why} for why in ("never solved", "", "always solved", "never solved")]
    assert describe_curriculum(rows) == "1 always solved, 2 never solved of 4"
    assert describe_curriculum([{"reason": ""}]) == "none of 1"


def test_the_table_fits_its_schema():
    table = partitions.table_from_rows("curriculum", synthetic_rows.rl_curriculum("games", 1))
    assert isinstance(table, pa.Table)
    assert table.num_rows == 6
