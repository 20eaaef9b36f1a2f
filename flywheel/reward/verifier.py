"""A verifier (section 2.5.2): from a task's params and the recorded state of a finished episode to a score in [0, 1].

A pure function, so that stored trajectories can be scored again. 1 is reached only where exactly what was asked is
done; a part of it, or something beside it, scores less. Each lives with what it knows: a world's own in its
`world.py`, what any game says of itself in `worlds.verifiers`, a third-party page's reward in `sandbox.pages`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flywheel.errors import DataError

Verifier = Callable[[Mapping[str, Any], Mapping[str, Any]], float]


def apply(verifier: Verifier, name: str, params: Mapping[str, Any], state: Mapping[str, Any], where: str) -> float:
    """The score of a final state, 0 to 1. Raises DataError for a state that lacks what the verifier reads."""
    try:
        value = float(verifier(params, state))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise DataError(f"verifier {name} cannot read the state: {type(error).__name__} {error}", where=where) from None
    if not 0.0 <= value <= 1.0:
        raise DataError(f"verifier {name} gave {value}, which is not in [0, 1]", where=where)
    return value
