"""What is due where nobody watches: a run that new data ask for, or a stop that the last iterations ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flywheel import identity, turns
from flywheel.errors import FlywheelError
from flywheel.settings import Operations, Settings
from flywheel.store import catalog, dvc_lock, manifest, partitions
from flywheel.workspace import Workspace, label

INGEST = "ingest"


class Stopped(FlywheelError):
    """A rule says that a person should look before another iteration begins."""


@dataclass(frozen=True)
class Due:
    """A run that is due. key: the same until it has begun, whoever asks and how often. why: in words."""

    key: str
    parameters: dict[str, Any]
    why: str


def runs(ws: Workspace, settings: Settings) -> list[Due]:
    """What new recordings and demonstrations ask for (`operations.ingest_after`, `iterate_after`): one run at most."""
    rules = settings.operations
    if not (rules.ingest_after or rules.iterate_after):
        return []
    k = turns.last(ws)
    if k == 0 or dvc_lock.complete(ws, k):
        if rules.ingest_after and (new := new_recordings(ws, settings)) >= rules.ingest_after:
            key = f"{identity.of(ws)}:ingest:{label(k + 1)}"
            return [Due(key, {"until": INGEST}, f"{new} new recordings are there")]
        return []
    waits = rules.iterate_after and dvc_lock.recorded(ws, k) == [INGEST]
    if waits and (taken := _demonstrations(ws, k)) >= rules.iterate_after:
        words = f"iteration {label(k)} has taken in {taken} demonstrations"
        return [Due(f"{identity.of(ws)}:iterate:{identity.of_turn(ws, k)}", {"until": None}, words)]
    return []


def recordings_lacking(ws: Workspace, settings: Settings) -> int:
    """How many more new recordings there must be before the next iteration begins with them."""
    enough = settings.operations.ingest_after or settings.recording.sessions_per_iteration
    return max(0, enough - new_recordings(ws, settings))


def new_recordings(ws: Workspace, settings: Settings) -> int:
    """Folders of recordings that no iteration has taken in. They are counted again where something has changed: this is
    asked each second, of folders that only grow."""
    folder, last = ws.resolve(settings.recording.folder), turns.last(ws)
    if not folder.is_dir():
        return 0
    marks = (folder.stat().st_mtime_ns, ws.manifest(last).stat().st_mtime_ns if last else 0)
    return _counted(ws, folder, last, marks)


@lru_cache(maxsize=1)
def _counted(ws: Workspace, folder: Path, last: int, marks: tuple[int, int]) -> int:
    taken = set(manifest.read(ws, last).sessions) if last else set()
    return sum(1 for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".") and one.name not in taken)


def _demonstrations(ws: Workspace, iteration: int) -> int:
    rows = partitions.read(ws, "trajectories", iteration, INGEST, ["status"]).to_pylist()
    return sum(row["status"] != "invalid" for row in rows)


def stop(ws: Workspace, rules: Operations) -> None:
    """Raises Stopped where the last iterations are such that a person should look (`operations.stop_*`)."""
    longest = max(rules.stop_not_promoted, rules.stop_unverified)
    if not longest or not turns.last(ws):
        return
    newest = (
        f"SELECT promoted, to_sft FROM iterations WHERE minutes IS NOT NULL ORDER BY iteration DESC LIMIT {longest}"
    )
    last = catalog.query(ws, newest).to_pylist()
    for parameter, count, bad, words in (
        ("stop_not_promoted", rules.stop_not_promoted, lambda row: row["promoted"] is False, "were not promoted"),
        ("stop_unverified", rules.stop_unverified, lambda row: row["to_sft"] == 0, "sent no trajectory to SFT"),
    ):
        if count and len(last) >= count and all(map(bad, last[:count])):
            raise Stopped(
                f"the last {count} iterations {words}, so no other is begun without a person",
                where=f"operations.{parameter}",
                fix="look into the report; `flywheel run` goes on all the same",
            )
