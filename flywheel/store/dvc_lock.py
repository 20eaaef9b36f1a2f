"""`iterations/NNN/dvc.lock` as text: which stages of the iteration are recorded, and how entries get into it.

DVC's own way of writing it keeps comments, and with them takes five times longer, at every stage.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flywheel.files import write_text
from flywheel.workspace import Workspace

LAST = "runs"  # the stage that ends an iteration
_PARTITION = re.compile(r"path: (data/(\w+)/iteration=\d+/stage=[\w.-]+)$", re.MULTILINE)
_ENTRY = re.compile(r"^  ['\"]?([\w-]+)['\"]?:", re.MULTILINE)


def path(ws: Workspace, iteration: int) -> Path:
    return ws.iteration(iteration) / "dvc.lock"


def recorded(ws: Workspace, iteration: int) -> list[str]:
    """Names of its stages that are recorded. Only names are read: a damaged file is told by DVC."""
    try:
        return _ENTRY.findall(path(ws, iteration).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return []


def partitions(ws: Workspace, iteration: int) -> set[tuple[str, str]]:
    """(table, folder relative to the workspace) of the partitions that its stages read and wrote."""
    try:
        found = _PARTITION.findall(path(ws, iteration).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return set()
    return {(table, folder) for folder, table in found}


def complete(ws: Workspace, iteration: int) -> bool:
    """Whether the iteration was brought to its end once, whatever became of its files since."""
    return LAST in recorded(ws, iteration)


def decided(ws: Workspace, iteration: int) -> bool:
    """Whether its promotion is decided: its model was released, or kept back for good."""
    return "promote" in recorded(ws, iteration)


def enter(ws: Workspace, iteration: int, stages: Iterable[Any]) -> None:
    """Enter stages of the iteration as DVC has them now."""
    from dvc.stage.serialize import to_single_stage_lockfile

    entries = {stage.name: to_single_stage_lockfile(stage) for stage in stages}
    write_text(path(ws, iteration), text(read(path(ws, iteration)) | entries))


def outputs(ws: Workspace, iteration: int) -> dict[str, dict[str, Any]]:
    """What is recorded of each output (`md5`, `size`), by path."""
    return {out["path"]: out for entry in read(path(ws, iteration)).values() for out in entry.get("outs", ())}


def renew(ws: Workspace, iteration: int, files: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Let the entries name files and folders as they are now. files: path -> (md5 that was recorded, what is recorded
    from now on); what is recorded of one otherwise stays."""
    entries = read(path(ws, iteration))
    for entry in entries.values():
        for one in (*entry.get("deps", ()), *entry.get("outs", ())):
            before, now = files.get(one["path"], ("", {}))
            if one.get("md5") == before:
                one |= now
    write_text(path(ws, iteration), text(entries))


def read(file: Path) -> dict[str, Any]:
    """The entries of a dvc.lock: name of a stage -> what is recorded; none where there is no such file."""
    if not file.exists():
        return {}
    return _yaml().load(file.read_text(encoding="utf-8"))["stages"]


def text(entries: Mapping[str, Any]) -> str:
    """A dvc.lock of these entries."""
    stream = io.StringIO()
    _yaml().dump({"schema": "2.0", "stages": dict(entries)}, stream)
    return stream.getvalue()


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")  # as DVC reads: PyYAML writes 008 bare, which is a number to DVC (YAML 1.2)
    yaml.default_flow_style = False
    return yaml
