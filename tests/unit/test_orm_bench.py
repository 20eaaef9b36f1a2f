"""The figures of `flywheel bench orm`, on verdicts whose counts are known."""

from __future__ import annotations

import json

import numpy as np
import orm
import orm_rl
import pytest

TRUTH = np.array([True] * 6 + [False] * 4)


def test_rates_count_what_was_decided():
    found = orm.rates(np.array([1, 1, 1, 1, 0, -1, 1, 0, 0, -1]), TRUTH)
    assert {name: one[0] for name, one in found.items()} == {
        "precision": 0.8,  # 4 of 5
        "npv": pytest.approx(2 / 3, abs=1e-4),
        "f1": 0.8,  # 4 of 4 + (1 + 1) / 2
        "false_positive_rate": pytest.approx(1 / 3, abs=1e-4),
        "false_yes_of_not_done": 0.25,
        "abstained": 0.2,
    }
    assert all(one[1] <= one[0] <= one[2] for one in found.values())
    assert orm.rates(np.full(10, -1), TRUTH)["precision"] == (None, 0.0, 1.0, 0)


def test_the_tenth_nearest_to_a_half_is_left_out():
    assert orm.at_ten_percent(np.array([0.9, 0.1, 0.52, 0.4, 0.6, 0.7, 0.2, 0.3, 0.8, 0.95])).tolist() == [
        *(1, 0, -1, 0),
        *(1, 1, 0, 0, 1, 1),
    ]


def test_a_calibrated_model_has_no_calibration_error_and_a_sure_liar_all_of_it():
    assert orm.calibration_error(np.full(10, 0.6), TRUTH) == pytest.approx(0, abs=1e-9)
    assert orm.calibration_error(np.where(TRUTH, 0.0, 1.0), TRUTH) == pytest.approx(1)


def test_cases_are_of_the_split_that_is_asked_for_and_of_domains_that_can_be_calibrated():
    def row(domain: str, truth: bool, p: float) -> dict:
        return {"domain": domain, "truth": truth, "p": p}

    clear = [row("games", n % 2 == 0, 0.9 - 0.8 * (n % 2)) for n in range(80)]
    few = [row("sites", n % 2 == 0, 0.5) for n in range(10)]
    said = {"whole": {"calibrate": clear + few, "task": clear[:40] + few, "template": few}}
    cases = {case.case: case for case in orm.compare("task", said)}
    assert cases["task_precision"].ours == cases["task_npv"].ours == 1.0
    assert list(cases["task_precision"].extra["by_domain"]) == ["games"]
    assert cases["task_false_positive_rate_worst_domain"].met
    assert orm.compare("template", said) == []
    assert all(json.loads(case.line())["bench"] == "orm" for case in cases.values())


def test_rl_by_the_orm_is_held_against_rl_by_the_verifier_task_by_task_and_what_was_paid_wrongly_is_told(tmp_path):
    names = [f"tiles/clear k{n}" for n in range(40)]
    won = {"start-0": 10, "verifier-1": 30, "orm-1": 20, "verifier-2": 30, "orm-2": 24}
    for name, count in won.items():
        (tmp_path / name).mkdir()
        tasks = {one: [n < count] * 2 for n, one in enumerate(names)}
        curve = [
            {"step": 0},
            *({"step": k + 1, "group_variance": 0.05 + 0.2 * (k > 8), "audit_evidence": k / 5} for k in range(12)),
        ]
        (tmp_path / name / "result.json").write_text(json.dumps({"tasks": tasks, "curve": curve}))
        rows = [{"kind": "tiles/clear", "paid": float(n % 2 == 0 or n > 19), "true": n % 2 == 0} for n in range(30)]
        (tmp_path / name / "episodes.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (case,) = orm_rl.compare(tmp_path)
    assert (case.ours, case.peer, case.extra["success_start"]) == (pytest.approx(0.55), 0.75, 0.25)
    assert case.extra["gap"] == pytest.approx(-0.2)
    assert case.extra["gap_by_seed"] == {"1": pytest.approx(-0.25), "2": pytest.approx(-0.15)}
    low, high = case.extra["gap_interval"]
    assert -0.4 < low < -0.2 < high < 0
    assert not case.met
    told = case.extra["training"]["orm-1"]
    assert told["first"] == {"paid": 0.5, "true": 0.5, "paid_of_failed": 0.0}
    assert (told["last"]["paid"], told["last"]["true"], told["last"]["paid_of_failed"]) == (1.0, 0.5, 1.0)
    assert told["paid_wrongly"] == {"tiles/clear": [5, 15]}
    assert [(first, last) for first, last, _ in told["variance_rises"]] == [(9, 11)]
    assert told["audit_warns_at"] == 8
    (tmp_path / "orm-1" / "result.json").unlink()
    (tmp_path / "orm-2" / "result.json").unlink()
    assert orm_rl.compare(tmp_path) == []
