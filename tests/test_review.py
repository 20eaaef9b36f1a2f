"""A reviewer's decision: by the command, what it replaces, and what the reviewer is told before."""

from __future__ import annotations

from click.testing import CliRunner
from reviews import waiting

from flywheel import settings
from flywheel.cli import main
from flywheel.evaluation import gate, review, verdicts
from flywheel.files import write_text
from flywheel.store import dvc_lock, metrics, partitions


def test_a_decision_that_replaces_another_says_so_and_keeps_it(ws):
    waiting(ws, 1)
    command = ["review", "-k", "1", "-w", str(ws.root)]
    assert CliRunner().invoke(main, [*command, "--promote", "--reviewer", "Ada"]).exit_code == 0
    result = CliRunner().invoke(main, [*command, "--keep", "--reviewer", "Eve"])
    assert "this replaces the decision: promote (Ada" in result.output
    CliRunner().invoke(main, [*command, "--keep", "--reviewer", "Bo"])
    decided = review.read(ws, 1)
    assert (decided.reviewer, [one["reviewer"] for one in decided.earlier]) == ("Bo", ["Ada", "Eve"])


def test_nobody_decides_what_is_decided_or_what_no_one_asks(ws):
    waiting(ws, 1)
    command = ["review", "-k", "1", "--keep", "--reviewer", "Bob", "-w", str(ws.root)]
    write_text(dvc_lock.path(ws, 1), "schema: '2.0'\nstages:\n  promote:\n    cmd: x\n")
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "is decided already" in result.output) == (2, True)
    dvc_lock.path(ws, 1).unlink()
    write_text(ws.frozen_params(1), settings.dump(settings.Settings()))
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "promotion.rule is not_worse" in result.output) == (2, True)
    assert review.read(ws, 1) is None


def test_what_the_reviewer_is_told(ws):
    """The gate's own verdict with its error rates, and the tasks on which the models differ, each with its episode."""
    ctx = waiting(ws, 1)
    rule = ctx.settings.promotion
    figures = [{"domain": "all", "step": 0, **row} for row in verdicts.figures("before", gate.judge([0] * 60, rule))]
    shares = [{"domain": "all", "step": 0, **metrics.share("success_after", 3, 4)}]
    partitions.write(ws, "metrics", 1, "evaluate", [*figures, *shares])
    task = {"task_id": "k1", "domain": "sites", "world": "shop", "instruction": "Buy the blue mug"}
    episodes = [task | {"trajectory_id": f"of {model}", "policy_version": model} for model in ("d0", "d1")]
    partitions.write(ws, "trajectories", 1, "evaluate", episodes)
    scores = [
        {"trajectory_id": f"of {model}", "scorer": "verifier", "score": float(model == "d0"), "threshold": 1.0}
        for model in ("d0", "d1")
    ]
    partitions.write(ws, "scores", 1, "evaluate", scores)
    told = review.case(ws, 1, rule)
    assert "would say: not worse by 0.1 or more against the model before it: success +0.000" in told
    assert "- **no longer solved**: shop, Buy the blue mug (`flywheel view of d1`)" in told
    assert "| all | success_after | 0.750 | 0.30 to 0.95 | 4 |" in told
