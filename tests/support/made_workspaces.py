"""A workspace in git with some made-up iterations behind it, all of whose stages are recorded in DVC."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import synthetic
import yaml
from click.testing import CliRunner
from minimal_iterations import record_stages
from safetensors.numpy import save_file

from flywheel.cli import main
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.policy import checkpoint
from flywheel.store import manifest
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.files import file_lock, write_json, write_text


def flywheel(ws: Workspace, *arguments: object) -> tuple[int, str]:
    """A command on the workspace, in this process: its exit code and what it said."""
    done = CliRunner().invoke(main, [*map(str, arguments), "-w", str(ws.root)], catch_exceptions=False)
    return done.exit_code, done.output


def once(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
    """What `make` makes, not to be changed: in the folder, once for all who ask, at the same time too."""
    place, unfinished = folder / name, folder / f"unfinished-{name}"
    with file_lock(folder / f"{name}.lock", 300, f"making the workspace {name}"):
        if not place.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(place)
    return place


def made(root: Path, iterations: int) -> tuple[Workspace, Settings]:
    """Iterations 1 to `iterations`, complete."""
    subprocess.run(["git", "init", "-q", "-b", "main", root], check=True)
    write_text(root / ".gitignore", ".flywheel/\n/data/\n/models/iteration=*/\n/report/\n")
    ws, settings = synthetic.workspace(root)
    for k in range(1, iterations + 1):
        turn(ws, settings, k)
    commit(ws, "made")
    return ws, settings


def turn(ws: Workspace, settings: Settings, k: int) -> None:
    """An iteration, to its end."""
    synthetic.incoming(ws, settings, k, tasks=6)
    write_json(ws.levels(k), {"open": {}})
    synthetic.routed(ws, settings, k)
    synthetic.outgoing(ws, k)
    _models(ws, k)
    record_stages(ws, stage_records.stage_names(ws, k), k)
    shutil.rmtree(ws.state / "staging", ignore_errors=True)


def _models(ws: Workspace, k: int) -> None:
    """Small weights, and what the synthetic iteration does not write of its outputs."""
    declared = yaml.safe_load(dvc_files.dvc_yaml_path(ws, k).read_text())["stages"]
    outs = [next(iter(out)) if isinstance(out, dict) else out for stage in declared.values() for out in stage["outs"]]
    for out in outs:
        path = ws.root / out
        if out.startswith("models/"):
            path.mkdir(parents=True)
            save_file({"w": np.full(4, k + len(path.name), np.float32)}, path / "model.safetensors")
        elif path.suffix != ".json" and not path.exists():
            synthetic.write_partition(ws, path.parts[-3], k, path.name.removeprefix("stage="), [])
    promotion = manifest.read_promotion(ws, k)
    if promotion["promoted"]:
        promotion["digest"] = checkpoint.checkpoint_digest(ws.root / promotion["model"])
        write_json(ws.promotion(k), promotion)


def commit(ws: Workspace, message: str) -> None:
    git = ["git", "-C", str(ws.root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-qm", message], check=True)


def content(ws: Workspace) -> dict[str, bytes]:
    """All that iterations have, by path."""
    folders = [ws.data, ws.root / "models", ws.root / "iterations"]
    return {ws.relative(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
