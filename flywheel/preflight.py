"""What a run needs, looked at before it begins, so that it fails in the first second and not in the fifth minute."""

from __future__ import annotations

import shutil

from flywheel.errors import BadInput, DiskFull
from flywheel.policy import checkpoint, endpoint
from flywheel.sandbox import chromium
from flywheel.settings import Settings
from flywheel.workspace import Workspace

# Two default iterations write about 150 MB, DVC keeps a copy of each file, and Chromium wants room in /tmp.
NEEDED_MB = 500


def check(ws: Workspace, settings: Settings) -> None:
    """Raises BadInput, ModelError, DiskFull, PolicyError (a server that does not answer), naming how to mend it."""
    free_mb = shutil.disk_usage(ws.root).free // 2**20
    if free_mb < NEEDED_MB:
        raise DiskFull(f"{free_mb} MB free, a run needs {NEEDED_MB}", where=ws.root, fix="free some space")
    checkpoint.check(checkpoint.resolve(settings.policy.base, ws.root))
    if settings.policy.backend == "openai":
        endpoint.look(settings.policy)
    recordings = ws.resolve(settings.recording.folder)
    if settings.recording.sessions_per_iteration and not recordings.is_dir():
        raise BadInput(
            "no recordings folder", where=recordings, fix="set recording.folder, or sessions_per_iteration to 0"
        )
    chromium.find(settings.sandbox)
