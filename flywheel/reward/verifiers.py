"""Deterministic verifiers (section 2.5.2): a score in [0, 1] from the recorded state of a finished episode.

Pure functions of the task's params and the state, so the score stage can run again on stored trajectories. 1 is reached
only where exactly what was asked is done; a part of it, or something beside it, scores less.

A verifier is named in a world's manifest and stored with each task: `state:score` (what a game's state says of
itself), `world:NAME` (the function NAME of the world's own `world.py`), or one of `VERIFIERS` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flywheel.errors import BadInput, DataError
from flywheel.sandbox.env import Task
from flywheel.worlds import catalogue

Verifier = Callable[[Mapping[str, Any], Mapping[str, Any]], float]
_NOT_WON = 0.999  # the most that a game scores before it is won


def score(task: Task, final_state: Mapping[str, Any]) -> float:
    """The score of a final state by the task's verifier, 0 to 1.

    Raises BadInput for an unknown verifier, DataError for a state that lacks what the verifier reads.
    """
    verifier = find(task)
    try:
        value = float(verifier(task.params, final_state))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise DataError(
            f"verifier {task.verifier} cannot read the state: {type(error).__name__} {error}", where=task.task_id
        ) from None
    if not 0.0 <= value <= 1.0:
        raise DataError(f"verifier {task.verifier} gave {value}, which is not in [0, 1]", where=task.task_id)
    return value


def find(task: Task) -> Verifier:
    """The task's verifier. Raises BadInput where there is none of that name."""
    kind, _, name = task.verifier.partition(":")
    if kind == "world" and name:
        verifier = getattr(catalogue.get(task.world).play, name, None)
        known = f"a function of worlds/{task.world}/world.py"
    else:
        verifier = VERIFIERS.get(task.verifier)
        known = f"known: {sorted(VERIFIERS)}"
    if verifier is None:
        raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix=known)
    return verifier


def _state_score(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """A game's own score; 1 exactly where it is won."""
    return 1.0 if state["won"] else min(float(state["score"]), _NOT_WON)


def _page_reward(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """What a third-party page tells by its manifest: the way from `floor` to `success` that the reward has gone."""
    done = (state["reward"] - state["floor"]) / (state["success"] - state["floor"])
    return min(max(float(done), 0.0), 1.0)


def _tiles_cleared(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Share of the triples that vanished."""
    return 3 * state["triples"] / len(params["tiles"])


def _shapes_placed(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Share of the pieces that lie in their outline."""
    return sum(piece["placed"] for piece in state["pieces"]) / len(params["pieces"])


def _merge_reached(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """1 where a tile of the target value is on the board."""
    return float(max(value for row in state["board"] for value in row) >= params["target"])


def _changed(start: Mapping[str, Any], goal: Mapping[str, Any], now: Mapping[str, Any], zero: Any = None) -> float:
    """Changes asked for and made, over all changes asked for or made (1: exactly those)."""
    keys = {*start, *goal, *now}
    asked = {key for key in keys if goal.get(key, zero) != start.get(key, zero)}
    made = {key for key in keys if now.get(key, zero) != start.get(key, zero)}
    right = {key for key in asked if now.get(key, zero) == goal.get(key, zero)}
    return len(right) / len(asked | made)


def _settings_changed(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    start = params["start"]
    return _changed(start, {**start, **params["goal"]}, state["values"])


def _shop_opened(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    return float(state["page"] == "item/" + params["item"].replace(" ", "-"))


def _shop_searched(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    return float(state["query"].strip().lower() == params["word"])


def _shop_cart(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    return _changed({name: 1 for name in params["cart"]}, params["goal"], state["cart"], zero=0)


def _shop_ordered(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """One order, with the right items, for the right person; half for a right order for somebody else."""
    orders = state["orders"]
    if len(orders) != 1 or orders[0]["items"] != dict(params["goal"]):
        return 0.0
    return 1.0 if orders[0]["name"].strip().lower() == params["person"] else 0.5


VERIFIERS: dict[str, Verifier] = {
    "state:score": _state_score,
    "page:reward": _page_reward,
    "tiles_cleared": _tiles_cleared,
    "shapes_placed": _shapes_placed,
    "merge_reached": _merge_reached,
    "settings_changed": _settings_changed,
    "shop_opened": _shop_opened,
    "shop_searched": _shop_searched,
    "shop_cart": _shop_cart,
    "shop_ordered": _shop_ordered,
}
