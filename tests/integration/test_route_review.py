"""People look at a sample of routes before an iteration trains: what is drawn and said, what moves, when no more."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import synthetic
from made_workspaces import flywheel
from routed_iterations import routed

from flywheel import config
from flywheel.config import run_lock
from flywheel.config.workspace import Workspace
from flywheel.maintenance import reroute, route_review
from flywheel.store import labels, manifest, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.ui.report import pages as report
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.files import write_text


@pytest.fixture(scope="module")
def routed_once(tmp_path_factory) -> Path:
    """An iteration that is routed and recorded so far; not to be changed."""
    return routed(tmp_path_factory.mktemp("routed") / "ws").root


@pytest.fixture
def ws(routed_once, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(routed_once, tmp_path / "ws", symlinks=True))


def stores(ws: Workspace) -> dict[str, str]:
    rows = partitions.read_partition(ws, "routes", 1, "route").to_pylist()
    return {row["trajectory_id"]: row["destination"] for row in rows}


def sources(ws: Workspace) -> list[dict]:
    """Rows of what lies in CT or SFT."""
    return [row for table in ("ct", "sft") for row in partitions.read_partition(ws, table, 1, "route").to_pylist()]


def opposite(one: route_review.RouteQuestion) -> str:
    return "not solved" if one.success else "solved"


def same(one: route_review.RouteQuestion) -> str:
    return "solved" if one.success else "not solved"


def say(ws: Workspace, one: route_review.RouteQuestion, said: str, reviewer: str = "ada") -> None:
    route_review.label_trajectory(ws, 1, one.trajectory_id, said, reviewer=reviewer, comment="seen")


def test_the_draw_is_even_over_domains_and_stores_and_always_the_same(ws):
    found = route_review.open_questions(ws, 1)
    assert len(found) == 6
    assert found == route_review.open_questions(ws, 1)
    places = [(one.domain, one.destination) for one in found]
    assert max(map(places.count, places)) - min(map(places.count, places)) <= 1
    assert {one.destination for one in found} == {"sft", "ct"}
    assert all(one.verdicts and one.instruction for one in found)


def test_doubtful_ones_weigh_more(ws):
    scores = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    sound = {name for name, store in stores(ws).items() if store != "quarantine"}
    own = [row for row in scores if row["trajectory_id"].startswith("t1") and row["trajectory_id"] in sound]
    rolled = [row for row in own if row["success"]]
    doubted = {row["trajectory_id"] for row in rolled[:2]}
    scores += [row | {"scorer": "judge", "score": 0.0, "success": False} for row in rolled[:2]]
    low = next(row for row in own if row["success"] is False)
    low["score"] = 0.95
    partitions.write_partition(ws, "scores", 1, "score", scores)
    found = route_review.open_questions(ws, 1)
    assert len(found) == 6
    drawn = {one.trajectory_id for one in found}
    assert doubted | {low["trajectory_id"]} <= drawn
    assert {one.trajectory_id for one in found if one.drawn == "doubtful"} <= doubted | {low["trajectory_id"]}


@pytest.fixture(scope="module")
def ended(routed_once, tmp_path_factory) -> tuple[Workspace, list[route_review.RouteQuestion], dict[str, str]]:
    """Where somebody sent the form: two say otherwise, one the same, one cannot be told, two were not looked at. With
    what was asked, and where all had gone. Not to be changed."""
    ws = Workspace(shutil.copytree(routed_once, tmp_path_factory.mktemp("ended") / "ws", symlinks=True))
    found, before = route_review.open_questions(ws, 1), stores(ws)
    for one in found[:2]:
        say(ws, one, opposite(one))
    say(ws, found[2], same(found[2]))
    say(ws, found[3], "cannot tell")
    assert route_review.end_route_review(ws, 1, "somebody sent the form").count == 2
    return ws, found, before


def test_what_people_say_moves_trajectories_and_all_is_recorded(ended):
    ws, found, before = ended
    after = stores(ws)
    assert {name for name in before if before[name] != after[name]} == {one.trajectory_id for one in found[:2]}
    for one in found[:2]:
        assert after[one.trajectory_id] == ("ct" if one.success else "sft")
    (decision,) = routing_decisions.read_decisions(ws, 1)
    assert decision.looked["ended"] == "somebody sent the form"
    assert [row["label"] for row in decision.looked["asked"]] == [
        opposite(found[0]), opposite(found[1]), same(found[2]), "cannot tell", None, None,
    ]  # fmt: skip
    assert {row["reviewer"] for row in decision.looked["asked"]} == {"ada", None}
    assert "@001.1" in next(iter(manifest.read_manifest(ws, 1).datasets("sft")))
    assert stage_records.unfinished_stages(ws, ("score", "route"), 1) == []
    verdicts = {
        row["trajectory_id"]: row["success"] for row in partitions.read_partition(ws, "routes", 1, "route").to_pylist()
    }
    assert all(verdicts[one.trajectory_id] is one.success for one in found), "V stays the scorers'"
    moved = {row["trajectory_id"] for row in database.query_catalog(ws, "FROM route_reviews WHERE moved").to_pylist()}
    assert moved == {one.trajectory_id for one in found[:2]}


def test_people_and_the_verifier_are_held_against_each_other(ended):
    ws, found, _ = ended
    (row,) = database.query_catalog(
        ws, "FROM verifier_vs_humans WHERE iteration = 1 AND domain = 'all' AND sampling = 'any'"
    ).to_pylist()
    assert (row["n"], row["true_positives"], row["true_negatives"]) == (
        3,
        int(found[2].success),
        int(not found[2].success),
    )
    assert (row["false_positives"], row["false_negatives"]) == tuple(
        sum(one.success is v for one in found[:2]) for v in (True, False)
    )
    assert row["agreement"] == pytest.approx(1 / 3)
    assert row["agreement_low"] < 1 / 3 < row["agreement_high"]


@pytest.mark.exhaustive
def test_what_was_said_stands_when_the_stage_is_run_again_or_decides_by_another_rule(ended, tmp_path):
    ws = Workspace(shutil.copytree(ended[0].root, tmp_path / "ws", symlinks=True))
    then = stores(ws)
    synthetic.routed(ws, stage_records.load_iteration_params(ws, 1), 1)
    assert stores(ws) == then
    assert reroute.prepare_reroute(ws, 1, routing_decisions.RoutingRule(threshold=0.2)).moved == ()
    by_hand = reroute.prepare_reroute(ws, 1, routing_decisions.RoutingRule(band=(0.0, 1.1)))
    assert by_hand.routed["sft"] + by_hand.routed["ct"] == 3 + sum(row["source"] != "rollout" for row in sources(ws))


def test_a_second_answer_is_a_second_row_and_the_newest_counts(ws):
    one = route_review.open_questions(ws, 1)[0]
    say(ws, one, same(one), "ada")
    say(ws, one, opposite(one), "bo")
    say(ws, one, "cannot tell", "ada")
    rows = database.query_catalog(ws, 'SELECT reviewer, label FROM label_history ORDER BY "at"').to_pylist()
    assert [row["reviewer"] for row in rows] == ["ada", "bo", "ada"]
    assert route_review.open_questions(ws, 1)[0].label == "cannot tell"


@pytest.mark.exhaustive
def test_none_counts_once_the_look_has_ended_or_training_began(ws):
    one = route_review.open_questions(ws, 1)[0]
    with pytest.raises(BadInput, match="nobody is asked about nothing of iteration 001"):
        route_review.label_trajectory(ws, 1, "nothing", "solved", reviewer="ada")
    route_review.end_route_review(ws, 1, "nobody came")
    assert route_review.end_route_review(ws, 1, "again") is None
    with pytest.raises(BadInput, match="it trains on what was routed already"):
        say(ws, one, "solved")
    code, told = flywheel(ws, "review", "routes", one.trajectory_id, "solved", "--reviewer", "Ada")
    assert (code, "it trains on what was routed already" in told) == (2, True)
    assert not list(labels.labels_folder(ws).glob("*"))


def test_a_closed_iteration_takes_none(ws):
    with dvc_files.dvc_lock_path(ws, 1).open("a") as file:
        file.write("  ct:\n    cmd: x\n")
    assert route_review.open_questions(ws, 1) == []
    code, told = flywheel(ws, "review", "routes", "--remaining", "solved", "--reviewer", "Ada")
    assert (code, "nobody is asked" in told) == (2, True)


def test_nobody_answers_and_the_stores_stay_as_they_are(ws):
    before = stores(ws)
    route_review.end_route_review(ws, 1, "nobody labelled 6 of 6 in 1 s")
    assert stores(ws) == before
    held = database.query_catalog(
        ws, "SELECT count(*) AS n FROM lineage WHERE child = 'sft@001.1' AND relation = 'holds'"
    )
    assert held.to_pylist()[0]["n"] == sum(store == "sft" for store in before.values())
    assert (
        database.query_catalog(ws, "SELECT DISTINCT end_reason FROM route_reviews")
        .to_pylist()[0]["end_reason"]
        .startswith("nobody")
    )


def test_an_end_that_was_killed_is_gone_on_with(ws, monkeypatch):
    one = route_review.open_questions(ws, 1)[0]
    say(ws, one, opposite(one))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(reroute, "_apply_decision", killed)
        with pytest.raises(KeyboardInterrupt):
            route_review.end_route_review(ws, 1, "enough")
    reroute.resume_pending_decisions(ws)
    assert stores(ws)[one.trajectory_id] == ("ct" if one.success else "sft")
    assert route_review.open_questions(ws, 1) == []


def test_a_turn_that_is_begun_anew_asks_anew(ws):
    from flywheel.config.workspace import renew_iteration_run_id

    one = route_review.open_questions(ws, 1)[0]
    say(ws, one, "solved")
    renew_iteration_run_id(ws, 1)
    assert route_review.open_questions(ws, 1)[0].label is None


def test_by_the_command(ws):
    found = route_review.open_questions(ws, 1)
    code, told = flywheel(ws, "review", "routes")
    assert code == 0
    assert "6 trajectories, 6 without a label" in told
    assert all(f"flywheel data view {one.trajectory_id}" in told and one.line in told for one in found)
    first = found[0].trajectory_id
    code, told = flywheel(
        ws, "review", "routes", first, opposite(found[0]), "--reviewer", "Ada", "--comment", "it did not buy it"
    )
    assert (code, "5 to go" in told) == (0, True)
    code, told = flywheel(ws, "stage", "ct", "-k", 1)
    assert (code, "5 of 6 trajectories of iteration 001 need a label" in told) == (1, True)
    with run_lock.hold_workspace(ws):
        code, told = flywheel(ws, "review", "routes", "--remaining", "cannot tell", "--reviewer", "Bo")
    assert "the run that waits goes on" in told
    route_review.require_route_review(ws, 1, "ct")
    assert stores(ws)[first] == ("ct" if found[0].success else "sft")
    assert "nobody is asked" in flywheel(ws, "review", "routes")[1]


@pytest.mark.exhaustive
def test_the_last_label_is_carried_out_where_no_run_waits(ws):
    code, told = flywheel(ws, "review", "routes", "--remaining", "solved", "--reviewer", "Ada")
    assert (code, "type `flywheel run` to go on" in told) == (0, True)
    looked = database.query_catalog(ws, "FROM route_reviews").to_pylist()
    assert {row["label"] for row in looked} == {"solved"}
    assert {row["trajectory_id"] for row in looked if row["moved"]} == {
        row["trajectory_id"] for row in looked if row["destination"] == "ct"
    }


def test_where_it_is_not_asked_for_nothing_waits(ws):
    chosen = config.parse_settings({"recording": {"sessions_per_iteration": 0}}, where="")
    write_text(ws.frozen_params(1), config.dump_settings(chosen))
    assert route_review.open_questions(ws, 1) == []
    route_review.require_route_review(ws, 1, "ct")
    assert json.loads(routing_decisions.decisions_path(ws, 1).read_text()) == {"decisions": []}


def test_a_name_that_names_no_file_is_refused(ws):
    one = route_review.open_questions(ws, 1)[0]
    with pytest.raises(FlywheelError, match="no name of a reviewer"):
        say(ws, one, "solved", "../eve")


def test_the_report_tells_it(ended):
    ws, _, _ = ended
    page = report.write_report(ws).read_text(encoding="utf-8")
    assert "What people say of routes" in page
    assert "4 of 6" in page
