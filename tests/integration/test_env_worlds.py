"""The worlds in a browser: solved by their experts, seldom by chance, and the same each time."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest
import pytest_asyncio
from night import NIGHT
from pages import click_on, script, spoken_words, task_of

from flywheel.agent.actions import Drag, Hotkey, Point, Wait
from flywheel.config import SandboxSettings, Settings, SynthesisSettings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import oracle
from flywheel.envs.suites.merge.board import play
from flywheel.envs.suites.players import random_action
from flywheel.envs.tasks.drawing import make_tasks

TASKS = 40 if NIGHT else 8
DRAWN = Settings(synthesis=SynthesisSettings(train_tasks=40, eval_tasks=TASKS, levels=[1, 2]))
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60))) as opened:
        yield opened


async def _demonstrate(pool, tasks):
    async def one(task):
        async with pool.env() as env:
            return await oracle.demonstrate_task(env, task, task.seed)

    return await asyncio.gather(*(one(task) for task in tasks))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demonstrations(pool):
    """Each held-out task with its expert's steps, played on all pages at once."""
    tasks = make_tasks(DRAWN, 0, "eval")
    return list(zip(tasks, await _demonstrate(pool, tasks), strict=True))


async def test_every_held_out_task_is_solved_by_its_expert(demonstrations):
    for task, steps in demonstrations:
        last = steps[-1][2]
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False), task
        assert task.max_steps >= len(steps) + 1, "no room for one mistake"


async def test_the_same_actions_give_the_same_pixels_in_another_order(pool, demonstrations):
    again = await _demonstrate(pool, [task for task, _ in reversed(demonstrations)])
    for (task, first), second in zip(demonstrations, reversed(again), strict=True):
        assert [_digest(step) for step in first] == [_digest(step) for step in second], task


async def test_thoughts_are_short_and_the_recognizer_knows_their_words(demonstrations):
    thoughts = {thought for _, steps in demonstrations for thought, _, _ in steps}
    assert len(thoughts) > (50 if NIGHT else 10)
    for thought in thoughts:
        words = thought.lower().replace(".", "").replace(",", "").split()
        assert 1 <= len(words) <= 10
        assert set(words) <= spoken_words(), thought


async def test_higher_levels_can_be_solved(pool):
    for world, template in (("tiles", "clear"), ("shapes", "fit"), ("merge", "reach"), ("shop", "swap")):
        async with pool.env() as env:
            steps = await oracle.demonstrate_task(env, task_of(world, template, level=3), 1)
        assert steps[-1][2].reward == 1.0, world


@pytest.mark.exhaustive
async def test_random_play_seldom_succeeds(pool):
    async def luck(task):
        rng = random.Random(task.task_id)
        async with pool.env() as env:
            result = await env.reset(task, task.seed)
            while not (result.terminated or result.truncated):
                result = await env.step(random_action(rng, texts=True))
        return result.reward >= task.threshold

    wins = await asyncio.gather(*(luck(task) for task in make_tasks(DRAWN, 0, "train")))
    assert sum(wins) <= 0.05 * len(wins)


async def test_the_game_and_the_search_have_the_same_rules(pool):
    """merge.js against board.py, where new tiles appear too."""
    task = task_of("merge", "reach", level=3)
    async with pool.env() as env:
        result = await env.reset(task, 0)
        board = tuple(map(tuple, result.info["state"]["board"]))
        for moves, key in enumerate(("left", "up", "right", "down")):
            result = await env.step(Hotkey((key,)))
            board = play(board, key, moves, task.params["spawn"])
            assert tuple(map(tuple, result.info["state"]["board"])) == board
            assert result.info["state"]["moves"] == moves + 1


async def test_a_lost_game_ends_with_what_was_reached(pool):
    task = task_of("tiles", "clear", level=2)
    async with pool.env() as env:
        result = await env.reset(task, 0)
        for wanted in (0, 1, 0, 1):  # two of each kind fill the tray of four
            tiles = result.info["state"]["tiles"]
            kinds = sorted({tile["kind"] for tile in task.params["tiles"]})
            tile = next(tile for tile in tiles if tile["kind"] == kinds[wanted])
            result = await env.step(click_on(result, f"tile {tile['id']}"))
    assert (result.terminated, result.truncated, result.reward) == (True, False, 0.0)
    assert result.info["state"]["lost"]


async def test_a_drop_elsewhere_takes_the_piece_back(pool):
    task = task_of("shapes", "fit")
    async with pool.env() as env:
        first = await env.reset(task, 0)
        still = await env.step(Wait())
        piece = next(e for e in first.info["state"]["elements"] if e["name"].startswith("piece"))
        result = await env.step(Drag(Point(piece["x"] + 0.1, piece["y"] + 0.1), Point(0.5, 0.02)))
    assert result.observation.screenshot == still.observation.screenshot
    assert not result.info["state"]["pieces"][0]["placed"]


async def test_a_game_state_can_be_set(pool):
    """The contract's setState: what getState gave is drawn again."""
    task = task_of("tiles", "clear", level=2)
    async with pool.env() as env:
        result = await env.reset(task, 0)
        kept = await script(env, "JSON.stringify(window.__env__.getState())")
        _, action = oracle.next_expert_step(task, result.info["state"])
        moved = await env.step(action)
        await script(env, f"window.__env__.setState({kept})")
        back = await env.step(Wait())
    assert len(moved.info["state"]["tiles"]) == 5
    assert back.observation.screenshot == result.observation.screenshot


def _digest(step):
    return hashlib.sha256(step[2].observation.screenshot).hexdigest()
