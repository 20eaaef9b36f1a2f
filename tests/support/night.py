"""What runs by day (`make test`) and what by night (`make test-all`): parts of a matrix, sizes of property tests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

NIGHT = bool(os.environ.get("FLYWHEEL_NIGHT"))  # `make test-all` and `make test-worlds` set it
_FACTOR = 5


def examples(number: int) -> int:
    """`max_examples` of a property test: half of `number` by day, five times as many by night."""
    return number * _FACTOR if NIGHT else max(1, number // 2)


def by_day(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """Return the cases of a parametrization, all but the first `number` marked `exhaustive`. Tuples are spread."""
    return _marked(cases, number, [], [pytest.mark.exhaustive])


def in_smoke(cases: Iterable[Any], number: int = 1) -> list[Any]:
    """Return the cases of a parametrization, the first `number` marked `smoke`. Tuples are spread."""
    return _marked(cases, number, [pytest.mark.smoke], [])


def _marked(cases: Iterable[Any], number: int, first: list, others: list) -> list[Any]:
    marked = []
    for place, case in enumerate(cases):
        marks = first if place < number else others
        if isinstance(case, ParameterSet):
            marked.append(pytest.param(*case.values, marks=[*case.marks, *marks], id=case.id))
        else:
            marked.append(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks))
    return marked
