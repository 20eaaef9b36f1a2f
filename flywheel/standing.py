"""`flywheel status`: where a workspace stands. What is damaged is shown, with what mends it, and hides nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flywheel.errors import FlywheelError
from flywheel.store import catalog, dvc_lock, formats, recovery, versioning
from flywheel.workspace import Workspace, label

_SHOWN = 10


@dataclass(frozen=True)
class Standing:
    """begun: the iterations. looked_at: those of them whose files were compared with what is recorded. rows: the view
    `iterations`, empty where a file that it reads is damaged.

    changed: stage -> path -> what happened, of stages that are not as they are recorded. unknown: why the three below
    could not be looked at, or "".
    """

    begun: tuple[int, ...]
    looked_at: tuple[int, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    fault: str = ""
    unknown: str = ""
    damage: tuple[recovery.Damage, ...] = ()
    changed: dict[str, dict[str, str]] | None = None
    recorded: dict[int, list[str]] | None = None


def look(ws: Workspace, *, everything: bool = False) -> Standing:
    """Compares the files of the iterations at work with what is recorded, or those of all.

    Raises DataError where DVC's file of an iteration is lost.
    """
    recovery.check_index(ws)
    begun = tuple(versioning.iterations(ws))
    rows, fault = (), ""
    try:
        rows = tuple(formats.rows_of(catalog.query(ws, "FROM iterations")))
    except FlywheelError as error:
        fault = str(error)
    if not begun:
        return Standing(begun, (), rows, fault, changed={})
    which = begun if everything else tuple(versioning.at_work(ws))
    try:
        damage, changed = tuple(recovery.damaged(ws, which)), versioning.status(ws, which)
    except OSError as error:  # DVC looks under a lock, which is a file
        return Standing(begun, (), rows, fault, f"what changed is not looked at: {error.strerror}: {error.filename}")
    return Standing(begun, which, rows, fault, "", damage, changed, {k: dvc_lock.recorded(ws, k) for k in which})


def lines(standing: Standing) -> Iterator[tuple[str, str]]:
    """What is to be said of it, as (style, line)."""
    if standing.unknown:
        yield "yellow", standing.unknown
        return
    yield from _damage(standing.damage)
    waiting = []
    for name, changes in (standing.changed or {}).items():
        stage, _, iteration = name.partition("@")
        if stage not in standing.recorded.get(int(iteration), ()):
            waiting.append(int(iteration))
        elif not _only_damaged(name, changes, standing.damage):
            told = ", ".join(f"{path} ({change})" for path, change in changes.items())
            yield "yellow", f"{name}: changed since it was recorded: {told}"
    for k in sorted(set(waiting)):
        done = len(standing.recorded.get(k, ()))
        yield (
            "yellow",
            f"iteration {label(k)} is not complete ({done} of {done + waiting.count(k)} stages): "
            "`flywheel run` goes on with it, `flywheel discard` gives it up",
        )
    if not standing.changed and not standing.damage:
        yield "", "every stage is recorded in DVC and unchanged"
    if len(standing.looked_at) < len(standing.begun):
        yield "", f"looked at is {' and '.join(map(label, standing.looked_at))}: `flywheel status --all` looks at all"


def _damage(damage: tuple[recovery.Damage, ...]) -> Iterator[tuple[str, str]]:
    if len(damage) > _SHOWN and not any(one.kept == "cache" for one in damage):
        one = damage[0]
        yield "red", f"{len(damage)} recorded files and folders are not here ({one.path}, ...): type {one.mend}"
        return
    for one in damage[:_SHOWN]:
        yield "red", f"{one.path} is {one.change} since {one.stage} was recorded: type {one.mend}"
    if len(damage) > _SHOWN:
        yield "red", f"and {len(damage) - _SHOWN} more: `dvc checkout --force` brings all of them back"


def _only_damaged(name: str, changes: dict[str, str], damage: tuple[recovery.Damage, ...]) -> bool:
    """Whether all that a stage finds changed is damage, told already."""
    return set(changes) <= {one.path for one in damage}
