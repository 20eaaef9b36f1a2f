"""Load task suites from OSWorld's task files, which a manifest names (docs/computer.md#tasks-of-osworld).

Tasks that cannot be played here are left out, and reported by name.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flywheel.envs.base import TaskSuite, TaskTemplate
from flywheel.envs.computer.osworld.commands import (
    LEFT_OUT_BY_MANIFEST,
    NEEDS_INTERNET_FILE,
    NEEDS_WHOLE_FILE,
    MalformedTask,
    UnsupportedTask,
)
from flywheel.envs.computer.osworld.conversion import (
    DEFAULT_FILES_MB,
    AssumedCopies,
    DownloadCopies,
    MetricsChoice,
    OsworldExample,
    convert_example,
    read_example,
)
from flywheel.envs.computer.task_spec import OsworldTask
from flywheel.utils.errors import BadInput

log = logging.getLogger(__name__)
OSWORLD_VERIFIER = "osworld"
_LEVEL = 1  # of every task


class OsworldFiles(BaseModel):
    """Hold the block `osworld` of a manifest: which of OSWorld's task files it plays, and how.

    tasks: task files, folders, and lists of ids (`list_task_files`). files: folder with copies of the files that tasks
    download (`DownloadCopies`); "": none. files_mb: MiB that one task's files may have. metrics: own: flywheel's where
    it has them, else desktop-env's; official: desktop-env's alone (`make osworld`). max_steps: step budget of
    each task. seconds: for a task's set-up, and again for its judging. allowed: interface: screen (gui), functions
    (sdk) or both. leave_out: tasks to leave out: name of the file without .json -> reason.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    tasks: list[str] = Field(min_length=1)
    files: str = ""
    files_mb: int = Field(DEFAULT_FILES_MB, ge=1, le=1024)
    metrics: MetricsChoice = "own"
    max_steps: int = Field(15, ge=1)
    seconds: float = Field(15.0, gt=0, le=3600)
    allowed: Literal["gui", "sdk", "both"] = "both"
    leave_out: dict[str, str] = {}


