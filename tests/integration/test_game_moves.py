"""The page of a game and its rules in Python agree on any move, allowed or not, and on the score after it."""

from __future__ import annotations

import dataclasses
import random

import pytest
import pytest_asyncio
from night import by_day

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.lasers.rules import Level as Lasers
from flywheel.envs.suites.lasers.rules import mirrors
from flywheel.envs.suites.loops.rules import joined
from flywheel.envs.suites.maze.rules import SIDES, State
from flywheel.envs.suites.maze.rules import Level as Maze
from flywheel.envs.suites.pour.rules import finished, poured
from flywheel.envs.suites.pour.rules import pour as after_pour
from flywheel.envs.suites.power.rules import Level as Power
from flywheel.envs.suites.steps import click, click_cell, drag, press
from flywheel.envs.suites.turning import replaced, turned
from flywheel.envs.suites.untangle.rules import Level as Untangle
from flywheel.envs.tasks.drawing import make_task

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as opened:
        yield opened


# Each: (actions of one move at random, what the state must say after it).
def pour_move(params, state, rng):
    size, tubes = params["size"], tuple(map(tuple, state["tubes"]))
    i, k = rng.sample(range(len(tubes)), 2)
    if poured(tubes[i], tubes[k], size):
        tubes = after_pour(tubes, (i, k), size)
        actions = [click(state, f"tube {i}"), click(state, f"tube {k}")]
    else:
        inside = [
            (e["x"] + e["w"] / 2, e["y"] + e["h"] / 2)
            for n in (i, k)
            for e in state["elements"]
            if e["name"] == f"tube {n}"
        ]
        frame = state["frame"]
        units = [
            ((x - frame["x"]) / frame["w"] * frame["cols"], (y - frame["y"]) / frame["h"] * frame["rows"])
            for x, y in inside
        ]
        actions = [drag(state, *units)]
    kinds = {kind for tube in tubes for kind in tube}
    score = sum(finished(tube, size) for tube in tubes) / len(kinds)
    return actions, {"tubes": [list(tube) for tube in tubes], "chosen": None, "score": score}


def power_move(params, state, rng):
    level, board = Power(params), tuple(map(tuple, state["pieces"]))
    x, y = rng.randrange(level.cols), rng.randrange(level.rows)
    board = replaced(board, (x, y), turned(board[y][x]))
    score = len(set(level.lit(board)) & set(level.lamps)) / len(level.lamps)
    return [click_cell(state, x, y)], {"pieces": [list(row) for row in board], "score": score}


def loops_move(params, state, rng):
    board = tuple(map(tuple, state["pieces"]))
    x, y = rng.randrange(params["cols"]), rng.randrange(params["rows"])
    board = replaced(board, (x, y), turned(board[y][x]))
    pieces = [(x, y) for y, row in enumerate(board) for x, piece in enumerate(row) if piece]
    start = sum(joined(tuple(map(tuple, params["pieces"])), cell) for cell in pieces)
    score = max(0, (sum(joined(board, cell) for cell in pieces) - start) / (len(pieces) - start))
    return [click_cell(state, x, y)], {"pieces": [list(row) for row in board], "score": score}


def maze_move(params, state, rng):
    level, key = Maze(params), rng.choice(list(SIDES))
    now = State(tuple(state["light"]), frozenset(state["taken"]), state["flipped"])
    after = level.run(now, SIDES[key])
    score = (len(after.taken) + level.won(after)) / (len(level.keys) + 1)
    return [press(key)], {"light": list(after.cell), "flipped": after.flipped, "score": score}


