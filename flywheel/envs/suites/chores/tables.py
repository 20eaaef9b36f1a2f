"""Draw chores that clean, filter, sum, join and convert CSV tables."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Sequence
from typing import Any

from flywheel.agent.actions import Finished, ReadFile, RunPython
from flywheel.envs.suites.chores.family import (
    PEOPLE_NAMES,
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_words,
    step_budgets,
)

_CITIES = ("Bergen", "Cork", "Dakar", "Ghent", "Hanoi", "Lima", "Oslo", "Porto", "Quito", "Riga", "Turin", "Vigo")
Rows = Sequence[Sequence[object]]


def _csv(rows: Rows) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _people(rng: random.Random, count: int) -> list[list[object]]:
    return [[name, rng.choice(_CITIES[:4]), rng.randint(18, 80)] for name in rng.sample(PEOPLE_NAMES, count)]


_HEAD = ["name", "city", "age"]
_READ = "import csv\nrows = list(csv.reader(open({path!r}, newline='')))\n"
_WRITE = "with open({out!r}, 'w', newline='') as file:\n    csv.writer(file).writerows(rows)\n"


def _clean(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a table to clean of rows that lack a value (level 1), of repeated rows (2), of space around values (3)."""
    path, out = (f"{name}.csv" for name in draw_words(rng, 2))
    rows = _people(rng, 6 + 2 * level)
    dirty = [list(row) for row in rows]
    broken = [list(row) for row in _people(rng, 2)]
    for row in broken:
        row[rng.randrange(3)] = ""
    dirty[2:2], dirty[5:5] = [broken[0]], [broken[1]]
    if level > 1:
        dirty.append(list(rows[1]))
    if level > 2:
        for row in rng.sample(dirty, 3):
            row[0] = f"  {row[0]} " if row[0] else ""
    ask = "without the rows that lack a value"
    ask += ", each row once" if level > 1 else ""
    ask += ", without space around the values" if level > 2 else ""
    return {"files": {path: _csv([_HEAD, *dirty])}, "wanted": {out: _csv([_HEAD, *rows])}, "path": path, "out": out,
            "ask": ask}  # fmt: skip


def _play_clean(p: ChoreParams) -> ExpertSteps:
    yield "I look at the table.", ReadFile(p["path"])
    code = _READ + "rows = [[cell.strip() for cell in row] for row in rows]\nrows = [row for row in rows if all(row)]\n"
    code += "rows = [list(row) for row in dict.fromkeys(map(tuple, rows))]\n" + _WRITE
    yield "I clean it.", RunPython(code.format(**p))


def _filter(level: int, rng: random.Random) -> dict[str, Any]:
    path, out = (f"{name}.csv" for name in draw_words(rng, 2))
    rows = _people(rng, 6 + 4 * level)
    age, city = rng.randint(35, 60), rows[0][1]
    kept = [row for row in rows if row[1] == city and (level < 2 or row[2] > age)]
    ask = f"whose city is {city}" + (f" and whose age is above {age}" if level > 1 else "")
    if level == 3:
        kept, ask = sorted(kept, key=lambda row: -row[2]), f"{ask}, the oldest first"
        if len({row[2] for row in kept}) < len(kept):
            return _filter(level, rng)
    return {"files": {path: _csv([_HEAD, *rows])}, "wanted": {out: _csv([_HEAD, *kept])}, "path": path, "out": out,
            "ask": ask, "city": city, "age": age if level > 1 else 0, "sorted": level == 3}  # fmt: skip


def _play_filter(p: ChoreParams) -> ExpertSteps:
    yield "I look at the table.", ReadFile(p["path"])
    code = _READ + "rows[1:] = [row for row in rows[1:] if row[1] == {city!r} and int(row[2]) > {age}]\n"
    code += "rows[1:] = sorted(rows[1:], key=lambda row: -int(row[2]))\n" if p["sorted"] else ""
    yield "I write what is asked for.", RunPython((code + _WRITE).format(**p))


