"""Define the game `shapes` (shape fit): shapes and their outlines, then figures and the pieces that fill them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from itertools import islice
from typing import Any

from flywheel.agent.actions import Action, Click, Drag
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.shapes.rules import Cell, Level, State, size, turned
from flywheel.envs.suites.steps import say, spot, where

SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "cross", "moon")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "pink")
TOLERANCE = 1.7  # most units between the centres of piece and outline for a drop that counts
_SLOTS = (2.3, 7.0, 11.6)  # columns, in units
_WIDTH, _STOCK = 13.9, 8.3  # width of the board; y at which the stock of pieces begins
# level of the figures: (pieces, fewest and most squares of a piece, most columns and rows, whether pieces are turned,
# most moves, most fillings)
_FIGURES = {
    4: (3, (3, 4), (4, 4), False, 3, 6),
    5: (5, (3, 5), (6, 5), False, 5, 6),
    6: (5, (3, 5), (6, 5), True, 13, 6),
    7: (7, (3, 5), (7, 6), True, 19, 12),
}
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw `level` shapes and their outlines; above level 3, a figure cut into pieces, turned from level 6 on."""
    if template == "fit":
        return _shapes(level, rng)
    return first_winnable(lambda: _figure(level, rng), f"shapes level {level}")


def _shapes(level: int, rng: random.Random) -> dict[str, Any]:
    shapes, colours = rng.sample(SHAPES, level), rng.sample(COLOURS, level)
    above, below = rng.sample(_SLOTS, level), rng.sample(_SLOTS, level)

    def near(slot: float, low: float, high: float) -> dict[str, float]:
        return {"x": round(slot + rng.uniform(-0.3, 0.3), 2), "y": round(rng.uniform(low, high), 2)}

    return {
        "pieces": [
            {"shape": shape, "colour": colour, **near(slot, 10.3, 10.65)}
            for shape, colour, slot in zip(shapes, colours, below, strict=True)
        ],
        "outlines": [{"shape": shape, **near(slot, 2.1, 6.1)} for shape, slot in zip(shapes, above, strict=True)],
        "tolerance": TOLERANCE,
    }


def _figure(level: int, rng: random.Random) -> dict[str, Any] | None:
    count, (fewest, most), (columns, rows), turns, most_moves, most_fillings = _FIGURES[level]
    figure: set[Cell] = set()
    cut: list[frozenset[Cell]] = []
    for _ in range(count):
        piece = _grow(figure, rng.randint(fewest, most), columns, rows, rng)
        if piece is None or max(size(_cornered(piece))) > 3:
            return None
        figure |= piece
        cut.append(piece)
    left, top = min(x for x, _ in figure), min(y for _, y in figure)
    figure = {(x - left, y - top) for x, y in figure}
    width, height = size(frozenset(figure))
    if _holed(figure, width, height):
        return None
    unit = round(min(1.55, 7.6 / height, 13.0 / width), 2)
    rng.shuffle(cut)
    slot = _WIDTH / count
    pieces = [
        {
            "cells": sorted(map(list, _cornered(cells))),
            "colour": colour,
            "turn": rng.randrange(4) if turns else 0,
            "x": round((number + 0.5) * slot, 2),
        }
        for number, (cells, colour) in enumerate(zip(cut, rng.sample(COLOURS, count), strict=True))
    ]
    params = {
        "figure": sorted(map(list, figure)),
        "pieces": pieces,
        "unit": unit,
        "origin": [round((_WIDTH - width * unit) / 2, 2), round((_STOCK - height * unit) / 2, 2)],
        "home": round(min(1.1, slot / 3.5), 2),
    }
    made = Level(params)
    if len(list(islice(made.fillings(), most_fillings + 1))) > most_fillings:
        return None
    way = made.solve()
    return params if way and len(way) <= most_moves else None


