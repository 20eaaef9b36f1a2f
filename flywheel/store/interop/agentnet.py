"""Read AgentNet (OpenCUA): people's trajectories on desktops, as JSON lines and a zip of screens.

    {"task_id", "instruction", "task_completed", ..., "traj": [{"index", "image", "value": {"thought", "code", ...}}]}

`code` is PyAutoGUI with points as fractions. A step that the data set calls incorrect or redundant is a slip.
https://huggingface.co/datasets/xlangai/AgentNet
"""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from flywheel.agent.actions import ParseError
from flywheel.agent.parsing.parser import parse_response
from flywheel.store.images import image_digest
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR, DemonstratedStep, Demonstration, RefusedRecord
from flywheel.utils.errors import BadInput, DataError

DATASET, LICENCE = "agentnet", "mit"
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_FACTS = ("alignment_score", "efficiency_score", "task_difficulty", "natural_language_task", "actual_task")
_LARGEST = 64 * 2**20  # bytes of a screen
# What `zipfile` raises for a member that is damaged (besides OSError), encrypted or of an unknown compression.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)


def read_agentnet(path: Path, images: Path, licence: str = LICENCE) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each line as a demonstration, or why it is none, such as a screen that is missing or damaged.

    path: the data set's JSON lines. images: its screens, a zip or a folder with its files. licence: what the
    demonstrations are said to be under. Errors come once the first one is asked for: BadInput where a file is missing,
    DataError where the zip is not whole.
    """
    if not path.is_file():
        raise BadInput("no such file", where=path, fix="name the data set's .jsonl")
    with _Screens(images) as picture, path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield _demonstration(json.loads(line), picture, licence)
                except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                    yield RefusedRecord.from_error(f"{path.name} line {number}", error)


def _demonstration(record: Mapping[str, Any], picture: Callable[[str], bytes], licence: str) -> Demonstration:
    screens: dict[str, bytes] = {}
    steps = []
    for entry in sorted(record["traj"], key=lambda entry: entry["index"]):
        value, encoded = entry["value"], picture(entry["image"])
        name = image_digest(encoded)
        screens[name] = encoded
        found = parse_response(f"Action: {value['code']}", DEMONSTRATION_GRAMMAR).action
        fault = found.reason if isinstance(found, ParseError) else ""
        slip = value.get("last_step_correct") is False or value.get("last_step_redundant") is True
        steps.append(DemonstratedStep(value["code"], name, value.get("thought") or "", slip, fault))
    if not steps:
        raise ValueError("it has no steps")
    return Demonstration(
        dataset=DATASET,
        id=str(record["task_id"]),
        licence=licence,
        instruction=str(record["instruction"] or record.get("natural_language_task") or ""),
        world=DATASET,
        template=str(record.get("domain") or "desktop"),
        split="train",
        completed=record.get("task_completed"),
        steps=tuple(steps),
        facts={name: record[name] for name in _FACTS if record.get(name) is not None},
        screens=screens,
    )


class _Screens:
    """Reads a screen by its file name, wherever in the zip or the folder it lies."""

    def __init__(self, images: Path) -> None:
        if images.is_dir():
            self._zip, found = None, {path.name: path for path in images.rglob("*") if path.is_file()}
        elif images.is_file():
            try:
                self._zip = zipfile.ZipFile(images)
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                raise DataError(
                    f"not a whole zip: {error}",
                    where=images,
                    fix="join its parts first: zip -s 0 images.zip --out images-full.zip",
                ) from None
            found = {PurePosixPath(one.filename).name: one for one in self._zip.infolist() if not one.is_dir()}
        else:
            raise BadInput("no such zip or folder", where=images, fix="name the data set's screens with --images")
        self._found: Mapping[str, Any] = found

    def __enter__(self) -> Callable[[str], bytes]:
        return self._read

    def __exit__(self, *_: object) -> None:
        if self._zip:
            self._zip.close()

    def _read(self, name: str) -> bytes:
        one = self._found.get(PurePosixPath(name).name)
        if one is None:
            raise ValueError(f"its screen {name} is not there")
        if self._zip is None:
            return one.read_bytes()
        if one.file_size > _LARGEST:
            raise ValueError(f"its screen {name} is larger than {_LARGEST // 2**20} MiB")
        try:
            return self._zip.read(one)
        except _UNREADABLE as error:
            raise ValueError(f"its screen {name} cannot be read: {error}") from None
