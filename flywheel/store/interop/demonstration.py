"""Define a demonstration imported from another data set, and make, save and load it in the recordings folder.

Each has a folder there, next to the recorded sessions: `demonstration.json` (the fields below, with the steps) and,
where there are screens, `screens.parquet` (rows of the table `images`). Actions are texts of any form that the parser
reads, with points as fractions of the screen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from flywheel.agent.actions import Action, Hotkey, ParseError, Type
from flywheel.agent.grammar import Grammar, norm1_space
from flywheel.agent.parsing.parser import parse_demonstrated_action, serialise_action
from flywheel.agent.prompt import screenshot_size
from flywheel.store import images
from flywheel.store.interop.input_events import ReducedAction
from flywheel.store.schema import TABLES
from flywheel.utils.errors import BadInput, DataError, FlywheelError
from flywheel.utils.files import atomic_folder, write_json
from flywheel.utils.json_text import describe_first_fault, parse_foreign_json

DEMONSTRATION_FILE = "demonstration.json"  # a folder with this file is a demonstration, not a recorded session
DEMONSTRATION_GRAMMAR = Grammar("point", norm1_space(), "computer")
FORMATS = yaml.safe_load(resources.files("flywheel.store.interop").joinpath("formats.yaml").read_text("utf-8"))
MAX_CHARACTERS = 20_000  # most of a text of another data set: an instruction, a thought, an action
MAX_SCREEN_BYTES = 64 * 2**20
NO_SCREEN = ""  # of a step whose screen was not kept
WITHOUT_SCREEN = "the screen before it was not kept"
_VERSION = 1
_HELD = ConfigDict(extra="forbid", strict=True)  # for files on disk
_FIX_IMPORT_AGAIN = "remove the folder and import it again"


@dataclass(frozen=True)
class DemonstratedStep:
    """Hold one step of a demonstration.

    action: text. screen: sha256 of the screen before the action; "" where there is none. thought: text, may be "".
    slip: the action was wrong or needless; later prompts show it, and imitation leaves it out. fault: why the step has
    no action that can be learnt, or "". observation: text that was read before the action; None where there is only the
    screen. result: what the action returned, or why it did nothing.
    """

    __pydantic_config__ = _HELD
    action: str
    screen: str
    thought: str = ""
    slip: bool = False
    fault: str = ""
    observation: str | None = None
    result: str = ""


@dataclass(frozen=True)
class Demonstration:
    """Hold a demonstration imported from another data set.

    dataset, id: its source. licence: as its publisher names it. instruction: the task in words. world, template: the
    kind of task. split: `eval` for what its publisher holds out, which is never trained on. completed: whether the task
    was done; None where the data set does not say. facts: further JSON values to keep; `author` and `agent` say who
    acted where it was no person. screens: encoded files by sha256. seed: of the task, where one of flywheel's own
    worlds drew it: two tasks may then have the same instruction and differ.
    """

    __pydantic_config__ = _HELD
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
        """Return the data set's name and the id there, joined by a colon."""
        return f"{self.dataset}:{self.id}"

    @property
    def name(self) -> str:
        """Return the name of the demonstration's folder."""
        return demonstration_folder_name(self.dataset, self.id)


def demonstration_folder_name(dataset: str, id_: str) -> str:
    """Return the name of a demonstration's folder: the data set's, a hyphen, and 16 hex digits of a hash of the id.

    dataset: a name that a folder may have. id_: of the demonstration in the data set.
    """
    return f"{dataset}-{hashlib.sha256(id_.encode()).hexdigest()[:16]}"


_READER = TypeAdapter(Demonstration)


@dataclass(frozen=True)
class RefusedRecord:
    """Hold why a record of a data set cannot become a demonstration. where: file and place. why: the reason."""

    where: str
    why: str

    @classmethod
    def from_error(cls, where: str, error: Exception) -> RefusedRecord:
        """Make the refusal of a record from the `error` that reading the record raised.

        where: file and place. The reason is the message of an error that tells its fault (ValueError, FlywheelError),
        else also the error's class.
        """
        if isinstance(error, ValidationError):
            return cls(where, describe_first_fault(error))
        told = isinstance(error, ValueError | FlywheelError)
        return cls(where, " ".join(str(error).split()) if told else describe_error(error))


