"""Worlds of tasks on computers that others wrote, by a manifest: what there is at the beginning, what is to hold at the
end.

kind: terminal                       # or computer
world: reports
tasks:
  - name: pack
    instruction: Pack the folder {folder} into {folder}.zip.
    choose: {folder: [march, april]}
    max_steps: {1: 8}                # by level
    folder: start                    # beside this file: what lies in it lies in the home
    begin: {files: {"{folder}/note.txt": "one\\n"}}          # as `given.py` has it
    end: {packed: {"{folder}.zip": {"{folder}/note.txt": "one\\n"}}}     # as `chores/ending.py` has it
"""

from __future__ import annotations

import base64
import hashlib
import random
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.computer.chores.ending import VERIFIER
from flywheel.computer.given import Given
from flywheel.environments import choices, foreign
from flywheel.environments.world import TaskWorld, Template
from flywheel.errors import BadInput
from flywheel.settings import Domain

_MOST = 2**22  # bytes of a folder


class End(BaseModel):
    """What must all hold; at least one. free: files that may change or go, of those that are there at the beginning."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    wanted: dict[str, str | None] = {}
    answer: str | None = None
    served: dict[str, str | None] = {}
    packed: dict[str, dict[str, str]] = {}
    received: dict[str, str] | None = None
    printed: list[str] = []
    free: list[str] = []

    @property
    def parts(self) -> dict[str, Any]:
        """Those that are said."""
        return {name: value for name, value in self.model_dump().items() if value not in (None, {}, [])}


class ComputerTask(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    instruction: str = Field(min_length=1)
    choose: dict[str, list[dict[str, str] | str]] = {}
    max_steps: dict[int, int] = Field(min_length=1)
    folder: str = ""
    begin: dict[str, Any] = {}
    end: End

    @model_validator(mode="after")
    def _whole(self) -> ComputerTask:
        try:
            given = Given.model_validate(self.begin)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"begin.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        if unknown := self.begin.keys() - Given.model_fields.keys():
            raise ValueError(f"begin has no {', '.join(sorted(unknown))}")
        if not self.end.parts.keys() - {"free"}:
            raise ValueError("end says nothing that must hold")
        if unasked := self.end.served.keys() - given.ports.keys():
            raise ValueError(f"begin.ports does not say what is asked at {', '.join(sorted(unasked))}")
        if len(self.end.printed) != len(given.probe):
            raise ValueError("end.printed has a line for each command of begin.probe")
        return self


class Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    world: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    domain: Domain = "computer"
    tasks: list[ComputerTask] = Field(min_length=1)


class _ManifestWorld(TaskWorld):
    """folders: what lies in the folder of each task that has one, as base64 by path."""

    tasks: dict[str, ComputerTask]
    folders: dict[str, dict[str, str]]

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        self.budget(template, level)
        task = self.tasks[template]
        values = choices.drawn(task.choose, random.Random(f"{self.name} {template} {level} {seed}"))
        made = {"files": {}, **task.begin, **task.end.parts, "instruction": task.instruction}
        if template in self.folders:
            made["binary"] = {**self.folders[template], **made.get("binary", {})}
        return choices.filled(made, values)


class TerminalManifestWorld(_ManifestWorld):
    environment: ClassVar[str] = "terminal"


class ComputerManifestWorld(_ManifestWorld):
    environment: ClassVar[str] = "computer"


def load(path: Path, form: type[_ManifestWorld]) -> TaskWorld:
    """form: of the kind. Raises BadInput that names what is wrong in the manifest."""
    said = foreign.manifest(path, Manifest)
    tasks = {task.name: task for task in said.tasks}
    if len(tasks) < len(said.tasks):
        raise BadInput("two tasks have one name", where=path, fix="rename one")
    folders = {task.name: _folder(path, task.folder) for task in said.tasks if task.folder}
    digest = hashlib.sha256(path.read_bytes() + repr(sorted(folders.items())).encode())
    templates = {
        task.name: Template(instruction="{instruction}", verifier=VERIFIER, max_steps=task.max_steps)
        for task in said.tasks
    }
    return form(
        name=said.world, domain=said.domain, templates=templates, checksum=digest.hexdigest(), tasks=tasks,
        folders=folders,
    )  # fmt: skip


def _folder(manifest: Path, name: str) -> dict[str, str]:
    """What lies in a folder beside the manifest, links left out."""
    folder = manifest.parent / name
    if not folder.is_dir() or not folder.resolve().is_relative_to(manifest.parent.resolve()):
        raise BadInput(f"there is no folder {name} beside the manifest", where=manifest, fix="make it, or name another")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    if sum(path.stat().st_size for path in files) > _MOST:
        raise BadInput(f"the folder {name} has more than {_MOST} bytes", where=manifest, fix="leave some out")
    return {path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode() for path in files}
