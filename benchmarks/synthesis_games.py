"""New games by composition of rules: the funnel, the solver's proof, chance, experts in the browser, both engines."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from flywheel.config import SandboxSettings, Settings
from flywheel.envs import registry
from flywheel.envs.base import Env, Task
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import oracle
from flywheel.envs.suites.rules.engine import RuleLevel
from flywheel.envs.tasks.drawing import make_task
from flywheel.synthesis.rule_games import generator

_PLAYS, _MOVES = 20, 300  # random plays of each task; random keys on each game's board
_RUN = """(() => { let board = cells; return JSON.stringify([...%s].map((key) => {
  board = key === "x" ? cells : turn(board, KEYS.indexOf(key)); return [board, score(board)]; })); })()"""


def add_options(parser: Any) -> None:
    parser.add_argument("--games", type=int, default=10, help="games to make")
    parser.add_argument("--games-folder", type=Path, help="of games that were made before, in place of making any")


def run(args: argparse.Namespace) -> dict[str, Any]:
    funnel, began = generator.GameFunnel(), time.process_time()
    count = 1 if args.quick else args.games
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.games_folder or Path(scratch)
        if not args.games_folder:
            for one in generator.make_games(count, args.seed, generator.compose_game, 40 * count, funnel):
                generator.write_game(one, folder)
        made_s = time.process_time() - began
        games = [registry.find_backend("browser").load(path) for path in sorted(folder.glob("*.yaml"))[:count]]
    began = time.process_time()
    tasks = [make_task(game, "play", level, args.seed + 1, "train") for game in games for level in game.levels]
    draw_s = (time.process_time() - began) / len(tasks)
    solved = [len(RuleLevel(task.params).solve()) == task.params["shortest"] <= task.max_steps for task in tasks]
    chance = [_play_at_random(task, random.Random(f"{task.task_id} {n}")) for task in tasks for n in range(_PLAYS)]
    moves, differences, expert, same = asyncio.run(_play_in_browser(tasks, 300 if args.quick else 10_000))
    figures = {
        "proposed": funnel.proposed,
        "accepted": funnel.accepted,
        "refused": dict(funnel.refused.most_common()),
        "games": len(games),
        "tasks": len(tasks),
        "solved": sum(solved) / len(solved),
        "random_wins": sum(chance) / len(chance),
        "random_plays": len(chance),
        "expert_wins": sum(expert) / len(expert),
        "replay_identical": sum(same) / len(same),
        "engine_moves": moves,
        "engine_differences": differences,
        "shortest": [min(task.params["shortest"] for task in tasks), max(task.params["shortest"] for task in tasks)],
        "make_cpu_s": round(made_s / max(funnel.accepted, 1), 1),
        "draw_cpu_s": round(draw_s, 2),
    }
    met = figures["solved"] == figures["expert_wins"] == figures["replay_identical"] == 1.0
    return {**figures, "met": met and figures["random_wins"] < generator.MOST_RANDOM_WINS and not differences}


def _play_at_random(task: Task, rng: random.Random) -> bool:
    """Whether random arrow keys win the task within its budget."""
    level = RuleLevel(task.params)
    cells = level.start
    for _ in range(task.max_steps):
        cells = level.after(cells, rng.randrange(4))
        if level.won(cells) or level.lost(cells):
            return level.won(cells)
    return False


async def _play_in_browser(tasks: list[Task], moves: int) -> tuple[int, int, list[bool], list[bool]]:
    """Random keys in both engines and how many boards differ; whether each task's expert wins, and wins alike again."""
    settings = Settings(sandbox=SandboxSettings(browsers=1, pages=1, timeout_s=120, width=320, height=320))
    made = differences = 0
    expert, same = [], []
    async with open_browser_pool(settings) as pool, pool.env() as env:
        for task in tasks:
            first, again = [await oracle.demonstrate_task(env, task, task.seed) for _ in range(2)]
            expert.append(first[-1][2].reward == 1.0)
            same.append([one[2].observation for one in first] == [one[2].observation for one in again])
        while made < moves:
            task = tasks[made // _MOVES % len(tasks)]
            differences += await _compare_engines(env, task, random.Random(made))
            made += _MOVES
    return made, differences, expert, same


async def _compare_engines(env: Env, task: Task, rng: random.Random) -> int:
    await env.reset(task, task.seed)
    keys = "".join(rng.choice("urdl" * 8 + "x") for _ in range(_MOVES))
    level, cells, differences = RuleLevel(task.params), RuleLevel(task.params).start, 0
    for key, told in zip(keys, json.loads(await env.tab.evaluate(_RUN % json.dumps(keys))), strict=True):
        cells = level.start if key == "x" else level.after(cells, "urdl".index(key))
        differences += told != [list(cells), level.score(cells)]
    return differences
