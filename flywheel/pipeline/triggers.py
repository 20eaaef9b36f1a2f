"""Decide when new data start a run, and when recent iterations halt the loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from flywheel.config import OperationsSettings, Settings
from flywheel.config.workspace import Workspace, iteration_label, iteration_run_id, workspace_name
from flywheel.pipeline import iterations
from flywheel.store import manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import FlywheelError

INGEST = "ingest"


class LoopHalted(FlywheelError):
    """A rule says that a person should look before another iteration begins."""


@dataclass(frozen=True)
class DueRun:
    """A run that is due. key: the same until it has begun, whoever asks and how often. why: in words."""

    key: str
    parameters: dict[str, Any]
    why: str


def due_runs(ws: Workspace, settings: Settings) -> list[DueRun]:
    """List the runs that new recordings and demonstrations ask for, one at most; nothing is started.

    `operations.trigger_min_recordings` and `trigger_min_demonstrations` say how many there must be; 0: no such run.
    """
    rules = settings.operations
    if not (rules.trigger_min_recordings or rules.trigger_min_demonstrations):
        return []
    k = iterations.newest_iteration(ws)
    if k == 0 or dvc_files.is_iteration_complete(ws, k):
        if rules.trigger_min_recordings and (new := count_new_recordings(ws, settings)) >= rules.trigger_min_recordings:
            key = f"{workspace_name(ws)}:ingest:{iteration_label(k + 1)}"
            return [DueRun(key, {"until": INGEST}, f"{new} new recordings are there")]
        return []
    waits = rules.trigger_min_demonstrations and dvc_files.recorded_stages(ws, k) == [INGEST]
    if not waits:
        return []
    rows = partitions.read_partition(ws, "trajectories", k, INGEST, ["status"]).to_pylist()
    if (taken := sum(row["status"] != "invalid" for row in rows)) >= rules.trigger_min_demonstrations:
        words = f"iteration {iteration_label(k)} has taken in {taken} demonstrations"
        return [DueRun(f"{workspace_name(ws)}:iterate:{iteration_run_id(ws, k)}", {"until": None}, words)]
    return []


def count_missing_recordings(ws: Workspace, settings: Settings) -> int:
    """Count how many more new recordings there must be before the next iteration begins with them; 0: enough."""
    enough = settings.operations.trigger_min_recordings or settings.recording.sessions_per_iteration
    return max(0, enough - count_new_recordings(ws, settings))


def count_new_recordings(ws: Workspace, settings: Settings) -> int:
    """Folders of recordings that no iteration has taken in. They are counted again where something has changed: this is
    asked each second, of folders that only grow."""
    folder, last = ws.resolve(settings.recording.folder), iterations.newest_iteration(ws)
    if not folder.is_dir():
        return 0
    marks = (folder.stat().st_mtime_ns, ws.manifest(last).stat().st_mtime_ns if last else 0)
    return _count_folders(ws, folder, last, marks)


@lru_cache(maxsize=1)
def _count_folders(ws: Workspace, folder: Path, last: int, marks: tuple[int, int]) -> int:
    taken = set(manifest.read_manifest(ws, last).sessions) if last else set()
    return sum(1 for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".") and one.name not in taken)


def halt_if_asked(ws: Workspace, rules: OperationsSettings) -> None:
    """Raise LoopHalted where the last iterations are such that a person should look (`operations.halt_after_*`).

    rules: block `operations`; 0 never halts. There must be as many iterations as the rule asks; those of which no stage
    has ended are left out.
    """
    longest = max(rules.halt_after_rejected, rules.halt_after_empty)
    if not longest or not iterations.newest_iteration(ws):
        return
    newest = (
        f"SELECT promoted, to_sft FROM iterations WHERE minutes IS NOT NULL ORDER BY iteration DESC LIMIT {longest}"
    )
    last = database.query_catalog(ws, newest).to_pylist()
    for parameter, count, bad, words in (
        ("halt_after_rejected", rules.halt_after_rejected, lambda row: row["promoted"] is False, "were not promoted"),
        ("halt_after_empty", rules.halt_after_empty, lambda row: row["to_sft"] == 0, "sent no trajectory to SFT"),
    ):
        if count and len(last) >= count and all(map(bad, last[:count])):
            raise LoopHalted(
                f"the last {count} iterations {words}, so no other is begun without a person",
                where=f"operations.{parameter}",
                fix="look into the report; `flywheel run` goes on all the same",
            )
