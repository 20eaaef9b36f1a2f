"""Scorers: found by name, shown what they need, several of one trajectory; a failure of their own is no score."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import synthetic
import synthetic_rows
from routed_rows import route

from flywheel.config import Settings
from flywheel.pipeline.stage import Partition, StageContext, run_stage, stage_inputs
from flywheel.pipeline.stages import rl, score
from flywheel.rewards import scorers
from flywheel.rewards.scorer import Score, ScorerSet, list_scorers
from flywheel.store import partitions
from flywheel.store.partitions import write_partition
from flywheel.store.schema import TABLES
from flywheel.utils.errors import BadInput
from flywheel.utils.progress import replace_listener

TWO = {"routing": {"scorers": {"default": ["verifier"], "sites": ["verifier", "attentive"]}}}


@pytest.fixture
def attentive(monkeypatch):
    """The file tests/support/scorers/attentive.py stands in the folder of scorers: nothing else is done to add it."""
    monkeypatch.setattr(
        scorers, "__path__", [*scorers.__path__, str(Path(__file__).parents[1] / "support" / "scorers")]
    )
    yield
    sys.modules.pop(f"{scorers.__name__}.attentive", None)


def played(ws, trajectories: dict[str, tuple[str, float | None, str]]) -> None:
    """Partitions of rollouts, by name: domain, the verifier's score, instruction."""
    worlds = {"games": "tiles", "sites": "shop"}
    tasks, rows, steps = [], [], []
    for name, (domain, value, instruction) in trajectories.items():
        task = synthetic_rows.task(f"k{name}", domain, worlds[domain]) | {"verifier": "state:score"}
        tasks.append(task)
        state = {"won": value == 1, "score": value} if value is not None else {}
        row = synthetic_rows.trajectory(name, task, final_state=json.dumps(state), steps=2, instruction=instruction)
        rows.append(row)
        steps += [synthetic_rows.step(row, number, total=2) for number in range(2)]
    write_partition(ws, "tasks", 1, "synthesize", tasks)
    write_partition(ws, "trajectories", 1, "rollout", rows)
    write_partition(ws, "steps", 1, "rollout", steps)
    write_partition(ws, "images", 1, "rollout", [synthetic_rows.image_row(number) for number in range(2)])
    for table in ("tasks", "trajectories", "steps", "images"):
        if table != "tasks":
            write_partition(ws, table, 1, "ingest", [])
    write_partition(ws, "tasks", 1, "ingest", [])


def scored(tmp_path, trajectories, **settings):
    ws, chosen = synthetic.workspace(tmp_path / "ws", **settings)
    played(ws, trajectories)
    lines = []
    with replace_listener(lambda stage, line: lines.append(line)):
        outcome = run_stage(score.STAGE, StageContext(ws, chosen, 1, "score"))
    return ws, chosen, partitions.read_partition(ws, "scores", 1, "score").to_pylist(), outcome, lines


