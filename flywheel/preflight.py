"""What a run needs, looked at before it begins, so that it fails in the first second and not in the fifth minute."""

from __future__ import annotations

import shutil
from pathlib import Path

from flywheel.errors import BadInput, DiskFull, ModelError
from flywheel.sandbox import chromium
from flywheel.settings import Settings
from flywheel.workspace import Workspace

# Two default iterations write about 150 MB, DVC keeps a copy of each file, and Chromium wants room in /tmp.
NEEDED_MB = 500
_MODEL_FILES = ("config.json", "tokenizer.json", "preprocessor_config.json")


def check(ws: Workspace, settings: Settings) -> None:
    """Raises BadInput, ModelError or DiskFull, naming what is missing and how to mend it."""
    free_mb = shutil.disk_usage(ws.root).free // 2**20
    if free_mb < NEEDED_MB:
        raise DiskFull(f"{free_mb} MB free, a run needs {NEEDED_MB}", where=ws.root, fix="free some space")
    model = ws.resolve(settings.policy.base)
    if settings.policy.backend == "transformers":
        check_model(model)
    recordings = ws.resolve(settings.recording.folder)
    if settings.recording.sessions_per_iteration and not recordings.is_dir():
        raise BadInput(
            "no recordings folder", where=recordings, fix="set recording.folder, or sessions_per_iteration to 0"
        )
    chromium.find(settings.sandbox)


def check_model(folder: Path) -> None:
    """A local folder must look like a checkpoint; what it holds is checked when it is loaded."""
    if not folder.exists():
        raise ModelError("no such model folder", where=folder, fix="set policy.base to a checkpoint's folder")
    missing = [name for name in _MODEL_FILES if not (folder / name).is_file()]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise ModelError(f"not a model folder: it lacks {', '.join(missing)}", where=folder, fix="set policy.base")
