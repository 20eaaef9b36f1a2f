"""Recover a workspace before a run: finish what another command left half done, restore damaged files."""

from __future__ import annotations

from flywheel.config.workspace import Workspace
from flywheel.maintenance import reroute, rollback
from flywheel.store.versioning import backup


def recover_workspace(ws: Workspace) -> None:
    """Finish pending routing decisions and rollbacks, and restore recorded files that are damaged or missing.

    Call it under the workspace's lock, which it does not take, before anything else. Files come from DVC's cache or its
    remote. Raises DataError where one cannot be restored.
    """
    reroute.resume_pending_decisions(ws)
    rollback.resume_rollback(ws)
    backup.restore_damaged_outputs(ws)
