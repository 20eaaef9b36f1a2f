"""Counterfactual runs in real browsers: from a restored step on, with one thing changed, stored beside all else."""

from __future__ import annotations

import dataclasses

import pytest
import small_rollout
from explorer_store import explorer
from explorer_tabs import open_page, serious
from playwright.sync_api import expect
from waiting import until

from flywheel.maintenance import counterfactuals
from flywheel.maintenance.counterfactuals import CounterfactualRequest, prepare_counterfactual, run_counterfactual
from flywheel.pipeline import dag, stage
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.rollout.counterfactual import CounterfactualChange, StateNotRestored
from flywheel.store import manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.schema import COUNTERFACTUAL
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json

pytestmark = pytest.mark.exhaustive

COUNTED = ("p_v1", "task_success", "template_success", "headroom", "funnel", "iterations")


def query(ws, sql):
    return database.query_catalog(ws, sql).to_pylist()


@pytest.fixture(scope="module")
def ws(tmp_path_factory):
    """An iteration up to its rollout, a task a trajectory."""
    ws = small_rollout.synthesized(tmp_path_factory.mktemp("ws"), {}, {"rollout.temperature": 1.5})
    first = {"model": "models/base", "digest": checkpoint_digest(ws.root / "models" / "base")}
    write_json(ws.promotion(0), {**manifest.read_promotion(ws, 0), **first})
    for name in ("ingest", "rollout"):
        stage.run_stage(dag.find_stage(name), stage.StageContext.open(ws, 1, name))
    return ws


@pytest.fixture(scope="module")
def parent(ws):
    """The longest run, whose second step is there."""
    return query(ws, "FROM trajectories WHERE stage = 'rollout' ORDER BY steps DESC, trajectory_id LIMIT 1")[0]


def ask(ws, parent, step, runs, **change):
    ((kind, value),) = change.items()
    return prepare_counterfactual(
        ws, CounterfactualRequest(parent["trajectory_id"], step, CounterfactualChange(kind, value), runs)
    )


@pytest.fixture(scope="module")
def found(ws, parent):
    """What came of giving up at step 1, two runs a side. The first try is killed after two of the four runs."""
    asked = ask(ws, parent, 1, 2, action="finished()")

    def killed(done, total):
        assert total == 4
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_counterfactual(ws, asked, killed)
    assert counterfactuals.count_played(ws, asked) == 2
    seen = []
    result = run_counterfactual(ws, asked, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 4), (3, 4), (4, 4)], "what was over before the kill is not played again"
    return result


def test_what_came_out_is_stored_as_runs_that_began_within_the_other(ws, parent, found):
    rows = query(ws, f"FROM trajectory_outcomes WHERE source = '{COUNTERFACTUAL}' ORDER BY trajectory_id")
    names = [*found["without"]["trajectories"], *found["with"]["trajectories"]]
    assert [row["trajectory_id"] for row in rows] == sorted(names)
    for row in rows:
        assert (row["stage"], row["parent_id"], row["start_step"]) == (COUNTERFACTUAL, parent["trajectory_id"], 1)
        assert (row["task_id"], row["destination"]) == (parent["task_id"], None)
        assert row["success"] is not None
    for name in names:
        steps = query(ws, f"FROM steps_of('{name}')")
        (first, theirs) = steps[0], query(ws, f"FROM steps_of('{parent['trajectory_id']}')")
        assert (first["action"], first["image_sha256"]) == (theirs[0]["action"], theirs[0]["image_sha256"])
        assert steps[1]["image_sha256"] == theirs[1]["image_sha256"], "both sides begin in the state before step 1"
        links = query(ws, f"FROM lineage WHERE child = '{name}' AND relation = 'counterfactual of'")
        assert [link["parent"] for link in links] == [parent["trajectory_id"]]
    for name in found["with"]["trajectories"]:
        last = query(ws, f"FROM steps_of('{name}')")[-1]
        assert (last["step"], last["author"], last["action"], last["token_ids"]) == (1, "human", "finished()", None)
    assert {
        row["author"] for one in found["without"]["trajectories"] for row in query(ws, f"FROM steps_of('{one}')")
    } == {"model"}
    assert counterfactuals.list_counterfactuals(ws, task_id=parent["task_id"]) == [found]
    assert found["difference"]["pairs"] == 2


