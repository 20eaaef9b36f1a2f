"""Runs of one task side by side in the explorer, aligned by state; what a page may begin, and what not."""

from __future__ import annotations

import html
import re

import pytest
from explorer_store import SCRIPT, explorer, rollouts
from explorer_tabs import SIZES, open_page, serious
from night import by_day
from playwright.sync_api import expect
from side_by_side import TASK, runs_of_a_task

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.partitions import write_partition
from flywheel.store.schema import metric_row
from flywheel.ui.explorer import runs as side
from flywheel.ui.report import pages, replay
from flywheel.utils.files import write_json

RUNS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    ws = Workspace(tmp_path_factory.mktemp("runs"))
    rollouts(ws, 1)
    runs_of_a_task(ws, RUNS, 50, iteration=2)
    with explorer(ws) as (server, client):
        yield server, client


@pytest.fixture
def tab(browser, made):
    found = open_page(browser, made[0])
    yield found
    assert found.faults == []
    assert found.evaluate("window.evil") is None, "a script out of the data ran"
    found.context.close()


def test_tasks_are_listed_those_first_whose_runs_end_differently(made):
    _, client = made
    found = client.get("/api/tasks").json()
    assert [(row["task_id"], row["runs"], row["solved"], row["branches"]) for row in found] == [
        (TASK, RUNS, 4, 1),
        *((f"k{n}", 2, 1, 0) for n in range(3)),
    ]
    assert [row["task_id"] for row in client.get("/api/tasks?q=BLUE+mug").json()] == [TASK]
    assert [row["task_id"] for row in client.get("/api/tasks?q=k1").json()] == ["k1"]
    assert client.get("/api/tasks?limit=1&offset=1").json()[0]["task_id"] == "k0"
    assert client.get("/api/tasks?limit=0").status_code == 400


def test_runs_are_told_by_state_with_a_branch_beside_what_it_began_within(made):
    _, client = made
    found = client.get(f"/api/tasks/{TASK}/runs").json()
    places = [(run, step) for state in found["states"] for run, step in state["places"]]
    assert sorted(places) == [(run, n) for run, taken in enumerate(found["steps"]) for n in range(len(taken) + 1)]
    first = [state for state in found["states"] if state["level"] == 0]
    assert [len(state["places"]) for state in first] == [RUNS], "all begin in one state, which is there once"
    names = [row["trajectory_id"] for row in found["runs"]]
    branch = next(row for row in found["runs"] if row["source"] == "correction")
    assert (names[branch["parent"]], branch["start_step"] > 10) == ("side0", True)
    mine, theirs = names.index(branch["trajectory_id"]), branch["parent"]
    for n in range(branch["start_step"]):
        assert any([mine, n] in state["places"] and [theirs, n] in state["places"] for state in found["states"])
    step = found["steps"][0][0]
    assert (step["short"], step["author"], round(step["logprob"], 4)) == ("click at 24%, 67%", "model", -1.2)
    assert {row["success"] for row in found["runs"]} == {True, False}
    assert found["choices"]["sources"] == ["correction", "rollout"]
    only = client.get(f"/api/tasks/{TASK}/runs?source=correction").json()
    assert [row["trajectory_id"] for row in only["runs"]] == ["side0", branch["trajectory_id"]], "with its parent"
    assert client.get(f"/api/tasks/{TASK}/runs?iteration=1").json()["runs"] == []
    assert client.get("/api/tasks/none/runs").status_code == 404
    assert client.get(f"/api/tasks/{TASK}/runs?iteration=x").status_code == 400


def test_more_runs_than_there_is_room_for_come_page_by_page(made, monkeypatch):
    _, client = made
    monkeypatch.setattr(side, "MAX_RUNS", 5)
    pages = [client.get(f"/api/tasks/{TASK}/runs?offset={offset}&source=rollout").json() for offset in (0, 5, 10)]
    assert [len(page["runs"]) for page in pages] == [5, 5, 1]
    assert len({row["trajectory_id"] for page in pages for row in page["runs"]}) == RUNS - 1


@pytest.fixture(scope="module", params=SIZES)
def sized(browser, made, request):
    width, height, scheme = request.param
    found = open_page(browser, made[0], width=width, height=height, scheme=scheme)
    yield found
    found.context.close()