def test_what_is_imported_is_judged_by_nobody(tmp_path):
    ws, chosen = synthetic.workspace(tmp_path / "ws")
    played(ws, {"t1": ("sites", 1.0, "Buy it")})
    task = synthetic_rows.task("agentnet:1", "imported", "shop") | {"world": "agentnet", "seed": None, "verifier": None}
    write_partition(ws, "tasks", 1, "ingest", [task])
    write_partition(
        ws, "trajectories", 1, "ingest", [synthetic_rows.trajectory("t2", task, source="import", author="human")]
    )
    run_stage(score.STAGE, StageContext(ws, chosen, 1, "score"))
    assert [row["trajectory_id"] for row in partitions.read_partition(ws, "scores", 1, "score").to_pylist()] == ["t1"]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("x = 1", "it has no function open_scorer"),
        (
            "class One:\n    name, version, needs, score = 'odd', '1', frozenset({'stepz'}), print\n"
            "def open_scorer(_):\n    return One()",
            "scorer odd needs what there is not: stepz",
        ),
        ("class One:\n    name = 'odd'\ndef open_scorer(_):\n    return One()", "odd lacks version, needs, score"),
        (
            "class One:\n    name, version, needs, score = 'odd', '1', ['steps'], print\n"
            "def open_scorer(_):\n    return One()",
            "scorer odd lacks needs",
        ),
        ("SETTINGS = ('judge')", "scorer odd: SETTINGS is no tuple of names .*ends in a comma; it is 'judge'"),
        ("SETTINGS = ('jugde',)", "scorer odd names an unknown block of settings: jugde .*did you mean judge"),
        (
            "class One:\n    name, version, needs, score = 'even', '1', frozenset(), print\n"
            "def open_scorer(_):\n    return One()",
            "scorer odd is named 'even'",
        ),
    ],
)
def test_a_file_that_is_no_scorer_is_refused_by_name(source, what, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(source)
    monkeypatch.setattr(scorers, "__path__", [*scorers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{scorers.__name__}.odd", raising=False)
    with pytest.raises(BadInput, match=what):
        _ = ScorerSet(Settings.model_validate({"routing": {"scorers": {"default": ["odd"]}}})).versions
    sys.modules.pop(f"{scorers.__name__}.odd", None)


def test_a_scorer_that_looks_at_screens_sees_the_one_after_the_last_action(attentive, tmp_path):
    ws, chosen = synthetic.workspace(tmp_path / "ws", **TWO)
    played(ws, {name: ("sites", 1.0, "Buy it") for name in ("t1", "t2")})
    images = [synthetic_rows.image_row(number) for number in range(3)]
    write_partition(ws, "images", 1, "rollout", images)
    rows = partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    rows[0]["final_image_sha256"] = images[2]["sha256"]
    write_partition(ws, "trajectories", 1, "rollout", rows)
    run_stage(score.STAGE, StageContext(ws, chosen, 1, "score"))
    told = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    details = {row["trajectory_id"]: row["detail"] for row in told if row["scorer"] == "attentive"}
    assert details == {"t1": "3 screens looked at", "t2": "2 screens looked at"}


def test_a_second_scorer_is_one_file_and_its_name_in_the_settings(attentive, tmp_path):
    ws, chosen, rows, outcome, lines = scored(
        tmp_path,
        {
            "t1": ("sites", 1.0, "Buy it"),
            "t2": ("sites", 1.0, "Solve the riddle"),
            "t3": ("sites", 0.0, "A riddle"),
            "t4": ("games", 1.0, "A riddle of a game"),
        },
        **TWO,
    )
    told = {(row["trajectory_id"], row["scorer"]): row for row in rows}
    judges = ("verifier:state:score", "attentive")
    assert set(told) == {*((name, judge) for name in ("t1", "t2", "t3") for judge in judges), ("t4", judges[0])}
    assert {row["version"] for row in rows if row["scorer"] == "attentive"} == {"3"}
    fine, lost = told["t1", "attentive"], told["t2", "attentive"]
    assert (fine["score"], fine["success"], fine["detail"]) == (1.0, True, "2 screens looked at")
    # Its own failure is no score of 0, and says why.
    assert (lost["score"], lost["success"], lost["detail"]) == (None, None, "RuntimeError: it is a riddle to me")
    routes = {
        row["trajectory_id"]: row
        for row in route(partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist(), rows)
    }
    assert {name: row["destination"] for name, row in routes.items()} == {
        "t1": "sft",
        "t2": "quarantine",
        "t3": "ct",
        "t4": "sft",
    }
    assert routes["t2"]["reason"] == "no score by attentive (RuntimeError: it is a riddle to me)"
    # What has no verdict is neither verified nor refused, in the figure and in the curriculum; and it is told.
    figures = {row["domain"]: (row["value"], row["n"]) for row in outcome.metrics if row["name"] == "p_v1"}
    assert figures["all"] == (pytest.approx(2 / 3), 3)
    assert figures["sites"] == (0.5, 2)
    assert outcome.summary["without a verdict"] == 1
    assert any("trajectories without a verdict: 1, the first by attentive: RuntimeError" in line for line in lines)
    ctx = StageContext(ws, chosen, 1, "rl-sites")
    tasks = ctx.read_tasks("synthesize")
    assert rl.count_past_outcomes(ctx, tasks).tasks == {"kt1": (1, 1), "kt3": (0, 1), "kt4": (1, 1)}


def test_what_no_scorer_needs_is_not_read(attentive, tmp_path, monkeypatch):
    one = {"t1": ("sites", 1.0, "Buy it")}
    read = set()
    monkeypatch.setattr(
        partitions,
        "read_partition_file",
        lambda ws, table, path, columns=None, real=partitions.read_partition_file: (
            read.add((table, tuple(columns or TABLES[table].names))),
            real(ws, table, path, columns),
        )[1],
    )
    monkeypatch.setattr(
        partitions,
        "open_partition_file",
        lambda table, path, real=partitions.open_partition_file, **how: (
            read.add((table, ())),
            real(table, path, **how),
        )[1],
    )
    scored(tmp_path / "verifier", one)
    assert {table for table, _ in read} == {"tasks", "trajectories", "scores"}
    read.clear()
    _, _, rows, _, _ = scored(tmp_path / "attentive", one, routing={"scorers": {"default": ["attentive"]}})
    assert {table for table, _ in read} == {"tasks", "trajectories", "steps", "images", "scores"}
    assert not any("final_state" in columns for table, columns in read if table == "trajectories")
    assert [(row["scorer"], row["success"]) for row in rows] == [("attentive", True)]


def test_other_scorers_are_another_input_of_the_stage(attentive, tmp_path):
    ws, chosen = synthetic.workspace(tmp_path / "ws")
    played(ws, {"t1": ("sites", 1.0, "Buy it")})
    other = Settings.model_validate({**chosen.model_dump(), **TWO})
    keys = [stage_inputs(score.STAGE, StageContext(ws, one, 1, "score"))["extra"] for one in (chosen, other)]
    assert keys[0]["scorers"] == {"default": [["verifier", "2"]]}
    assert keys[1]["scorers"]["sites"] == [["verifier", "2"], ["attentive", "3"]]
    assert keys[0]["reads"] == []
    assert [name for name, _ in keys[1]["reads"]] == [
        repr(Partition(table, stage)) for table in ("steps", "images") for stage in ("ingest", "rollout")
    ]


def test_a_verifier_that_cannot_read_the_state_gives_none_and_the_others_go_on(tmp_path):
    _, _, rows, outcome, _ = scored(tmp_path, {"t1": ("sites", None, "Buy it"), "t2": ("sites", 1.0, "Buy it")})
    assert [(row["trajectory_id"], row["score"], row["success"]) for row in rows] == [
        ("t1", None, None),
        ("t2", 1.0, True),
    ]
    assert rows[0]["scorer"] == "verifier:state:score"
    assert "cannot read the state" in rows[0]["detail"]
    assert outcome.summary["P(V=1)"] == "1.00"


def test_headroom_and_live_groups_are_told_by_domain(tmp_path):
    """Of two samples of a task one is verified, of another none; the third task has one sample, which tells nothing."""
    ws, chosen = synthetic.workspace(tmp_path / "ws", rl={"group_size": 8})
    played(
        ws, {name: ("games" if name < "t5" else "sites", float(name == "t1"), "Play") for name in ("t1", "t3", "t5")}
    )
    rows = partitions.read_partition(ws, "trajectories", 1, "rollout").to_pylist()
    again = [
        row | {"trajectory_id": f"{row['trajectory_id']}b", "sample": 1} for row in rows if row["domain"] == "games"
    ]
    for row in again:
        row["final_state"] = json.dumps({"won": False, "score": 0.0})
    crashed = rows[2] | {"trajectory_id": "t5b", "status": "crashed", "error": "it broke", "final_state": None}
    write_partition(ws, "trajectories", 1, "rollout", [*rows, *again, crashed])
    outcome = run_stage(score.STAGE, StageContext(ws, chosen, 1, "score"))
    told = {
        (row["name"], row["domain"]): row for row in partitions.read_partition(ws, "metrics", 1, "score").to_pylist()
    }
    for name in ("headroom", "live_groups"):
        found = {domain: (told[name, domain]["value"], told[name, domain]["n"]) for domain in ("all", "games", "sites")}
        half = {"headroom": 0.25, "live_groups": 0.5}[name]  # the solved task: pass@2 1, pass@1 0.5; its pair is live
        assert found == {"all": (half, 2), "games": (half, 2), "sites": (None, 0)}
        assert told[name, "games"]["low"] < half < told[name, "games"]["high"]
    assert told["p_v1", "all"]["n"] == 5
    assert (outcome.summary["headroom"], outcome.summary["live groups"]) == ("0.25", "0.50")


def test_a_score_out_of_its_bounds_is_none(attentive, tmp_path, monkeypatch):
    from flywheel.rewards.scorer import importlib

    module = importlib.import_module(f"{scorers.__name__}.attentive")
    monkeypatch.setattr(module.Attentive, "score", lambda self, case: module.Score(1.5))
    _, _, rows, _, _ = scored(tmp_path, {"t1": ("sites", 1.0, "Buy it")}, **TWO)
    assert [(row["score"], row["detail"]) for row in rows if row["scorer"] == "attentive"] == [
        (None, "it gave 1.5, which is not in [0, 1]")
    ]


@pytest.mark.parametrize("given", [0.5, None, Score("0.5")])
def test_what_is_no_score_is_named_with_its_scorer(attentive, tmp_path, monkeypatch, given):
    from flywheel.rewards.scorer import importlib

    module = importlib.import_module(f"{scorers.__name__}.attentive")
    monkeypatch.setattr(module.Attentive, "score", lambda self, case: given)
    with pytest.raises(BadInput, match=r"scorer attentive gave .* for trajectory t1 \(routing.scorers: attentive\)"):
        scored(tmp_path, {"t1": ("sites", 1.0, "Buy it")}, **TWO)


def test_a_scorer_is_tried_on_a_made_trajectory(attentive):
    by_state, by_screens = (
        ScorerSet(Settings.model_validate({"routing": {"scorers": {"default": [name]}}})).for_domain("sites")[0]
        for name in ("verifier", "attentive")
    )
    case = synthetic_rows.scoring_input(4, policy_version="d9")
    assert (case.task.task_id, case.trajectory.policy_version) == (case.trajectory.task_id, "d9")
    assert [one.terminated for one in case.steps] == [False, False, False, True]
    assert (by_state.score(case).value, by_screens.score(case).value) == (1.0, 1.0)
    assert by_state.score(synthetic_rows.scoring_input(state={"won": False, "score": 0.5})).value == 0.5


def test_an_unknown_scorer_is_named():
    with pytest.raises(BadInput, match=r"no scorer is called 'verifer' \(routing.scorers\); did you mean verifier"):
        ScorerSet(Settings.model_validate({"routing": {"scorers": {"default": ["verifer"]}}}))
    assert "verifier" in list_scorers()


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        ({"games": ["verifier"]}, "default must be named"),
        ({"default": []}, "default must name scorers"),
        ({"default": ["verifier", "verifier"]}, "each once"),
        ({"default": ["verifier"], "gmaes": ["verifier"]}, "gmaes"),
        ({"default": "verifier"}, "routing.scorers"),
    ],
)
def test_wrong_settings_are_refused(chosen, what):
    from flywheel import config

    with pytest.raises(BadInput, match=what):
        config.parse_settings({"routing": {"scorers": chosen}}, where="params.yaml")
