"""LMGame-Bench's games that have a counterpart here (the UI-TARS-2 report's table 3): a model and random keys beside.

2048: the game `merge` without a target, from two new tiles; its slides, merges and new tiles (a 2 in 0.9 of cases) are
LMGame-Bench's. An episode ends where no key moves anything, after 10 turns that change nothing, or after 1,000 (of the
model: --steps). The figure is 10 log2 of the points, as the benchmark reports it.

sokoban: a game of rules on LMGame-Bench's own levels, read from --levels (`levels.txt` of the benchmark's repository);
without it the case is left out. A level that is solved leads to the next; an episode ends after 200 keys, or after 5
that change nothing. The figure is the boxes on targets, of all levels reached. Its agents name a push and a walk apart,
which is one arrow key here.

gems, hexes: the games here that are nearest to Candy Crush (equal gems vanish) and Tetris (full lines vanish). Their
rules are others, so the figure is a share of the scripted expert's score at the same levels, and no score of the
benchmark stands beside it.

Intervals are 95%, by a bootstrap over episodes. The model samples at --temperature, so that episodes of one board
differ.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import flywheel_run
import inference
from bench_case import BenchCase, emit_case, exit_code

from flywheel.envs.base import Task
from flywheel.envs.registry import get_task_suite
from flywheel.envs.suites import references
from flywheel.envs.suites.merge.board import KEYS, SIZE, Board, State, step
from flywheel.envs.suites.rules.engine import RuleLevel
from flywheel.envs.suites.rules.game import RuleGame, RuleGameFile, make_rule_game
from flywheel.envs.tasks.drawing import make_task
from flywheel.evaluation.evaluator import JudgedEpisode
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.utils.errors import BadInput, EnvError

SEED = 42  # of the boards
TURNS, STUCK = 1000, 10  # of 2048
WALKS, STOOD = 200, 5  # of sokoban
UNREACHED = 10**6  # points that no episode gets
REPORTED = {"2048": 117.1, "sokoban": 0.3}
REPORTER = "UI-TARS-2 (its table 3)"
LIKE = {"gems": "Candy Crush", "hexes": "Tetris"}
SOKOBAN: dict[str, Any] = {
    "world": "sokoban",
    "title": "Sokoban",
    "instruction": "The arrow keys move you, the blue disc. Push every crate onto a pad.",
    "objects": {
        "pad": {"layer": "floor", "draw": "mark", "colour": "green", "icon": "circle", "label": "pad"},
        "wall": {"layer": "body", "draw": "wall", "colour": "gray", "label": "wall"},
        "crate": {"layer": "body", "draw": "block", "colour": "orange", "icon": "square", "label": "crate"},
        "player": {"layer": "body", "draw": "piece", "colour": "blue", "icon": "ball", "label": "you"},
    },
    "rules": {"push": ["> player | crate -> > player | > crate"]},
    "win": ["all crate on pad"],
    "legend": {"#": ["wall"], "@": ["player"], "$": ["crate"], "?": ["pad"], "*": ["pad", "crate"]},
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench lmgame", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=flywheel_run.BASE, help="checkpoint (default: the shipped base)")
    parser.add_argument("--levels", type=Path, help="levels.txt of LMGame-Bench's Sokoban")
    parser.add_argument("--episodes", type=int, default=8, help="of the model in each game (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=TURNS, help="of the model in 2048, at most (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=40, help="of gems and hexes each (default: %(default)s)")
    parser.add_argument("--random", type=int, default=200, help="random episodes (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.5, help="(default: %(default)s)")
    options = parser.parse_args(argv)
    if min(options.episodes, options.steps, options.tasks, options.random) < 1:
        raise BadInput("at least one of each is needed", where="--episodes, --steps, --tasks, --random")
    levels = read_levels(options.levels) if options.levels else None
    about = {"model": checkpoint_digest(options.model)[:16], "seed": SEED, "temperature": options.temperature}
    cases = [emit_case(play_2048(options, about))]
    if levels:
        cases.append(emit_case(play_sokoban(options, levels, about)))
    cases += [emit_case(play_like(options, world, about)) for world in LIKE]
    return exit_code(cases)


def _play(options: argparse.Namespace, tasks: Sequence[Task]) -> list[JudgedEpisode]:
    """Play each task once. Raises EnvError where environments crash: such an episode has no score."""
    judged = asyncio.run(inference.play(options.model, tasks, samples=1, temperature=options.temperature))
    if crashed := [one for one in judged if one.episode.trajectory.status == "crashed"]:
        what = f"{len(crashed)} of {len(judged)} episodes crashed: {crashed[0].episode.trajectory.error}"
        raise EnvError(what, where="bench lmgame", fix="free the machine and run it again")
    return judged


def arrow_keys(episode: Any) -> list[str]:
    """Return the arrow keys of an episode's steps in order, "" for a step that presses none."""
    found = (re.search(r"\b(?:arrow ?)?(up|down|left|right)\b", one.action or "") for one in episode.steps)
    pressed = [one.action_type in ("press", "hotkey") for one in episode.steps]
    return [key[1] if key and own else "" for key, own in zip(found, pressed, strict=True)]


