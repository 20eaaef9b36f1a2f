"""Iterations of the least work: every output that dvc.yaml names, recorded in DVC, with nothing learnt or played."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import yaml

from flywheel.files import write_text
from flywheel.settings import Settings
from flywheel.store import manifest, pipeline, versioning
from flywheel.workspace import Workspace


def frozen(settings: Settings, **changes) -> Settings:
    return Settings.model_validate({**settings.model_dump(), **changes})


def outputs(ws: Workspace, stage: str, iteration: int) -> list[Path]:
    """What dvc.yaml says that the stage writes."""
    outs = yaml.safe_load(pipeline.path(ws, iteration).read_text())["stages"][stage]["outs"]
    return [ws.root / (next(iter(out)) if isinstance(out, dict) else out) for out in outs]


def run_stage(ws: Workspace, stage: str, iteration: int, text: str = "") -> None:
    for path in outputs(ws, stage, iteration):
        if path.suffix == ".json":
            write_text(path, f'{{"iteration": {iteration}, "sessions": [], "text": "{text}"}}')
        else:
            shutil.rmtree(path, ignore_errors=True)
            write_text(path / "part-00000.parquet", f"{stage} {iteration} {path.parent} {text}")


def run_iteration(ws: Workspace, iteration: int) -> None:
    for stage in versioning.stages(ws, iteration):
        run_stage(ws, stage, iteration)
        versioning.commit(ws, stage, iteration)


def turned(root: Path) -> Workspace:
    """A git workspace after iteration 1."""
    subprocess.run(["git", "init", "-q", root], check=True)
    write_text(root / ".gitignore", ".flywheel/\n/data/\n/models/iteration=*/\n")
    ws = Workspace(root)
    write_text(ws.params, "seed: 7\n")
    versioning.prepare(ws)
    manifest.genesis(ws, digest="abc")
    versioning.add_iteration(ws, 1, frozen(Settings(), recording={"sessions_per_iteration": 0}))
    run_iteration(ws, 1)
    return ws
