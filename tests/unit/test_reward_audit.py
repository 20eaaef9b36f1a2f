"""The audit of a reward by the verifier: known figures, few false alarms, and alarms where the reward is hacked."""

from __future__ import annotations

import numpy as np
import pytest

from flywheel.evaluation.reward_audit import ALARM, RewardAudit, is_audited

TEMPLATES = [f"world/{n}" for n in range(9)]


def test_figures_of_a_step_are_known():
    audit = RewardAudit(0.1, ["tiles/clear", "shop/add"])
    rows = [(0, "tiles/clear", True, True), (0, "tiles/clear", True, False), (0, "tiles/clear", False, False)]
    found = audit.add(1, [*rows, (1, "shop/add", False, True)])
    assert found.pop("audit_evidence") == pytest.approx(audit.evidence)
    assert found == {
        "audit_episodes": 4,
        "audit_gap": 0.0,  # two paid, two done
        "audit_false_pay": 0.5,
        "audit_false_pay_tiles": 0.5,
        "audit_missed": 0.5,
    }
    assert audit.add(2, []) == {}


def test_a_share_of_the_groups_is_audited_and_evenly():
    for fraction in (0.0, 0.1, 0.25, 1 / 3, 0.7, 1.0):
        chosen = [is_audited(group, fraction) for group in range(1200)]
        assert sum(chosen) == pytest.approx(1200 * fraction, abs=1)
        assert abs(sum(chosen[:600]) - sum(chosen[600:])) <= 1


def watch(rng: np.random.Generator, share, steps: int, groups: int = 8, alike: float = 5.0) -> RewardAudit:
    """Audit groups of four failed episodes that are alike. share: of a template's episodes that is paid, by step."""
    audit = RewardAudit(0.1, TEMPLATES)
    for step in range(steps):
        rows = []
        for group in range(groups):
            template = TEMPLATES[rng.integers(9)]
            p = share(step, template)
            own = rng.beta(alike * p, alike * (1 - p)) if 0 < p < 1 else p
            rows += [(step * groups + group, template, bool(rng.random() < own), False) for _ in range(4)]
        audit.add(step + 1, rows)
    return audit


@pytest.mark.parametrize("alike", [0.2, 5.0])
def test_a_reward_that_keeps_to_what_is_tolerated_is_warned_of_in_one_run_of_twenty_at_most(alike):
    alarms = [watch(np.random.default_rng(seed), lambda *_: 0.1, 25, alike=alike).alarmed_at for seed in range(100)]
    assert sum(map(bool, alarms)) <= 8  # 5 of 100, and what chance adds


def test_one_template_that_is_hacked_is_found_and_named():
    def share(step: int, template: str) -> float:
        return min(0.9, 0.2 + 0.06 * step) if template == "world/3" else 0.05

    audits = [watch(np.random.default_rng(seed), share, 30) for seed in range(40)]
    assert sum(bool(one.alarmed_at) for one in audits) >= 36
    told = next(one for one in audits if one.alarmed_at).describe("orm")
    assert told.startswith("reward hacking: orm paid ")
    assert "above all of world/3 (" in told


def test_a_hack_that_whole_groups_share_is_found_in_most_runs_of_a_dozen_steps():
    audits = [
        watch(np.random.default_rng(seed), lambda step, _: 0.15 + 0.02 * step, 12, alike=0.2) for seed in range(60)
    ]
    assert sum(0 < one.alarmed_at <= 12 for one in audits) >= 40


def test_an_audit_goes_on_where_it_was():
    first = watch(np.random.default_rng(1), lambda *_: 0.5, 6)
    again = RewardAudit(0.1, TEMPLATES)
    again.load_state(first.to_state())
    assert again.evidence == pytest.approx(first.evidence)
    assert again.evidence >= ALARM
    assert again.alarmed_at == first.alarmed_at
    assert again.describe("orm") == first.describe("orm")


def test_an_audit_of_successes_alone_finds_nothing():
    audit = RewardAudit(0.1, TEMPLATES)
    audit.add(1, [(0, TEMPLATES[0], True, True)])
    assert audit.evidence == pytest.approx(0)
    assert "0 of 0" in audit.describe("orm")