def _grow(figure: set[Cell], squares: int, columns: int, rows: int, rng: random.Random) -> frozenset[Cell] | None:
    """Draw a piece next to the figure, mostly on squares with many neighbours, so that figures get compact."""

    def around(cells: set[Cell]) -> list[Cell]:
        found = {(x + dx, y + dy) for x, y in cells for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))}
        inside = {(x, y) for x, y in found if 0 <= x < columns and 0 <= y < rows}
        return sorted(inside - figure - piece)

    def neighbours(cell: Cell) -> int:
        x, y = cell
        return sum((x + dx, y + dy) in figure | piece for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)))

    piece: set[Cell] = set()
    piece.add(rng.choice(around(figure)) if figure else (rng.randrange(columns), rng.randrange(rows)))
    while len(piece) < squares:
        free = around(piece)
        if not free:
            return None
        piece.add(max(free, key=lambda cell: neighbours(cell) + 2.0 * rng.random()))
    return frozenset(piece)


def _holed(figure: set[Cell], width: int, height: int) -> bool:
    """Tell whether an empty square inside the figure cannot be reached from outside."""
    reached, fresh = {(-1, -1)}, [(-1, -1)]
    while fresh:
        x, y = fresh.pop()
        for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if -1 <= cell[0] <= width and -1 <= cell[1] <= height and cell not in figure | reached:
                reached.add(cell)
                fresh.append(cell)
    return len(reached) + len(figure) < (width + 2) * (height + 2)


def _cornered(cells: frozenset[Cell]) -> frozenset[Cell]:
    left, top = min(x for x, _ in cells), min(y for _, y in cells)
    return frozenset((x - left, y - top) for x, y in cells)


def solve(params: Mapping[str, Any]) -> Way | None:
    """Find the turns and drags of a figure; of the first levels, a drag for each piece."""
    if "figure" in params:
        return Level(params).solve()
    shapes = [piece["shape"] for piece in params["pieces"]]
    return [(shape, frozenset(shapes[: number + 1])) for number, shape in enumerate(shapes)]


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: drag a piece to its outline, or the next turn or drag of a figure."""
    if "figure" in task.params:
        return _assemble(task, state, rng)
    for piece in state["pieces"]:
        if not piece["placed"]:
            shape, colour = piece["shape"], piece["colour"]
            action = Drag(where(state, f"piece {shape}"), where(state, f"outline {shape}"))
            return say(
                rng, f"I drag the {colour} {shape}.", f"Move the {colour} {shape} up.", f"I move the {shape}."
            ), action
    return None


def _assemble(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = State(tuple((piece["turn"], piece["at"] and tuple(piece["at"])) for piece in state["pieces"]))
    found = _plans.move(task.task_id, now, level.solve)
    if found is None or state["terminated"]:
        return None
    move, number, at = found
    params = task.params
    colour = params["pieces"][number]["colour"]
    start = _grip(state, level, now, params, number)
    if move == "turn":
        return say(rng, f"I turn the {colour} piece.", f"The {colour} piece must turn."), Click(start)
    if move == "back":
        below = spot(state, params["pieces"][number]["x"], _STOCK + 2.0)
        return f"I take the {colour} piece out.", Drag(start, below)
    width, height = size(turned(level.pieces[number], now.pieces[number][0]))
    x = params["origin"][0] + (at[0] + width / 2) * params["unit"]
    y = params["origin"][1] + (at[1] + height / 2) * params["unit"]
    thought = say(rng, f"I drag the {colour} piece in.", f"The {colour} piece fits here.", f"Now the {colour} piece.")
    return thought, Drag(start, spot(state, x, y))


def _grip(state: Mapping[str, Any], level: Level, now: State, params: Mapping[str, Any], number: int):
    """Return a point on a square of the piece, since its middle may be empty."""
    turn, at = now.pieces[number]
    cells = turned(level.pieces[number], turn)
    width, height = size(cells)
    x, y = min(cells, key=lambda cell: (abs(cell[0] + 0.5 - width / 2) + abs(cell[1] + 0.5 - height / 2), cell))
    if at is not None:
        unit, (left, top) = params["unit"], params["origin"]
        return spot(state, left + (at[0] + x + 0.5) * unit, top + (at[1] + y + 0.5) * unit)
    unit = params["home"]
    left, top = params["pieces"][number]["x"] - width * unit / 2, _STOCK + 4.35 / 2 - height * unit / 2
    return spot(state, left + (x + 0.5) * unit, top + (y + 0.5) * unit)


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))


def shapes_placed(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the share of the pieces that lie in their outline: a verifier."""
    return sum(piece["placed"] for piece in state["pieces"]) / len(params["pieces"])
