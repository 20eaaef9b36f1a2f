"""Every game there is: its levels can be won and do not repeat, its expert wins on the screen, its contract holds.

A new game is found by its folder and needs no test here; rules of its own are tested beside this file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cache

import pytest
import pytest_asyncio
from night import NIGHT
from pages import Experts, script, spoken_words

from flywheel.agent.actions import Click, Drag, Hotkey, LeftDouble, Point, RightSingle, Scroll, Type, Wait
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue, levels
from flywheel.envs.tasks.drawing import make_task
from flywheel.rewards.scorers import verifier
from flywheel.utils.errors import BadInput

GAMES = catalogue.list_games()
STATE = "JSON.stringify(window.__env__.getState())"
CORNERS = Point(0.003, 0.997), Point(0.997, 0.997)  # of the viewport: no board reaches there
pytestmark = pytest.mark.asyncio(loop_scope="module")
every_game = pytest.mark.parametrize("name", GAMES)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=2))) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def experts(pool):
    return Experts(pool)


def slots(name: str) -> list[tuple[str, int]]:
    """(template, level) of the game, by level."""
    templates = catalogue.get_world(name).templates.items()
    return sorted(((template, level) for template, spec in templates for level in spec.max_steps), key=lambda s: s[1])


@cache
def drawn(name: str, slot: tuple[str, int]) -> list[tuple[int, dict]]:
    """(seed, params) of the first four levels."""
    return list(levels.draw_levels(catalogue.get_world(name), *slot, 4))


def task_of(name: str, slot: tuple[str, int], seed: int = 3, **changes):
    return dataclasses.replace(make_task(catalogue.get_world(name), *slot, seed, "train"), **changes)


def digest(result) -> str:
    return hashlib.sha256(result.observation.screenshot).hexdigest()


# -- levels ------------------------------------------------------------------------------------------------------------
@every_game
async def test_the_manifest_describes_a_game(name):
    world = catalogue.get_world(name)
    assert world.levels == list(range(1, len(world.levels) + 1))
    assert len(world.levels) >= 5
    for template, spec in world.templates.items():
        assert spec.instruction.endswith(".")
        budgets = [spec.max_steps[level] for level in sorted(spec.max_steps)]
        assert budgets == sorted(budgets)
        assert verifier.get_verifier(task_of(name, (template, min(spec.max_steps))))


@every_game
async def test_levels_do_not_repeat_and_are_drawn_the_same_again(name):
    world = catalogue.get_world(name)
    for slot in slots(name):
        assert [seed for seed, _ in drawn(name, slot)] == [0, 1, 2, 3]  # none was left out as a repeat
        assert world.draw(*slot, 3) == drawn(name, slot)[3][1]
        for _, params in drawn(name, slot):
            assert params == json.loads(json.dumps(params))


@every_game
async def test_its_expert_knows_a_way_within_the_budget(name):
    world = catalogue.get_world(name)
    for template, level in slots(name):
        for seed, params in drawn(name, (template, level))[: 4 if NIGHT else 1]:
            way = world.module.solve(params)
            assert way, (template, level, seed)
            assert len(way) <= world.budget(template, level), (template, level, seed)


@every_game
async def test_any_integer_is_a_seed_and_a_level_beyond_the_last_is_refused(pool, name):
    world, first = catalogue.get_world(name), slots(name)[0]
    async with pool.env() as env:
        for seed in (-1, 0, 2**63, -(10**30)):
            task = task_of(name, first, seed)
            assert world.module.solve(task.params)
            result = await env.reset(dataclasses.replace(task, level=99), seed)
            assert result.info["state"]["level"] == 99
            assert not result.info["state"]["terminated"]
    for level in (-3, 0, max(world.levels) + 1, 10**9):
        with pytest.raises(BadInput, match="no level"):
            make_task(world, first[0], level, 1, "train")


async def shown(experts, name: str) -> tuple[tuple[str, int], list]:
    """A level that its expert has played for another test already, and its actions: the first, or where that is over
    before there is a middle, one half way up."""
    every = slots(name)
    for slot in (every[0], every[len(every) // 2]):
        actions = [action for _, action, _ in await experts.demonstrate(task_of(name, slot))]
        if len(actions) >= 4:
            break
    return slot, actions


# -- in the browser ----------------------------------------------------------------------------------------------------
@pytest.mark.smoke
@every_game
async def test_its_expert_wins_each_level_and_says_why(experts, name):
    every = slots(name)
    for slot in every if NIGHT else every[:1]:
        task = task_of(name, slot)
        steps = await experts.demonstrate(task)
        last = steps[-1][2]
        assert (last.reward, last.terminated, last.truncated) == (1.0, True, False), slot
        assert last.info["state"]["won"]
        assert all(not step[2].info["state"]["won"] for step in steps[:-1])
        for thought, _, _ in steps:
            words = thought.lower().replace(".", "").replace(",", "").split()
            assert 1 <= len(words) <= 10, thought
            assert set(words) <= spoken_words(), thought


@every_game
async def test_state_and_checkpoints_bring_back_all(pool, experts, name):
    """After setState(getState()), and after restore(checkpoint), what follows is the same."""
    slot, actions = await shown(experts, name)
    task = task_of(name, slot, max_steps=500)
    async with pool.env() as env:
        half = len(actions) // 2
        result = await env.reset(task, task.seed)
        for action in actions[:half]:
            result = await env.step(action)
        kept, mark, seen = await script(env, STATE), await env.checkpoint(), digest(result)
        followed = [await env.step(action) for action in actions[half:]]

        assert digest(await env.restore(mark)) == seen
        assert await script(env, STATE) == kept
        assert [digest(await env.step(action)) for action in actions[half:]] == [digest(step) for step in followed]

        await env.reset(task, task.seed)
        await script(env, f"window.__env__.setState({kept})")
        assert await script(env, STATE) == kept
        assert digest(await env.step(Wait())) == seen
        again = [await env.step(action) for action in actions[half:]]
        assert [digest(step) for step in again] == [digest(step) for step in followed]
        assert again[-1].reward == 1.0


@every_game
async def test_the_contract_is_published(pool, name):
    task = task_of(name, slots(name)[0])
    async with pool.env() as env:
        await env.reset(task, 77)
        seen = json.loads(await script(env, "JSON.stringify({...window.__env__, ...window.__env__.getState()})"))
        assert (seen["version"], seen["seed"], seen["level"]) == (catalogue.get_world(name).version, 77, task.level)
        assert 0 <= seen["score"] < 1
        assert (seen["terminated"], seen["won"], seen["lost"], seen["moves"]) == (False, False, False, 0)
        assert {"score", "lives", "terminated"} <= seen.keys()
        given = await script(env, "const s = window.__env__.getState(); s.moves = 9; window.__env__.getState().moves")
        assert given == 0  # what is given out is a copy


@every_game
async def test_actions_beside_the_board_change_nothing(pool, name):
    task = task_of(name, slots(name)[1], max_steps=50)
    beside = [
        *map(Click, CORNERS),
        Drag(*CORNERS),
        LeftDouble(CORNERS[0]),
        RightSingle(Point(0.5, 0.5)),
        Click(Point(1.5, 2)),
        Drag(Point(0.5, 0.5), Point(-1, 3)),
        Scroll(Point(0.5, 0.5), "down"),
        Hotkey(("f5",)),
        Hotkey(("ctrl", "q")),
        Type("Hello <b>there</b>\n"),
    ]
    async with pool.env() as env:
        first = await env.reset(task, task.seed)
        for action in beside:
            result = await env.step(action)
            assert result.info["state"] == first.info["state"], action
            assert digest(result) == digest(first), action
        for number in range(9):  # off the board from anywhere on it
            on = Point(0.2 + 0.3 * (number % 3), 0.2 + 0.3 * (number // 3))
            result = await env.step(Drag(on, CORNERS[0]))
            if result.terminated:
                break
            assert 0 <= result.info["score"] <= 1