def test_asking_again_plays_nothing_and_more_runs_play_only_the_new_ones(ws, parent, found, monkeypatch):
    played = []
    play = counterfactuals.play_counterfactual

    async def counted(*arguments, **more):
        played.append(arguments[2])
        return await play(*arguments, **more)

    monkeypatch.setattr(counterfactuals, "play_counterfactual", counted)
    again = run_counterfactual(ws, ask(ws, parent, 1, 2, action="finished()"))
    assert played == []
    assert {**again, "at": found["at"]} == found
    more = run_counterfactual(ws, ask(ws, parent, 1, 3, action="finished()"))
    assert played == [2, 2], "the third run of each side"
    assert more["with"]["trajectories"][:2] == found["with"]["trajectories"]
    monkeypatch.undo()
    # Another change has the same runs without it.
    other = run_counterfactual(ws, ask(ws, parent, 1, 3, temperature="0"))
    assert other["without"] == more["without"]
    texts = {
        tuple(row["raw_text"] for row in query(ws, f"FROM steps_of('{name}')"))
        for name in other["with"]["trajectories"]
    }
    assert len(texts) == 1, "greedy runs from one state are the same"


def test_a_thought_is_what_the_step_begins_with_and_the_model_acts_on_it(ws, parent):
    thought = "I wait for the page."
    result = run_counterfactual(ws, ask(ws, parent, 1, 1, thought=thought))
    (name,) = result["with"]["trajectories"]
    changed = query(ws, f"FROM steps_of('{name}')")[1]
    assert (changed["thought"], changed["author"]) == (thought, "model")
    given = sum(value == 0 for value in changed["logprobs"])
    assert 0 < given <= len(changed["token_ids"]) == len(changed["logprobs"])
    assert changed["raw_text"].startswith(f"Thought: {thought}\nAction: ")


def test_another_instruction_is_shown_and_the_verifier_stays(ws, parent):
    result = run_counterfactual(ws, ask(ws, parent, 1, 1, instruction="Do nothing at all."))
    (name,) = result["with"]["trajectories"]
    (row,) = query(ws, f"FROM trajectories WHERE trajectory_id = '{name}'")
    assert (row["instruction"], row["task_id"]) == ("Do nothing at all.", parent["task_id"])
    assert result["with"]["judged"] == 1


def test_they_are_never_routed_trained_on_or_counted(ws, found):
    """Not while their iteration is routed, and not after it: no view that counts the model's success sees them."""
    for name in ("score", "route"):
        stage.run_stage(dag.find_stage(name), stage.StageContext.open(ws, 1, name))
    mine = set(found["without"]["trajectories"]) | set(found["with"]["trajectories"])
    for table in ("routes", "sft", "ct", "quarantine"):
        assert mine.isdisjoint(row["trajectory_id"] for row in query(ws, f"FROM {table}"))
    before = {view: query(ws, f"FROM {view}") for view in COUNTED}
    assert {row["samples"] for row in before["task_success"]} == {1}
    parent = query(ws, "FROM trajectories WHERE stage = 'rollout' ORDER BY steps DESC, trajectory_id LIMIT 1")[0]
    run_counterfactual(ws, ask(ws, parent, 0, 1, action="finished()"))
    assert {view: query(ws, f"FROM {view}") for view in COUNTED} == before
    assert query(ws, "FROM preference_pairs") == []
    assert not [path for path in stage_records.find_orphaned_outputs(ws, 1) if COUNTERFACTUAL in path]


def test_one_that_came_among_the_rollouts_is_quarantined(ws, found):
    """The second lock: should one lie in a partition that is routed, a contract keeps it out."""
    rows = partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    strayed = rows[0]["trajectory_id"]
    partitions.write_partition(ws, "trajectories", 1, "rollout", [rows[0] | {"source": COUNTERFACTUAL}, *rows[1:]])
    stage.run_stage(dag.find_stage("score"), stage.StageContext.open(ws, 1, "score"))
    try:
        settings = stage_records.load_iteration_params(ws, 1)
        routing = settings.routing.model_copy(update={"max_invalid_fraction": 1.0})
        ctx = stage.StageContext(ws, settings.model_copy(update={"routing": routing}), 1, "route")
        stage.run_stage(dag.find_stage("route"), ctx)
        (route,) = query(ws, f"FROM routes WHERE trajectory_id = '{strayed}'")
        assert (route["destination"], route["reason"].partition(" (")[0]) == (
            "quarantine",
            "contract: source_known: source is known",
        )
    finally:
        partitions.write_partition(ws, "trajectories", 1, "rollout", rows)


