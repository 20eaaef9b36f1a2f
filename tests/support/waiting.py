"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from processes import PATIENCE_S

T = TypeVar("T")


def until(found: Callable[[], T], what: str) -> T:
    """The first value of `found` that is true; the test fails where there is none in time."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.1)
    pytest.fail(f"not in {PATIENCE_S} s: {what}")
