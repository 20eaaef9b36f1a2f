"""Merge and double: what a number does that falls on a column or is put on an equal one."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import task_of

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites.double.rules import NEXT, Level, State, dropped
from flywheel.envs.suites.steps import click_at, drag

numbers = st.sampled_from([2, 4, 8, 16])


@pytest.mark.parametrize(
    ("column", "number", "after"),
    [
        ((), 2, (2,)),
        ((4,), 2, (4, 2)),
        ((2,), 4, (2, 4)),
        ((4,), 4, (8,)),
        ((16, 8, 4), 4, (32,)),  # again and again
        ((8, 2, 4), 4, (8, 2, 8)),
    ],
)
def test_what_falls_doubles_with_equal_ones(column, number, after):
    assert dropped(column, number) == after


@given(st.lists(numbers, max_size=5), numbers)
def test_a_drop_keeps_the_sum(column, number):
    assert sum(dropped(tuple(column), number)) == sum(column) + number


def test_moves_are_drops_that_fit_and_equal_tops():
    level = Level({"columns": [[8, 4], [4], [16, 2]], "coming": [2], "high": 2, "target": 64})
    assert dict(level.moves(level.start)) == {
        (NEXT, 1): State(((8, 4), (4, 2), (16, 2)), 1),
        (NEXT, 2): State(((8, 4), (4,), (16, 4)), 1),  # a full column takes an equal number
        (0, 1): State(((8,), (8,), (16, 2)), 0),
        (1, 0): State(((16,), (), (16, 2)), 0),
    }
    assert list(level.moves(State(((8,), (4,), (2,)), 1))) == []  # nothing comes any more


@pytest.mark.asyncio
async def test_the_page_and_the_search_have_the_same_rules():
    """Any moves until there is none: the page agrees at each, and ends as lost or won."""
    task = dataclasses.replace(task_of("double", "make", level=3), max_steps=500)
    level, rng, top = Level(task.params), random.Random(3), 1.5
    async with (
        open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as pool,
        pool.env() as env,
    ):
        result = await env.reset(task, 0)
        now = level.start
        while not level.won(now) and (moves := sorted(level.moves(now))):
            assert not result.terminated
            (one, to), after = rng.choice(moves)
            state = result.info["state"]
            left = (state["frame"]["cols"] - len(now.columns)) / 2
            if one == NEXT:
                action = click_at(state, left + to + 0.5, top + 0.5)
            else:
                row = top + task.params["high"] - len(now.columns[one]) + 0.5
                action = drag(state, (left + one + 0.5, row), (left + to + 0.5, top + 1))
            result, now = await env.step(action), after
            state = result.info["state"]
            assert State(tuple(map(tuple, state["columns"])), state["used"]) == now
        assert result.info["state"]["won"] is level.won(now)
        assert result.terminated
