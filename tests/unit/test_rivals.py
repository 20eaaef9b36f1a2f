"""What is known of the models that a candidate is compared with, and which of them is the best so far."""

from __future__ import annotations

import pytest

from flywheel.config import Settings, parse_settings
from flywheel.evaluation import gate
from flywheel.evaluation.gate import EvalResult
from flywheel.utils.errors import DataError

OLD, NEW = {"model": "models/a", "digest": "a"}, {"model": "models/b", "digest": "b"}


def test_outcomes_are_kept_and_taken_up_only_under_the_same_measure(ws, monkeypatch):
    about = gate.held_out_key(Settings(), ["k1", "k2"])
    solved = gate.solved_share_by_task([EvalResult("k1", "games", 1.0, True), EvalResult("k2", "games", 0.0, False)])
    gate.write_outcomes(ws, 4, about, {"a": solved})
    assert (
        gate.read_comparable_outcomes(ws, 4, about)
        == {"a": {"k1": 1.0, "k2": 0.0}}
        == gate.read_held_out_outcomes(ws, 4)
    )
    assert gate.held_out_key(Settings(), ["k2", "k1"]) == about
    warmer = parse_settings({"evaluation": {"temperature": 0.5}}, where="test")
    for other in (
        gate.held_out_key(warmer, ["k1", "k2"]),
        gate.held_out_key(Settings(), ["k1"]),
        gate.held_out_key(Settings(seed=8), ["k1", "k2"]),
        gate.held_out_key(parse_settings({"routing": {"threshold": 0.5}}, where="test"), ["k1", "k2"]),
    ):
        assert gate.read_comparable_outcomes(ws, 4, other) == {}
    with monkeypatch.context() as patched:
        patched.setattr("flywheel.rewards.scorers.verifier.VerifierScorer.version", "2 of a test")
        assert gate.read_comparable_outcomes(ws, 4, gate.held_out_key(Settings(), ["k1", "k2"])) == {}
    gate.write_outcomes(ws, 5, "", {})  # an iteration that kept none
    assert gate.read_comparable_outcomes(ws, 5, about) == {}
    with pytest.raises(DataError, match=r"iterations/006/held_out\.json"):
        gate.read_comparable_outcomes(ws, 6, about)


def test_a_broken_file_is_named(ws):
    ws.held_out(4).parent.mkdir(parents=True)
    ws.held_out(4).write_text('{"about": "x", "models": [1')
    with pytest.raises(DataError, match=r"held_out\.json"):
        gate.read_comparable_outcomes(ws, 4, "x")


@pytest.mark.parametrize(
    ("mine", "theirs", "promoted", "best"),
    [
        ([1, 1, 0], [1, 0, 0], True, NEW),
        ([1, 0, 0], [1, 1, 0], True, OLD),  # promoted as not worse, but not the best
        ([1, 1, 0], [1, 0, 0], False, OLD),
        ([1 / 3, 1 / 3, 1 / 3], [1, 0, 0], True, NEW),  # equal, but for rounding: the newer one
        ([1, 0, 0], None, True, NEW),  # nothing is known of the old one
    ],
)
def test_the_best_model_so_far(mine, theirs, promoted, best):
    outcomes = {name: dict(enumerate(found)) for name, found in (("b", mine), ("a", theirs)) if found is not None}
    assert gate.choose_best_model({**OLD, "promoted": True}, NEW, promoted, outcomes) == best


def test_the_best_stays_known_while_lesser_ones_are_promoted():
    before = {**NEW, "best": OLD}
    assert gate.get_best_model(before) == OLD
    newest = {"model": "models/c", "digest": "c"}
    assert gate.choose_best_model(before, newest, True, {"c": {"k": 0.5}, "a": {"k": 1.0}}) == OLD
