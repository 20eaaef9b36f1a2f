"""What a metric is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RULES, FILE, EITHER = "rules", "file", "file or nothing"
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """score: from the result (a text, a file's path, a folder's tree; None where there is none, which scores 0 without
    being asked), what is expected and the options, 0 to 1. What it raises counts as 0 where the result alone can be at
    fault. expected: what that is. keys: that its rules must have. package: of Python, that it needs. unable: which of a
    task's rules and options it cannot judge, in words."""

    score: Callable[[Any, Any, Options], float]
    expected: str = RULES
    keys: tuple[str, ...] = ()
    package: str = ""
    unable: Callable[[Any, Options], str] = lambda rules, options: ""


def text(path: str) -> str:
    """What a file says."""
    return Path(path).read_text(encoding="utf-8")


def lines(path: str) -> list[str]:
    return text(path).splitlines()
