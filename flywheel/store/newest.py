"""The workspace's own dvc.yaml: one stage, which stands on the newest iteration.

Each iteration has its stages in its own folder, so DVC's files grow with the iteration asked for and not with history.
`dvc repro`, typed in the workspace, begins here and goes through all that the newest iteration stands on.
"""

from __future__ import annotations

from flywheel.files import write_text
from flywheel.store import dvc_lock
from flywheel.workspace import Workspace, label

STAGE = "report"
DVC_YAML = """\
# Each iteration has its stages in iterations/NNN/dvc.yaml, written by flywheel from what flywheel/stages declares.
# This one stands on the newest, which iterations.yaml names: `dvc repro` here goes through all that it stands on.
vars:
  - iterations.yaml

stages:
  report:
    foreach: ${newest}
    do:
      cmd: flywheel report
      deps:
        - data/runs/iteration=${item}/stage=runs
"""


def prepare(ws: Workspace, iteration: int) -> None:
    """Make the workspace's dvc.yaml this one, and let it stand on the iteration; 0: on none."""
    path = ws.root / "dvc.yaml"
    if not path.exists() or path.read_text(encoding="utf-8") != DVC_YAML:
        write_text(path, DVC_YAML)
    name(ws, iteration)


def name(ws: Workspace, iteration: int) -> None:
    """Let it stand on the iteration. It is recorded as the iteration's last stage is."""
    _write(ws, "iterations.yaml", f"newest: {[label(iteration)] if iteration else []}\n")
    last = dvc_lock.read(dvc_lock.path(ws, iteration)).get(dvc_lock.LAST) if iteration else None
    if last:
        wanted = f"data/runs/iteration={label(iteration)}/stage={dvc_lock.LAST}"
        deps = [out for out in last["outs"] if out["path"] == wanted]
        entries = {f"{STAGE}@{label(iteration)}": {"cmd": "flywheel report", "deps": deps}}
        _write(ws, "dvc.lock", dvc_lock.text(entries))


def _write(ws: Workspace, file: str, text: str) -> None:
    path = ws.root / file
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)