def _total(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a table and a question: the sum (level 1), the sum of one city (2), which city has the largest sum (3)."""
    path = f"{draw_words(rng, 1)[0]}.csv"
    rows = [
        [name, rng.choice(_CITIES[: 2 + level]), rng.randint(5, 500)]
        for name in rng.sample(PEOPLE_NAMES, 8 + 4 * level)
    ]
    city = str(rows[0][1])
    sums: dict[str, int] = {}
    for _, where, amount in rows:
        sums[where] = sums.get(where, 0) + amount
    if level == 3 and list(sums.values()).count(max(sums.values())) > 1:
        return _total(level, rng)
    answer = (sum(sums.values()), sums[city], max(sums, key=sums.__getitem__))[level - 1]
    ask = ("What is the sum of all amounts", f"What is the sum of the amounts of {city}",
           "Which city has the largest sum of amounts")[level - 1]  # fmt: skip
    table = _csv([["name", "city", "amount"], *rows])
    return {"files": {path: table}, "answer": str(answer), "path": path, "ask": ask}


def _play_total(p: ChoreParams) -> ExpertSteps:
    code = _READ + (
        "sums = {{}}\nfor name, city, amount in rows[1:]:\n    sums[city] = sums.get(city, 0) + int(amount)\n"
        "print(sum(sums.values()), sums)\n"
    )
    yield "I add them up, by city too.", RunPython(code.format(**p))
    yield "That is what was asked.", Finished(p["answer"])


def _as_json(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a table to convert to JSON: objects of texts (level 1), with numbers (2), one object by name (3)."""
    path, out = draw_words(rng, 2)
    rows = _people(rng, 2 + 2 * level)
    items = [{"name": name, "city": city, "age": age if level > 1 else str(age)} for name, city, age in rows]
    value = {item.pop("name"): item for item in items} if level == 3 else items
    ask = (
        "a list of objects, all values as texts",
        "a list of objects, the age as a number",
        "an object that has for each name an object of city and age, the age as a number",
    )[level - 1]
    return {"files": {f"{path}.csv": _csv([_HEAD, *rows])}, "wanted": {f"{out}.json": json.dumps(value)},
            "path": f"{path}.csv", "out": f"{out}.json", "ask": ask, "level": level}  # fmt: skip


def _play_as_json(p: ChoreParams) -> ExpertSteps:
    code = _READ + "import json\nitems = [dict(zip(rows[0], row)) for row in rows[1:]]\n"
    if p["level"] > 1:
        code += "for item in items:\n    item['age'] = int(item['age'])\n"
    if p["level"] > 2:
        code += "items = {{item.pop('name'): item for item in items}}\n"
    yield "I write it as JSON.", RunPython((code + "json.dump(items, open({out!r}, 'w'))\n").format(**p))


def _joined(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw two tables to join: in the same order (level 1), in another order (2), with some cities missing (3)."""
    left, right, out = (f"{name}.csv" for name in draw_words(rng, 3))
    rows = _people(rng, 4 + 2 * level)
    keys = rng.sample(range(100, 999), len(rows))
    first = [[key, row[0]] for key, row in zip(keys, rows, strict=True)]
    second = [[key, row[1]] for key, row in zip(keys, rows, strict=True)]
    if level == 3:
        second = second[:-2]
    cities = dict(second)
    if level > 1:
        rng.shuffle(second)
    wanted = [["id", "name", "city"], *([key, name, cities[key]] for key, name in first if key in cities)]
    files = {left: _csv([["id", "name"], *first]), right: _csv([["id", "city"], *second])}
    return {"files": files, "wanted": {out: _csv(wanted)}, "left": left, "right": right, "out": out}


def _play_joined(p: ChoreParams) -> ExpertSteps:
    code = (
        "import csv\nrows = list(csv.reader(open({left!r}, newline='')))\n"
        "cities = dict(csv.reader(open({right!r}, newline='')))\n"
        "rows = [[key, name, cities[key]] for key, name in rows if key in cities]\n"
    )
    yield "I look at the tables.", ReadFile(p["left"])
    yield "I join them.", RunPython((code + _WRITE).format(**p))


FAMILIES = {
    "clean": ChoreFamily(
        "Write the table {path} into {out} {ask}; the order stays.", _clean, _play_clean, step_budgets(6, 8, 8)
    ),
    "filter": ChoreFamily(
        "Write the rows of {path} {ask} into {out}, with its head.", _filter, _play_filter, step_budgets(6, 8, 8)
    ),
    "total": ChoreFamily("{ask} in {path}?", _total, _play_total, step_budgets(6, 6, 8)),
    "json": ChoreFamily(
        "Write the table {path} as JSON into {out}: {ask}.",
        _as_json, _play_as_json, step_budgets(6, 6, 8),
    ),
    "joined": ChoreFamily(
        "Join {left} and {right} by id into {out}: id, name and city, in the order of {left}, without those that have "
        "no city.",
        _joined, _play_joined, step_budgets(6, 8, 8),
    ),
}  # fmt: skip
