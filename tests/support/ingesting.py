"""Ingest a folder of recordings as one iteration does, without its workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from flywheel.config import Settings
from flywheel.recordings.curate import Curation
from flywheel.recordings.ingest import AsrWorkerPool, find_duplicates
from flywheel.recordings.rows import IngestedSession, review_row


def ingest_sessions(
    folders: Sequence[Path], settings: Settings, iteration: int, seen: Mapping[str, str] | None = None
) -> list[IngestedSession]:
    """Results in the order of `folders`; a recording like one of `seen`, or like one before it, becomes invalid."""
    with closing(AsrWorkerPool(settings)) as listeners:
        return mark_duplicates(listeners.ingest(folders, iteration), seen or {})


def mark_duplicates(ingested: Sequence[IngestedSession], seen: Mapping[str, str]) -> list[IngestedSession]:
    """Make recordings invalid that `find_duplicates` finds."""
    told = ((one.session, one.fingerprint, one.trajectory.status != "invalid") for one in ingested)
    marked = []
    for one, reason in zip(ingested, find_duplicates(told, seen), strict=True):
        if reason:
            trajectory = replace(one.trajectory, status="invalid", error=reason)
            review = review_row(trajectory.trajectory_id, Curation((reason,)))
            one = replace(one, trajectory=trajectory, review_rows=(review,))
        marked.append(one)
    return marked
