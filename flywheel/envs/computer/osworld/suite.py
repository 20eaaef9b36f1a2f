"""Load task suites of OSWorld's files, named by a manifest.

kind: computer                       # or terminal, for those that need no screen
world: theirs
osworld:
  tasks: [evaluation_examples/examples/os]     # folders and files, beside this file
  files: cache                       # what the tasks download
  max_steps: 15

What cannot be played here is left out, and reported by name.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from flywheel.envs.base import TaskSuite, TaskTemplate
from flywheel.envs.computer.osworld import task_files
from flywheel.envs.computer.osworld.task_files import (
    LEFT_OUT_BY_MANIFEST,
    DownloadCopies,
    MalformedTask,
    UnsupportedTask,
    convert_example,
)
from flywheel.utils.errors import BadInput

log = logging.getLogger(__name__)
OSWORLD_VERIFIER = "osworld"
_LEVEL = 1  # of all of them


class OsworldFiles(BaseModel):
    """Declare the block `osworld` of a manifest.

    tasks: folders, with all in them that ends in .json, and files. files: a folder with copies of what the tasks
    download (`task_files.py`). max_steps: of each. seconds: for the set-up of one, and again for what judges it.
    allowed: as of any task. leave_out: why, by the file's name without .json.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    tasks: list[str] = Field(min_length=1)
    files: str = ""
    max_steps: int = Field(15, ge=1)
    seconds: float = Field(15.0, gt=0, le=3600)
    allowed: Literal["gui", "sdk", "both"] = "both"
    leave_out: dict[str, str] = {}


class OsworldSuite(TaskSuite):
    """Hold a suite of which each template is one task.

    tasks: params by template. left_out: by template, why others are not played here. reasons: how many for each.
    judging_s: seconds that judging one may take.
    """

    once: ClassVar[bool] = True
    tasks: dict[str, dict[str, Any]]
    left_out: dict[str, str]
    reasons: dict[str, int]
    judging_s: float

    def draw(self, template: str, level: int, seed: int) -> dict[str, Any]:
        """Return the params of the task that `template` is; `level` must be its one level, and `seed` changes
        nothing."""
        self.budget(template, level)
        return self.tasks[template]

    @property
    def told(self) -> str:
        """How many are played, and how many are not for which reason, in a line."""
        why = ", ".join(f"{count} need {reason}" for reason, count in self.reasons.items())
        return f"{len(self.tasks)} of {len(self.tasks) + len(self.left_out)} tasks are played" + (why and f"; {why}")


class TerminalOsworldSuite(OsworldSuite):
    environment: ClassVar[str] = "terminal"


class ComputerOsworldSuite(OsworldSuite):
    environment: ClassVar[str] = "computer"


_OSWORLD_SUITES = {one.environment: one for one in (TerminalOsworldSuite, ComputerOsworldSuite)}


def load_osworld_suite(manifest: Path, name: str, domain: str, said: OsworldFiles, kind: str) -> OsworldSuite:
    """Load the OSWorld task files that a manifest names as a suite.

    manifest: its file. name, domain: of the suite. said: its block `osworld`. kind: terminal or computer. Raises
    BadInput where a task file is wrong, or none can be played.
    """
    folder = _path_beside(manifest, said.files) if said.files else None
    paths = list(_manifest_paths(manifest, said.tasks))
    tasks, left_out, reasons = read_task_files(paths, folder, kind == "computer", said)
    for template, why in left_out.items():
        log.info("world %s: %s is left out: it needs %s", name, template, why)
    if not tasks:
        first = next(iter(left_out.items()), ("", "no file ends in .json"))
        raise BadInput("no task can be played here", where=manifest, fix=f"the first: {first[0]}: {first[1]}")
    return _OSWORLD_SUITES[kind](
        name=name,
        domain=domain,
        tasks=tasks,
        left_out=left_out,
        reasons=reasons,
        judging_s=said.seconds,
        checksum=hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest(),
        templates={
            one: TaskTemplate(
                instruction="{instruction}", verifier=OSWORLD_VERIFIER, max_steps={_LEVEL: said.max_steps}
            )
            for one in tasks
        },
    )


def read_task_files(
    paths: list[Path], copies: Path | None, screen: bool, said: OsworldFiles
) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, int]]:
    """Read OSWorld task files: params of those that can be played, why the others cannot, and counts by reason.

    The first two are by template, `<name of the file's folder>_<stem of the file>`, the third by
    `UnsupportedTask.reason`, the commonest first. paths: the files. copies: folder of what they download; None if there
    is none. screen: whether the machine has one. said: the manifest's block `osworld`. Raises BadInput for a file that
    cannot be read, is no task or a wrong one, and for two of one template.
    """
    tasks: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    reasons: Counter[str] = Counter()
    for path in paths:
        template = f"{path.parent.name}_{path.stem}"
        if template in tasks or template in left_out:
            raise BadInput(f"two tasks are called {template}", where=path, fix="rename one's file")
        try:
            if path.stem in said.leave_out:
                raise UnsupportedTask(LEFT_OUT_BY_MANIFEST, said.leave_out[path.stem])
            example = task_files.read_example(path)
            task = convert_example(example, DownloadCopies(copies, example.id), screen, said.seconds)
        except UnsupportedTask as unfit:
            left_out[template] = str(unfit)
            reasons[unfit.reason] += 1
        except MalformedTask as fault:
            raise BadInput(f"the task's {fault}", where=path, fix="mend it, or leave it out") from None
        else:
            given = {"instruction": example.instruction, "allowed": said.allowed}
            tasks[template] = {**given, "osworld": task.model_dump()}
    return tasks, left_out, dict(reasons.most_common())


def list_task_files(path: Path) -> list[Path]:
    """List the JSON files in the folder `path` and below, sorted; `path` itself where it is none, there or not."""
    return sorted(path.rglob("*.json")) if path.is_dir() else [path]


def score_osworld_state(_: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the score that judging put into `state` at the end; 0 before."""
    return state["checked"]["score"] if "checked" in state else 0.0


def _manifest_paths(manifest: Path, names: list[str]) -> Iterator[Path]:
    for name in names:
        yield from list_task_files(_path_beside(manifest, name))


def _path_beside(manifest: Path, name: str) -> Path:
    path = manifest.parent / name
    if not path.exists():
        raise BadInput(f"there is no {name} beside the manifest", where=manifest, fix="it is relative to the manifest")
    return path
