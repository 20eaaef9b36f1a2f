"""Damaged files of labels and owners are told by file, whichever field is wrong."""

from __future__ import annotations

import json

import pytest

from flywheel.config.workspace import Workspace, iteration_run_id
from flywheel.store.labels import read_sample_owners, reviewers_of
from flywheel.utils.errors import DataError

OWNER = {"trajectory_id": "t1", "iteration": 1, "owner": "ada", "by": "ada", "at": "2026-11-30T00:00:00+00:00"}


@pytest.mark.parametrize("wrong", [{"at": "soon"}, {"at": None}, {"by": ...}, {"trajectory_id": 3}])
def test_a_wrong_line_of_owners_names_its_file(tmp_path, wrong):
    line = {name: value for name, value in {**OWNER, **wrong}.items() if value is not ...}
    (tmp_path / "reviews/owners").mkdir(parents=True)
    (tmp_path / "reviews/owners/ada.jsonl").write_text(f"{json.dumps(OWNER)}\n{json.dumps(line)}\n")
    with pytest.raises(DataError, match=r"a line cannot be read \(reviews/owners/ada.jsonl\)"):
        read_sample_owners(Workspace(tmp_path))


def test_a_field_of_a_later_version_is_left_out(tmp_path):
    (tmp_path / "reviews/owners").mkdir(parents=True)
    (tmp_path / "reviews/owners/ada.jsonl").write_text(json.dumps(OWNER | {"colour": "red"}))
    assert read_sample_owners(Workspace(tmp_path))["t1"].owner == "ada"


def test_a_label_without_a_reviewer_names_its_file(tmp_path):
    (tmp_path / "reviews").mkdir()
    (tmp_path / "reviews/ada.jsonl").write_text('{"trajectory_id": "t1", "label": "solved"}\n')
    with pytest.raises(DataError, match=r"reviews/ada.jsonl"):
        reviewers_of(Workspace(tmp_path), "t1")


def test_a_damaged_id_of_an_iteration_is_told(tmp_path):
    ws = Workspace(tmp_path)
    name = iteration_run_id(ws, 3)
    assert iteration_run_id(ws, 3) == name
    next((ws.state / "turns").glob("*.json")).write_text("{")
    with pytest.raises(DataError, match="id cannot be read"):
        iteration_run_id(ws, 3)