def lasers_move(params, state, rng):
    level, now = Lasers(params), mirrors(state)
    number = rng.randrange(len(now))
    mirror = now[number]
    if rng.random() < 0.4:
        now = level.after(now, ("turn", number))
        actions = [click_cell(state, mirror.x, mirror.y)]
    else:
        cell = rng.randrange(level.cols), rng.randrange(level.rows)
        taken = level.stops | set(level.targets) | {other.cell for other in now}
        actions = [drag(state, (mirror.x + 0.5, mirror.y + 0.5), (cell[0] + 0.5, cell[1] + 0.5))]
        if cell == mirror.cell:
            actions = []
        elif not mirror.fixed and cell not in taken:
            now = level.after(now, ("move", number, cell))
    wanted = [{"x": one.x, "y": one.y, "lie": one.lie, "fixed": one.fixed} for one in now]
    return actions, {"mirrors": wanted, "score": len(level.hit(now)) / len(level.targets)}


def untangle_move(params, state, rng):
    level, side = Untangle(params), params["side"]
    knots = [tuple(knot) for knot in state["knots"]]
    knot, cell = rng.randrange(len(knots)), (rng.randrange(side), rng.randrange(side))
    x, y = knots[knot]
    actions = [drag(state, (x + 0.5, y + 0.5), (cell[0] + 0.5, cell[1] + 0.5))] if cell != (x, y) else []
    if cell not in knots:
        knots[knot] = cell
    left = level.crossings(tuple(y * side + x for x, y in knots))
    score = max(0, 1 - left / level.crossings(level.start))
    return actions, {"knots": [list(knot) for knot in knots], "score": score}


MOVES = {
    ("pour", "sort"): pour_move,
    ("power", "light"): power_move,
    ("loops", "close"): loops_move,
    ("maze", "lead"): maze_move,
    ("lasers", "hit"): lasers_move,
    ("untangle", "free"): untangle_move,
}


@pytest.mark.parametrize(
    ("game", "move"), by_day(MOVES.items(), 2), ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
async def test_the_page_and_the_rules_agree(pool, game, move):
    rng = random.Random(str(game))
    task = dataclasses.replace(make_task(catalogue.get_world(game[0]), game[1], 5, 2, "train"), max_steps=100)
    async with pool.env() as env:
        result = await env.reset(task, task.seed)
        for _ in range(12):
            actions, wanted = move(task.params, result.info["state"], rng)
            for action in actions:
                result = await env.step(action)
            seen = {key: result.info["state"][key] for key in wanted}
            assert seen.pop("score") == pytest.approx(wanted.pop("score"))
            assert seen == wanted
            if result.terminated:
                break


async def test_pour_and_sort_is_lost_where_nothing_can_be_poured(pool):
    task = make_task(catalogue.get_world("pour"), "sort", 1, 3, "train")
    tubes = [["star", "moon", "key"], ["moon", "star"], ["key", "moon", "star"]]
    task = dataclasses.replace(task, params={"size": 3, "tubes": tubes})
    async with pool.env() as env:
        result = await env.reset(task, 3)
        assert not result.terminated
        for name in ("tube 2", "tube 1"):
            result = await env.step(click(result.info["state"], name))
    assert result.info["state"]["tubes"] == [["star", "moon", "key"], ["moon", "star", "star"], ["key", "moon"]]
    assert (result.terminated, result.truncated, result.reward) == (True, False, 0.0)
    assert result.info["state"]["lost"]


async def test_a_choice_can_be_taken_back(pool):
    """Pour and sort: a second click on a tube, or one that cannot take the symbols, is no move."""
    task = make_task(catalogue.get_world("pour"), "sort", 1, 3, "train")
    tubes = [["star", "moon", "key"], ["moon", "star"], ["key"], []]
    async with pool.env() as env:
        result = await env.reset(dataclasses.replace(task, params={"size": 3, "tubes": tubes}), 3)
        chosen = []
        for number in (0, 0, 3, 0, 1, 1, 2, 0):
            result = await env.step(click(result.info["state"], f"tube {number}"))
            chosen.append(result.info["state"]["chosen"])
    assert chosen == [0, None, None, 0, 1, None, 2, 0]
    assert result.info["state"]["tubes"] == tubes
    assert result.info["state"]["moves"] == 0
