"""Find, check and load the shipped suites that are played in a browser, and compute checksums of their sources.

A suite is a folder with `manifest.json`, pages, and `world.py`, which has `draw(template, level, rng)` (returns the
params of a task) and `next_step(task, state, rng)` (returns the expert's next thought and action). The `world.py` of a
site has `start`, `view` and `act` too, that of a game `solve(params)`, which proves that a level can be won. A suite of
small pages (kind `page`) is one HTML page that holds its own state, as a game does, and declares its templates in
Python (`TEMPLATES`), as a site does.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError

from flywheel.envs.base import Task, TaskSuite
from flywheel.utils.errors import BadInput, did_you_mean

SUITES_ROOT = Path(__file__).parent
SHARED_SOURCES = SUITES_ROOT / "shared"
REFERENCES_FILE = "references.json"  # in a suite's folder: measured scores of its expert and of random play
_SOURCES = {".html", ".js", ".css", ".json", ".py", ".svg"}


class BrowserWorld(TaskSuite):
    """Hold a suite that is played in a browser, as its manifest declares it.

    kind: a game; a site, with state on the server; or a page, which holds its own state as a game does. version: rises
    when the meaning of the suite's state changes. folder: of its sources. checksum: sha256 of these and of the sources
    that all suites share.
    """

    environment: ClassVar[str] = "browser"
    title: str = Field(min_length=1)
    kind: Literal["game", "site", "page"]
    version: int = Field(ge=1)
    folder: Path
    language: str = "en"

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Draw the params of a task, the same for the same `template`, `level` and `seed`.

        Raises BadInput for a template or level that the suite has not.
        """
        self.budget(template, level)
        return self.play.draw(template, level, random.Random(f"{self.name} {template} {level} {seed}"))

    @property
    def module(self) -> ModuleType:
        """Return the suite's own Python module, `flywheel.envs.suites.<folder>.world`."""
        return importlib.import_module(f"flywheel.envs.suites.{self.folder.name}.world")

    @property
    def play(self) -> Any:
        """Return the object with draw, next_step and the rest: the suite's module, or its `SITE` in this language."""
        site = getattr(self.module, "SITE", None)
        return self.module if site is None else site.speaking(self.language)

    def answer(self, params: Mapping[str, Any]) -> Any:
        found = getattr(self.play, "answer", None)
        return found(params) if found else super().answer(params)

    def verifier(self, name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], float] | None:
        """Return the suite's verifier called `name`, or that of its site's small edition; None where there is none."""
        play = self.play
        return getattr(play, name, None) or getattr(getattr(play, "small", None), name, None) if name else None


def load_world(folder: Path, language: str = "en") -> BrowserWorld:
    """Load and check the suite in `folder`: its manifest, and the templates that its Python declares.

    language: where it is not "en", the suite's name is the folder's with `_<language>`, and of a site or suite of
    pages only the templates declared in Python count. Raises BadInput for a missing or wrong manifest; it names the
    wrong field.
    """
    path = folder / "manifest.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        declared = _declared(folder, language) if isinstance(raw, dict) and raw.get("kind") in ("site", "page") else {}
        if declared:
            named = raw.get("templates", {}) if language == "en" else {}  # the manifest's instructions are in English
            raw = {**raw, "templates": {**named, **declared}}
        world = BrowserWorld.model_validate(
            {**raw, "folder": folder, "language": language, "checksum": world_checksum(folder)}
        )
    except FileNotFoundError:
        raise BadInput(
            "no such world: it has no manifest", where=path, fix=f"known are {', '.join(list_worlds())}"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
        raise BadInput(f"the manifest is not a JSON object: {error}", where=path) from None
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise BadInput(f"the manifest's {field}: {fault['msg']}", where=path, fix="mend that field") from None
    if world.name != folder.name:
        raise BadInput(f"the manifest's name is {world.name!r}, its folder {folder.name!r}", where=path)
    return world if language == "en" else world.model_copy(update={"name": f"{folder.name}_{language}"})


def _declared(folder: Path, language: str) -> dict[str, dict[str, Any]]:
    """Return the templates that the Python of a site, or of a suite of pages, declares."""
    try:
        module = importlib.import_module(f"flywheel.envs.suites.{folder.name}.world")
    except ModuleNotFoundError as error:
        raise BadInput(f"the world has no Python of its own: {error}", where=folder) from None
    site = getattr(module, "SITE", None)
    return site.speaking(language).TEMPLATES if site else getattr(module, "TEMPLATES", {})


LOADED_GAMES: dict[str, BrowserWorld] = {}  # games of rules that this process has loaded (`synthesis.worlds`), by name


def get_world(name: str) -> BrowserWorld:
    """Find a browser suite by name, shipped or loaded. Raises BadInput for an unknown one, and as `load_world`."""
    if name in LOADED_GAMES:
        return LOADED_GAMES[name]
    if name not in list_worlds():
        raise BadInput(f"no world is called {name!r}", where="synthesis.domains", fix=did_you_mean(name, list_worlds()))
    return _load_shipped(name)


@functools.cache
def _load_shipped(name: str) -> BrowserWorld:
    return load_world(*_places()[name])


def get_task_world(task: Task) -> BrowserWorld:
    """Find the suite that plays a browser task; that of a game of rules is built from the task's params.

    So a process need not have loaded the game. Raises BadInput as `get_world`.
    """
    if "program" not in task.params or task.world in _places():
        return get_world(task.world)
    template = {"instruction": "{instruction}", "verifier": task.verifier, "max_steps": {task.level: task.max_steps}}
    about = {name: task.params.get(name) for name in ("title", "version")}
    return BrowserWorld(
        name=task.world, domain=task.domain, kind="game", templates={task.template: template}, checksum=task.checksum,
        folder=SUITES_ROOT / "rules", **about,
    )  # fmt: skip


def list_worlds() -> list[str]:
    """List the names of all browser suites, shipped and loaded, and of their editions in other languages (mail_zh)."""
    return sorted({*_places(), *LOADED_GAMES})


def _places() -> dict[str, tuple[Path, str]]:
    """Map the name of each suite to its folder and language."""
    places = {path.parent.name: (path.parent, "en") for path in SUITES_ROOT.glob("*/manifest.json")}
    for path in SUITES_ROOT.glob("*/messages/*.json"):
        if (folder := path.parent.parent).name in places:
            places[f"{folder.name}_{path.stem}"] = (folder, path.stem)
    return places


def list_games() -> list[str]:
    """List the names of the browser suites that are games, loaded ones included."""
    return [name for name in list_worlds() if get_world(name).kind == "game"]


def world_checksum(folder: Path) -> str:
    """Compute the sha256, in hex, of the sources in a suite's folder and of those that all suites share."""
    digest = hashlib.sha256()
    for path in (*sorted(folder.rglob("*")), *sorted(SHARED_SOURCES.rglob("*")), *sorted(SUITES_ROOT.glob("*.py"))):
        if path.suffix in _SOURCES and path.name != REFERENCES_FILE and "__pycache__" not in path.parts:
            base = folder.parent if path.is_relative_to(folder) else SUITES_ROOT
            digest.update(path.relative_to(base).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def load_look() -> dict[str, dict[str, str]]:
    """Return the look that suites share: `colours` (name -> hex) and `icons` (name -> SVG path on a 24 x 24 grid)."""
    return json.loads((SHARED_SOURCES / "look.json").read_text(encoding="utf-8"))
