"""Fingerprint tasks by what they ask, and screens by a difference hash."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from PIL import Image

# Tasks: when two ask the same, and when a training task is near one for evaluation.

Row = Mapping[str, Any]
TASK_COLUMNS = ("task_id", "world", "template", "level", "params", "instruction", "seed", "split")
"""Of the table `tasks`, what is looked at."""
_ARGUMENT = re.compile(r"""\d+(?:[.,:/-]\d+)*|"[^"]*"|'[^']*'|“[^”]*”|«[^»]*»""")


def task_content_hash(task: Row) -> str:
    """Hash a task's content: suite, template, level and parameters; without parameters, its instruction and seed."""
    params = _params(task.get("params"))
    content = params or [_words(task.get("instruction")), task.get("seed")]
    return _json_digest([task.get("world"), task.get("template"), task.get("level"), content])


def instruction_arguments(instruction: str | None) -> tuple[str, ...]:
    """Numbers and quoted texts of an instruction, sorted: a paraphrase keeps them."""
    return tuple(sorted(found.strip("\"'“”«»").casefold() for found in _ARGUMENT.findall(instruction or "")))


def find_tasks_near_evaluation(tasks: Iterable[Row], held_out: Iterable[Row]) -> dict[str, str]:
    """task_id -> why it must not be trained on, of the rows of `tasks` that are near one of `held_out`.

    Near is: the same content under another task_id, whatever the case and spacing of its texts; or the same
    instruction and seed. A task without a seed, another data set's, is near by its instruction alone.
    """
    contents, asked, said = {}, {}, {}
    for task in sorted(held_out, key=lambda row: row["task_id"], reverse=True):
        contents[task_content_hash(task)] = task["task_id"]
        said[_words(task.get("instruction"))] = task["task_id"]
        if task.get("seed") is not None:
            asked[_asked(task)] = task["task_id"]
    near = {}
    for task in tasks if contents else ():
        if twin := contents.get(task_content_hash(task)):
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


def _json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


# The difference hash of a screen (Krawetz 2013): 64 bits, each whether a cell of a 9 x 8 grid is darker than the next.
#
# A moved pointer or a blinking caret leaves it as it is, or changes a few bits.

MAX_DIFFERING_BITS = 4
"""Bits, of 64, in which two hashes of like screens differ at most."""


def difference_hash(encoded: bytes) -> int:
    """Hash a PNG, JPEG or WebP file by its brightness. Raises OSError where it is none."""
    with Image.open(io.BytesIO(encoded)) as picture:
        cells = np.asarray(picture.convert("L").resize((9, 8), Image.Resampling.BILINEAR))
    return int.from_bytes(np.packbits(cells[:, 1:] > cells[:, :-1]).tobytes(), "big")


def hashes_alike(left: int, right: int) -> bool:
    """Tell whether two difference hashes differ in at most `MAX_DIFFERING_BITS` bits."""
    return (left ^ right).bit_count() <= MAX_DIFFERING_BITS
