"""Every trajectory gets exactly one destination, by the rule of section 2.3; nothing is thrown away."""

from __future__ import annotations

import json
import math
from collections import Counter

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples
from routed_rows import route, stores

from flywheel.config.workspace import Workspace
from flywheel.envs.base import Verdict, verdicts_from_rows
from flywheel.store import lineage
from flywheel.store.partitions import table_from_rows
from flywheel.store.routing.training_stores import DESTINATIONS, connect_incoming
from flywheel.store.schema import TABLES
from flywheel.utils.errors import DiskFull, FlywheelError


def trajectory(name: str = "t1", source: str = "rollout", status: str = "completed", error: str | None = None) -> dict:
    row = dict.fromkeys(TABLES["trajectories"].names)
    return row | {
        "trajectory_id": name,
        "task_id": "k1",
        "domain": "sites",
        "source": source,
        "status": status,
        "error": error,
        "steps": 2,
        "policy_version": "d0",
        "run_id": "run-1",
    }


def score(name: str = "t1", value: float | None = 1.0, threshold: float | None = 1.0, **more) -> dict:
    return {"trajectory_id": name, "scorer": "verifier", "score": value, "threshold": threshold, **more}


def one(row: dict, *scores: dict, broken: dict | None = None) -> tuple[str, str]:
    (decision,) = route([row], scores, broken)
    return decision["destination"], decision["reason"]


@pytest.mark.parametrize(
    ("row", "scores", "destination", "reason"),
    [
        (trajectory(), [score(value=1.0)], "sft", "verified: score 1.00"),
        (trajectory(status="truncated"), [score(value=1.0)], "sft", "verified: score 1.00"),
        (trajectory(), [score(value=0.4)], "ct", "not verified: score 0.40"),
        (trajectory(), [score(value=0.4, threshold=0.4)], "sft", "verified: score 0.40"),
        (trajectory(), [score(value=1.0), score(value=0.0)], "ct", "not verified: score 0.00"),
        (trajectory(source="recording"), [score(value=0.0)], "ct", "human demonstration: continual training"),
        (trajectory(source="recording"), [], "ct", "human demonstration: continual training"),
        (trajectory(), [], "quarantine", "no score"),
        (trajectory(), [score(value=math.nan)], "quarantine", "score is not a number"),
        (trajectory(), [score(value=None)], "quarantine", "score is not a number"),
        (trajectory(), [score(threshold=None)], "quarantine", "score is not a number"),
        (trajectory(), [score(value=None, detail="no state")], "quarantine", "no score by verifier (no state)"),
        (trajectory(), [score(value=None), score(value=0.4)], "ct", "not verified: score 0.40"),
        (trajectory(), [score(value=None, detail="busy"), score()], "quarantine", "no score by verifier (busy)"),
        (trajectory(status="crashed", error="page died"), [score()], "quarantine", "status crashed: page died"),
        (trajectory(source="recording", status="invalid"), [], "quarantine", "status invalid"),
    ],
)
def test_the_rule(row, scores, destination, reason):
    assert one(row, *scores) == (destination, reason)


def test_a_broken_contract_comes_before_the_score():
    assert one(trajectory(), score(), broken={"t1": "steps_counted"}) == ("quarantine", "contract: steps_counted")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (duckdb.OutOfMemoryException("192 MB used"), FlywheelError, "more memory than it may take: 192 MB used"),
        (duckdb.IOException("No space left on device"), DiskFull, "free some space"),
        (duckdb.BinderException("no such column"), duckdb.BinderException, "no such column"),
    ],
)
def test_what_a_query_lacks_is_told_and_our_wrong_sql_stays_as_it_is(tmp_path, error, kind, message):
    with pytest.raises(kind, match=message), connect_incoming(Workspace(tmp_path), 1, ["rollout"]):
        raise error


def test_the_threshold_decides():
    assert one(trajectory(), score(value=0.5, threshold=0.5))[0] == "sft"
    assert one(trajectory(), score(value=0.5, threshold=0.51))[0] == "ct"


def test_sft_may_take_what_failed_and_still_takes_nothing_unjudged_and_no_recording():
    rows = [trajectory(name="won"), trajectory(name="lost"), trajectory(name="unjudged")]
    rows.append(trajectory(name="recorded", source="recording"))
    scores = [score(name="won"), score(name="lost", value=0.0)]
    routed = {row["trajectory_id"]: row for row in route(rows, scores, verified_only=False)}
    assert [routed[name]["destination"] for name in ("won", "lost", "unjudged", "recorded")] == [
        "sft",
        "sft",
        "quarantine",
        "ct",
    ]
    assert [routed[name]["success"] for name in ("won", "lost")] == [True, False]


