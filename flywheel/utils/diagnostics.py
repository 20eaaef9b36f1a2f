"""Run the checks of `flywheel doctor` and hold what they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flywheel.utils.errors import FlywheelError


@dataclass(frozen=True)
class Finding:
    """state: ok, missing (something does not work without it) or optional (not there, and not needed here)."""

    name: str
    state: str
    detail: str
    fix: str = ""


def run_diagnostic(name: str, look: Callable[[], str]) -> Finding:
    """What `look` tells is ok; what it raises is missing."""
    try:
        return Finding(name, "ok", look())
    except FlywheelError as error:
        return Finding(name, "missing", error.what, error.fix)