# -- 2048 -------------------------------------------------------------------------------------------------------------
def first_board(seed: int) -> Board:
    """Return a board of two new tiles on cells drawn by `seed`."""
    rng = random.Random(seed)
    new = {cell: 2 if rng.random() < 0.9 else 4 for cell in rng.sample(range(SIZE * SIZE), 2)}
    return tuple(tuple(new.get(y * SIZE + x, 0) for x in range(SIZE)) for y in range(SIZE))


def score_2048(board: Board, spawn: int, keys: Iterable[str]) -> int:
    """Return the points of an episode by LMGame-Bench's rules, which may end before its keys do. keys: "" moves
    nothing. spawn: seed of the new tiles."""
    state, still = State(board), 0
    for key in keys:
        after = step(state, key, spawn) if key else None
        state, still = (after, 0) if after else (state, still + 1)
        if still >= STUCK or all(step(state, one, spawn) is None for one in KEYS):
            break
    return state.points


def reported_2048(points: int) -> float:
    """Return 10 log2 of the points; of none 0."""
    return 10 * math.log2(points) if points else 0.0


def play_2048(options: argparse.Namespace, about: dict[str, Any]) -> BenchCase:
    rng = random.Random(SEED)
    by_chance = []
    for number in range(options.random):
        keys = (rng.choice(KEYS) for _ in range(TURNS))
        by_chance.append(reported_2048(score_2048(first_board(SEED + number), SEED + 7919 * number, keys)))
    merge = get_task_suite("merge")
    tasks = []
    for number in range(options.episodes):
        task = make_task(merge, "points", 6, SEED + number, "eval")
        params = {"board": [*map(list, first_board(SEED + number))], "goal": UNREACHED, "spawn": SEED + 7919 * number}
        tasks.append(replace(task, params={**task.params, **params}, max_steps=options.steps))
    own = {task.task_id: task.params for task in tasks}
    points = []
    for one in _play(options, tasks):
        params = own[one.task.task_id]
        board = tuple(map(tuple, params["board"]))
        points.append(score_2048(board, params["spawn"], arrow_keys(one.episode)))
    found = [reported_2048(one) for one in points]
    return _case("2048", "10 log2 of the points", found, by_chance, about | {"points": points, "steps": options.steps})