class OsworldSuite(TaskSuite):
    """Hold a suite in which each template is one OSWorld task.

    environment: terminal or computer. tasks: params by template. left_out: template -> why it cannot be played here.
    reasons: reason -> number of tasks left out. judging_s: seconds that judging a task may take.
    """

    once: ClassVar[bool] = True
    environment: str
    tasks: dict[str, dict[str, Any]]
    left_out: dict[str, str]
    reasons: dict[str, int]
    judging_s: float

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Return the params of the task `template`. seed: ignored. Raises BadInput for another template or level."""
        self.budget(template, level)
        return self.tasks[template]

    @property
    def told(self) -> str:
        """Return a line that counts the tasks that are played, and those left out by reason."""
        why = ", ".join(f"{count} need {reason}" for reason, count in self.reasons.items())
        return f"{len(self.tasks)} of {len(self.tasks) + len(self.left_out)} tasks are played" + (why and f"; {why}")


def load_osworld_suite(manifest: Path, name: str, domain: str, said: OsworldFiles, kind: str) -> OsworldSuite:
    """Load the suite of the OSWorld task files that a manifest names.

    manifest: its file. name, domain: of the suite. said: the manifest's block `osworld`. kind: terminal or computer.
    Raises BadInput where a path is missing, two files give one template, or no task can be played.
    """
    folder = _path_beside(manifest, said.files) if said.files else None
    paths = [path for entry in said.tasks for path in list_task_files(_path_beside(manifest, entry))]
    tasks, left_out, reasons = read_task_files(paths, folder, kind == "computer", said)
    for template, why in left_out.items():
        log.info("world %s: %s is left out: it needs %s", name, template, why)
    if not tasks:
        first = next(iter(left_out.items()), ("", "no file ends in .json"))
        raise BadInput("no task can be played here", where=manifest, fix=f"the first: {first[0]}: {first[1]}")
    spec = TaskTemplate(instruction="{instruction}", verifier=OSWORLD_VERIFIER, max_steps={_LEVEL: said.max_steps})
    return OsworldSuite(
        environment=kind,
        name=name,
        domain=domain,
        tasks=tasks,
        left_out=left_out,
        reasons=reasons,
        judging_s=said.seconds,
        checksum=hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest(),
        templates=dict.fromkeys(tasks, spec),
    )


def read_task_files(
    paths: list[Path], copies: Path | None, screen: bool, said: OsworldFiles
) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, int]]:
    """Read OSWorld task files; returns params by template, why others are left out by template, and counts by reason.

    A template is named `<name of the file's folder>_<stem of the file>`; counts are by `UnsupportedTask.reason`, the
    largest first. Params are `instruction`, `allowed` (of the manifest) and `osworld` (an `OsworldTask` as a dict).
    paths: the files; a repeated one is read once. copies: folder with what they download, as of `DownloadCopies`; None:
    tasks that download are left out. screen: the machine has one. said: the manifest's block `osworld`. A file that is
    unreadable or wrong is left out like a task that cannot be played. Raises BadInput where two files give one
    template.
    """
    tasks: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    for path in dict.fromkeys(path.absolute() for path in paths):
        template = f"{path.parent.name}_{path.stem}"
        if template in tasks or template in left_out:
            raise BadInput(f"two tasks are called {template}", where=path, fix="rename one's file")
        try:
            if path.stem in said.leave_out:
                raise UnsupportedTask(LEFT_OUT_BY_MANIFEST, said.leave_out[path.stem])
            example = read_example(path)
            task = _convert(example, copies, screen, said)
        except BadInput:
            raise
        except Exception as fault:  # any fault is this file's, and must not stop the others
            said_why = str(fault) if isinstance(fault, MalformedTask) else f"{type(fault).__name__} {fault}"
            unfit = fault if isinstance(fault, UnsupportedTask) else UnsupportedTask(NEEDS_WHOLE_FILE, said_why)
            left_out[template] = str(unfit)
            reasons[unfit.reason] += 1
        else:
            given = {"instruction": example.instruction, "allowed": said.allowed}
            tasks[template] = {**given, "osworld": task.model_dump()}
    return tasks, left_out, dict(reasons.most_common())


def _convert(example: OsworldExample, copies: Path | None, screen: bool, said: OsworldFiles) -> OsworldTask:
    """Convert a task. What else it needs is told before files that are not here, so that these alone are counted."""
    try:
        found = DownloadCopies(copies, example.id, said.files_mb)
        return convert_example(example, found, screen, said.seconds, said.metrics)
    except UnsupportedTask as unfit:
        if unfit.reason == NEEDS_INTERNET_FILE:
            convert_example(example, AssumedCopies(), screen, said.seconds, said.metrics)
        raise


def list_task_files(path: Path) -> list[Path]:
    """List the OSWorld task files that a path of a manifest stands for.

    path: a folder (all JSON files below it, sorted, except lists of ids); a list of ids by folder, such as OSWorld's
    `test_all.json`, whose tasks lie in the folder `examples` beside it, or else beside it; or a task file. Whether
    the listed files exist is not checked.
    """
    if path.is_dir():
        return [one for one in sorted(path.rglob("*.json")) if not _read_id_list(one)]
    if not (ids := _read_id_list(path)):
        return [path]
    root = path.parent / "examples" if (path.parent / "examples").is_dir() else path.parent
    return [root / domain / f"{name}.json" for domain, names in ids.items() for name in names]


def _read_id_list(path: Path) -> dict[str, list[str]] | None:
    """Read a list of task ids by folder; None where the file is anything else."""
    with suppress(OSError, ValueError, ValidationError):
        return _LIST.validate_json(path.read_bytes())
    return None


_ID = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
_LIST = TypeAdapter(Annotated[dict[_ID, list[_ID]], Field(min_length=1)])


def score_osworld_state(_: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Score a state by the verdict in it (`checked`), which the end of an episode adds; 0 before: a verifier."""
    return state["checked"]["score"] if "checked" in state else 0.0


def _path_beside(manifest: Path, name: str) -> Path:
    path = manifest.parent / name
    if not path.exists():
        raise BadInput(f"there is no {name} beside the manifest", where=manifest, fix="it is relative to the manifest")
    return path