def test_a_state_that_is_another_one_is_refused_by_name(ws, parent):
    asked = ask(ws, parent, 1, 1, action="wait()")
    other = dataclasses.replace(asked.steps[0], image_sha256="0" * 64)
    changed = dataclasses.replace(asked, steps=(other, *asked.steps[1:]))
    with pytest.raises(StateNotRestored, match=r"before step 1 cannot be restored: at step 0 .* its replay shows"):
        run_counterfactual(ws, changed)
    assert query(ws, f"FROM trajectories WHERE trajectory_id = '{asked.sides[1].names[0]}'") == []


@pytest.mark.parametrize(
    ("change", "step", "what"),
    [
        ({"action": "jump over it"}, 1, "no action of the model's grammar"),
        ({"thought": "two\nlines"}, 1, "not one line of text"),
        ({"temperature": "1.5"}, 1, "not another temperature: 1.5"),
        ({"temperature": "nan"}, 1, "not another temperature: nan"),
        ({"instruction": "   "}, 1, "it is empty"),
        ({"nothing": ""}, 1, "nothing is changed"),
        ({"model": "models/base"}, 1, "it has the weights that play without the change"),
        ({"action": "wait()"}, 99, "it has no step 99"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_begins(ws, parent, change, step, what):
    with pytest.raises(BadInput, match=what):
        ask(ws, parent, step, 1, **change)


def test_what_is_not_there_is_refused_by_name(ws, parent, monkeypatch):
    with pytest.raises(BadInput, match="it is not here"):
        ask(ws, {"trajectory_id": "tnone"}, 0, 1, action="wait()")
    own = query(ws, f"FROM steps_of('{parent['trajectory_id']}')")[0]
    with pytest.raises(BadInput, match="what it was"):
        ask(ws, parent, 0, 1, thought=own["thought"])
    with monkeypatch.context() as patched:
        patched.setattr(counterfactuals, "list_model_folders", lambda ws, digest=None: [])
        with pytest.raises(BadInput, match=r"weights .* that acted are not here"):
            ask(ws, parent, 0, 1, action="wait()")
    tasks = partitions.read_partition(ws, "tasks", 1, "synthesize").to_pylist()
    for change, what in (
        ({"environment": "moon"}, "no kind of environment is called 'moon'"),
        ({"task_id": "x"}, "not in the table tasks"),
    ):
        changed = [row | change if row["task_id"] == parent["task_id"] else row for row in tasks]
        partitions.write_partition(ws, "tasks", 1, "synthesize", changed)
        try:
            with pytest.raises(BadInput, match=what):
                ask(ws, parent, 0, 1, action="wait()")
        finally:
            partitions.write_partition(ws, "tasks", 1, "synthesize", tasks)


def test_a_page_begins_it_and_shows_how_far_it_is_and_what_came_of_it(browser, ws, parent):
    with explorer(ws, allow_runs=True) as (server, client):
        tab = open_page(browser, server)
        task, name = parent["task_id"], parent["trajectory_id"]
        tab.goto(f"{server.url}/tasks/{task}?source=rollout&at={name}:0")
        tab.get_by_text("What if?").click()
        tab.get_by_label("runs", exact=True).fill("2")
        tab.get_by_label("Do this in its place").fill("wait()")
        tab.get_by_role("button", name="Run 2 with and 2 without").click()
        expect(tab.locator(".whatif [role=status]")).to_contain_text("of 4 runs are over")
        again = {"trajectory_id": name, "step": 0, "kind": "action", "value": "finished()", "runs": 1}
        assert client.post("/api/counterfactuals", json=again).status_code == 409
        came = tab.get_by_role("list", name="What came of it")
        until(lambda: client.get(f"/api/counterfactuals?task={task}").json()["running"] is None, "it ends")
        told = client.get(f"/api/counterfactuals?task={task}").json()
        assert told["error"] == ""
        assert told["models"][0] == "models/base"
        expect(came).to_contain_text("wait()")
        expect(came).to_contain_text("2 pairs of the same seed")
        assert serious(tab) == []
        came.get_by_role("link", name="the runs").first.click()
        expect(tab.locator(".runs thead th").nth(1)).to_contain_text("rollout")
        expect(tab.locator(".runs thead")).to_contain_text("counterfactual")
        for body, what in (
            (again | {"trajectory_id": "tnone"}, "it is not here"),
            (again | {"value": "jump"}, "no action of the model's grammar"),
            (again | {"kind": "model", "value": "/etc"}, "no model of this workspace"),
            (again | {"value": "--help"}, "no action of the model's grammar"),
        ):
            refused = client.post("/api/counterfactuals", json=body)
            assert (refused.status_code, what in refused.json()["error"]) == (400, True), refused.json()
        assert tab.faults == []
        tab.context.close()
