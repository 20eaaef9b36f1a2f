"""Tags of runs in Prefect: by them runs of a workspace, an iteration or a stage are found, in its pages and here."""

from __future__ import annotations

from prefect.context import TagsContext

from flywheel import identity
from flywheel.workspace import Workspace, label


def workspace(ws: Workspace) -> str:
    """Of all runs of a workspace."""
    return f"workspace:{identity.of(ws)}"


def turn(ws: Workspace, iteration: int) -> str:
    """Of all runs that make an iteration as it is here now, and of none that made one of its number before."""
    return f"turn:{identity.of_turn(ws, iteration)}"


def iteration(ws: Workspace, number: int) -> list[str]:
    return [workspace(ws), f"iteration:{label(number)}", turn(ws, number)]


def stage(name: str) -> str:
    return f"stage:{name}"


def none() -> TagsContext:
    """Within the block tasks have no tags: they are found by their flow's. A task that has some asks for the limits of
    each before it begins, by a connection that the server closes after five seconds: the next try comes two seconds
    later, for nearly every task of a stage."""
    return TagsContext(current_tags=set())
