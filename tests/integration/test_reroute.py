"""Deciding again: shown first, written in one go, the same as the stages give, with the chain of manifests whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import made_workspaces
import pytest
from made_workspaces import flywheel
from minimal_iterations import record_stages
from night import by_day

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.maintenance import reroute
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import route, score
from flywheel.store import manifest, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.routing_decisions import RoutingRule
from flywheel.store.versioning import stage_records


@pytest.fixture(scope="module")
def halves(three_iterations, tmp_path_factory) -> Path:
    """Where the scores of what failed in iteration 1 are one half; not to be changed."""
    ws = Workspace(shutil.copytree(three_iterations, tmp_path_factory.mktemp("halves") / "ws", symlinks=True))
    half(ws, 1)
    return ws.root


@pytest.fixture
def ws(halves, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(halves, tmp_path / "ws", symlinks=True))


@pytest.fixture
def still(halves) -> Iterator[Workspace]:
    """What all share; nothing in it may change."""
    ws, before = Workspace(halves), made_workspaces.content(Workspace(halves))
    yield ws
    assert made_workspaces.content(ws) == before


@pytest.fixture
def recorded(three_iterations, tmp_path) -> Workspace:
    """As they were made: all is recorded."""
    return Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))


def rows(ws: Workspace, table: str, k: int, stage: str = "route") -> list[dict]:
    return partitions.read_partition(ws, table, k, stage).to_pylist()


def half(ws: Workspace, k: int) -> None:
    """The scores of what failed are one half."""
    scores = rows(ws, "scores", k, "score")
    for row in scores:
        row["score"] = row["score"] or 0.5
    partitions.write_partition(ws, "scores", k, "score", scores)
    record_stages(ws, ("score", "rl-games", "rl-sites", "rl-control"), k)


def test_what_moves_is_shown_and_nothing_is_written(still):
    code, told = flywheel(still, "data", "reroute", 1, "--threshold", 0.4, "--json")
    (found,) = json.loads(told)
    assert code == 0
    assert not (still.state / "again").exists()
    failed = {row["trajectory_id"] for row in rows(still, "ct", 1) if row["source"] == "rollout"}
    assert {(one["from"], one["to"]) for one in found["moved"]} == {("ct", "sft")}
    assert sum(one["trajectories"] for one in found["moved"]) == len(failed) == found["moved_in_all"]
    before = {(row["trajectory_id"], row["scorer"]): row for row in rows(still, "scores", 1, "score")}
    assert found["scores"] == len(before), "each is held against another threshold"
    assert found["verdicts"] == sum((row["score"] >= 0.4) != row["success"] for row in before.values()) < len(before)
    assert f"{found['verdicts']} scores change" in flywheel(still, "data", "reroute", 1, "--threshold", 0.4)[1]
    assert {example["trajectory_id"] for one in found["moved"] for example in one["examples"]} <= failed
    later = {f"{stage}@{k:03d}" for stage in ("ct", "sft", "evaluate") for k in (1, 2, 3)}
    in_window = later - {"sft@003"}  # of two iterations
    assert set(found["stale"]) == in_window | {"rl-games@001", "rl-sites@001", "rl-control@001"}


def test_what_is_written_is_what_the_stages_give_and_all_is_recorded(ws):
    old = rows(ws, "lineage", 1)
    first = {row["trajectory_id"] for row in rows(ws, "sft", 1)}
    assert flywheel(ws, "data", "reroute", 1, "--threshold", 0.4, "--write")[0] == 0
    assert stage_records.changed_stages(ws) == {}
    manifest.verify_manifest(ws, 3)
    assert routing_decisions.store_version(ws, 1) == 1
    (decision,) = routing_decisions.read_decisions(ws, 1)
    assert decision.rule == RoutingRule(threshold=0.4)
    now = rows(ws, "lineage", 1)
    assert [row for row in now if row["child"] == "sft@001"] == [row for row in old if row["child"] == "sft@001"]
    held = {row["parent"] for row in now if row["child"] == "sft@001.1" and row["relation"] == "holds"}
    assert held == {row["trajectory_id"] for row in rows(ws, "sft", 1)} > first
    assert {"sft@001.1", "sft@002"} == set(manifest.read_manifest(ws, 2).datasets("sft"))
    routes, scores = rows(ws, "routes", 1), rows(ws, "scores", 1, "score")
    assert {row["threshold"] for row in scores} == {0.4}
    result = run_stage(route.STAGE, StageContext.open(ws, 1, "route"))
    assert rows(ws, "routes", 1) == routes
    assert result.summary["to sft"] == len(held)
    (figure,) = database.query_catalog(ws, "SELECT p FROM p_v1 WHERE iteration = 1 AND domain = 'all'").to_pylist()
    metric = [row for row in rows(ws, "metrics", 1, "score") if row["name"] == "p_v1" and row["domain"] == "all"]
    assert figure["p"] == pytest.approx(metric[0]["value"])
    for name in ("headroom", "live_groups"):
        view = f"SELECT domain, {name} AS value, {name}_low AS low, {name}_high AS high, tasks AS n FROM headroom"
        found = database.query_catalog(ws, f"{view} WHERE iteration = 1 AND world IS NULL").to_pylist()
        written = {row["domain"]: row for row in rows(ws, "metrics", 1, "score") if row["name"] == name and row["n"]}
        assert {row["domain"] for row in found} == written.keys() > {"all"}
        for row in found:
            assert row == pytest.approx({column: written[row["domain"]][column] for column in row})


@pytest.mark.exhaustive
def test_without_options_it_goes_back_to_the_parameters(ws):
    before = {row["trajectory_id"]: row["destination"] for row in rows(ws, "routes", 1)}
    flywheel(ws, "data", "reroute", 1, "--threshold", 0.4, "--write")
    assert {row["trajectory_id"]: row["destination"] for row in rows(ws, "routes", 1)} != before
    flywheel(ws, "data", "reroute", 1, "--write")
    assert {row["trajectory_id"]: row["destination"] for row in rows(ws, "routes", 1)} == before
    assert routing_decisions.store_version(ws, 1) == 2
    assert stage_records.changed_stages(ws) == {}
    code, told = flywheel(ws, "data", "reroute", "--all", "--write")
    assert code == 0
    assert told.count("every trajectory goes where it went") == 3
    assert routing_decisions.store_version(ws, 1) == 2


@pytest.mark.exhaustive
def test_a_band_of_doubt_sets_aside_and_gives_back(ws):
    in_ct = [row["trajectory_id"] for row in rows(ws, "ct", 1) if row["source"] == "rollout"]
    flywheel(ws, "data", "reroute", 1, "--band", 0.3, 0.6, "--write")
    aside = {row["trajectory_id"]: row["reason"] for row in rows(ws, "quarantine", 1)}
    assert {aside[name] for name in in_ct} == {"doubted: score 0.50 is in [0.3, 0.6)"}
    flywheel(ws, "data", "reroute", 1, "--write")
    assert in_ct == [row["trajectory_id"] for row in rows(ws, "ct", 1) if row["source"] == "rollout"]


@pytest.mark.exhaustive
def test_a_scorer_judges_stored_trajectories_anew(recorded, monkeypatch):
    """The verifier of the synthetic tasks knows no such page: by it nothing can be judged any more."""
    from flywheel.rewards.scorers import verifier as module

    class Steps:
        name, version, needs = "verifier", "3", frozenset({"steps"})

        def score(self, case):
            from flywheel.rewards.scorer import Score

            return Score(1.0 if len(case.steps) >= 4 else 0.0)

    monkeypatch.setattr(module, "open_scorer", lambda settings: Steps())
    assert flywheel(recorded, "data", "reroute", 2, "--scorer", "verifier", "--write")[0] == 0
    long = {row["trajectory_id"] for row in rows(recorded, "trajectories", 2, "rollout") if row["steps"] >= 4}
    every = rows(recorded, "scores", 2, "score")
    assert {row["version"] for row in every if not row["current"]} == {None}, "the earlier version stays"
    now = [row for row in every if row["current"]]
    scored = {row["trajectory_id"]: row for row in now}
    assert {name for name, row in scored.items() if row["success"]} == long & scored.keys()
    assert {row["trajectory_id"] for row in rows(recorded, "sft", 2)} <= long
    assert stage_records.changed_stages(recorded) == {}
    by_stage = list(
        score.score_trajectories(StageContext(recorded, Settings(), 2, "score"), RoutingRule(scorers=("verifier",)))
    )
    assert sorted(by_stage, key=lambda row: row["trajectory_id"]) == now


@pytest.mark.parametrize("after", by_day(["rewrite_manifest", "relink_manifest", "update_lock_entries"]))
def test_a_write_that_is_killed_is_gone_on_with(ws, monkeypatch, after):

    def killed(*arguments):
        raise KeyboardInterrupt

    found = reroute.prepare_reroute(ws, 1, RoutingRule(threshold=0.4))
    with monkeypatch.context() as patch:
        patch.setattr(reroute.dvc_files if after == "update_lock_entries" else manifest, after, killed)
        with pytest.raises(KeyboardInterrupt):
            reroute.apply_reroute(ws, [found], RoutingRule(threshold=0.4))
    assert reroute.resume_pending_decisions(ws) == [1]
    assert routing_decisions.store_version(ws, 1) == 1
    assert stage_records.changed_stages(ws) == {}
    manifest.verify_manifest(ws, 3)
    assert reroute.resume_pending_decisions(ws) == []


@pytest.mark.exhaustive
def test_an_open_iteration_trains_on_what_was_decided_again(ws):
    from flywheel.store.versioning import dvc_files

    half(ws, 3)
    entries = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, 3))
    open_ = {name: entry for name, entry in entries.items() if name not in ("promote", "runs")}
    dvc_files.dvc_lock_path(ws, 3).write_text(dvc_files.dump_dvc_lock(open_))
    flywheel(ws, "data", "reroute", 3, "--threshold", 0.4, "--write")
    (decision,) = routing_decisions.read_decisions(ws, 3)
    assert decision.stale == ()
    assert stage_records.unfinished_stages(ws, stage_records.stage_names(ws, 3), 3)[0] == "ct"


@pytest.mark.parametrize(
    ("arguments", "what"),
    by_day(
        [
            ([9], "has not been begun"),
            ([], "which iteration"),
            ([1, "--all"], "which iteration"),
            ([1, "--band", 0.6, 0.4], "low end"),
            ([1, "--scorer", "oracle"], "no scorer is called"),
            ([1, "--threshold", 2], "not in the range"),
        ],
        2,
    ),
)
def test_what_cannot_be_followed_is_one_line(still, arguments, what):
    code, told = flywheel(still, "data", "reroute", *arguments)
    assert code == 2
    assert what in told
    assert told.count("\n") == 1


def test_looking_at_what_was_set_aside(still):
    code, told = flywheel(still, "data", "quarantine", "--json")
    found = json.loads(told)
    assert code == 0
    assert sum(one["rows"] for one in found) == sum(len(rows(still, "quarantine", k)) for k in (1, 2, 3))
    assert any(one["reason"].startswith("contract: logprobs_match") for one in found)
    code, told = flywheel(still, "data", "quarantine", 1, "--where", "status = 'crashed'")
    assert [json.loads(line)["trajectory_id"] for line in told.splitlines()] == ["t10001"]


@pytest.mark.exhaustive
def test_a_mended_row_is_judged_and_routed_again(ws, monkeypatch):
    from flywheel.rewards.scorer import Score
    from flywheel.rewards.scorers import verifier as module

    monkeypatch.setattr(module.VerifierScorer, "score", lambda self, case: Score(1.0))
    assert "t10001" in {row["trajectory_id"] for row in rows(ws, "quarantine", 1)}
    before = made_workspaces.content(ws)
    mend = [
        "data",
        "quarantine",
        1,
        "--where",
        "status = 'crashed'",
        "--set",
        "status='completed'",
        "--set",
        "error=NULL",
    ]
    code, told = flywheel(ws, *mend)
    assert (code, "1 to sft: verified: score 1.00" in told) == (0, True)
    assert made_workspaces.content(ws) == before
    assert flywheel(ws, *mend, "--write")[0] == 0
    assert "t10001" in {row["trajectory_id"] for row in rows(ws, "sft", 1)}
    assert "t10001" not in {row["trajectory_id"] for row in rows(ws, "quarantine", 1)}
    untouched = {path for path in before if "/stage=synthesize/" in path or "iteration=002" in path}
    assert {path: before[path] for path in untouched} == {path: made_workspaces.content(ws)[path] for path in untouched}
    (decision,) = routing_decisions.read_decisions(ws, 1)
    assert decision.mended["rows"] == 1
    links = {(row["child"], row["parent"]) for row in rows(ws, "lineage", 1) if row["relation"] == "mended by"}
    assert links == {("t10001", "decision@001.1")}
    assert stage_records.changed_stages(ws) == {}
    manifest.verify_manifest(ws, 3)


def test_mending_steps_goes_through_the_contracts(recorded, monkeypatch):
    from flywheel.rewards.scorer import Score
    from flywheel.rewards.scorers import verifier as module

    monkeypatch.setattr(module.VerifierScorer, "score", lambda self, case: Score(0.0))
    broken = "reason LIKE 'contract: logprobs_match%'"
    wrong = ["data", "quarantine", 2, "--table", "steps", "--where", broken, "--set", "logprobs=[0.5]"]
    assert "contract: logprobs_match" in flywheel(recorded, *wrong)[1]
    right = "logprobs=list_transform(token_ids, lambda x: -0.5)"
    assert (
        flywheel(recorded, "data", "quarantine", 2, "--table", "steps", "--where", broken, "--set", right, "--write")[0]
        == 0
    )
    assert "t20002" in {row["trajectory_id"] for table in ("sft", "ct") for row in rows(recorded, table, 2)}
    assert len(rows(recorded, "steps", 2, "rollout")) == sum(
        row["steps"] for row in rows(recorded, "trajectories", 2, "rollout")
    )
    assert stage_records.changed_stages(recorded) == {}


@pytest.mark.parametrize(
    ("arguments", "what"),
    by_day(
        [
            (["--set", "nothing=1"], "column nothing of trajectories cannot be set"),
            (["--set", "trajectory_id='x'"], "cannot be set"),
            (["--set", "status"], "not COLUMN=SQL"),
            (["--set", "status='completed'", "--where", "status = 'gone'"], "no row of trajectories"),
            (["--set", "status=", "--where", "true"], "not COLUMN=SQL"),
            (["--set", "steps='many'"], "cannot be"),
            (["--where", "SELECT"], "cannot be answered"),
        ],
        3,
    ),
)
def test_what_cannot_be_mended_is_one_line_and_changes_nothing(still, arguments, what):
    code, told = flywheel(still, "data", "quarantine", 1, *arguments)
    assert code == 2
    assert what in told


@pytest.mark.exhaustive
def test_a_decision_leaves_the_large_tables_as_they_are(ws):
    flywheel(ws, "data", "reroute", 1, "--threshold", 0.4, "--write")
    files = {path.stat().st_ino for path in ws.partition("steps", 1, "rollout").iterdir()}
    flywheel(ws, "data", "reroute", 1, "--write")
    assert {path.stat().st_ino for path in ws.partition("steps", 1, "rollout").iterdir()} == files
    signed, stores = partitions.partition_files(ws, "trajectory_hashes", 1, "route"), store_ids(ws)
    flywheel(ws, "data", "reroute", 1, "--threshold", 0.4, "--write")
    assert store_ids(ws) != stores
    assert partitions.partition_files(ws, "trajectory_hashes", 1, "route") == signed  # by content: they are named by it


def store_ids(ws) -> list[list[str]]:
    return [partitions.read_partition(ws, store, 1, "route")["trajectory_id"].to_pylist() for store in ("sft", "ct")]
