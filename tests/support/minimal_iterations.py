"""Iterations of the least work: every output that dvc.yaml names, recorded in DVC, with nothing learnt or played."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
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


def record_stages(ws: Workspace, stages: Sequence[str], iteration: int) -> None:
    """What `stage_records.record_stage` does for each one, with DVC's files read and written once: they are slow."""
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        recorded = stage_records.load_dvc_stages(repo, ws, iteration, stages)
        for stage in recorded:
            stage.save(run_cache=False)
            stage.commit()
        dvc_files.add_lock_entries(ws, iteration, recorded)
    if dvc_files.LAST_STAGE in stages:
        dvc_files.set_newest_iteration(ws, iteration)


def run_stages(ws: Workspace, stages: Sequence[str], iteration: int) -> None:
    """Stages that write their outputs and are recorded."""
    for stage in stages:
        run_stage(ws, stage, iteration)
    record_stages(ws, stages, iteration)


def run_iteration(ws: Workspace, iteration: int) -> None:
    run_stages(ws, stage_records.stage_names(ws, iteration), iteration)


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
