"""The worlds there are: their manifests, checked, and a checksum of their sources.

A world is a folder with `manifest.json`, pages, and `world.py`, which has `draw(template, level, rng)` (the params of
a task) and `next_step(task, state, rng)` (what an expert does). A site's `world.py` has `start`, `view`, `act` too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.errors import BadInput

ROOT = Path(__file__).parent
SHARED = ROOT / "shared"
_SOURCES = {".html", ".js", ".css", ".json", ".py", ".svg"}


class Template(BaseModel):
    """A kind of task. instruction: a format string over the drawn params. max_steps: step budget by level."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    instruction: str = Field(min_length=1)
    verifier: str = Field(min_length=1)
    threshold: float = Field(1.0, gt=0, le=1)
    max_steps: dict[int, int] = Field(min_length=1)


class World(BaseModel):
    """One world's manifest. version rises when the meaning of its state changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    title: str = Field(min_length=1)
    domain: Literal["games", "sites"]
    kind: Literal["game", "site"]
    version: int = Field(ge=1)
    templates: dict[str, Template] = Field(min_length=1)
    folder: Path
    checksum: str  # sha256 of the world's sources and of the shared ones

    @property
    def levels(self) -> list[int]:
        return sorted({level for template in self.templates.values() for level in template.max_steps})

    @property
    def module(self) -> ModuleType:
        """The world's own Python: `flywheel.worlds.<name>.world`."""
        return importlib.import_module(f"flywheel.worlds.{self.name}.world")


def load(folder: Path) -> World:
    """Read and check one manifest. Raises BadInput naming the field."""
    path = folder / "manifest.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        world = World.model_validate({**raw, "folder": folder, "checksum": checksum(folder)})
    except FileNotFoundError:
        raise BadInput("no such world: it has no manifest", where=path, fix=f"known are {', '.join(names())}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise BadInput(f"the manifest is not a JSON object: {error}", where=path) from None
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise BadInput(f"the manifest's {field}: {fault['msg']}", where=path, fix="mend that field") from None
    if world.name != folder.name:
        raise BadInput(f"the manifest's name is {world.name!r}, its folder {folder.name!r}", where=path)
    return world


@functools.cache
def get(name: str) -> World:
    """A world of the package by name. Raises BadInput for an unknown one."""
    if name not in names():
        raise BadInput(f"no world is called {name!r}", where="synthesis.domains", fix=f"known are {', '.join(names())}")
    return load(ROOT / name)


def names() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("*/manifest.json"))


def checksum(folder: Path) -> str:
    """sha256 over the sources of a world and the shared ones, by name and content: what a task was made for."""
    digest = hashlib.sha256()
    for base in (folder, SHARED):
        for path in sorted(base.rglob("*")):
            if path.suffix in _SOURCES and "__pycache__" not in path.parts:
                digest.update(path.relative_to(base.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def look() -> dict[str, dict[str, str]]:
    """The common look: `colours` (name -> hex) and `icons` (name -> SVG path on a 24 x 24 grid)."""
    return json.loads((SHARED / "look.json").read_text(encoding="utf-8"))
