"""A decision about a promotion that is reversed afterwards: what the next iteration begins with, and what is told."""

from __future__ import annotations

import shutil
import subprocess

import minimal_iterations
import numpy as np
import pytest
from click.testing import CliRunner
from explorer_store import explorer
from explorer_tabs import open_page, serious
from playwright.sync_api import expect
from safetensors.numpy import save_file

from flywheel.cli import main
from flywheel.config import Settings, run_lock
from flywheel.config.workspace import Workspace
from flywheel.evaluation import gate, promotion_review
from flywheel.maintenance import promotion_override, rollback
from flywheel.pipeline import dag
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stage import StageContext, clear_staging, run_stage
from flywheel.pipeline.stages import promote
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.store import manifest, partitions
from flywheel.store.schema import metric_row
from flywheel.store.versioning import git_tags, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json, write_text

BASE, MERGED = "models/base", "models/iteration=001/merged"


@pytest.fixture
def ws(one_iteration, tmp_path, monkeypatch) -> Workspace:
    """A workspace with a complete iteration 1, whose rule promoted its model."""
    ws = Workspace(shutil.copytree(one_iteration, tmp_path / "ws", symlinks=True))
    monkeypatch.setattr(promote.contracts, "check_table_contracts", lambda *_: None)
    write_text(ws.params, "versioning: {git: true}\n")
    params = ws.frozen_params(1).read_text(encoding="utf-8")
    write_text(ws.frozen_params(1), params.replace("rule: non_inferiority", "rule: always"))
    write_json(ws.promotion(0), {"model": BASE, "digest": "base", "iteration": 0, "promoted": True, "reason": ""})
    merged = ws.model(1, "merged")
    shutil.rmtree(merged)
    merged.mkdir()
    save_file({"w": np.ones(3, np.float32)}, merged / "model.safetensors")
    for table, rows in (("metrics", [{"domain": "all", "step": 0, **metric_row("success_after", 0.5, n=4)}]),):
        shutil.rmtree(ws.partition(table, 1, "evaluate"))
        partitions.write_partition(ws, table, 1, "evaluate", rows)
    gate.write_outcomes(ws, 1, "", {"base": {"k": 0.0}, checkpoint_digest(merged): {"k": 1.0}})
    for table in ("reviews", "metrics"):
        shutil.rmtree(ws.partition(table, 1, "promote"))
    ctx = StageContext.open(ws, 1, "promote")
    run_stage(dag.find_stage("promote"), ctx)
    clear_staging(ctx)
    stage_records.rerecord_changed(ws, 1, stage_records.stage_names(ws, 1))
    git_tags.tag_iteration(ws, 1)
    assert (manifest.read_promotion(ws, 1)["model"], stage_records.changed_stages(ws)) == (MERGED, {})
    return ws


def override(ws: Workspace, promoted: bool, reviewer: str = "Ada Byron", comment: str = "sites lost") -> None:
    promotion_override.override_promotion(ws, 1, promote=promoted, reviewer=reviewer, comment=comment)


def said(ws: Workspace) -> list[tuple[str, str]]:
    rows = partitions.read_partition(ws, "reviews", 1, "promote").to_pylist()
    return [(row["reviewer"], row["decision"]) for row in rows]


def told(ws: Workspace) -> dict:
    rows = partitions.read_partition(ws, "metrics", 1, "promote").to_pylist()
    (figure,) = (row["value"] for row in rows if row["name"] == "promoted")
    made = manifest.read_promotion(ws, 1)
    assert figure == made["promoted"]
    assert stage_records.changed_stages(ws) == {}, "all of it is recorded"
    return {name: made[name] for name in ("model", "promoted")} | {"best": made["best"]["model"]}


def test_what_the_rule_promoted_is_kept_back_afterwards_and_promoted_again(ws):
    override(ws, False)
    assert told(ws) == {"model": BASE, "promoted": False, "best": BASE}
    assert said(ws) == [("rule always", "promote"), ("ada byron", "keep")]
    reason = manifest.read_promotion(ws, 1)["reason"]
    assert reason == "ada byron overrode the rule always: sites lost"
    rule = stage_records.load_iteration_params(ws, 1).promotion
    line = promotion_review.describe_promotion(ws, 1, rule)
    assert line == f"iteration 001: not promoted by ada byron, who overrode the rule always: {reason}"
    override(ws, True, "Bo", "they did not")
    assert told(ws) == {"model": MERGED, "promoted": True, "best": MERGED}
    assert said(ws) == [("rule always", "promote"), ("ada byron", "keep"), ("bo", "promote")]
    assert "bo overrode ada byron: they did not" in manifest.read_promotion(ws, 1)["reason"]
    assert [one.overrides for one in promotion_review.read_review(ws, 1).history] == ["the rule always", "ada byron"]


def test_it_is_committed_and_the_tag_is_of_it(ws):
    before = dict(git_tags.iteration_tags(ws))["iteration-001"]
    override(ws, False)
    git = ["git", "-C", str(ws.root)]
    head, message = subprocess.run(
        [*git, "log", "-1", "--format=%H %s"], capture_output=True, text=True, check=True
    ).stdout.split(" ", 1)
    assert message.strip() == "Decided again: the promotion of iteration 001"
    assert dict(git_tags.iteration_tags(ws))["iteration-001"] == head != before
    kept = subprocess.run([*git, "show", "HEAD:iterations/001/promotion.json"], capture_output=True, check=True).stdout
    assert kept == ws.promotion(1).read_bytes()


