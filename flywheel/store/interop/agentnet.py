"""Read AgentNet (OpenCUA): people's trajectories on desktops, as JSON lines and a zip of screens.

    {"task_id", "instruction", "task_completed", ..., "traj": [{"index", "image", "value": {"thought", "code", ...}}]}

`code` is PyAutoGUI with points as fractions. A step that the data set calls incorrect or redundant is a slip.
https://huggingface.co/datasets/xlangai/AgentNet
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.actions import ParseError
from flywheel.agent.parsing.parser import parse_demonstrated_action
from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import (
    DEMONSTRATION_GRAMMAR,
    MAX_CHARACTERS,
    MAX_SCREEN_BYTES,
    DemonstratedStep,
    Demonstration,
    RefusedRecord,
)
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.json_text import iter_json_lines, parse_foreign_json

DATASET, LICENCE = "agentnet", "mit"
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_FACTS = ("alignment_score", "efficiency_score", "task_difficulty", "natural_language_task", "actual_task")
# What `zipfile` raises for a member that is damaged (besides OSError), encrypted or of an unknown compression.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Value(_Part):
    code: _Text
    thought: _Text | None = None
    last_step_correct: bool | None = None
    last_step_redundant: bool | None = None


class _Entry(_Part):
    index: int = Field(ge=0, lt=2**31)
    image: _Text
    value: _Value


class _Record(_Part):
    task_id: Annotated[_Text, Field(min_length=1)] | int
    instruction: _Text | None = None
    natural_language_task: _Text | None = None
    actual_task: _Text | None = None
    domain: _Text | None = None
    task_completed: bool | None = None
    alignment_score: int | float | None = None
    efficiency_score: int | float | None = None
    task_difficulty: int | float | None = None
    traj: list[_Entry]


def read_agentnet(
    path: Path, images: Path, licence: str = LICENCE, max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each line of AgentNet as a demonstration, or as a RefusedRecord that says why it is none.

    path: the data set's JSON lines. images: its screens, a zip or a folder; a missing screen refuses its line. licence:
    stored with each demonstration. max_side: longest side of a screen, in pixels (policy.max_image_side). It is a
    generator; at the first record it raises BadInput where a file is missing, DataError where the zip is damaged.
    """
    if not path.is_file():
        raise BadInput("no such file", where=path, fix="name the data set's .jsonl")
    with ScreenArchive(images) as picture:
        for number, line in iter_json_lines(path):
            try:
                yield _demonstration(_Record.model_validate(parse_foreign_json(line)), picture, licence, max_side)
            except Exception as error:  # any error concerns this record only
                yield RefusedRecord.from_error(f"{path.name} line {number}", error)


def _demonstration(record: _Record, picture: Callable[[str, str], bytes], licence: str, max_side: int) -> Demonstration:
    screens: dict[str, bytes] = {}
    steps = []
    name = str(record.task_id)
    entries = sorted(record.traj, key=lambda entry: entry.index)
    missing = demonstration.find_missing_steps([entry.index for entry in entries])
    for entry in entries:
        encoded = picture(entry.image, name)
        screen = demonstration.check_screen(encoded, f"its screen {entry.image}", max_side)
        screens[screen] = encoded
        value = entry.value
        found = parse_demonstrated_action(value.code, DEMONSTRATION_GRAMMAR)
        fault = found.reason if isinstance(found, ParseError) else ""
        slip = value.last_step_correct is False or value.last_step_redundant is True
        steps.append(DemonstratedStep(value.code, screen, value.thought or "", slip, fault))
    if not steps:
        raise ValueError("it has no steps")
    facts = {name: getattr(record, name) for name in _FACTS if getattr(record, name) is not None}
    return Demonstration(
        dataset=DATASET,
        id=name,
        licence=licence,
        instruction=record.instruction or record.natural_language_task or "",
        world=DATASET,
        template=record.domain or "desktop",
        split="train",
        completed=record.task_completed,
        steps=tuple(steps),
        facts=facts | ({"missing_steps": missing} if missing else {}),
        screens=screens,
    )


class ScreenArchive:
    """Hold the screens of a data set, in a zip or a folder, and find them by the end of their paths.

    A `with` block yields a function (path, task) -> bytes. A path matches a file's path where one ends with the other;
    of several files one with that full path, or in a folder named after the task, is taken. The function raises
    ValueError for a screen that is not there, too large, damaged, or not the only one. images: the zip or folder.
    Raises BadInput where it is missing, DataError for a damaged zip.
    """

    def __init__(self, images: Path) -> None:
        if images.is_dir():
            self._zip, found = None, [(path.relative_to(images), path) for path in images.rglob("*") if path.is_file()]
        elif images.is_file():
            try:
                self._zip = zipfile.ZipFile(images)
            except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                raise DataError(
                    f"not a whole zip: {error}",
                    where=images,
                    fix="join its parts first: zip -s 0 images.zip --out images-full.zip",
                ) from None
            found = [(PurePosixPath(one.filename), one) for one in self._zip.infolist() if not one.is_dir()]
        else:
            raise BadInput("no such zip or folder", where=images, fix="name the data set's screens with --images")
        self._found: dict[str, list[tuple[tuple[str, ...], Any]]] = defaultdict(list)  # by the file's own name
        for path, one in found:
            self._found[path.name].append((path.parts, one))

    def __enter__(self) -> Callable[[str, str], bytes]:
        return self._read

    def __exit__(self, *_: object) -> None:
        if self._zip:
            self._zip.close()

    def _read(self, name: str, task: str) -> bytes:
        one = self._find(name, task)
        if (one.stat().st_size if self._zip is None else one.file_size) > MAX_SCREEN_BYTES:
            raise ValueError(f"its screen {name} is larger than {MAX_SCREEN_BYTES // 2**20} MiB")
        if self._zip is None:
            return one.read_bytes()
        try:
            return self._zip.read(one)
        except _UNREADABLE as error:
            raise ValueError(f"its screen {name} cannot be read: {error}") from None

    def _find(self, name: str, task: str) -> Any:
        """Return the file of that path; of several, the one with the full path, or the one in a folder named after the
        task."""
        parts = PurePosixPath(name.replace("\\", "/")).parts
        there = self._found.get(parts[-1], []) if parts else []
        fit = [(path, one) for path, one in there if all(a == b for a, b in zip(path[::-1], parts[::-1], strict=False))]
        if len(fit) > 1:
            fit = [one for one in fit if one[0] == parts] or [one for one in fit if task in one[0][:-1]] or fit
        if not fit:
            others = f" ({'/'.join(there[0][0])} is)" if there else ""
            raise ValueError(f"its screen {name} is not there{others}")
        if len(fit) > 1:
            raise ValueError(f"its screen {name} may be {' or '.join('/'.join(path) for path, _ in fit[:2])}")
        return fit[0][1]
