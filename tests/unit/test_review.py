"""A reviewer's decision: by the command, what it replaces, and what the reviewer is told before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from reviews import waiting

from flywheel import config
from flywheel.cli import main
from flywheel.evaluation import gate, promotion_review
from flywheel.store import partitions
from flywheel.store.schema import fraction_metric_row
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_text


def test_a_decision_that_replaces_another_says_so_and_keeps_it(ws):
    waiting(ws, 1)
    command = ["review", "promotion", "-k", "1", "-w", str(ws.root)]
    assert CliRunner().invoke(main, [*command, "--promote", "--reviewer", "Ada"]).exit_code == 0
    result = CliRunner().invoke(main, [*command, "--keep", "--reviewer", "Eve"])
    assert "this replaces the decision: promote (Ada" in result.output
    CliRunner().invoke(main, [*command, "--keep", "--reviewer", "Bo"])
    decided = promotion_review.read_review(ws, 1)
    assert (decided.reviewer, [one["reviewer"] for one in decided.earlier]) == ("Bo", ["Ada", "Eve"])


def test_nobody_decides_what_is_decided_or_what_no_one_asks(ws):
    waiting(ws, 1)
    command = ["review", "promotion", "-k", "1", "--keep", "--reviewer", "Bob", "-w", str(ws.root)]
    write_text(dvc_files.dvc_lock_path(ws, 1), "schema: '2.0'\nstages:\n  promote:\n    cmd: x\n")
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "is decided already" in result.output) == (2, True)
    dvc_files.dvc_lock_path(ws, 1).unlink()
    write_text(ws.frozen_params(1), config.dump_settings(config.Settings()))
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "promotion.rule is non_inferiority" in result.output) == (2, True)
    assert promotion_review.read_review(ws, 1) is None


def test_what_the_reviewer_is_told(ws):
    """The gate's own verdict with its error rates, and the tasks on which the models differ, each with its episode."""
    ctx = waiting(ws, 1)
    rule = ctx.settings.promotion
    figures = [
        {"domain": "all", "step": 0, **row}
        for row in gate.build_gate_metrics("before", gate.judge_differences([0] * 60, rule))
    ]
    names = {"success_before": 1, "success_after": 3, "success_unseen_after": 0}
    shares = [{"domain": "all", "step": 0, **fraction_metric_row(name, solved, 4)} for name, solved in names.items()]
    more = {"name": "success_difference", "value": 0.5, "low": -0.125, "high": 0.875, "n": 4}
    shares.append({"domain": "all", "step": 0, **more})
    partitions.write_partition(ws, "metrics", 1, "evaluate", [*figures, *shares])
    task = {"task_id": "k1", "domain": "sites", "world": "shop", "instruction": "Buy the blue mug"}
    episodes = [task | {"trajectory_id": f"of {model}", "policy_version": model} for model in ("d0", "d1")]
    partitions.write_partition(ws, "trajectories", 1, "evaluate", episodes)
    scores = [
        {"trajectory_id": f"of {model}", "scorer": "verifier", "score": float(model == "d0"), "threshold": 1.0}
        for model in ("d0", "d1")
    ]
    partitions.write_partition(ws, "scores", 1, "evaluate", scores)
    merged = {"child": "d1", "parent": "models/iteration=001/merged", "relation": "weights of"}
    partitions.write_partition(ws, "lineage", 1, "merge", [merged])
    told = promotion_review.build_promotion_report(ws, 1, rule).markdown()
    assert "would say: not worse by 0.1 or more against the model before it: success +0.00" in told
    assert "- **no longer solved**: shop, Buy the blue mug (`flywheel data view of d1`)" in told
    assert told.endswith(
        "*new*: of those that never are.\n\n| tasks | n | before | merged | difference |\n|---|---|---|---|---|\n"
        "| all | 4 | 0.25 | 0.75 | +0.50 [-0.12, +0.88] |\n| all, new | 4 |  | 0.00 |  |"
    )


def test_what_cannot_be_decided_is_one_line(ws):
    waiting(ws, 1)
    for reviewer, comment, said in (
        (" ", "", "the reviewer has no name"),
        ("Ada", "x" * 2**20, "a comment may have 2,000 characters, this one has 1,048,576"),
        ("A" * 101, "", "a name may have 100 characters"),
    ):
        with pytest.raises(BadInput, match=said):
            promotion_review.decide_promotion(ws, 1, promote=True, reviewer=reviewer, comment=comment)
    assert promotion_review.read_review(ws, 1) is None


def test_two_who_decide_at_once_are_both_kept(ws):
    waiting(ws, 1)
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: promotion_review.decide_promotion(ws, 1, promote=n % 2 == 0, reviewer=f"r{n}", comment=""),
                range(8),
            )
        )
    assert sorted(one.reviewer for one in promotion_review.read_review(ws, 1).history) == [f"r{n}" for n in range(8)]


def test_only_the_newest_iterations_can_wait(ws):
    assert promotion_review.list_pending_reviews(ws) == []
    waiting(ws, 1)
    assert promotion_review.list_pending_reviews(ws) == [1]
    write_text(ws.iteration(2) / "params.yaml", "")
    assert promotion_review.list_pending_reviews(ws) == [1]
    write_text(dvc_files.dvc_lock_path(ws, 1), "schema: '2.0'\nstages:\n  promote:\n    cmd: x\n")
    assert promotion_review.list_pending_reviews(ws) == []
