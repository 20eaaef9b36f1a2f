"""Labels and decisions by the explorer's server: what is drawn, what is shown before one has said one's own, who may
write."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import routed_iterations
from click.testing import CliRunner
from explorer_store import explorer, rollouts
from night import by_day
from reviews import waiting
from synthetic_rows import task, trajectory

from flywheel.cli import main
from flywheel.config.workspace import Workspace
from flywheel.evaluation import promotion_review
from flywheel.maintenance import route_review
from flywheel.store import labels, routing_decisions
from flywheel.store.partitions import write_partition
from flywheel.store.versioning import dvc_files
from flywheel.ui.explorer.auth import MAX_REQUEST_BYTES
from flywheel.utils.files import write_json, write_text

ROUTED = {f"t{k}r{n}" for k in (1, 2) for n in range(6)}
TELLING = ("success", "score", "scorer", "scores", "destination", "reason", "samples", "twins", "others", "reward")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    ws = Workspace(tmp_path_factory.mktemp("made"))
    rollouts(ws, 1)
    rollouts(ws, 2)
    rollouts(ws, 2, stage="evaluate")
    return ws.root


@pytest.fixture
def client(made, ws):
    shutil.copytree(made, ws.root, symlinks=True, dirs_exist_ok=True)
    with explorer(ws) as (_, found):
        yield found


def drawn(client: httpx.Client, **asked: object) -> list[dict]:
    answer = client.get("/api/review/queue", params={"reviewer": "ada", **asked})
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]


def names(client: httpx.Client, **asked: object) -> list[str]:
    return [row["trajectory_id"] for row in drawn(client, **asked)]


def say(client: httpx.Client, name: str, label: str, reviewer: str = "ada", **more: str) -> httpx.Response:
    body = {"trajectory_id": name, "label": label, "reviewer": reviewer, **more}
    return client.post("/api/review/labels", json=body)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_a_draw_is_the_same_for_all_who_ask_for_it(client):
    first = names(client, seed=7)
    assert set(first) == ROUTED, "of what was routed, and each once"
    assert names(client, seed=7, reviewer="bo") == first
    assert names(client, seed=8) != first
    assert names(client, seed=7, size=3) == first[:3]
    say(client, first[0], "solved")
    assert names(client, seed=7) == first
    assert set(names(client, iteration=2)) == {name for name in ROUTED if name.startswith("t2")}
    assert names(client, domain="games") == []


@pytest.mark.exhaustive
def test_a_recording_whose_verdict_nobody_doubts_is_not_asked_about(ws, client):
    """One that the verdict does not confirm is, and by name each can be labelled all the same."""
    shown = task("k-shop", "sites", "shop")
    rows = [trajectory(f"h{n}", shown, source="recording", author="human") for n in range(3)]
    routed = [{"trajectory_id": f"h{n}", "destination": "ct", "success": v} for n, v in enumerate((True, False, None))]
    write_partition(ws, "trajectories", 3, "ingest", rows)
    write_partition(ws, "routes", 3, "route", routed)
    for queue in ("random", "route"):
        assert sorted(names(client, queue=queue, iteration=3)) == ["h1", "h2"]
    assert say(client, "h0", "solved").status_code == 204


@pytest.mark.exhaustive
def test_as_many_of_each_store_are_drawn_by_route(ws, client):
    stores = {name: "ct" for name in ("t1r0", "t1r1", "t1r2", "t1r3", "t1r4")} | {"t1r5": "sft"}
    write_partition(
        ws, "routes", 1, "route", [{"trajectory_id": name, "destination": to} for name, to in stores.items()]
    )
    for seed in range(5):
        first = names(client, queue="route", iteration=1, size=2, seed=seed)
        assert sorted(stores[name] for name in first) == ["ct", "sft"]


def test_what_scorers_dispute_and_what_was_hardly_understood_is_found(ws, client):
    judged = [("t1r0", "judge", True), ("t1r0", "verifier", False), ("t1r1", "judge", True), ("t1r1", "verifier", True)]
    rows = [{"trajectory_id": name, "scorer": scorer, "score": float(v), "success": v} for name, scorer, v in judged]
    write_partition(ws, "scores", 1, "score", rows)
    said = [("t1r2", 0, 0.9), ("t1r2", 1, 0.4), ("t1r3", 0, 0.6), ("t1r4", 0, None)]
    rows = [{"trajectory_id": name, "utterance": n, "confidence": heard, "step": 0} for name, n, heard in said]
    write_partition(ws, "utterances", 1, "rollout", rows)
    assert names(client, queue="disagreement") == ["t1r0"]
    assert names(client, queue="speech") == ["t1r2", "t1r3"], "the least understood first"
    answer = client.get("/api/review/queue", params={"reviewer": "ada", "size": 1})
    assert answer.json()["candidates"] == {
        "random": 12,
        "route": 12,
        "routing": 0,
        "disagreement": 1,
        "speech": 2,
        "decide": 0,
    }


def test_two_label_an_item_and_a_third_decides_where_they_disagree(client):
    def state(reviewer: str, **more: object) -> tuple[str, str | None]:
        (row,) = (row for row in drawn(client, reviewer=reviewer, **more) if row["trajectory_id"] == "t1r0")
        return row["state"], row["together"]

    assert state("ada") == ("open", None)
    say(client, "t1r0", "solved", "ada")
    assert state("ada") == ("mine", "one reviewer")
    assert state("bo") == ("open", None)
    say(client, "t1r0", "not solved", "bo")
    assert (state("ada"), state("eve")) == (("mine", "to decide"), ("full", None))
    assert names(client, queue="decide", reviewer="eve") == ["t1r0"]
    assert state("eve", queue="decide") == ("open", None)
    say(client, "t1r0", "not solved", "eve", queue="random")
    assert state("bo") == ("mine", "decided")
    assert names(client, queue="decide", reviewer="eve") == []
    assert client.get("/api/review/items/t1r0?reviewer=eve").json()["mine"]["queue"] == "decide"
    told = client.get("/api/review/agreement").json()
    assert told["states"] == [{"state": "decided", "n": 1}]
    assert [
        (row["reviewer_a"], row["reviewer_b"], row["agreement"]) for row in told["pairs"] if row["domain"] == "all"
    ] == [("ada", "bo", 0.0)]
    assert {row["scorer"] for row in told["scorers"]} == {"verifier", "all together"}


def give(
    client: httpx.Client, *names: str, owner: str = "ada", reviewer: str = "ada", **more: object
) -> httpx.Response:
    body = {"trajectory_ids": list(names), "owner": owner, "reviewer": reviewer, **more}
    return client.post("/api/review/owners", json=body)


def test_samples_are_shared_out_and_drawn_by_who_has_them(ws, client):
    def states(reviewer: str, **asked: object) -> dict[str, tuple[str, str]]:
        rows = drawn(client, reviewer=reviewer, iteration=1, **asked)
        return {row["trajectory_id"]: (row["state"], row["owner"]) for row in rows}

    assert give(client, "t1r0", "t1r1", owner="Bo").status_code == 204
    assert give(client, "t1r2").status_code == 204
    assert states("bo")["t1r0"] == ("open", "bo")
    assert states("ada") == states("eve") | {"t1r2": ("open", "ada")}
    assert states("eve")["t1r2"] == ("theirs", "ada")
    for whose, reviewer, found in (
        ("mine", "bo", {"t1r0", "t1r1"}),
        ("Bo", "ada", {"t1r0", "t1r1"}),
        ("mine", "eve", set()),
        ("nobody", "ada", {"t1r3", "t1r4", "t1r5"}),
    ):
        assert set(states(reviewer, whose=whose)) == found, (whose, reviewer)
    asked = {"reviewer": "ada", "iteration": 1, "whose": "nobody"}
    told = client.get("/api/review/queue", params=asked).json()
    assert told["candidates"]["random"] == 3
    assert told["owners"] == [{"owner": "ada", "n": 1}, {"owner": "bo", "n": 2}]
    item = client.get("/api/review/items/t1r0?reviewer=eve").json()
    assert (item["owner"], item["me"], item["seen"]) == ("bo", "eve", [])

    answer = say(client, "t1r0", "solved", "eve")
    assert (answer.status_code, "bo is to label this sample" in answer.json()["error"]) == (400, True)
    assert give(client, "t1r0", owner="eve", reviewer="eve").status_code == 400
    assert give(client, "t1r0", "t1r3", owner="eve", reviewer="eve", take_over=True).status_code == 204
    assert say(client, "t1r0", "solved", "eve").status_code == 204
    assert states("bo")["t1r0"] == ("open", ""), "what is labelled is anybody's again: a second label is wanted"
    assert give(client, "t1r3", owner="", reviewer="eve").status_code == 204
    assert states("ada")["t1r3"] == ("open", "")
    for body, status, said in (
        ({"owner": "../x"}, 400, "no name of a reviewer"),
        ({"reviewer": ""}, 400, "the reviewer has no name"),
        ({"trajectory_ids": ["none"]}, 404, "there is no trajectory none here"),
        ({"trajectory_ids": []}, 400, "what was sent cannot be read: trajectory_ids"),
    ):
        answer = client.post(
            "/api/review/owners", json={"trajectory_ids": ["t1r4"], "owner": "bo", "reviewer": "bo", **body}
        )
        assert (answer.status_code, answer.json()["error"][: len(said)]) == (status, said)


def test_a_label_given_at_the_same_time_is_told_before_a_second_counts(client):
    assert say(client, "t1r0", "solved", "bo").status_code == 204
    answer = say(client, "t1r0", "solved", "ada", seen=[])
    assert (answer.status_code, "bo labelled this sample while you looked at it" in answer.json()["error"]) == (
        400,
        True,
    )
    assert client.get("/api/review/items/t1r0?reviewer=ada").json()["seen"] == ["bo"]
    assert say(client, "t1r0", "solved", "ada", seen=["bo"]).status_code == 204


def test_the_command_shares_out_the_same_samples(ws, client, monkeypatch):
    for path in (ws.params, ws.root / "dvc.yaml"):
        write_text(path, "")
    monkeypatch.setattr("flywheel.pipeline.iterations.newest_iteration", lambda ws: 2)

    def typed(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["review", "owners", *words, "-w", str(ws.root)])
        return result.exit_code, result.output

    assert typed() == (0, "nobody is given samples\n")
    assert typed("--assign", "Bo", "--next", "4", "--reviewer", "Ada") == (0, "4 samples: bo\n")
    mine = names(client, reviewer="bo", whose="mine")
    assert (len(mine), all(name.startswith("t2") for name in mine)) == (4, True), "of the newest iteration"
    assert typed("t1r0", "--assign", "Eve", "--reviewer", "Ada")[0] == 0
    assert typed() == (0, "bo: 4 to label\neve: 1 to label\n5 in all\n")
    assert typed(mine[0], "--assign", "Eve", "--reviewer", "Ada")[0] == 2
    assert typed(mine[0], "--release", "--reviewer", "Bo") == (0, "1 samples: nobody\n")
    assert typed(mine[0], "t1r0") == (0, f"{mine[0]}: nobody\nt1r0: eve\n")
    for words in (
        ("--assign", "Bo"),
        ("t1r1", "--next", "2", "--assign", "Bo"),
        ("t1r1", "--assign", "B", "--release"),
    ):
        assert typed(*words)[0] == 2, words


# -- blind -------------------------------------------------------------------------------------------------------------


def test_nothing_tells_what_others_and_scorers_say_until_one_has_said_ones_own(client):
    say(client, "t1r1", "not solved", "bo", comment="the cart is empty")
    blind = client.get("/api/review/items/t1r1?reviewer=ada")
    told = blind.json()
    assert told["mine"] is None
    assert not {*told, *told["facts"]} & set(TELLING)
    assert {step["reward"] for step in told["steps"]} == {None}
    assert "empty" not in blind.text
    assert "verifier" not in blind.text
    say(client, "t1r1", "solved", "ada", comment=" looks right ")
    seen = client.get("/api/review/items/t1r1?reviewer=ada").json()
    assert (seen["mine"]["label"], seen["mine"]["comment"]) == ("solved", "looks right")
    assert [(one["reviewer"], one["label"], one["comment"]) for one in seen["others"]] == [
        ("bo", "not solved", "the cart is empty")
    ]
    assert (seen["facts"]["destination"], seen["facts"]["success"]) == ("sft", True)
    assert datetime.fromisoformat(seen["mine"]["at"]).tzinfo is not None


@pytest.mark.exhaustive
def test_a_second_label_counts_and_keeps_how_it_was_drawn(ws, client):
    say(client, "t1r0", "solved", queue="route")
    say(client, "t1r0", "cannot tell", queue="random")
    assert client.get("/api/review/items/t1r0?reviewer=ada").json()["mine"]["label"] == "cannot tell"
    lines = (labels.labels_folder(ws) / "ada.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(one["label"], one["queue"]) for one in map(json.loads, lines)] == [
        ("solved", "route"),
        ("cannot tell", "route"),
    ]


# -- who may write what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "said"),
    by_day(
        [
            ({"trajectory_id": "none"}, 404, "there is no trajectory none here"),
            ({"trajectory_id": "../auth"}, 404, "there is no trajectory"),
            ({"label": "maybe"}, 400, "no label 'maybe'"),
            ({"reviewer": "../../x"}, 400, "no name of a reviewer"),
            ({"reviewer": ""}, 400, "the reviewer has no name"),
            ({"queue": "sql"}, 400, "what was sent cannot be read: queue"),
            ({"comment": "x" * 2001}, 400, "a comment may have 2,000 characters, this one has 2,001"),
            ({"comment": "x" * 2**20}, 413, f"a request may have {MAX_REQUEST_BYTES // 1024} KiB, this one is longer"),
            ({"label": None}, 400, "what was sent cannot be read: label"),
        ],
        3,
    ),
)
def test_what_is_no_label_is_refused(ws, client, body, status, said):
    answer = client.post(
        "/api/review/labels", json={"trajectory_id": "t1r0", "label": "solved", "reviewer": "ada", **body}
    )
    assert (answer.status_code, answer.json()["error"][: len(said)]) == (status, said)
    assert not labels.labels_folder(ws).exists()


def test_nobody_else_writes(ws, client):
    """Not by an address, not by a form of another page, not without a login, not from another origin."""
    waiting(ws, 3600)
    body = {"trajectory_id": "t1r0", "label": "solved", "reviewer": "ada", "promote": True}
    body |= {"trajectory_ids": ["t1r0"], "owner": "ada", "name": "all", "sql": "FROM tasks", "author": "ada"}
    for path in ("/api/review/labels", "/api/promotions/1", "/api/review/owners", "/api/queries"):
        assert client.get(path, params=body).status_code in (200, 404, 405)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = client.post(path, content=json.dumps(body), headers={"content-type": kind})
            assert answer.status_code == 415, kind
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        ):
            assert client.post(path, json=body, headers=headers).status_code == 403, headers
        assert httpx.post(f"{client.base_url}{path}", json=body).status_code == 401
        for method in ("PUT", "PATCH", "DELETE"):
            assert client.request(method, path, json=body).status_code == 405
    assert not labels.labels_folder(ws).exists()
    assert not (ws.root / "queries").exists()
    assert promotion_review.read_review(ws, 1) is None


@pytest.mark.exhaustive
def test_a_damaged_line_is_named_and_the_rest_goes_on(ws, client):
    say(client, "t1r0", "solved")
    (labels.labels_folder(ws) / "bo.jsonl").write_text('{"half', encoding="utf-8")
    answer = client.get("/api/review/queue", params={"reviewer": "ada"})
    assert (answer.status_code, "reviews/bo.jsonl, line 1" in answer.json()["error"]) == (500, True)
    asked = client.post("/api/sql", json={"sql": "FROM labels"})
    assert "reviews/bo.jsonl, line 1" in asked.json()["error"]
    assert client.get("/api/trajectories").json()["total"] == 18
    (labels.labels_folder(ws) / "bo.jsonl").unlink()
    assert len(drawn(client)) == 12
    asked = client.post("/api/sql", json={"sql": "SELECT reviewer, label FROM labels"})
    assert asked.json()["data"] == [["ada", "solved"]]


@pytest.mark.exhaustive
def test_a_store_without_rows_has_nothing_to_draw(ws):
    with explorer(ws) as (_, client):
        assert drawn(client) == []
        assert client.get("/api/review/choices").json()["iterations"] == []
        nothing = {name: [] for name in ("pairs", "scorers", "states", "reviewers", "recordings")}
        assert client.get("/api/review/agreement").json() == nothing
        assert client.get("/api/promotions").json() == []


# -- promotions --------------------------------------------------------------------------------------------------------


def test_a_promotion_is_decided_as_by_the_command(ws):
    waiting(ws, 3600)
    with explorer(ws) as (_, client):
        assert client.get("/api/promotions").json() == [{"iteration": 1, "decisions": [], "running": False}]
        case = client.get("/api/promotions/1").json()
        assert [row["name"] for row in case["figures"]] == ["success_after", "success_difference"]
        for promote, reviewer in ((True, "Ada"), (False, "Bo")):
            body = {"promote": promote, "reviewer": reviewer, "comment": "n is small"}
            assert client.post("/api/promotions/1", json=body).status_code == 200
        assert [(one.promote, one.reviewer) for one in promotion_review.read_review(ws, 1).history] == [
            (True, "ada"),
            (False, "bo"),
        ]
        assert len(client.get("/api/promotions/1").json()["decisions"]) == 2
        for body, said in (
            ({"promote": "yes", "reviewer": "Ada"}, "what was sent cannot be read: promote"),
            ({"promote": True, "reviewer": " "}, "the reviewer has no name"),
            ({"promote": True, "reviewer": "Ada", "comment": "x" * 2001}, "a comment may have 2,000 characters"),
        ):
            answer = client.post("/api/promotions/1", json=body)
            assert (answer.status_code, answer.json()["error"][: len(said)]) == (400, said)
        write_text(dvc_files.dvc_lock_path(ws, 1), "schema: '2.0'\nstages:\n  promote:\n    cmd: x\n")
        answer = client.post("/api/promotions/1", json={"promote": True, "reviewer": "Eve"})
        assert (answer.status_code, "is decided already" in answer.json()["error"]) == (400, True)
        assert client.get("/api/promotions").json() == []
        assert len(promotion_review.read_review(ws, 1).history) == 2
        assert client.post("/api/promotions/9", json={"promote": True, "reviewer": "Eve"}).status_code == 400


def test_each_decision_is_listed_with_those_before_it_and_why_it_stands(ws):
    waiting(ws, 3600)
    with explorer(ws) as (_, client):
        (row,) = client.get("/api/decisions").json()
        assert (row["iteration"], row["promoted"], row["said"]) == (1, None, [])
        assert "is not decided yet" in row["obstacle"]
        rows = [("rule always", "promote", "the rule promotes always"), ("ada", "keep", "sites")]
        said = [
            {"subject": "m", "kind": "promotion", "reviewer": who, "decision": what, "comment": why}
            | {"at": datetime(2026, 11, 30, 10, n, tzinfo=UTC)}
            for n, (who, what, why) in enumerate(rows)
        ]
        write_partition(ws, "reviews", 1, "promote", said)
        made = {"model": "models/base", "digest": "d0", "promoted": False, "reason": "ada overrode the rule always"}
        write_json(ws.promotion(1), made)
        write_text(dvc_files.dvc_lock_path(ws, 1), "schema: '2.0'\nstages:\n  promote:\n    cmd: x\n")
        (row,) = client.get("/api/decisions").json()
        assert (row["promoted"], row["reason"], row["model"]) == (False, made["reason"], "models/base")
        assert [(one["reviewer"], one["decision"], one["comment"]) for one in row["said"]] == rows
        assert "the model that iteration 001 made is not here" in row["obstacle"]
        case = client.get("/api/promotions/1").json()
        assert (case["open"], case["decisions"]) == (False, []), "what it rests on is shown of a decided one too"


# -- before an iteration trains ----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_what_is_asked_before_training_is_a_queue_of_its_own_and_a_label_is_the_answer(ws):
    asked = routed_iterations.routed(ws.root / "asked", review=3)
    found = [one.trajectory_id for one in route_review.open_questions(asked, 1)]
    with explorer(asked) as (_, client):
        assert names(client, queue="routing") == found
        assert say(client, found[0], "solved", queue="routing").status_code == 204
        assert say(client, found[1], "cannot tell").status_code == 204, "however it was come upon"
        other = next(name for name in names(client) if name not in found)
        assert say(client, other, "solved", queue="routing").status_code == 400
        assert [one.label for one in route_review.open_questions(asked, 1)] == ["solved", "cannot tell", None]
        route_review.end_route_review(asked, 1, "enough")
        assert names(client, queue="routing") == []
        assert say(client, found[2], "solved", queue="routing").status_code == 400
        assert say(client, found[2], "solved", queue="random").status_code == 204, "of how far people agree"
        assert len(routing_decisions.read_decisions(asked, 1)) == 1
