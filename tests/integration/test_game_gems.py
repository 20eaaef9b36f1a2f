"""Gem merge: what joins what, what falls where, when it is over."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import task_of

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites.gems.rules import Level, State, joined, list_joinable_pairs
from flywheel.envs.suites.steps import click_cell, drag


@pytest.mark.parametrize(
    ("one", "other", "made"), [(1, 1, 2), (4, 4, 5), (1, 2, None), (0, 1, 2), (3, 0, 4), (0, 4, None), (0, 0, None)]
)
def test_what_joins(one, other, made):
    assert joined(one, other) == made == joined(other, one)


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=2, max_size=4))
def test_neighbours_are_found_in_all_columns(columns):
    """Against every pair of cells that lie side by side or one above the other."""
    state = State(tuple(map(tuple, columns)), 0)
    cells = [(col, row) for col in range(len(columns)) for row in range(3)]
    beside = [
        (one, other)
        for one in cells
        for other in ((one[0] + 1, one[1]), (one[0], one[1] + 1))
        if other in cells and joined(columns[one[0]][one[1]], columns[other[0]][other[1]])
    ]
    assert sorted(list_joinable_pairs(state.columns)) == sorted(beside)


def test_what_is_above_falls_and_a_new_gem_comes():
    level = Level({"columns": [[1, 2, 3], [2, 2, 5]], "coming": [7, 8], "target": 9})
    assert sorted(list_joinable_pairs(level.start.columns)) == [((0, 1), (1, 1)), ((1, 0), (1, 1))]
    beside = level.join(level.start, (0, 1), (1, 1))
    assert beside == State(((1, 3, 7), (2, 3, 5)), 1)
    above = level.join(level.start, (1, 0), (1, 1))
    assert above == State(((1, 2, 3), (3, 5, 7)), 1)
    below = level.join(level.start, (1, 1), (1, 0))
    assert below == State(((1, 2, 3), (3, 5, 7)), 1)


def test_nothing_comes_where_all_have_come():
    level = Level({"columns": [[1, 1], [2, 3]], "coming": [], "target": 9})
    assert level.join(level.start, (0, 0), (0, 1)) == State(((2,), (2, 3)), 1)


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=2, max_size=3))
def test_a_join_takes_one_gem_away(columns):
    level = Level({"columns": columns, "coming": [], "target": 9})
    for _, after in level.moves(level.start):
        assert sum(map(len, after.columns)) == sum(map(len, columns)) - 1


@pytest.mark.asyncio
async def test_the_page_and_the_search_have_the_same_rules():
    """Any joins, by clicks and drags, until there is none: the page agrees at each, and ends as lost or won."""
    task = dataclasses.replace(task_of("gems", "make", level=3), max_steps=500)
    level, rng = Level(task.params), random.Random(3)
    side = task.params["side"]
    async with (
        open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as pool,
        pool.env() as env,
    ):
        result = await env.reset(task, 0)
        now = level.start
        while not level.won(now) and (moves := sorted(level.moves(now))):
            assert not result.terminated
            (one, other), now = rng.choice(moves)
            state = result.info["state"]
            places = [(col, side - 1 - row) for col, row in (one, other)]
            if rng.random() < 0.5:
                await env.step(click_cell(state, *places[0]))
                result = await env.step(click_cell(state, *places[1]))
            else:
                result = await env.step(drag(state, *[(x + 0.5, y + 0.5) for x, y in places]))
            state = result.info["state"]
            assert State(tuple(map(tuple, state["columns"])), state["used"]) == now
            assert state["picked"] is None
        assert result.info["state"]["won"] is level.won(now)
        assert result.terminated


@pytest.mark.asyncio
async def test_gems_that_do_not_join_stay():
    task = task_of("gems", "make", level=3)
    columns = task.params["columns"]
    apart = next(
        ((x, y), (x + 1, y))
        for x in range(len(columns) - 1)
        for y in range(len(columns))
        if joined(columns[x][y], columns[x + 1][y]) is None
    )
    cells = [(x, len(columns) - 1 - y) for x, y in apart]
    async with (
        open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as pool,
        pool.env() as env,
    ):
        state = (await env.reset(task, 0)).info["state"]
        picked = []
        for cell in (*cells, cells[1]):
            picked.append((await env.step(click_cell(state, *cell))).info["state"]["picked"])
        after = (await env.step(drag(state, *[(x + 0.5, y + 0.5) for x, y in cells]))).info["state"]
    assert picked == [list(apart[0]), list(apart[1]), None]
    assert (after["columns"], after["moves"]) == (columns, 0)
