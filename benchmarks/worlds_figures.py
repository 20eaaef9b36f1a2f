"""Figures of `benchmarks/worlds.py` as lines, and what is told beside them while it runs."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

from worlds_play import Episode

from flywheel.bench import Case, emit
from flywheel.sandbox.env import Task


def case(name: str, value: float, goal: float | None, met: bool, unit: str = "fraction", **extra: object) -> Case:
    """Printed at once. Nothing is compared with a peer here: goals are of the figure itself."""
    return emit(Case("worlds", name, unit, value, None, "", None, goal, met, extra))


def grouped(played: Iterable[Episode]) -> dict[str, list[Episode]]:
    groups: dict[str, list[Episode]] = defaultdict(list)
    for one in played:
        groups[one.task.world].append(one)
    return groups


def shares(played: Iterable[Episode]) -> dict[str, float]:
    return rounded({name: sum(one.won for one in mine) / len(mine) for name, mine in grouped(played).items()})


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def named(task: Task) -> str:
    return f"{task.world} {task.template}, level {task.level}, seed {task.seed}"


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
