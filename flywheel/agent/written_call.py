"""A call as a model wrote it, and the values in it, before anything is made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(slots=True)
class Said:
    """A call as it was written. values: by the model's own names. inline: those without a name. at: where it begins.

    tool: the module or the tool whose function it is. places: where in the text the values stand. behind: further
    calls of the same list.
    """

    name: str
    values: Mapping[str, Any]
    at: int
    inline: tuple[Any, ...] = ()
    tool: str = ""
    places: Mapping[str, int] | None = None
    behind: tuple[Said, ...] = ()


@lru_cache(maxsize=1024)
def folded(word: str) -> str:
    """`doubleClick`, `Long Press`, `DOUBLE-CLICK` -> double_click, long_press, double_click."""
    if not word.isupper():
        word = _CAMEL.sub("_", word)
    return word.strip().lower().replace(" ", "_").replace("-", "_")


def is_number(value: Any) -> bool:
    return number(value) is not None


def number(value: Any) -> float | None:
    if isinstance(value, str) and len(value) < 20:
        try:
            value = float(value)
        except ValueError:
            return None
    return value if type(value) in (int, float) and abs(value) < 1e15 else None


def flag(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes"))