@pytest.mark.parametrize(
    "path", by_day([f"/tasks/{TASK}?at=side4:30&forks=1", "/tasks", "/tasks/k2", f"/tasks/{TASK}?at=side4:49"], 2)
)
def test_the_pages_fit_and_can_be_heard(sized, made, path):
    tab = sized
    tab.faults.clear()
    tab.goto(made[0].url + path)
    shown = tab.get_by_role("link", name="Buy mug 0") if path == "/tasks" else tab.locator(".detail h2").nth(1)
    expect(shown.first).to_be_visible()
    assert serious(tab) == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert tab.faults == []
    assert tab.evaluate("window.evil") is None


def test_one_goes_from_state_to_state_by_keys_alone(made, tab):
    tab.goto(f"{made[0].url}/tasks")
    tab.get_by_role("link", name="Put the blue mug into the cart and pay.").focus()
    tab.keyboard.press("Enter")
    here = tab.locator(".runs button[aria-current=step]")
    expect(here).to_have_count(1)
    expect(here).to_have_attribute("aria-label", re.compile(rf"^Row 0, runs 1 to {RUNS}: click at"))
    expect(tab.locator(".detail h2").first).to_contain_text(f"{RUNS} runs in this state")
    here.focus()
    level = 0
    while "runs part here" not in here.get_attribute("aria-label"):
        tab.keyboard.press("ArrowDown")
        level += 1
        expect(here).to_have_attribute("aria-label", re.compile(f"^Row {level}, "))
        expect(here).to_be_focused()
    tab.keyboard.press("ArrowDown")
    expect(here).to_have_attribute("aria-label", re.compile(f"^Row {level + 1}, runs? 1"))
    below = here.get_attribute("aria-label")
    tab.keyboard.press("ArrowRight")
    expect(here).not_to_have_attribute("aria-label", below)
    expect(here).to_have_attribute("aria-label", re.compile(f"^Row {level + 1}, "))
    expect(tab).to_have_url(re.compile(rf"at=side\d+%3A{level + 1}"))
    expect(tab.locator(".words h2")).to_contain_text(f"Step {level + 1} ")
    other = tab.context.new_page()
    other.goto(tab.url)
    expect(other.locator(".runs button[aria-current=step]")).to_have_attribute(
        "aria-label", here.get_attribute("aria-label")
    )
    other.close()


def test_forks_alone_are_shown_and_an_end_says_what_it_came_to(made, tab):
    tab.goto(f"{made[0].url}/tasks/{TASK}")
    rows = tab.locator(".runs tbody tr")
    expect(rows.first).to_be_visible()
    every = rows.count()
    tab.get_by_label("forks, meetings and ends alone").check()
    expect(rows.first).to_be_visible()
    expect(tab.get_by_text("in which every run goes straight on").first).to_be_visible()
    assert rows.count() < every
    end = tab.locator(".runs button").filter(has_text="end V = 1").first
    end.click()
    expect(tab.locator(".detail h2").nth(1)).to_contain_text(re.compile(r"Run \d+ ended here, completed"))
    expect(tab.locator(".detail img.last")).to_be_visible()


def test_a_page_begins_nothing_where_the_server_may_not(made, tab):
    server, client = made
    body = {"trajectory_id": "side0", "step": 3, "kind": "action", "value": "wait()", "runs": 2}
    refused = client.post("/api/counterfactuals", json=body)
    assert (refused.status_code, "flywheel ui --allow-runs" in refused.json()["error"]) == (403, True)
    assert client.post("/api/counterfactuals", json=body | {"kind": "settings"}).status_code == 400
    assert client.post("/api/counterfactuals", content=b"kind=action").status_code == 415
    told = client.get(f"/api/counterfactuals?task={TASK}").json()
    assert told == {"allowed": False, "running": None, "error": "", "results": [], "models": []}
    tab.goto(f"{server.url}/tasks/{TASK}?at=side0:3")
    tab.get_by_text("What if?").click()
    expect(tab.get_by_role("button", name="Run 8 with and 8 without")).to_be_disabled()
    tab.get_by_label("Do this in its place").fill("it's")
    expect(tab.locator(".whatif pre")).to_have_text(
        r"flywheel model counterfactual side0 --step 3 --action 'it'\''s' --runs 8"
    )