def read_folders(
    folders: Sequence[Path], file: str, fix: str, read: Callable[[Path], Demonstration]
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield what `read` makes of each folder with a `file` in it, or a RefusedRecord that says why it is none.

    folders: to look in, at any depth. file: name of the file. fix: what to name in place of a folder that is missing or
    holds none; for these it raises BadInput, when it comes to them. read: gets the folder's absolute path; any error of
    it concerns that folder only.
    """
    for folder in folders:
        if not folder.is_dir():
            raise BadInput("there is no such folder", where=folder, fix=fix)
        found = sorted(path.parent for path in folder.rglob(file))
        if not found:
            raise BadInput(f"no {file}", where=folder, fix=fix)
        for one in found:
            try:
                yield read(one.resolve())
            except Exception as error:
                yield RefusedRecord.from_error(str(one.relative_to(folder.parent)), error)


def describe_error(error: Exception) -> str:
    """Describe an unexpected error of a library in one line: its class, and its message cut to 200 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def find_missing_steps(numbers: Sequence[int]) -> list[int]:
    """Return the numbers of the steps that a record lacks between its first and its last, at most a hundred.

    numbers: those of its steps, in ascending order. Raises ValueError where one comes twice: which of the two was first
    is not known.
    """
    for before, number in pairwise(numbers):
        if number == before:
            raise ValueError(f"step {number} comes twice")
    return [lost for one, after in pairwise(numbers) for lost in range(one + 1, min(after, one + 101))][:100]


def check_screen(encoded: bytes, what: str, max_side: int) -> str:
    """Check a record's screen by its header; return its sha256.

    encoded: the picture file. what: its name, for the error. max_side: most pixels of the longer side. Raises
    ValueError where it is no picture, or one that training would refuse.
    """
    try:
        screenshot_size(encoded, max_side)
    except BadInput as error:
        raise ValueError(f"{what}: {error.what}; {error.fix}") from None
    return images.image_digest(encoded)


def make_demonstrated_step(action: Action | ParseError, said: str, screen: str, thought: str = "") -> DemonstratedStep:
    """Make a step of an action, or of the reason why the step has no action that can be learnt.

    said: the action in the data set's own words, kept where there is none that can be learnt. screen: sha256, or
    NO_SCREEN: such a step is shown in prompts, and not learnt. thought: text.
    """
    fault = action.reason if isinstance(action, ParseError) else ""
    if not fault:
        said = serialise_action(action, DEMONSTRATION_GRAMMAR)
        again = parse_demonstrated_action(said, DEMONSTRATION_GRAMMAR)
        if isinstance(again, ParseError) or (isinstance(action, Hotkey | Type) and again != action):
            fault = "the grammar cannot write it"
    unseen = screen == NO_SCREEN
    fault = WITHOUT_SCREEN if unseen else fault
    return DemonstratedStep(said, screen, thought, fault=fault, observation=WITHOUT_SCREEN if unseen else None)


def make_session_demonstration(
    dataset: str, id_: str, licence: str, instruction: str, made: Sequence[ReducedAction], frames: Sequence[bytes],
    max_side: int, facts: Mapping[str, Any],
) -> Demonstration:  # fmt: skip
    """Make a demonstration from the actions and screens that a program which records desktops kept of one session.

    dataset, id_, licence, instruction: as of a Demonstration. made: its actions. frames: the screen before each, an
    encoded picture; b"" where there is none. max_side: longest side of a screen, in pixels. facts: further values;
    empty ones, 0 and False are left out. Its world is `dataset`, its template `desktop`, its split `train`; `completed`
    is None. Raises ValueError for a frame that training would refuse, and where there are not as many frames as
    actions.
    """
    screens: dict[str, bytes] = {}
    steps = []
    for number, (one, frame) in enumerate(zip(made, frames, strict=True)):
        screen = check_screen(frame, f"the screen of action {number}", max_side) if frame else NO_SCREEN
        screens |= {screen: frame} if frame else {}
        steps.append(make_demonstrated_step(one.action, one.said, screen))
    return Demonstration(
        dataset=dataset,
        id=id_,
        licence=licence,
        instruction=instruction,
        world=dataset,
        template="desktop",
        split="train",
        completed=None,
        steps=tuple(steps),
        facts={name: value for name, value in facts.items() if value},
        screens=screens,
    )


def save_demonstration(demonstration: Demonstration, recordings: Path) -> bool:
    """Save `demonstration` in a folder of its own in `recordings`, completely or not at all.

    recordings: the folder of all recordings. Returns True; False where it is there already (its screens are not
    compared). Raises DataError where that folder holds another demonstration, or a damaged one; TypeError for facts
    that JSON cannot hold; OSError for a screen that is no picture or where it cannot be written; DiskFull.
    """
    folder = recordings / demonstration.name
    content = {"version": _VERSION, **{name: value for name, value in vars(demonstration).items() if name != "screens"}}
    content["steps"] = [asdict(step) for step in demonstration.steps]
    if folder.exists():
        try:
            held = json.loads((folder / DEMONSTRATION_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):  # missing or damaged
            held = None
        if held != json.loads(json.dumps(content)):
            fault = "is damaged" if held is None else "holds other steps or facts"
            what = f"{folder.name} is there already, and {fault}"
            raise DataError(what, where=demonstration.origin, fix="remove that folder to take this one")
        return False
    rows = list(images.image_rows(demonstration.screens))
    with atomic_folder(folder) as temporary:
        if rows:
            table = pa.Table.from_pylist(rows, TABLES["images"])
            pq.write_table(table, temporary / "screens.parquet", compression="zstd")
        write_json(temporary / DEMONSTRATION_FILE, content)
    return True


def is_demonstration(folder: Path) -> bool:
    """Tell whether `folder` is an imported demonstration, by the name of a file in it, which is not read."""
    return (folder / DEMONSTRATION_FILE).is_file()


def load_demonstration(folder: Path) -> tuple[Demonstration, list[dict[str, Any]]]:
    """Load the demonstration in `folder`, without its screens, and the screens as rows of `images` ([] for none).

    Raises DataError for missing or damaged files, and for a folder of another version.
    """
    path = folder / DEMONSTRATION_FILE
    try:
        content = parse_foreign_json(path.read_bytes())
        if content.pop("version") != _VERSION:
            raise DataError("a demonstration of another version", where=path, fix=_FIX_IMPORT_AGAIN)
        one = _READER.validate_json(json.dumps(content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = describe_first_fault(error) if isinstance(error, ValidationError) else error
        raise DataError(f"not a demonstration: {why}", where=path, fix=_FIX_IMPORT_AGAIN) from None
    if not any(step.screen for step in one.steps):
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
