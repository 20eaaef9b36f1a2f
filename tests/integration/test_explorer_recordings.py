"""Recordings under review in the explorer: what a reviewer sees before the own answers, who may give them, the page."""

from __future__ import annotations

import json
import shutil

import pytest
from explorer_store import explorer, rollouts
from explorer_tabs import open_page, serious
from playwright.sync_api import expect

from flywheel.config import load_settings
from flywheel.recordings import reviewing
from flywheel.store.recording_verdicts import QUESTIONS
from flywheel.utils.files import write_text

NAMES = ("000-tiles-anna", "001-shop-ben")
YES = dict.fromkeys(QUESTIONS, True)


@pytest.fixture
def served(ws, project):
    rollouts(ws, 1)
    write_text(ws.params, "curation:\n  reviewers: 2\n")
    for name in NAMES:
        shutil.copytree(project / "recordings" / name, ws.root / "recordings" / name)
    with explorer(ws) as (server, client):
        yield server, client


def item(client, name: str, reviewer: str) -> dict:
    answer = client.get(f"/api/review/recordings/{name}", params={"reviewer": reviewer})
    assert answer.status_code == 200, answer.text
    return answer.json()


def say(client, name: str, reviewer: str, answers=YES, **more: str):
    return client.post("/api/review/recordings", json={"name": name, "answers": answers, "reviewer": reviewer, **more})


def test_nothing_is_told_before_the_own_answers_and_a_third_decides(served):
    _, client = served
    seen = item(client, NAMES[0], "ada")
    assert "anna" not in json.dumps({**seen, "name": "", "screens": ""}), "who recorded it is not told"
    assert seen["steps"][0]["short"].startswith("click at")
    assert {step["reward"] for step in seen["steps"]} == {None}
    assert say(client, NAMES[0], "ada", YES | {"safe": False}, comment="a name").json() == {"state": "waiting"}
    assert item(client, NAMES[0], "bo")["said"] == []
    assert [one["comment"] for one in item(client, NAMES[0], "ada")["said"]] == ["a name"]
    assert say(client, NAMES[0], "bo").json() == {"state": "disputed"}
    assert (item(client, NAMES[0], "cy")["said"], item(client, NAMES[0], "cy")["obstacle"]) == ([], "")
    again = say(client, NAMES[0], "bo")
    assert (again.status_code, "is one of the two who disagree" in again.json()["error"]) == (400, True)
    assert say(client, NAMES[0], "cy").json() == {"state": "accepted"}
    assert len(item(client, NAMES[0], "cy")["said"]) == 3
    found = {row["question"]: row for row in client.get("/api/review/agreement").json()["recordings"]}
    assert (found["safe"]["n"], found["safe"]["alike"], found["correct"]["ac1"]) == (1, 0.0, 1.0)


def test_the_list_says_what_is_open_for_whom(served):
    _, client = served
    say(client, NAMES[1], "ada")
    listed = client.get("/api/review/recordings", params={"reviewer": "Anna"}).json()
    rows = {row["name"]: (row["state"], row["reviews"], row["open"]) for row in listed["rows"]}
    assert rows == {NAMES[0]: ("waiting", 0, False), NAMES[1]: ("waiting", 1, True)}
    assert (listed["states"], listed["needed"]) == ({"waiting": 2}, 2)


def test_screens_and_sound_are_those_of_the_folder_and_no_others(served):
    _, client = served
    seen = item(client, NAMES[1], "ada")
    screen = client.get(f"/screens/{seen['screens']}/{seen['steps'][0]['screen']}")
    assert (screen.status_code, screen.headers["content-type"]) == (200, "image/png")
    assert client.get(f"/sound/recordings/{NAMES[1]}").headers["content-type"] == "audio/ogg"
    for address in (
        f"/screens/recordings/{NAMES[1]}/{'0' * 64}",
        "/screens/recordings/%2e%2e/" + "0" * 64,
        "/sound/recordings/nothing",
        "/sound/recordings/..%2fdata",
    ):
        assert client.get(address).status_code == 404, address


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"name": "nothing"}, 400, "no recording and no trajectory is called 'nothing'"),
        ({"answers": {"correct": True}}, 400, "an answer to each question is needed"),
        ({"answers": YES | {"safe": "yes"}}, 400, "what was sent cannot be read"),
        ({"reviewer": "anna"}, 400, "anna recorded 000-tiles-anna"),
        ({"reviewer": ""}, 400, "the reviewer has no name"),
        ({"sha256": "0" * 64}, 400, "changed while you looked at it"),
    ],
)
def test_what_is_no_verdict_is_refused_in_a_line(served, body, status, said):
    _, client = served
    answer = client.post("/api/review/recordings", json={"name": NAMES[0], "answers": YES, "reviewer": "ada"} | body)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    assert not (client.get("/api/review/agreement").json())["recordings"]


def test_a_trajectory_that_is_asked_for_is_shown_without_its_score(served):
    server, client = served
    settings = load_settings(server.ws.params)
    reviewing.give_recording_verdict(server.ws, settings, "t1r1", None, reviewer="bo")
    seen = item(client, "t1r1", "ada")
    assert (seen["iteration"], seen["screens"], {step["reward"] for step in seen["steps"]}) == (1, 1, {None})
    assert not {"scores", "success", "destination", "facts"} & seen.keys()


def test_the_page_takes_the_answers_by_keys(browser, served):
    server, _ = served
    tab = open_page(browser, server)
    tab.evaluate("localStorage.setItem('flywheel-reviewer', 'Dora')")
    tab.goto(server.url + "/review?show=recordings")
    expect(tab.get_by_role("heading", name="Clear the tiles")).to_be_visible()
    expect(tab.get_by_role("button", name="Keep the answers")).to_be_disabled()
    for key in ("a", "3", "k"):
        tab.keyboard.press(key)
    expect(tab.get_by_text("Kept; it is waiting.")).to_be_visible()
    expect(tab.get_by_text("dora has reviewed 000-tiles-anna already.")).to_be_visible()
    expect(tab.get_by_text("dora: not safe")).to_be_visible()
    assert serious(tab) == []
    tab.keyboard.press("n")
    expect(tab.get_by_role("heading", name="Add the blue mug")).to_be_visible()
    (kept,) = reviewing.find_reviewed(server.ws, load_settings(server.ws.params), NAMES[0]).verdicts
    assert kept.answers == YES | {"safe": False}
    assert tab.faults == []
    tab.context.close()
