"""What a task asks, whatever its name: when two are one task, and when a training task is near one for evaluation."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
COLUMNS = ("task_id", "world", "template", "level", "params", "instruction", "seed", "split")
"""Of the table `tasks`, what is looked at."""
_ARGUMENT = re.compile(r"""\d+(?:[.,:/-]\d+)*|"[^"]*"|'[^']*'|“[^”]*”|«[^»]*»""")


def content(task: Row) -> str:
    """The same for two tasks of one content: world, template, level and parameters. A task without parameters is told
    by its instruction and seed."""
    params = _params(task.get("params"))
    told = params or [_words(task.get("instruction")), task.get("seed")]
    return _digest([task.get("world"), task.get("template"), task.get("level"), told])


def arguments(instruction: str | None) -> tuple[str, ...]:
    """Numbers and quoted texts of an instruction, sorted: a paraphrase keeps them."""
    return tuple(sorted(found.strip("\"'“”«»").casefold() for found in _ARGUMENT.findall(instruction or "")))


def near_evaluation(tasks: Iterable[Row], held_out: Iterable[Row]) -> dict[str, str]:
    """task_id -> why it must not be trained on, of the rows of `tasks` that are near one of `held_out`.

    Near is: the same content under another task_id, whatever the case and spacing of its texts; or the same
    instruction and seed. A task without a seed, another data set's, is near by its instruction alone.
    """
    contents, asked, said = {}, {}, {}
    for task in sorted(held_out, key=lambda row: row["task_id"], reverse=True):
        contents[content(task)] = task["task_id"]
        said[_words(task.get("instruction"))] = task["task_id"]
        if task.get("seed") is not None:
            asked[_asked(task)] = task["task_id"]
    near = {}
    for task in tasks if contents else ():
        if twin := contents.get(content(task)):
            near[task["task_id"]] = f"the content of {twin}"
        elif twin := asked.get(_asked(task)):
            near[task["task_id"]] = f"instruction and seed of {twin}"
        elif task.get("seed") is None and (twin := said.get(_words(task.get("instruction")))):
            near[task["task_id"]] = f"the instruction of {twin}"
    return near


def _asked(task: Row) -> tuple[str, int | None]:
    return _words(task.get("instruction")), task.get("seed")


def _words(text: str | None) -> str:
    return " ".join(re.findall(r"\w+", (text or "").casefold()))


def _params(text: str | None) -> Any:
    """Parsed, with texts without case and spacing; what is no JSON is taken as text."""
    try:
        return _plain(json.loads(text)) if text else None
    except ValueError:
        return _words(text)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
