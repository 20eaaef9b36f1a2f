"""The stage `promote` keeps every decision as a row of `reviews`: a person's, and the rule's own."""

from __future__ import annotations

import pytest
from reviews import waiting

from flywheel import config
from flywheel.config.workspace import Workspace
from flywheel.evaluation import gate, promotion_review
from flywheel.pipeline.stage import StageContext
from flywheel.pipeline.stages import promote
from flywheel.store import manifest, partitions


def decided(ws: Workspace, ctx: StageContext, monkeypatch) -> list[dict]:
    monkeypatch.setattr(promote.contracts, "check_table_contracts", lambda *_: None)
    monkeypatch.setattr(promote, "checkpoint_digest", lambda _: "d1")
    gate.write_outcomes(ws, 1, "", {"d1": {"k": 1.0}})
    result = promote._work(ctx, ws.root)
    promote._finish(ctx, ws.root, result)
    assert manifest.read_promotion(ws, 1)["promoted"] == result["promoted"]
    return partitions.read_partition(ws, "reviews", 1, "promote").to_pylist()


@pytest.mark.parametrize(("rule", "decision"), [("always", "promote"), ("non_inferiority", "keep")])
def test_a_rules_decision_has_a_row(ws, monkeypatch, rule, decision):
    ctx = waiting(ws, 1)
    settings = config.parse_settings({"promotion": {"rule": rule}}, where="")
    (row,) = decided(ws, StageContext(ws, settings, 1, "promote"), monkeypatch)
    told = manifest.read_promotion(ws, 1)
    assert (row["kind"], row["subject"]) == ("promotion", "models/iteration=001/merged")
    assert (row["reviewer"], row["decision"], row["comment"]) == (f"rule {rule}", decision, told["reason"])
    assert row["at"] is not None
    assert ctx.settings.promotion.rule == "review"


def test_a_persons_decisions_have_a_row_each_and_the_rule_none(ws, monkeypatch):
    ctx = waiting(ws, 1)
    for promoted, name in ((True, "Ada Byron"), (False, "José")):
        promotion_review.decide_promotion(ws, 1, promote=promoted, reviewer=name, comment="so")
    rows = decided(ws, ctx, monkeypatch)
    assert [(row["reviewer"], row["decision"]) for row in rows] == [("ada byron", "promote"), ("josé", "keep")]
