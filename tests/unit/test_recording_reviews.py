"""Recordings that people review before they are taken in: blind, by two, and a third where they disagree."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from flywheel.cli import main
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.recordings import reviewing, selection
from flywheel.store import manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.recording_verdicts import QUESTIONS, RecordingVerdict, review_state
from flywheel.utils import progress
from flywheel.utils.errors import BadInput, DataError

YES = dict.fromkeys(QUESTIONS, True)
NO = YES | {"safe": False}
NAMES = ("000-tiles-anna", "001-shop-ben", "002-control-carl")


def settings(reviewers: int = 2) -> Settings:
    return Settings.model_validate({"curation": {"reviewers": reviewers}})


@pytest.fixture
def ws(tmp_path, project) -> Workspace:
    ws = Workspace(tmp_path)
    manifest.init_first_checkpoint(ws, digest="d0")
    for name in NAMES:
        shutil.copytree(project / "recordings" / name, tmp_path / "recordings" / name)
    return ws


@pytest.fixture
def told():
    lines = []
    with progress.add_listener(lambda stage, line: lines.append(str(line))):
        yield lines


def say(ws, name, reviewer, answers=YES, **more):
    return reviewing.give_recording_verdict(ws, settings(), name, answers, reviewer=reviewer, **more).state


def taken(ws, iteration=1, reviewers=2):
    rule = reviewing.acceptance_rule(ws, settings(reviewers))
    return [one.id for one in selection.choose_sessions(ws, iteration, "recordings", 9, accepted=rule)]


def verdict(takes: bool) -> RecordingVerdict:
    return RecordingVerdict("a", 0, "s", True, True, takes, "", "ada", "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("needed", "takes", "state"),
    [
        (1, "", "waiting"),
        (1, "y", "accepted"),
        (1, "n", "refused"),
        (2, "y", "waiting"),
        (2, "yy", "accepted"),
        (2, "nn", "refused"),
        (2, "ny", "disputed"),
        (2, "nyy", "accepted"),
        (2, "ynn", "refused"),
    ],
)
def test_the_state_follows_from_what_was_said(needed, takes, state):
    assert review_state([verdict(one == "y") for one in takes], needed) == state


def test_an_iteration_takes_the_accepted_ones_and_tells_of_the_others(ws, told):
    assert [say(ws, NAMES[0], "Ada"), say(ws, NAMES[0], "bo")] == ["waiting", "accepted"]
    assert [say(ws, NAMES[1], "Ada", NO), say(ws, NAMES[1], "bo")] == ["waiting", "disputed"]
    assert taken(ws) == [NAMES[0]]
    assert "recordings that are not taken in: 1 disputed, 1 waiting (`flywheel review recordings`)" in told
    manifest.write_manifest(ws, 1, window=1, sessions=[NAMES[0]])
    assert say(ws, NAMES[1], "Cy") == "accepted", "a third decides"
    assert taken(ws, 2) == [NAMES[1]]
    assert [one.name for one in reviewing.list_reviewed(ws, settings())] == [NAMES[2]], "those taken are left out"


def test_without_reviewers_all_are_taken_and_one_may_be_enough(ws):
    assert reviewing.acceptance_rule(ws, settings(0)) is None
    say(ws, NAMES[2], "Ada")
    assert taken(ws, reviewers=1) == [NAMES[2]]


@pytest.mark.parametrize(
    ("before", "who", "said"),
    [
        ((), "ANNA", "anna recorded 000-tiles-anna"),
        (("ada",), "Ada", "ada has reviewed 000-tiles-anna already"),
        (("ada", "-bo"), "bo", "bo is one of the two who disagree about 000-tiles-anna"),
        (("ada", "bo"), "cy", "000-tiles-anna is accepted already"),
        (("-ada", "-bo"), "ada", "ada has reviewed"),
        ((), " ", "the reviewer has no name"),
    ],
)
def test_who_may_not_review_is_told_in_a_line(ws, before, who, said):
    for one in before:
        say(ws, NAMES[0], one.strip("-"), NO if one.startswith("-") else YES)
    with pytest.raises(BadInput, match=said) as raised:
        say(ws, NAMES[0], who)
    assert "\n" not in str(raised.value)
    assert sum(len(path.read_text().splitlines()) for path in (ws.root / "reviews").rglob("*.jsonl")) == len(before)


def test_what_is_not_there_or_not_answered_is_told(ws):
    for name in ("nothing", "../recordings", "..", "truth.json", ""):
        with pytest.raises(BadInput, match="no recording and no trajectory is called"):
            say(ws, name, "ada")
    with pytest.raises(BadInput, match="an answer to each question"):
        say(ws, NAMES[0], "ada", {"correct": True})
    with pytest.raises(BadInput, match=r"a comment may have 2,000"):
        say(ws, NAMES[0], "ada", comment="x" * 2001)


@pytest.mark.parametrize("line", ["{", '{"subject": 3}', '{"subject": "a"}', "3"])
def test_a_damaged_line_names_its_file(ws, line):
    say(ws, NAMES[0], "ada")
    path = ws.root / "reviews" / "recordings" / "ada.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"a line cannot be read.*reviews/recordings/ada\.jsonl"):
        say(ws, NAMES[0], "bo")
    with pytest.raises(DataError, match=r"a verdict cannot be read.*ada\.jsonl, line 2"):
        database.query_catalog(ws, "SELECT 1 FROM recording_verdicts WHERE correct")


def test_a_recording_that_changed_is_to_be_reviewed_again(ws, told):
    for who in ("ada", "bo"):
        say(ws, NAMES[0], who)
    seen = reviewing.find_reviewed(ws, settings(), NAMES[0]).sha256
    assert taken(ws) == [NAMES[0]]
    (ws.root / "recordings" / NAMES[0] / "note.txt").write_text("cut")
    assert taken(ws) == [], "mended before it was ingested, it was not seen"
    with pytest.raises(BadInput, match="changed while you looked"):
        say(ws, NAMES[0], "cy", sha256=seen)
    assert say(ws, NAMES[0], "ada") == "waiting"


def test_a_trajectory_that_somebody_asks_for_is_reviewed_in_the_same_way(ws):
    row = {"trajectory_id": "t1", "task_id": "k", "domain": "sites", "annotator": "Eve", "instruction": "Buy it"}
    partitions.write_partition(ws, "trajectories", 3, "rollout", [row])
    say(ws, "t1", "bo", None)
    (one,) = [one for one in reviewing.list_reviewed(ws, settings()) if one.iteration]
    assert (one.name, one.iteration, one.state, one.verdicts) == ("t1", 3, "waiting", ())
    with pytest.raises(BadInput, match="eve recorded t1"):
        say(ws, "t1", "eve")
    assert [say(ws, "t1", who) for who in ("bo", "cy")] == ["waiting", "accepted"]
    with pytest.raises(BadInput, match="is a recording"):
        say(ws, NAMES[0], "bo", None)


def test_agreement_is_of_the_two_blind_ones_by_question(ws):
    for name, second in zip(NAMES, (YES, NO, YES), strict=True):
        say(ws, name, "ada")
        say(ws, name, "bo", second)
    say(ws, NAMES[1], "cy", NO)
    found = reviewing.measure_review_agreement(ws)
    assert {name: (one.n, round(one.alike, 2)) for name, one in found.items()} == {
        "correct": (3, 1.0), "complete": (3, 1.0), "safe": (3, 0.67), "taken": (3, 0.67)
    }  # fmt: skip
    assert found["correct"].alpha is None, "all say yes: chance cannot be told"


def test_the_command_says_what_became_of_it(ws):
    (ws.root / "params.yaml").write_text("curation:\n  reviewers: 2\n")
    (ws.root / "dvc.yaml").touch()
    command = ["review", "recordings", "-w", str(ws.root)]
    shown = CliRunner().invoke(main, command).output
    assert shown.count("waiting, reviewed by 0") == 3
    assert CliRunner().invoke(main, [*command, NAMES[0], "--accept", "--reviewer", "Ada"]).output == (
        "000-tiles-anna: waiting\n"
    )
    said = CliRunner().invoke(main, [*command, NAMES[0], "--no", "safe", "--reviewer", "Bo"])
    assert said.output == "000-tiles-anna: disputed\n"
    assert CliRunner().invoke(main, [*command, NAMES[0], "--reviewer", "Bo"]).exit_code == 2
    both = CliRunner().invoke(main, [*command, NAMES[0], "--accept", "--no", "safe", "--reviewer", "Cy"])
    assert (both.exit_code, "contradict each other" in both.output) == (2, True)
    shown = CliRunner().invoke(main, command).output
    assert "agreement on safe: 1 compared, 0% alike" in shown
    assert "agreement on correct: 1 compared, 100% alike, alpha not known, AC1 1.00 (interval not known)" in shown
    lines = (ws.root / "reviews" / "recordings" / "bo.jsonl").read_text().splitlines()
    assert [json.loads(line)["safe"] for line in lines] == [False]
