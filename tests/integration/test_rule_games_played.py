"""Games of rules in a real browser: the page's engine and ours agree, experts win, what is restored is the same."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
import pytest_asyncio
import yaml
from rule_games import declare

from flywheel.agent.actions import Hotkey
from flywheel.config import SandboxSettings, Settings, parse_settings
from flywheel.envs import registry
from flywheel.envs.base import Task
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.conformance import check_env
from flywheel.envs.suites import catalogue, oracle
from flywheel.envs.suites.rules.engine import KEYS, RuleLevel
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.synthesis.rule_games import generator

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLAY = """(() => {
  let board = cells;
  return JSON.stringify([...%s].map((key) => {
    board = key === "x" ? cells : turn(board, KEYS.indexOf(key));
    return [board, score(board), won(board), lost(board)];
  }));
})()"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as opened:
        yield opened


def board_task(game, level: int, rng: random.Random) -> Task:
    """A task on a board that was drawn, whether it can be won or not."""
    params = {**game.params_of(game.draw_board(level, rng)), "shortest": 1, "branching": 1}
    return Task("one", "games", game.name, "play", level, 1, "Play.", params, 500, "train", "world:score", 1.0, "c")


async def test_the_page_and_python_make_the_same_of_every_key(pool):
    """Of every goal with mechanics that go with it, on boards that nobody can have looked at."""
    rng, moves, rules = random.Random(5), 0, set()
    async with pool.env() as env:
        while moves < 4000:
            try:
                game = generator.load_declared(generator.compose_game(rng), "here")
            except generator.Refused:
                continue
            task = board_task(game, rng.randint(1, 5), rng)
            await env.reset(task, 1)
            keys = "".join(rng.choice("urdlurdlurdlurdlx") for _ in range(200))
            level, cells = RuleLevel(task.params), tuple(task.params["cells"])
            for key, (board, score, won, lost) in zip(
                keys, json.loads(await env.tab.evaluate(PLAY % json.dumps(keys))), strict=True
            ):
                cells = level.start if key == "x" else level.after(cells, "urdl".index(key))
                assert (list(cells), level.score(cells), level.won(cells), level.lost(cells)) == (
                    board,
                    score,
                    won,
                    lost,
                )
            moves, rules = moves + len(keys), rules | set(level.fired)
    assert len(rules) >= 15


@pytest.fixture
def tasks(tmp_path):
    board = {"cols": 4, "rows": 4, "place": {"player": 1, "crate": 1, "pad": 1, "wall": 1}, "shortest": [4, 12]}
    levels = {level: {**board, "max_steps": 30} for level in range(1, 6)}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump({"kind": "browser", **declare(levels=levels)}))
    block = {
        "domains": {"games": ["rows"]},
        "worlds": ["rows.yaml"],
        "held_out": [],
        "train_tasks": 4,
        "levels": [1, 5],
    }
    settings = parse_settings({"synthesis": block, "merge": {"weights": {"games": 1.0}}}, where="test")
    yield make_tasks(settings, 1, "train", tmp_path)
    catalogue.LOADED_GAMES.clear()


async def test_experts_win_and_a_replay_shows_the_same_pictures(pool, tasks):
    shown = []
    for _ in range(2):
        async with pool.env() as env:
            pictures = []
            for task in tasks:
                steps = await oracle.demonstrate_task(env, task, task.seed)
                assert (steps[-1][2].reward, steps[-1][2].info["state"]["won"]) == (1.0, True)
                assert len(steps) == task.params["shortest"]
                pictures += [result.observation.screenshot for _, _, result in steps]
        shown.append(pictures)
        catalogue.LOADED_GAMES.clear()  # the second time as on a machine that has no file of the game
    assert shown[0] == shown[1]


async def test_a_dead_end_is_begun_again_and_a_forged_board_scores_nothing(pool, tasks):
    task = dataclasses.replace(tasks[0], max_steps=60)
    async with pool.env() as env:
        start = await env.reset(task, task.seed)
        result = start
        for key in ("left", "up", "right", "down") * 2:
            result = result if result.terminated else await env.step(Hotkey((key,)))
        again = result = await env.step(Hotkey(("r",)))
        assert again.info["state"]["cells"] == start.info["state"]["cells"]
        kept = await env.checkpoint()
        while not result.terminated:
            result = await env.step(oracle.next_expert_step(task, result.info["state"])[1])
        assert result.reward == 1.0
        back = await env.restore(kept)
        assert back.info["state"]["cells"] == start.info["state"]["cells"]
        won = result.info["state"]["cells"]
        await env.tab.evaluate(f"game.touch((state) => {{ state.cells = {json.dumps(won)}; }})")
        forged = await env.step(Hotkey(("a",)))
        assert forged.info["state"]["won"]
        assert (forged.info["score"], forged.reward) == (0.0, 0.0)


async def test_it_keeps_the_contract_of_environments(pool, tasks):
    moves = [Hotkey((key,)) for key in (*KEYS, "r")]
    task = dataclasses.replace(tasks[0], max_steps=30)
    async with registry.open_environments(Settings(), [task]) as opened:
        await check_env(lambda: opened.env(task), task, moves=moves[:4])