some_trajectories = st.lists(
    st.builds(
        trajectory,
        name=st.text("abc", min_size=1, max_size=6),
        source=st.sampled_from(["rollout", "recording", "annotation"]),
        status=st.sampled_from(["completed", "truncated", "crashed", "invalid", "unheard of"]),
    ),
    max_size=20,
    unique_by=lambda row: row["trajectory_id"],
)
some_scores = st.lists(
    st.builds(
        score,
        name=st.text("abc", min_size=1, max_size=6),
        value=st.none() | st.floats(),
        threshold=st.none() | st.floats(0, 1),
    ),
    max_size=20,
)


@settings(max_examples=examples(40), deadline=None)
@given(some_trajectories, some_scores, st.sets(st.text("abc", min_size=1, max_size=6)))
def test_each_trajectory_has_exactly_one_destination(trajectories, scores, broken):
    written = stores(trajectories, scores, dict.fromkeys(broken, "a contract"))
    routes = written["routes"]
    assert [row["trajectory_id"] for row in routes] == sorted(row["trajectory_id"] for row in trajectories)
    assert all(row["destination"] in DESTINATIONS and row["reason"] for row in routes)
    kept = Counter(row["trajectory_id"] for name in DESTINATIONS for row in written[name])
    assert kept == Counter(row["trajectory_id"] for row in trajectories), "a trajectory was lost or doubled"
    for row in written["sft"]:
        own = [s for s in scores if s["trajectory_id"] == row["trajectory_id"]]
        assert own
        assert all(s["score"] >= s["threshold"] for s in own)
    for table, rows in written.items():
        table_from_rows(table, rows)


def by_the_rule(row: dict, verdict: Verdict | None) -> str:
    """The rule of section 2.3, in Python, on what `reward.verdict` says."""
    if row["status"] not in ("completed", "truncated"):
        return "quarantine"
    if row["source"] == "recording":
        return "ct"
    return "quarantine" if verdict is None or verdict.v is None else "sft" if verdict.v else "ct"


@settings(max_examples=examples(40), deadline=None)
@given(some_trajectories, some_scores)
def test_the_tables_verdict_is_the_verdict_of_the_rest_of_the_program(trajectories, scores):
    scores = [{**one, "scorer": f"scorer {number:02d}"} for number, one in enumerate(scores)]
    verdicts = verdicts_from_rows(scores)
    for row, decided in zip(
        sorted(trajectories, key=lambda row: row["trajectory_id"]), route(trajectories, scores), strict=True
    ):
        verdict = verdicts.get(row["trajectory_id"])
        assert decided["destination"] == by_the_rule(row, verdict)
        v = None if verdict is None else verdict.v
        assert (decided["success"], decided["score"]) == (v, None if v is None else verdict.score)


@settings(max_examples=examples(40), deadline=None)
@given(some_trajectories, some_scores)
def test_a_lower_threshold_takes_nothing_out_of_sft(trajectories, scores):
    chosen = [
        {row["trajectory_id"] for row in route(trajectories, held, {}) if row["destination"] == "sft"}
        for threshold in (0.25, 0.75)
        for held in [[{**s, "threshold": threshold} for s in scores]]
    ]
    assert chosen[0] >= chosen[1]


def test_quarantine_keeps_the_whole_row():
    row = trajectory(status="crashed", error="page died")
    (kept,) = stores([row], [])["quarantine"]
    assert json.loads(kept["record"]) == row
    assert (kept["reason"], kept["detail"]) == ("status crashed: page died", "page died")


def test_lineage_of_a_checkpoint_names_the_weights_that_acted_on_its_way():
    rows = lineage.checkpoint_links("m/rl", "d9", parents=["m/sft"], trajectories={"t1": 3}, earlier={1: "d1", 2: "d9"})
    assert [r["times"] for r in rows if r["times"]] == [3]
    assert {(r["child"], r["relation"], r["parent"], r["parent_kind"]) for r in rows} == {
        ("d9", "weights of", "m/rl", "checkpoint"),
        ("d1", "weights of", "m/rl@1", "checkpoint"),
        ("m/rl", "began from", "m/sft", "checkpoint"),
        ("m/rl", "trained on", "t1", "trajectory"),
    }


def test_lineage_names_task_weights_run_and_store():
    row = trajectory()
    rows = stores([row], [score()], iteration=3)["lineage"]
    links = {(r["child"], r["relation"], r["parent"], r["parent_kind"]) for r in rows}
    assert links == {
        ("t1", "attempts", "k1", "task"),
        ("t1", "acted by", "d0", "weights"),
        ("t1", "produced in", "run-1", "run"),
        ("sft@003", "holds", "t1", "trajectory"),
    }