def test_what_cannot_be_overridden_is_refused_by_name_and_nothing_changes(ws):
    def refused(promoted: bool, words: str, **more: str) -> None:
        before = ws.promotion(1).read_bytes()
        with pytest.raises(BadInput, match=words):
            override(ws, promoted, **more)
        assert (ws.promotion(1).read_bytes(), promotion_review.read_review(ws, 1)) == (before, None)

    refused(True, "iteration 001 is promoted already")
    refused(False, "an override has no reason", comment=" ")
    refused(False, "no name of a reviewer", reviewer="../x")
    refused(False, "a comment may have 2,000 characters", comment="x" * 2001)
    ws.iteration(2).mkdir()
    refused(False, "iteration 002 began with what iteration 001 decided.*`flywheel iteration rollback 1`")
    ws.iteration(2).rmdir()
    merged = ws.model(1, "merged")
    aside = merged.rename(ws.root / "aside")
    refused(False, "the model that iteration 001 made is not here.*dvc checkout models/iteration=001/merged")
    aside.rename(merged)
    write_json(ws.promotion(0), {"model": BASE, "digest": checkpoint_digest(merged), "iteration": 0})
    refused(False, "made no other model than the one before it")
    (ws.iteration(1) / "dvc.lock").unlink()
    refused(False, "is not decided yet")


def test_what_began_with_the_earlier_decision_does_not_come_back_by_an_undo(ws):
    begin_iteration(ws, 2, minimal_iterations.frozen(Settings(), recording={"sessions_per_iteration": 0}))
    minimal_iterations.run_stages(ws, ("ingest", "synthesize", "rollout"), 2)
    rollback.roll_back(ws, 1)
    rollback.undo_rollback(ws)
    aside = rollback.roll_back(ws, 1)
    override(ws, False)
    with pytest.raises(BadInput, match="iteration 002 began with another decision about iteration 001"):
        rollback.undo_rollback(ws)
    assert (aside / "iterations/002").is_dir()
    assert not ws.iteration(2).exists()


@pytest.mark.parametrize("killed", ["run_stage", "clear_staging"])
def test_what_was_killed_is_carried_out_by_the_next_command(ws, monkeypatch, killed):
    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(promotion_override, killed, kill)
        with pytest.raises(KeyboardInterrupt):
            override(ws, False)
    promotion_override.resume_promotion_override(ws)
    assert told(ws)["model"] == BASE
    assert said(ws) == [("rule always", "promote"), ("ada byron", "keep")]
    at = ws.promotion(1).stat().st_mtime_ns
    promotion_override.resume_promotion_override(ws)
    assert ws.promotion(1).stat().st_mtime_ns == at, "what is carried out is left alone"


def test_the_command_waits_for_no_run_and_says_what_the_next_iteration_begins_with(ws, monkeypatch):
    monkeypatch.setattr("flywheel.ui.report.pages.write_report", lambda ws: None)
    command = ["review", "promotion", "-k", "1", "--keep", "--override", "--reviewer", "Ada", "-w", str(ws.root)]
    with run_lock.hold_workspace(ws):
        assert CliRunner().invoke(main, [*command, "--comment", "so"]).exit_code == 1
    assert CliRunner().invoke(main, command).exit_code == 2, "without a reason"
    result = CliRunner().invoke(main, [*command, "--comment", "so"])
    assert (result.exit_code, BASE in result.output, "the rule always" in result.output) == (0, True, True)
    told(ws)


def test_the_explorer_overrides_as_the_command_does(ws, monkeypatch):
    monkeypatch.setattr("flywheel.ui.report.pages.write_report", lambda ws: None)
    body = {"promote": False, "reviewer": "Ada", "override": True}
    with explorer(ws) as (_, client):
        answer = client.post("/api/promotions/1", json=body)
        assert (answer.status_code, "an override has no reason" in answer.json()["error"]) == (400, True)
        with run_lock.hold_workspace(ws):
            assert client.post("/api/promotions/1", json=body | {"comment": "so"}).status_code == 409, (
                "a run is at work"
            )
        answer = client.post("/api/promotions/1", json=body | {"comment": "so"})
        assert [(one["reviewer"], one["promote"]) for one in answer.json()["decisions"]] == [("ada", False)]
    assert (told(ws)["model"], said(ws)) == (BASE, [("rule always", "promote"), ("ada", "keep")])


def test_a_decision_is_overridden_from_the_page(ws, browser, monkeypatch):
    monkeypatch.setattr("flywheel.ui.report.pages.write_report", lambda ws: None)
    for path in sorted(ws.data.glob("*/iteration=001/stage=*")):  # the least iteration's files hold no rows
        table, stage = path.parts[-3], path.name.removeprefix("stage=")
        if stage != "promote" and (table, stage) != ("metrics", "evaluate"):
            shutil.rmtree(path)
            partitions.write_partition(ws, table, 1, stage, [])
    monkeypatch.setattr("flywheel.maintenance.rollback.recover_workspace", lambda ws: None)
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.evaluate("localStorage.setItem('flywheel-reviewer', 'ada')")
        tab.goto(f"{server.url}/review?show=promotions")
        decisions = tab.get_by_role("region", name="Decisions")
        expect(decisions).to_contain_text("rule always")
        expect(tab.get_by_role("button", name="Override: go back to the old model")).to_be_disabled()
        tab.get_by_label("Why").fill("sites lost")
        tab.get_by_role("button", name="Override: go back to the old model").click()
        tab.get_by_role("button", name="Yes, decide").click()
        expect(decisions).to_contain_text("ada overrode the rule always: sites lost")
        expect(decisions).to_contain_text("Before: rule always, promote")
        expect(tab.get_by_role("button", name="Override: promote it after all")).to_be_disabled()
        assert serious(tab) == []
        ws.iteration(2).mkdir()
        tab.reload()
        expect(tab.get_by_text("This decision cannot be overridden now: iteration 002 began")).to_be_visible()
        assert tab.faults == []
        tab.context.close()
    assert manifest.read_promotion(ws, 1)["model"] == BASE
