"""What `flywheel bench merging` says of what was played."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import merging

from flywheel.utils.errors import BadInput


def test_shares_are_of_domains_and_differences_of_the_same_tasks():
    drawn = {seed: [SimpleNamespace(domain=one) for one in ("games", "sites")] for seed in (0, 1)}
    played = {
        "uniform": {0: [0.0, 1.0], 1: [0.0, 1.0]},
        "rl_games": {0: [1.0, 0.0], 1: [1.0, 0.0]},
        "rl_sites": {0: [0.0, 1.0], 1: [0.0, 1.0]},
        "ties": {0: [1.0, 1.0], 1: [0.0, 1.0]},
    }
    cases = {case.case: case for case in merging.study_cases(played, drawn, {"seeds": 2})}
    ties = cases["success_ties"]
    assert (ties.ours, ties.peer, ties.extra["difference"], ties.extra["n"]) == (0.75, 0.5, 0.25, 4)
    assert ties.extra["by_domain"] == {"games": 0.5, "sites": 1.0}
    assert ties.extra["by_seed"] == [1.0, 0.5]
    assert (ties.extra["recovered"], cases["success_rl_games"].extra["recovered"]) == (0.75, 0.5)
    low, high = ties.extra["interval"]
    assert low == 0.0 <= 0.25 <= high


def test_a_task_whose_environment_crashed_counts_for_no_model():
    drawn = {0: [SimpleNamespace(domain="games")] * 3}
    played = {"uniform": {0: [1.0, None, 0.0]}, "rl_games": {0: [1.0, 1.0, 1.0]}}
    uniform, games = merging.study_cases(played, drawn, {})
    assert (uniform.ours, games.ours, games.extra["difference"], games.extra["crashed"]) == (0.5, 1.0, 0.5, 1)
    with pytest.raises(BadInput, match="some environment crashed"):
        merging.study_cases({"uniform": {0: [None] * 3}}, drawn, {})


def test_a_run_whose_rl_did_not_end_is_refused(tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    (tmp_path / "models" / "iteration=001" / "sft").mkdir(parents=True)
    (tmp_path / "models" / "iteration=001" / "rl-games").mkdir()
    with pytest.raises(BadInput, match="no iteration has all specialists"):
        merging.find_specialists(tmp_path)
    for domain in ("sites", "control"):
        (tmp_path / "models" / "iteration=001" / f"rl-{domain}").mkdir()
    base, found = merging.find_specialists(tmp_path)
    assert base.name == "sft"
    assert set(found) == {"games", "sites", "control"}
