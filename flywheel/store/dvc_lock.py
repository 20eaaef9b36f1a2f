"""`dvc.lock` as text: which stages are recorded, and how entries get into it and out of it.

DVC's own way of writing it keeps comments, and with them takes five times longer (0.6 s for six iterations), at every
stage.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flywheel.files import write_text
from flywheel.workspace import Workspace, label

LAST = "runs"  # the stage that ends an iteration
_ENTRY = re.compile(r"^  ['\"]?([\w-]+)@(\d+)['\"]?:", re.MULTILINE)


def path(ws: Workspace) -> Path:
    return ws.root / "dvc.lock"


def recorded(ws: Workspace) -> dict[int, list[str]]:
    """Iteration -> names of its stages that are recorded. Only names are read: a damaged file is told by DVC."""
    try:
        text = path(ws).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    found: dict[int, list[str]] = {}
    for name, iteration in _ENTRY.findall(text):
        found.setdefault(int(iteration), []).append(name)
    return found


def complete(ws: Workspace, iteration: int) -> bool:
    """Whether the iteration was brought to its end once, whatever became of its files since."""
    return LAST in recorded(ws).get(iteration, ())


def decided(ws: Workspace, iteration: int) -> bool:
    """Whether its promotion is decided: its model was released, or kept back for good."""
    return "promote" in recorded(ws).get(iteration, ())


def enter(ws: Workspace, recorded: Iterable[Any]) -> None:
    """Enter stages as DVC has them now."""
    from dvc.stage.serialize import to_single_stage_lockfile

    entries = {stage.name: to_single_stage_lockfile(stage) for stage in recorded}
    _edit(ws, lambda stages: stages.update(entries))


def drop(ws: Workspace, iteration: int) -> None:
    """Take out all stages of an iteration."""
    names = [f"{name}@{label(iteration)}" for name in recorded(ws).get(iteration, ())]
    if names:
        _edit(ws, lambda stages: [stages.pop(name, None) for name in names])


def _edit(ws: Workspace, change: Callable[[dict[str, Any]], Any]) -> None:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    yaml.default_flow_style = False
    file = path(ws)
    lock = yaml.load(file.read_text(encoding="utf-8")) if file.exists() else {"schema": "2.0", "stages": {}}
    change(lock["stages"])
    text = io.StringIO()
    yaml.dump(lock, text)
    write_text(file, text.getvalue())
