"""Iterations of the least work: every output that dvc.yaml names, recorded in DVC, with nothing learnt or played."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import yaml

from flywheel.cli import scaffold as workspaces
from flywheel.config import Settings, dump_settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import manifest
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.files import write_text


def frozen(settings: Settings, **changes) -> Settings:
    return Settings.model_validate({**settings.model_dump(), **changes})


def outputs(ws: Workspace, stage: str, iteration: int) -> list[Path]:
    """What dvc.yaml says that the stage writes."""
    outs = yaml.safe_load(dvc_files.dvc_yaml_path(ws, iteration).read_text())["stages"][stage]["outs"]
    return [ws.root / (next(iter(out)) if isinstance(out, dict) else out) for out in outs]


def run_stage(ws: Workspace, stage: str, iteration: int, text: str = "") -> None:
    for path in outputs(ws, stage, iteration):
        if path.suffix == ".json":
            write_text(path, f'{{"iteration": {iteration}, "sessions": [], "text": "{text}"}}')
        else:
            shutil.rmtree(path, ignore_errors=True)
            write_text(path / "part-00000.parquet", f"{stage} {iteration} {path.parent} {text}")


def run_iteration(ws: Workspace, iteration: int) -> None:
    for stage in stage_records.stage_names(ws, iteration):
        run_stage(ws, stage, iteration)
        stage_records.record_stage(ws, stage, iteration)


def turned(root: Path) -> Workspace:
    """A git workspace after iteration 1."""
    subprocess.run(["git", "init", "-q", root], check=True)
    write_text(root / ".gitignore", ".flywheel/\n/data/\n/models/iteration=*/\n")
    ws = Workspace(root)
    write_text(ws.params, "seed: 7\n")
    stage_records.init_dvc_project(ws)
    manifest.init_first_checkpoint(ws, digest="abc")
    begin_iteration(ws, 1, frozen(Settings(), recording={"sessions_per_iteration": 0}))
    run_iteration(ws, 1)
    return ws


def created(root: Path, sessions: int = 0) -> Workspace:
    """A workspace of the profile `small` that has so many of the shipped recordings: all of them are 577 files."""
    source = root.with_name(f"{root.name}-source")
    (source / "recordings").mkdir(parents=True)
    shipped = sorted(path for path in (workspaces.PROJECT_ROOT / "recordings").iterdir() if path.is_dir())[:sessions]
    names = ("models", "configs", "params.yaml", "prefect.yaml")
    for path in (*shipped, *(workspaces.PROJECT_ROOT / name for name in names)):
        (source / path.relative_to(workspaces.PROJECT_ROOT)).symlink_to(path)
    return workspaces.create_workspace(root, "small", project=source)


def begun(root: Path, sessions: int = 0) -> Workspace:
    """As `created`; a run until `synthesize` is a matter of seconds, and takes them in."""
    ws = created(root, sessions)
    few = {**Settings().synthesis.model_dump(), "train_tasks": 4, "eval_tasks": 4, "num_grounding_examples": 0}
    write_text(
        ws.params, dump_settings(frozen(Settings(), recording={"sessions_per_iteration": sessions}, synthesis=few))
    )
    return ws
