"""What of others' `verifiers` records is read, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest
import stored_traces as stored

from flywheel.agent import actions as act
from flywheel.agent.parsing.parser import parse_demonstrated_action
from flywheel.store.interop import verifiers_traces
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR, Demonstration, RefusedRecord
from flywheel.store.interop.verifiers_traces import read_verifiers
from flywheel.utils.errors import BadInput

SCREEN = {"url": "data:image/jpeg;base64," + base64.b64encode(stored.picture(1)).decode()}
USER = {"role": "user", "content": [{"type": "text", "text": "buy tea"}, {"type": "image_url", "image_url": SCREEN}]}
CLICK = {"name": "computer", "arguments": '{"action": "left_click", "coordinate": [500, 250]}'}
SEARCH = {"name": "search", "arguments": '{"query": "tea"}'}
TURN = {"role": "assistant", "content": "I look", "tool_calls": [{"id": "a", **CLICK}, {"id": "b", **SEARCH}]}
ANSWERS = [{"role": "tool", "tool_call_id": "b", "content": "9 teas"}, {"role": "tool", "tool_call_id": "a",
           "content": "clicked"}]  # fmt: skip


def chain(*messages: dict) -> list[dict]:
    return [{"parent": place - 1 if place else None, "message": one} for place, one in enumerate(messages)]


def trace(**change) -> dict:
    told = {
        "id": "t", "nodes": chain({"role": "system", "content": "be good"}, USER, TURN, *ANSWERS),
        "agent": {"config": {"model": "m"}, "name": "solver"}, "rewards": {"a": {"score": 1.0, "weight": 0.5}},
        "task": {"type": "Task", "data": {"prompt": "buy tea"}}, "ok": True, "num_total_tokens": 3,
    }  # fmt: skip
    return told | change


def read(tmp_path, *records, name: str = "traces.jsonl") -> list[Demonstration | RefusedRecord]:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return list(read_verifiers([tmp_path / name]))


def actions(one: Demonstration) -> list:
    return [parse_demonstrated_action(step.action, DEMONSTRATION_GRAMMAR) for step in one.steps]


def test_each_trace_of_an_episode_is_a_demonstration(tmp_path):
    episode = {"id": "e", "env": {"id": "shop-v1"}, "traces": [trace(), trace(id="u")], "ok": True}
    one, two = read(tmp_path, episode)
    assert (one.id, two.id, one.world, one.instruction) == ("e/t", "e/u", "shop-v1", "buy tea")
    assert one.facts == {"author": "model", "agent": "m", "result": 0.5}
    assert actions(one) == [act.Click(act.Point(0.5, 0.5)), act.ToolCall.of("search", {"query": "tea"})]
    assert [step.result for step in one.steps] == ["clicked", "9 teas"]
    assert [step.thought for step in one.steps] == ["I look", ""]
    assert list(one.screens.values()) == [stored.picture(1)]


def test_the_last_branch_counts(tmp_path):
    nodes = chain(USER, TURN, *ANSWERS)
    nodes.append({"parent": 0, "message": {"role": "assistant", "tool_calls": [{"id": "c", **SEARCH}]}})
    (one,) = read(tmp_path, trace(nodes=nodes))
    assert actions(one) == [act.ToolCall.of("search", {"query": "tea"})]


def test_ids_of_calls_may_come_again_in_a_later_turn(tmp_path):
    turns = [{"role": "assistant", "tool_calls": [{"id": "call_0", **SEARCH}]} for _ in range(2)]
    results = [{"role": "tool", "tool_call_id": "call_0", "content": text} for text in ("one", "two")]
    (one,) = read(tmp_path, trace(nodes=chain(USER, turns[0], results[0], turns[1], results[1])))
    assert [step.result for step in one.steps] == ["one", "two"]


@pytest.mark.parametrize(
    ("change", "completed"),
    [
        ({"rewards": {}}, None),
        ({"rewards": {"a": None}}, None),
        ({"rewards": {"a": {"score": 1.0}}}, True),
        ({"rewards": {"a": {"score": 0.5}, "b": {"score": 1.0, "weight": 0.5}}}, True),
        ({"rewards": {"a": {"score": 0.0}}, "errors": [{"type": "ProviderError", "message": "x"}], "ok": False}, None),
        ({"rewards": {"a": {"score": 0.0}}, "errors": [{"type": "ProviderError", "message": "x"}]}, False),
    ],
)
def test_a_rollout_that_failed_has_no_score(tmp_path, change, completed):
    """An error that a later attempt made up for leaves the trace ok."""
    (one,) = read(tmp_path, trace(**change))
    assert one.completed is completed


def test_rollouts_of_earlier_versions_are_read(tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps({"env_id": "shop", "model": "m", "avg_reward": 1.0}))
    later = {"role": "assistant", "tool_calls": [json.dumps({"id": "c", "function": SEARCH})]}
    row = {"example_id": 4, "prompt": [USER], "completion": [TURN, *ANSWERS, later], "reward": 1.0, "shop_metric": 0.5}
    text = {"example_id": 5, "prompt": "add 1 and 2", "completion": "3", "reward": 0.0}
    failed = row | {"reward": 0.0, "error": {"error": "ModelError", "error_chain_repr": "", "error_chain_str": ""}}
    one, plain, broken = read(tmp_path, row, text, failed, name="results.jsonl")
    assert (one.world, one.facts) == ("shop", {"author": "model", "agent": "m", "result": 1.0})
    assert one.id.endswith("/4/1")
    assert [type(action) for action in actions(one)] == [act.Click, act.ToolCall, act.ToolCall]
    assert (plain.instruction, plain.steps[0].action, bool(plain.steps[0].fault)) == ("add 1 and 2", "3", True)
    assert (broken.completed, broken.facts.get("result")) == (None, None)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "neither an episode"),
        ({"id": 3, "traces": []}, "id: Input should be a valid string"),
        (trace(nodes=[]), "it has no actions"),
        (trace(nodes=chain(USER)), "it has no actions"),
        (trace(nodes=[{"parent": 1, "message": USER}, {"parent": 0, "message": TURN}]), "nodes[0].parent"),
        (trace(nodes=[{"parent": 0, "message": TURN}]), "nodes[0].parent: 0 is no earlier node"),
        (trace(nodes=chain({"role": "robot", "content": ""})), "role"),
        (trace(rewards={"a": {"score": 3.0}}), "not a score from 0 to 1: 3.0"),
        (
            trace(
                nodes=chain({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]})
            ),
            "no data URI of an image",
        ),
    ],
)
def test_a_bad_record_is_refused_alone_and_told_by_its_line(tmp_path, record, why):
    bad, good = read(tmp_path, record, trace())
    assert isinstance(good, Demonstration)
    assert isinstance(bad, RefusedRecord)
    assert bad.where == "traces.jsonl line 1"
    assert why in bad.why


def test_a_line_that_is_too_long_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(verifiers_traces, "MAX_TRACE_BYTES", 30_000)
    long, good = read(tmp_path, trace(info={"x": "y" * 90_000}), trace())
    assert (long.where, "longer than" in long.why) == ("traces.jsonl line 1", True)
    assert isinstance(good, Demonstration)


def test_a_folder_without_traces_is_bad_input(tmp_path):
    for path, why in ((tmp_path, "it holds no traces"), (tmp_path / "none.jsonl", "there is no such file")):
        with pytest.raises(BadInput, match=why):
            list(read_verifiers([path]))
