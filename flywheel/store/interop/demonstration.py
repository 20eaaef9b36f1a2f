"""Save and load a demonstration of another data set in the recordings folder.

A folder of its own, beside the recorded sessions: `demonstration.json` (what is said here, and the steps) and
`screens.parquet` (rows of the table `images`), where there was something to see. Its actions are text of any form that
the parser reads, with points as fractions of the screen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from flywheel.agent.grammar import Grammar, norm1_space
from flywheel.store import images
from flywheel.store.schema import TABLES
from flywheel.utils.errors import DataError
from flywheel.utils.files import atomic_folder, write_json

DEMONSTRATION_FILE = "demonstration.json"  # by it a folder is a demonstration, and no recorded session
DEMONSTRATION_GRAMMAR = Grammar("point", norm1_space(), "computer")
FORMATS = yaml.safe_load(resources.files("flywheel.store.interop").joinpath("formats.yaml").read_text("utf-8"))
_VERSION = 1
_FIX_IMPORT_AGAIN = "remove the folder and import it again"


@dataclass(frozen=True)
class DemonstratedStep:
    """Hold one step of a demonstration.

    action: text. thought: in words; may be "". screen: sha256 of what was seen before it; "" where there was nothing to
    see. slip: the annotator went wrong, or needlessly; later prompts show it, and imitation leaves it out. fault: why
    the step has no action that can be learnt. observation: what there was to read before it; None where the screen is
    all. result: what the action returned, or why it did nothing.
    """

    action: str
    screen: str
    thought: str = ""
    slip: bool = False
    fault: str = ""
    observation: str | None = None
    result: str = ""


@dataclass(frozen=True)
class Demonstration:
    """Hold a demonstration of another data set.

    dataset, id: where it is from. licence: as its publisher names it. instruction: the task in words. world, template:
    what kind of task it is. split: `eval` for what its publisher holds out: it is never trained on. completed:
    whether the task was done; None where the data set does not say. facts: what else is worth keeping, JSON values.
    screens: encoded files by sha256. seed: of the task, where our own worlds drew it: two tasks may then have one
    instruction, and be others.
    """

    dataset: str
    id: str
    licence: str
    instruction: str
    world: str
    template: str
    split: str
    completed: bool | None
    steps: tuple[DemonstratedStep, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    screens: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    seed: int | None = None

    @property
    def origin(self) -> str:
        """Name it by its data set and its id there, with a colon between."""
        return f"{self.dataset}:{self.id}"

    @property
    def name(self) -> str:
        """Of its folder."""
        return demonstration_folder_name(self.dataset, self.id)


def demonstration_folder_name(dataset: str, id_: str) -> str:
    """Name the folder of a demonstration: its data set's name, a hyphen, and 16 hex digits of a hash of its id.

    dataset: a name that a folder may have. id_: any text.
    """
    return f"{dataset}-{hashlib.sha256(id_.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class RefusedRecord:
    """A record that is no demonstration. where: file and place. why: in words."""

    where: str
    why: str

    @classmethod
    def from_error(cls, where: str, error: Exception) -> RefusedRecord:
        """Make one of the error that reading the record raised. where: file and place."""
        return cls(where, f"no field {error}" if isinstance(error, KeyError) else str(error))


def save_demonstration(demonstration: Demonstration, recordings: Path) -> bool:
    """Save `demonstration` in a folder of its own in `recordings`, whole or not at all.

    Returns True; False where a folder of its name lies there already, which is not compared. Raises OSError for a
    screen that is no picture or cannot be written, DiskFull.
    """
    folder = recordings / demonstration.name
    if folder.exists():
        return False
    rows = list(images.image_rows(demonstration.screens))
    content = {"version": _VERSION, **{name: value for name, value in vars(demonstration).items() if name != "screens"}}
    content["steps"] = [asdict(step) for step in demonstration.steps]
    with atomic_folder(folder) as temporary:
        if rows:
            table = pa.Table.from_pylist(rows, TABLES["images"])
            pq.write_table(table, temporary / "screens.parquet", compression="zstd")
        write_json(temporary / DEMONSTRATION_FILE, content)
    return True


def is_demonstration(folder: Path) -> bool:
    """Tell whether `folder` is an imported demonstration, by the file that it has; the file is not read."""
    return (folder / DEMONSTRATION_FILE).is_file()


def load_demonstration(folder: Path) -> tuple[Demonstration, list[dict[str, Any]]]:
    """Load the demonstration in `folder`, without its screens, and these as rows of `images`.

    Raises DataError for missing or damaged files, and for a folder of another version.
    """
    path = folder / DEMONSTRATION_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != _VERSION:
            raise DataError("a demonstration of another version", where=path, fix=_FIX_IMPORT_AGAIN)
        steps = tuple(DemonstratedStep(**step) for step in content.pop("steps"))
        one = Demonstration(**content, steps=steps)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"not a demonstration: {error}", where=path, fix=_FIX_IMPORT_AGAIN) from None
    if not any(step.screen for step in steps):
        return one, []
    path = folder / "screens.parquet"
    try:
        rows = pq.read_table(path, schema=TABLES["images"]).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"not a whole Parquet file: {error}", where=path, fix=_FIX_IMPORT_AGAIN) from None
    for row in rows:
        if images.image_digest(row["bytes"] or b"") != row["sha256"]:
            raise DataError("a screen is damaged: its sha256 differs", where=path, fix=_FIX_IMPORT_AGAIN)
    return one, rows
