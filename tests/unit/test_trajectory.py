"""Step and Trajectory are the rows of their tables, field for column."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import Click, Drag, Finished, Point
from flywheel.agent.grammar import grammar_without_thinking
from flywheel.agent.parsing.parser import action_fields
from flywheel.store import schema
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import NO_COLUMN, TABLES, Step, Trajectory, record_from_row, record_to_row

KINDS = {"steps": Step, "trajectories": Trajectory}
BESIDE = {"steps": {"sampled_logprobs", "version"}, "trajectories": set()}  # fields that no table holds
# The format on disk: what files of this version hold, in this order.
ON_DISK = {
    "steps": (
        "trajectory_id: string, step: int32, author: string, thought: string, action_type: string, action: string, "
        "raw_text: string, parse_error: string, x: double, y: double, x2: double, y2: double, prompt_tokens: int32, "
        "token_ids: list<item: int32>, logprobs: list<item: float>, weight_version: string, image_sha256: string, "
        "url: string, tool_result: string, reward: double, terminated: bool, truncated: bool, "
        "started_at: timestamp[us, tz=UTC], ended_at: timestamp[us, tz=UTC], memory: string, observation: string, "
        "misclick: bool, state_score: double"
    ),
    "trajectories": (
        "trajectory_id: string, task_id: string, domain: string, world: string, level: int32, instruction: string, "
        "source: string, author: string, sample: int32, policy_version: string, status: string, error: string, "
        "steps: int32, reward: double, final_state: string, started_at: timestamp[us, tz=UTC], "
        "ended_at: timestamp[us, tz=UTC], run_id: string, origin: string, licence: string, "
        "annotator: string, skill: string, parent_id: string, start_step: int32, "
        "final_image_sha256: string"
    ),
}


@pytest.mark.parametrize("table", KINDS)
def test_fields_are_the_columns_on_disk(table):
    assert ", ".join(f"{column.name}: {column.type}" for column in TABLES[table]) == ON_DISK[table]
    fields = {one.name for one in dataclasses.fields(KINDS[table])}
    assert fields - set(TABLES[table].names) == BESIDE[table]


def values(kind: type) -> st.SearchStrategy:
    simple = {
        str: st.text(),
        int: st.integers(-(2**31), 2**31 - 1),
        float: st.floats(width=32, allow_nan=False),
        bool: st.booleans(),
        datetime: st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)),
    }
    if typing.get_origin(kind) is tuple:
        return st.lists(values(typing.get_args(kind)[0]), max_size=4).map(tuple)
    if kind in simple:
        return simple[kind]
    return st.one_of(st.none() if arm is type(None) else values(arm) for arm in typing.get_args(kind))


def records(kind: type, beside: set[str]) -> st.SearchStrategy:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values(hint) for name, hint in hints.items() if name not in beside})


@pytest.mark.parametrize("table", KINDS)
@given(data=st.data())
def test_through_the_table_and_back(table, data):
    one = data.draw(records(KINDS[table], BESIDE[table]))
    (row,) = table_from_rows(table, [record_to_row(table, one)]).to_pylist()
    assert record_from_row(table, KINDS[table], row | {"iteration": 3, "stage": "rollout"}) == one


def test_what_no_table_holds_is_left_out_and_what_a_row_lacks_is_none():
    step = Step("t", 0, "model", sampled_logprobs=(-0.5,), version=4)
    row = record_to_row("steps", step)
    assert set(row) == set(TABLES["steps"].names)
    assert record_from_row("steps", Step, row) == dataclasses.replace(step, sampled_logprobs=(), version=None)
    assert record_from_row("steps", Step, {"trajectory_id": "t", "step": 0, "author": "model"}) == Step("t", 0, "model")
    assert record_from_row("steps", Step, row | {"version": 4}).version == 4  # of an episode's file


def test_they_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Step("t", 0, "model").step = 1


def test_an_action_as_fields():
    grammar = grammar_without_thinking(100)
    click = action_fields(Click(Point(0.25, 0.5)), grammar)
    assert (click["action_type"], click["x"], click["y"]) == ("click", 0.25, 0.5)
    assert click["action"].startswith("click(")
    drag = action_fields(Drag(Point(0.1, 0.2), Point(0.3, 0.4)), grammar)
    assert [drag[name] for name in ("x", "y", "x2", "y2")] == [0.1, 0.2, 0.3, 0.4]
    assert set(action_fields(Finished(), grammar)) == {"action", "action_type"}


@dataclass(frozen=True)
class Moody(Step):
    """What somebody adds who wants two columns more."""

    mood: str | None = None
    weight: float | None = None
    scratch: int = field(default=0, metadata=NO_COLUMN)


def test_a_new_column_is_a_field():
    more = {"mood": pa.string(), "weight": pa.float64()}
    assert schema.record_columns(Moody) == {**schema.record_columns(Step), **more}
    assert list(schema.record_columns(Step)) == schema.TABLES["steps"].names
