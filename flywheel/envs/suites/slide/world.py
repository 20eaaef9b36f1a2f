"""Define the game `slide` (sliding blocks): a crowded tray out of which a key block has to be freed."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.slide.rules import Level, state_of
from flywheel.envs.suites.steps import drag, say

# level: (side of the tray, fewest and most blocks other than the key, fewest in its way, fewest and most moves)
_LEVELS = {
    1: (5, 4, 6, 1, 3, 4),
    2: (5, 5, 7, 1, 5, 6),
    3: (6, 8, 10, 2, 6, 8),
    4: (6, 9, 11, 2, 8, 10),
    5: (6, 10, 12, 2, 11, 18),
}
_REACH = 1500  # most states of a tray: in a larger one a player gets lost
# A tray with more moves at the start, or more states by its blocks' ranges, nearly always has more than _REACH.
_MOVES, _STATES = 9, 2**24
_COLOURS = ("blue", "green", "yellow", "purple", "orange", "pink", "gray")
_TURNS = ("right", "down", "left", "up")
EDGE = 0.5  # units of the frame around the tray
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a tray from which the key takes the level's number of moves, and not fewer, to come free."""
    return first_winnable(lambda: _attempt(level, rng), f"slide level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, fewest_blocks, most_blocks, in_way, fewest, most = _LEVELS[level]
    made = _crowd(side, rng.randint(fewest_blocks, most_blocks), rng)
    if made is None or sum(not block["across"] and _crosses(block, made[0]["y"]) for block in made) < in_way:
        return None
    if not _can_clear(made, side):
        return None
    params = {"size": side, "gap": "right", "blocks": made}
    rules = Level(params)
    ranges = rules.ranges()
    if ranges[0][1] < rules.goal or math.prod(high - low + 1 for low, high in ranges) > _STATES:
        return None
    far = rules.map_distances(_REACH) if sum(1 for _ in rules.moves(rules.start)) <= _MOVES else None
    if far is None:
        return None
    starts = [state for state, moves in far.items() if fewest <= moves <= most]
    if not starts:
        return None
    for block, place in zip(made, rules.places(rng.choice(sorted(starts))), strict=True):
        block["x" if block["across"] else "y"] = place
    colours = rng.sample(_COLOURS, len(_COLOURS))
    for length in (2, 3):  # no two blocks of one length share a colour, as long as colours last
        same = [block for block in made[1:] if block["length"] == length]
        for number, block in enumerate(same):
            block["colour"] = colours[(number + (length == 3) * 3) % len(colours)]
    for _ in range(_TURNS.index(turn := rng.choice(_TURNS))):
        for block in made:
            _turn(block, side)
    return {**params, "gap": turn}


def _crowd(side: int, count: int, rng: random.Random) -> list[dict[str, Any]] | None:
    """Draw the key in its lane and `count` blocks anywhere around it; None where they find no room."""
    lane = rng.randrange(side)
    blocks = [{"x": 0, "y": lane, "length": 2, "across": True, "colour": "red"}]
    taken = {(0, lane), (1, lane)}
    for _ in range(12 * count):
        if len(blocks) > count:
            return blocks
        length, across = (3 if rng.random() < 0.35 else 2), rng.random() < 0.45
        along, beside = rng.randrange(side - length + 1), rng.randrange(side)
        if across and beside == lane:
            continue  # such a block could never leave the key's way
        cells = {(along + n, beside) if across else (beside, along + n) for n in range(length)}
        if not cells & taken:
            taken |= cells
            x, y = (along, beside) if across else (beside, along)
            blocks.append({"x": x, "y": y, "length": length, "across": across, "colour": ""})
    return None


def _can_clear(blocks: list[dict[str, Any]], side: int) -> bool:
    """Tell whether the upright blocks of each column fit above and below the key's row, in their order."""
    row = blocks[0]["y"]
    for column in range(side):
        lengths = [b["length"] for b in sorted(blocks, key=lambda b: b["y"]) if not b["across"] and b["x"] == column]
        cuts = range(len(lengths) + 1)
        if not any(sum(lengths[:cut]) <= row and sum(lengths[cut:]) < side - row for cut in cuts):
            return False
    return True


def _crosses(block: dict[str, Any], row: int) -> bool:
    return block["y"] <= row < block["y"] + block["length"]


def _turn(block: dict[str, Any], side: int) -> None:
    """Turn a block with the whole tray by a quarter, clockwise."""
    height = 1 if block["across"] else block["length"]
    block["x"], block["y"], block["across"] = side - block["y"] - height, block["x"], not block["across"]


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next drag of a shortest way out."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    places = state["at"]
    move = _plans.move(task.task_id, state_of(places), level.solve)
    if move is None:
        return None
    number, place = move
    block, steps = task.params["blocks"][number], place - places[number]
    side = (("left", "right") if block["across"] else ("up", "down"))[steps > 0]
    grip = places[number] + block["length"] / 2
    start, end = (
        (EDGE + along, EDGE + block["y"] + 0.5) if block["across"] else (EDGE + block["x"] + 0.5, EDGE + along)
        for along in (grip, grip + steps)
    )
    action = drag(state, start, end)
    if number == 0 and place == level.goal:
        return say(rng, "Now the key goes out.", f"I drag the key {side}, out of the gap."), action
    if number == 0:
        return say(rng, f"I move the key {side}.", f"The key goes {side} a bit."), action
    name = _name(task.params["blocks"], number)
    return say(rng, f"I move the {name} {side}.", f"The {name} goes {side}.", f"Drag the {name} {side}."), action


def _name(blocks: list[dict[str, Any]], number: int) -> str:
    """Name a block by its colour, and by its length where another block has the same colour."""
    block = blocks[number]
    twin = any(other["colour"] == block["colour"] for other in blocks if other is not block)
    size = ("short " if block["length"] == 2 else "long ") if twin else ""
    return f"{size}{block['colour']} block"


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