# -- sokoban ----------------------------------------------------------------------------------------------------------
def read_levels(path: Path) -> RuleGame:
    """Read LMGame-Bench's `levels.txt` as a game of rules. Raises BadInput where it holds no such levels."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"it cannot be read: {error}", where=path, fix="name levels.txt of the benchmark") from None
    maps = [
        "\n".join(line.strip() for line in block.strip().splitlines()) for block in re.split(r"Level\s+\d+", text)[1:]
    ]
    levels = {number: {"maps": [one], "max_steps": WALKS} for number, one in enumerate(maps, 1)}
    try:
        return make_rule_game(RuleGameFile.model_validate(SOKOBAN | {"levels": levels}), str(path), text.encode())
    except ValueError as error:
        raise BadInput(f"no levels of Sokoban: {error}", where=path, fix="name levels.txt of the benchmark") from None


def score_sokoban(game: RuleGame, keys: Iterable[str], level: int = 1, walks: int = WALKS) -> tuple[int, bool, int]:
    """Return the crates on pads at the end of an episode at one level, whether it is solved, and the keys it took.

    keys: "" and others than arrow keys change nothing. walks: keys that are left.
    """
    bits = game.program["bits"]
    both = bits["crate"] | bits["pad"]
    board = RuleLevel(game.params_of(game.maps[level][0]))
    cells, still, used = board.start, 0, 0
    for key in keys:
        if used == walks or still >= STOOD or board.won(cells):
            break
        after = board.after(cells, ("up", "right", "down", "left").index(key)) if key else cells
        still, cells, used = (still + 1 if after == cells else 0), after, used + 1
    return sum(cell & both == both for cell in cells), board.won(cells), used


def play_sokoban(options: argparse.Namespace, game: RuleGame, about: dict[str, Any]) -> BenchCase:
    rng = random.Random(SEED)
    by_chance = []
    for _ in range(options.random):
        total, left = 0, WALKS
        for level in sorted(game.maps):
            crates, solved, used = score_sokoban(game, (rng.choice(KEYS) for _ in range(left)), level, left)
            total, left = total + crates, left - used
            if not solved:
                break
        by_chance.append(float(total))
    boxes = dict.fromkeys(range(options.episodes), 0)
    left = dict.fromkeys(range(options.episodes), WALKS)
    playing = list(boxes)
    for level in sorted(game.maps):
        if not playing:
            break
        plain = make_task(game, next(iter(game.templates)), level, SEED, "eval")
        tasks = {
            number: replace(plain, task_id=f"{plain.task_id}-{number}", max_steps=left[number]) for number in playing
        }
        judged = {one.task.task_id: one.episode for one in _play(options, [*tasks.values()])}
        going = []
        for number, task in tasks.items():
            keys = arrow_keys(judged[task.task_id])
            crates, solved, used = score_sokoban(game, keys, level, left[number])
            boxes[number], left[number] = boxes[number] + crates, left[number] - used
            going += [number] if solved and left[number] else []
        playing = going
    return _case("sokoban", "boxes", [*map(float, boxes.values())], by_chance, about | {"boxes": [*boxes.values()]})


# -- alike, by other rules --------------------------------------------------------------------------------------------
def play_like(options: argparse.Namespace, world: str, about: dict[str, Any]) -> BenchCase:
    """Play a game that is like one of the benchmark's; the share of its expert's score at the same levels."""
    suite = get_task_suite(world)
    slots = [(name, level) for name, template in suite.templates.items() for level in sorted(template.max_steps)]
    tasks = [
        make_task(suite, *slots[number % len(slots)], SEED + number // len(slots), "eval")
        for number in range(options.tasks)
    ]
    known = references.read_references(suite).levels

    def share(task: Task, player: str, score: float) -> float:
        return (
            score / known[str(task.level)]["expert"].score
            if player == "model"
            else (known[str(task.level)]["random"].score / known[str(task.level)]["expert"].score)
        )

    found = [share(one.task, "model", one.result.score) for one in _play(options, tasks)]
    by_chance = [share(task, "random", 0.0) for task in tasks]
    about = about | {"won": fmean(float(score >= 1) for score in found), "like": LIKE[world]}
    return _case(f"{world}, like {LIKE[world]}", "of the expert's score", found, by_chance, about)


def _case(name: str, unit: str, found: Sequence[float], by_chance: Sequence[float], about: dict[str, Any]) -> BenchCase:
    peer = REPORTED.get(name)
    extra = about | {
        "n": len(found),
        "interval": inference.bootstrap(found, fmean),
        "random": fmean(by_chance),
        "random_interval": inference.bootstrap(by_chance, fmean),
        "random_n": len(by_chance),
    }
    return BenchCase(
        "lmgame", name, unit, fmean(found), peer, REPORTER if peer is not None else "", None, None, True, extra
    )


if __name__ == "__main__":
    sys.exit(main())
