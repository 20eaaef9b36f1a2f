"""Start files, solutions and wrong ends of OSWorld tasks, made by scripts: their own files cannot be downloaded here.

Runs in the environment of `make osworld`: python benchmarks/osworld_cases.py EXAMPLES FOLDER [TASKS]. TASKS: how
many, drawn by a seed; without it all. In FOLDER each task has
`cache/<id>/` with what it downloads, as OSWorld's own cache names it, and `states/<domain>_<id>/<state>/` with the
files that the home has at an end, beyond what set-up puts there; a file `<name>.absent` stands for one that is not.
"""

from __future__ import annotations

import importlib
import json
import random
import shutil
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

HOME = "/home/user/"
SEED = 1
Make = Callable[[Path], None]  # writes a file at a path


@dataclass
class Case:
    """Hold one task's files: those it starts with and is compared with, and its ends.

    start: by path in the home, as set-up downloads them. gold: by the name in OSWorld's cache. states: state -> file by
    path in the home (None: absent). The states `start` and `solved` are always there.
    """

    start: dict[str, Make] = field(default_factory=dict)
    gold: dict[str, Make] = field(default_factory=dict)
    states: dict[str, dict[str, Make | None]] = field(default_factory=dict)


class ExampleFile:
    """Hold a task file, and what cases look up in it. domain, stem: its folder's and its own name."""

    def __init__(self, path: Path) -> None:
        self.domain, self.stem = path.parent.name, path.stem
        self.task: dict[str, Any] = json.loads(path.read_text())
        self.evaluator: dict[str, Any] = self.task["evaluator"]

    @property
    def downloads(self) -> dict[str, str]:
        """Return the address of each file that set-up downloads, by its path from the home."""
        steps = [*self.task.get("config", []), *self.evaluator.get("postconfig", [])]
        files = [file for step in steps if step["type"] == "download" for file in step["parameters"]["files"]]
        return {file["path"].removeprefix(HOME): file["url"] for file in files}

    def getters(self, side: str) -> list[dict[str, Any]]:
        """Return the getters of a side, `result` or `expected`."""
        said = self.evaluator.get(side) or {}
        return [one for one in (said if isinstance(said, list) else [said]) if one]

    @property
    def result_path(self) -> str:
        """Return the path from the home of the first file that is judged."""
        path = self.getters("result")[0]["path"]
        return (path if isinstance(path, str) else path[0]).removeprefix(HOME)

    def golds(self) -> dict[str, str]:
        """Return the address of each file to compare with, by its name in the cache."""
        found: dict[str, str] = {}
        for one in self.getters("expected"):
            if one.get("type") == "cloud_file":
                many = isinstance(one["path"], list)
                found |= dict(zip(one["dest"], one["path"], strict=True)) if many else {one["dest"]: one["path"]}
        return found


def write_case(example: ExampleFile, case: Case, folder: Path) -> None:
    """Write a case's files as this module's docstring says."""
    cache = folder / "cache" / example.task["id"]
    cache.mkdir(parents=True, exist_ok=True)
    downloads, golds = example.downloads, example.golds()
    for made, places in ((case.start, downloads), (case.gold, golds)):
        for name, make in made.items():
            url = places[name]
            make(cache / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{PurePosixPath(name).name}")
    for state, files in case.states.items():
        place = folder / "states" / f"{example.domain}_{example.stem}" / state
        place.mkdir(parents=True)
        for name, make in {**case.start, **files}.items():
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if make is None:
                target.with_name(f"{target.name}.absent").touch()
            else:
                make(target)


def write_bytes(content: bytes) -> Make:
    """Return what writes these bytes."""
    return lambda path: path.write_bytes(content)


def cut_in_half(make: Make) -> Make:
    """Return what writes the first half of a file: one that no library reads."""

    def write(path: Path) -> None:
        make(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return write


KINDS = ("osworld_sheets", "osworld_slides", "osworld_texts", "osworld_pictures", "osworld_settings")


def write_all() -> None:
    examples, folder = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    paths = {f"{path.parent.name}/{path.stem[:8]}": path for path in sorted(examples.glob("*/*.json"))}
    cases: dict[str, Callable[[ExampleFile], Case]] = {}
    for kind in KINDS:
        cases |= importlib.import_module(kind).CASES
    chosen = random.Random(SEED).sample(sorted(cases), int(sys.argv[3])) if sys.argv[3:] else [*cases]
    for key in chosen:
        example = ExampleFile(paths[key])
        try:
            write_case(example, cases[key](example), folder)
        except Exception as error:
            raise RuntimeError(f"{key}: {type(error).__name__}: {error}") from error
    print(json.dumps({"tasks": len([*(folder / "states").iterdir()])}))


if __name__ == "__main__":
    write_all()
