"""Sliding blocks: how far a block slides, and what frees the key."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import task_of

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites.slide import world
from flywheel.envs.suites.slide.rules import Level, state_of
from flywheel.envs.suites.steps import drag


def block(x, y, length, across):
    return {"x": x, "y": y, "length": length, "across": across, "colour": "blue"}


# The key lies at the left of the second row; one block stands in its way, another below that one.
SHUT = {"size": 4, "gap": "right", "blocks": [block(0, 1, 2, True), block(2, 0, 2, False), block(1, 3, 3, True)]}


def test_a_block_slides_along_its_direction_as_far_as_it_is_free():
    level = Level(SHUT)
    assert level.places(level.start) == [0, 0, 1]
    assert {(move, tuple(level.places(after))) for move, after in level.moves(level.start)} == {
        ((1, 1), (0, 1, 1)),
        ((2, 0), (0, 0, 0)),
    }


def test_the_fewest_moves_that_free_the_key():
    level = Level(SHUT)
    assert level.solve() is None  # two cells high, in three rows: it stays in the key's way
    open_below = {**SHUT, "blocks": [SHUT["blocks"][0], block(2, 0, 2, False)]}
    way = Level(open_below).solve()
    assert [move for move, _ in way] == [(1, 2), (0, 2)]
    gap_at_the_left = {**open_below, "gap": "left", "blocks": [block(2, 1, 2, True), block(1, 0, 2, False)]}
    assert [move for move, _ in Level(gap_at_the_left).solve()] == [(1, 2), (0, 0)]


def test_distances_to_the_end_are_those_of_the_search():
    level = Level({**SHUT, "blocks": [SHUT["blocks"][0], block(2, 0, 2, False), block(3, 2, 2, False)]})
    far = level.map_distances(1000)
    assert level.map_distances(3) is None
    for state, moves in far.items():
        assert len(level.solve(state)) == moves


def test_what_is_always_covered_bounds_a_block():
    walled = {**SHUT, "blocks": [SHUT["blocks"][0], block(2, 0, 3, False), block(0, 3, 3, True)]}
    assert Level(walled).ranges() == [(0, 0), (0, 0), (0, 1)]  # the upright block covers the key's row wherever it is


@pytest.mark.parametrize("seed", range(4))
def test_no_block_ever_leaves_the_range_that_is_told_without_a_search(seed):
    level = Level(world.draw("free", 3, random.Random(seed)))
    ranges = level.ranges()
    states = level.map_distances(5000)
    for block, (low, high) in enumerate(ranges):
        places = {level.places(state)[block] for state in states}
        assert low <= min(places)
        assert max(places) <= high


@given(st.lists(st.integers(0, 7), min_size=1, max_size=14))
def test_a_state_holds_all_places(places):
    blocks = [block(0, 0, 2, True) for _ in places]
    level = Level({"size": 9, "gap": "right", "blocks": blocks})
    assert level.places(state_of(places)) == places


@pytest.mark.asyncio
async def test_the_page_and_the_search_have_the_same_rules():
    """Every move there is from the start, and drags that something stops."""
    task = task_of("slide", "free", level=3)
    level, blocks = Level(task.params), task.params["blocks"]

    def pull(state, number, cells):
        block = blocks[number]
        along = world.EDGE + state["at"][number] + block["length"] / 2
        lane = world.EDGE + block["y" if block["across"] else "x"] + 0.5
        ends = [(value, lane) if block["across"] else (lane, value) for value in (along, along + cells)]
        return drag(state, *ends)

    async with (
        open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as pool,
        pool.env() as env,
    ):
        for move, after in level.moves(level.start):
            result = await env.reset(task, 0)
            state = result.info["state"]
            result = await env.step(pull(state, move[0], move[1] - state["at"][move[0]]))
            assert result.info["state"]["at"] == level.places(after)
            assert result.info["state"]["moves"] == 1
        result = await env.reset(task, 0)
        for number in range(len(blocks)):
            state = result.info["state"]
            now = state_of(state["at"])
            least = min([place for (moved, place), _ in level.moves(now) if moved == number] + [state["at"][number]])
            result = await env.step(pull(state, number, -7))
            assert result.info["state"]["at"][number] == least
