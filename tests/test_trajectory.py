"""Step and Trajectory are the rows of their tables, field for column."""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent.actions import Click, Drag, Finished, Point
from flywheel.agent.grammar import as_written
from flywheel.agent.trajectory import Step, Trajectory, of_action
from flywheel.schema import TABLES, from_row, to_row
from flywheel.store.partitions import from_rows

KINDS = {"steps": Step, "trajectories": Trajectory}
BESIDE = {"steps": {"sampled_logprobs", "version"}, "trajectories": set()}  # fields that no table holds
TYPES = {
    pa.string(): "str",
    pa.int32(): "int",
    pa.float64(): "float",
    pa.bool_(): "bool",
    pa.timestamp("us", tz="UTC"): "datetime",
    pa.list_(pa.int32()): "tuple[int, ...]",
    pa.list_(pa.float32()): "tuple[float, ...]",
}


@pytest.mark.parametrize("table", KINDS)
def test_fields_are_the_columns_of_the_same_name_and_type(table):
    fields = {field.name: field.type.removesuffix(" | None") for field in dataclasses.fields(KINDS[table])}
    columns = {field.name: TYPES[field.type] for field in TABLES[table]}
    assert {name: kind for name, kind in fields.items() if name not in BESIDE[table]} == columns
    assert set(fields) - set(columns) == BESIDE[table]


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
    (row,) = from_rows(table, [to_row(table, one)]).to_pylist()
    assert from_row(table, KINDS[table], row | {"iteration": 3, "stage": "rollout"}) == one


def test_what_no_table_holds_is_left_out_and_what_a_row_lacks_is_none():
    step = Step("t", 0, "model", sampled_logprobs=(-0.5,), version=4)
    row = to_row("steps", step)
    assert set(row) == set(TABLES["steps"].names)
    assert from_row("steps", Step, row) == dataclasses.replace(step, sampled_logprobs=(), version=None)
    assert from_row("steps", Step, {"trajectory_id": "t", "step": 0, "author": "model"}) == Step("t", 0, "model")
    assert from_row("steps", Step, row | {"version": 4}).version == 4  # of an episode's file


def test_they_do_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Step("t", 0, "model").step = 1


def test_an_action_as_fields():
    grammar = as_written(100)
    click = of_action(Click(Point(0.25, 0.5)), grammar)
    assert (click["action_type"], click["x"], click["y"]) == ("click", 0.25, 0.5)
    assert click["action"].startswith("click(")
    drag = of_action(Drag(Point(0.1, 0.2), Point(0.3, 0.4)), grammar)
    assert [drag[name] for name in ("x", "y", "x2", "y2")] == [0.1, 0.2, 0.3, 0.4]
    assert set(of_action(Finished(), grammar)) == {"action", "action_type"}
