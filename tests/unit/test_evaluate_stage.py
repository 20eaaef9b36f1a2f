"""The evaluate stage's figures: held-out templates apart from those that training draws from."""

from __future__ import annotations

from flywheel.evaluation.gate import EvalResult
from flywheel.pipeline.stages.evaluate import success_by_template


def results(outcomes: str) -> list[EvalResult]:
    """One result a letter: capital letters are solved."""
    return [EvalResult(letter.lower(), "sites", float(letter.isupper()), letter.isupper()) for letter in outcomes]


def test_success_is_told_of_seen_and_of_unseen_templates():
    rows = success_by_template("sites", {"d", "e"}, results("Abcde"), results("ABcDe"))
    told = {row["name"]: (row["value"], row["n"], row["domain"]) for row in rows}
    assert told == {
        "success_seen_before": (1 / 3, 3, "sites"),
        "success_seen_after": (2 / 3, 3, "sites"),
        "success_unseen_before": (0.0, 2, "sites"),
        "success_unseen_after": (0.5, 2, "sites"),
    }
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)


def test_without_held_out_templates_nothing_is_told_apart():
    assert success_by_template("games", set(), results("Ab"), results("AB")) == []
    assert success_by_template("games", {"other"}, results("Ab"), results("AB")) == []


def test_where_all_are_held_out_nothing_is_said_of_seen_ones():
    rows = success_by_template("all", {"a", "b"}, results("Ab"), results("AB"))
    assert [row["name"] for row in rows] == ["success_unseen_before", "success_unseen_after"]
