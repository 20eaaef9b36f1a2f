"""Draw chores in applications on the screen, and questions by screen alone, by functions alone, or by either."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from flywheel.agent.actions import Finished, Hotkey, Terminal, Type, WriteFile
from flywheel.envs.suites.chores.family import (
    PEOPLE_NAMES,
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_words,
    step_budgets,
)


def _calculate(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a calculation of `level` operations."""
    numbers = [rng.randint(11, 99) for _ in range(1 + level)]
    signs = [rng.choice("+-*") for _ in range(level)] if level < 3 else [rng.choice("+-") for _ in range(level)]
    text = str(numbers[0]) + "".join(f"{sign}{number}" for sign, number in zip(signs, numbers[1:], strict=True))
    return {"files": {}, "apps": [["galculator"]], "allowed": "gui", "answer": str(_value(text)), "sum": text}


def _value(text: str) -> int:
    """Compute a sum and difference of products of whole numbers, such as 12*3-40."""
    total = 0
    for term in text.replace("-", "+-").split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += product
    return total


def _play_calculate(p: ChoreParams) -> ExpertSteps:
    yield "I type it.", Type(f"{p['sum']}\n")
    yield "That is what it shows.", Finished(p["answer"])


def _table(level: int, rng: random.Random) -> tuple[str, list[tuple[str, int]]]:
    return f"{draw_words(rng, 1)[0]}.csv", [
        (name, rng.randint(5, 99)) for name in rng.sample(PEOPLE_NAMES, 2 + 2 * level)
    ]


def _csv(rows: list[tuple[str, int]]) -> str:
    return "name,amount\n" + "".join(f"{name},{amount}\n" for name, amount in rows)


def _sheet(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a spreadsheet whose amounts are to be summed; higher levels have more rows."""
    path, rows = _table(level, rng)
    return {"files": {path: _csv(rows)}, "apps": [["gnumeric", path]], "allowed": "gui", "path": path,
            "answer": str(sum(amount for _, amount in rows))}  # fmt: skip


def _play_sheet(p: ChoreParams) -> ExpertSteps:
    yield "I go to the amounts.", Hotkey(("right",))
    yield "I choose the whole column; its sum stands below.", Hotkey(("ctrl", "space"))
    yield "That is it.", Finished(p["answer"])


def _ask(allowed: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a question on a table open in an editor: an amount (level 1), the largest (2), how many are above a limit
    (3)."""
    path, rows = _table(level, rng)
    name, limit = rng.choice(rows)[0], rng.randint(30, 60)
    most = max(rows, key=lambda row: row[1])
    if [row[1] for row in rows].count(most[1]) > 1:
        return _ask(allowed, level, rng)
    ask = (f"Which amount has {name}", "Who has the largest amount", f"How many amounts are above {limit}")[level - 1]
    answer = (dict(rows)[name], most[0], sum(amount > limit for _, amount in rows))[level - 1]
    return {"files": {path: _csv(rows)}, "apps": [["mousepad", path]], "allowed": allowed, "path": path, "ask": ask,
            "answer": str(answer)}  # fmt: skip


def _play_ask(p: ChoreParams) -> ExpertSteps:
    if p["allowed"] != "gui":
        yield "I read the table.", Terminal(f"cat {p['path']}")
    yield "I see it.", Finished(p["answer"])


_COLOURS = ("black", "blue", "brown", "cyan", "gray", "green", "orange", "pink", "purple", "red", "white", "yellow")


def _colours(allowed: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw `level` + 2 colours, to be written into a text that is open in an editor."""
    chosen = rng.sample(_COLOURS, 2 + level)
    text = "".join(f"{colour}\n" for colour in chosen)
    return {"files": {"note.txt": ""}, "apps": [["mousepad", "note.txt"]], "allowed": allowed,
            "wanted": {"note.txt": text}, "colours": ", ".join(chosen)}  # fmt: skip


def _play_colours(p: ChoreParams) -> ExpertSteps:
    text = p["wanted"]["note.txt"]
    if p["allowed"] != "gui":
        yield "I write the text.", WriteFile("note.txt", text)
        return
    yield "I type the colours.", Type(text)
    yield "I save the text.", Hotkey(("ctrl", "s"))


def _written(allowed: str) -> ChoreFamily:
    draw: Callable[[int, random.Random], dict[str, Any]] = partial(_colours, allowed)
    ask = "Write these colours into note.txt, one a line: {colours}."
    return ChoreFamily(ask, draw, _play_colours, step_budgets(4, 4, 4), alike="colours")


def _question(allowed: str) -> ChoreFamily:
    draw: Callable[[int, random.Random], dict[str, Any]] = partial(_ask, allowed)
    return ChoreFamily("{ask} in {path}?", draw, _play_ask, step_budgets(4, 4, 4), alike="ask")


FAMILIES = {
    "calculate": ChoreFamily("What is {sum}? Use the calculator.", _calculate, _play_calculate, step_budgets(6, 6, 6)),
    "sheet": ChoreFamily(
        "What is the sum of the amounts in {path}, which is open?", _sheet, _play_sheet, step_budgets(8, 8, 8)
    ),
    "ask-gui": _question("gui"),
    "ask-sdk": _question("sdk"),
    "ask-both": _question("both"),
    "colours-gui": _written("gui"),
    "colours-sdk": _written("sdk"),
    "colours-both": _written("both"),
}