def test_what_came_of_one_is_shown_as_text_whatever_it_holds(browser, tmp_path):
    ws = Workspace(tmp_path)
    runs_of_a_task(ws, 3, 6)
    side = {"solved": 3, "judged": 4, "crashed": 1}
    result = {"key": "a", "trajectory_id": "side0", "task_id": TASK, "iteration": 1, "step": 2, "at": "2026-12-01"}
    result |= {
        "change": {"kind": "thought", "value": SCRIPT},
        "with": side,
        "without": side | {"solved": 0, "crashed": 0},
    }
    result |= {"difference": {"value": 0.75, "low": 0.1, "high": 0.9, "pairs": 4}}
    write_json(ws.iteration(1) / "counterfactuals" / "a.json", result)
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/tasks/{TASK}?at=side0:2")
        tab.get_by_text("What if?").click()
        came = tab.get_by_role("list", name="What came of it")
        expect(came).to_contain_text(
            "V = 1 in 3 of 4, without it in 0 of 4 (+0.75 [+0.10, +0.90], 4 pairs of the same seed)"
        )
        expect(came).to_contain_text(SCRIPT)
        assert tab.evaluate("window.evil") is None
        assert tab.faults == []
        tab.context.close()


def test_whose_each_step_is_stands_beside_it(made, tab):
    server, client = made
    branch = f"side{RUNS - 1}"
    found = client.get(f"/api/trajectories/{branch}").json()
    begin = found["facts"]["start_step"]
    assert [step["by"] for step in found["steps"]] == [
        *["the model alone"] * begin,
        *["by the solver"] * (len(found["steps"]) - begin),
    ]
    assert {step["by"] for step in client.get("/api/trajectories/side0").json()["steps"]} == {None}
    tab.goto(f"{server.url}/trajectories/{branch}")
    expect(tab.locator(".film li").nth(begin)).to_contain_text("by the solver")
    tab.get_by_role("link", name="all its runs, by state").click()
    expect(tab.locator(".runs thead th.here")).to_contain_text("correction")


def test_an_annotated_step_is_a_persons_or_accepted_or_the_models_alone(tmp_path):
    ws = Workspace(tmp_path)
    runs_of_a_task(ws, 1, 4)
    (row,) = partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    steps = partitions.read_partition(ws, "steps", 1, "rollout").to_pylist()
    steps[1] |= {"author": "human"}
    offered = [
        (0, "accepted", "ada"),
        (1, "rejected", "ada"),
        (2, "accepted", None),
        (3, "rejected", "ada"),
        (3, "accepted", "ada"),
    ]
    candidates = [
        {"trajectory_id": row["trajectory_id"], "step": n, "candidate": place, "decision": said, "annotator": who}
        for place, (n, said, who) in enumerate(offered)
    ]
    write_partition(ws, "trajectories", 1, "rollout", [row | {"source": "annotation", "annotator": "ada"}])
    write_partition(ws, "steps", 1, "rollout", steps)
    write_partition(ws, "candidates", 1, "ingest", candidates)
    whose = ["the model's, accepted by ada", "by ada", "the model alone", "the model's, accepted by ada"]
    with database.connect_catalog(ws) as connection:
        assert [frame.by for frame in replay.load_replay(connection, "side0").frames] == whose
    page = pages.write_trajectory_page(ws, "side0").read_text(encoding="utf-8")
    shown = [html.unescape(one) for one in re.findall(r'<p class="by">(.*?)</p>', page)]
    assert shown == whose
    with explorer(ws) as (_, client):
        assert [step["by"] for step in client.get("/api/trajectories/side0").json()["steps"]] == whose


def test_where_rl_was_off_a_word_stands_in_place_of_an_empty_curve(browser, tmp_path):
    ws = Workspace(tmp_path)
    for k in (1, 2):
        rollouts(ws, k)
        write_partition(ws, "metrics", k, "sft", [metric_row("loss", 1 / n, step=n) for n in range(1, 6)])
    write_partition(ws, "metrics", 1, "rl-games", [metric_row("reward", n / 5, step=n) for n in range(1, 6)])
    with explorer(ws) as (server, _):
        tab = open_page(browser, server)
        tab.goto(f"{server.url}/iterations?of=1")
        expect(tab.get_by_role("img", name="rl-games: reward")).to_be_visible()
        off = tab.get_by_text("RL was off in these iterations")
        expect(off).to_have_count(0)
        tab.get_by_label("002").check()
        expect(off).to_have_count(0)
        tab.get_by_label("001").uncheck()
        expect(off).to_be_visible()
        expect(tab.get_by_role("img", name="sft: loss")).to_be_visible()
        assert tab.faults == []
        tab.context.close()
