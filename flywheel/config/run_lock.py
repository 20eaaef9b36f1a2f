"""Lock a workspace for the one command that changes it and for one supervisor, and record what its run is doing.

`flywheel run` takes the workspace's lock, and so do other commands that change the workspace; the supervisor
(`flywheel workspace up`) has a lock of its own. A lock ends with its process. The record lies in `.flywheel/at_work`;
it counts while its writer holds the workspace's lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.errors import FlywheelError
from flywheel.utils.files import write_json

_PROBED_S = 0.2  # `is_lock_held` takes the lock for a moment: wait that long before it counts as held
_held_here: set[Path] = set()  # workspaces whose lock this process holds


class WorkspaceBusy(FlywheelError):
    """Signal that another process, or this one itself, holds a lock of the workspace."""


@contextlib.contextmanager
def hold_workspace(ws: Workspace) -> Iterator[None]:
    """Lock the workspace within the block, for a run or another command that changes it.

    The lock is on a file in `.flywheel`, which is made where it is missing, and ends with the process. Raises
    WorkspaceBusy where a process, this one included, holds it for 0.2 seconds: the error names that process, and of a
    run what it does or waits for, and how to end it. Raises OSError where the file cannot be written.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold_exclusively(_lock_path(ws), _BUSY, fix=_END))
        except WorkspaceBusy as busy:
            raise _describe_busy(ws, busy) from None
        _held_here.add(ws.root)
        held.callback(_held_here.discard, ws.root)
        yield


_BUSY, _END = "another run is at work here", "wait for it, or end it with Ctrl-C in its terminal"


def _describe_busy(ws: Workspace, busy: WorkspaceBusy) -> WorkspaceBusy:
    """Return the error, with what the other run is doing where that is known."""
    if (run := read_run_at_work(ws)) is None:
        return busy
    at_work = [one for one in run.stages if one.ended is None]
    asked = [one for one in at_work if one.waits_for]
    doing = [one.words for one in asked or at_work] or [f"began {format_moment(run.began)}"]
    follow = f"`flywheel status --watch` follows it, {run.how_to_end} ends it"
    fix = "; ".join(f"type {one.answer}" for one in asked) or follow
    what = f"{busy.what}: iteration {iteration_label(run.iteration)}, {', '.join(doing)}"
    return WorkspaceBusy(what, where=busy.where, fix=fix)


@contextlib.contextmanager
def hold_workspace_reentrant(ws: Workspace) -> Iterator[None]:
    """Lock the workspace as `hold_workspace` does; do nothing where this process holds the lock already.

    Raises as `hold_workspace`.
    """
    with contextlib.nullcontext() if ws.root in _held_here else hold_workspace(ws):
        yield


def is_workspace_busy(ws: Workspace) -> bool:
    """Tell whether a run or another command that changes the workspace holds its lock now, in this process or another.

    False where `.flywheel` is missing or cannot be written. Otherwise the lock's file is made where it is missing.
    """
    return is_lock_held(_lock_path(ws))


def supervisor_lock_path(ws: Workspace) -> Path:
    """Return the path of the file that the supervisor (`flywheel workspace up`) locks."""
    return ws.state / "up.lock"


def is_supervised(ws: Workspace) -> bool:
    """Tell whether a supervisor (`flywheel workspace up`) runs for the workspace.

    False where `.flywheel` is missing or cannot be written. Otherwise the lock's file is made where it is missing.
    """
    return is_lock_held(supervisor_lock_path(ws))


def workspace_holder(ws: Workspace) -> int | None:
    """Return the id of the process that holds the workspace's lock now; None where there is none, or it is starting."""
    held_by = _lock_path(ws).read_text(encoding="utf-8") if is_workspace_busy(ws) else ""
    return int(held_by) if held_by.isdigit() else None


@contextlib.contextmanager
def hold_exclusively(path: Path, otherwise: str, fix: str) -> Iterator[None]:
    """Hold the lock of a file within the block; the process's id is written to the file, which stays afterwards.

    path: the file, two levels below the folder that the error names; its own folder is created. otherwise: beginning of
    the error's message where another process, or this one, holds the lock. fix: end of the message. Raises
    WorkspaceBusy, with the holder's process id, after 0.2 seconds, OSError where the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + _PROBED_S
    with path.open("a+") as file:
        while not _try_lock(file):
            if time.monotonic() > until:
                file.seek(0)
                process = file.read().strip() or "unknown"
                raise WorkspaceBusy(f"{otherwise} (process {process})", where=path.parent.parent, fix=fix)
            time.sleep(_PROBED_S / 10)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_lock_held(path: Path) -> bool:
    """Tell whether a process, this one included, holds the lock of the file `path` now, by taking it for a moment.

    An empty file is made where there is none; False where its folder is missing or cannot be written.
    """
    try:
        with path.open("a+") as file:
            return not _try_lock(file)
    except OSError:  # no such folder, or one that cannot be written: nothing can run in it
        return False


def _try_lock(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(ws: Workspace) -> Path:
    return ws.state / "lock"


# What the run is doing: `run.json`, written by the process that holds the lock, and `stages/<stage>.json`, by the one
# that does the stage, which may be another. The `run.json` of a killed run names a process that holds no lock.


@dataclass(frozen=True)
class StageAtWork:
    """Hold what is known of a stage that the run is doing, or has done since the run began.

    began, ended: Unix time in seconds; ended is None while the stage is at work. share: how much of it is done, 0 to 1.
    line: its newest progress line. waits_for: the people it waits for, such as "a reviewer" ("": nobody). waits_since:
    Unix time in seconds. answer: the command that those people type.
    """

    stage: str
    began: float
    ended: float | None = None
    share: float = 0.0
    line: str = ""
    waits_for: str = ""
    waits_since: float | None = None
    answer: str = ""

    @property
    def words(self) -> str:
        """Describe in a few words what the stage is doing: `rollout since 11-29 19:26 UTC`, or whom it waits for."""
        if self.waits_for:
            return f"{self.stage} waits for {self.waits_for} since {format_moment(self.waits_since)}"
        return f"{self.stage} since {format_moment(self.began)}"


@dataclass(frozen=True)
class RunAtWork:
    """Hold what is known of the run that holds a workspace.

    process: its process id. by: the command that began it. began: Unix time in seconds. stages: those that it has
    begun, oldest first.
    """

    process: int
    iteration: int
    by: str
    began: float
    stages: tuple[StageAtWork, ...] = ()

    @property
    def how_to_end(self) -> str:
        """Return words that go on with "ends it": the command that ends the run, or "cancelling it in Prefect"."""
        ends = {RUN_COMMAND: f"`kill {self.process}`", UP_COMMAND: "`flywheel workspace down`"}
        return ends.get(self.by, "cancelling it in Prefect")


RUN_COMMAND, UP_COMMAND = "flywheel run", "flywheel workspace up"


def format_moment(moment: float) -> str:
    """Format a Unix time in seconds for a message: `11-29 19:26 UTC`."""
    return f"{datetime.fromtimestamp(moment, UTC):%m-%d %H:%M} UTC"


def record_run(ws: Workspace, iteration: int, by: str) -> None:
    """Record that this process, which holds the workspace's lock, runs `iteration`; an earlier run's record is removed.

    by: RUN_COMMAND, UP_COMMAND, or other words for what began the run. Raises as `write_json`.
    """
    shutil.rmtree(_at_work_folder(ws), ignore_errors=True)
    facts = {"process": os.getpid(), "iteration": iteration, "by": by, "began": time.time()}
    write_json(_at_work_folder(ws) / "run.json", facts)


def record_stage_at_work(ws: Workspace, stage: StageAtWork) -> None:
    """Record what a stage of the run is doing, in place of its earlier record. Raises as `write_json`."""
    write_json(_at_work_folder(ws) / "stages" / f"{stage.stage}.json", asdict(stage))


def read_run_at_work(ws: Workspace) -> RunAtWork | None:
    """Read what the run that holds the workspace now is doing; None where no process holds it, or it is no run."""
    folder = _at_work_folder(ws)
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        files = sorted((folder / "stages").glob("*.json"))
        stages = [StageAtWork(**json.loads(path.read_text(encoding="utf-8"))) for path in files]
        run = RunAtWork(**facts, stages=tuple(sorted(stages, key=lambda one: one.began)))
    except (OSError, ValueError, TypeError):  # no run, or one that is just beginning
        return None
    return run if run.process == workspace_holder(ws) else None


def _at_work_folder(ws: Workspace) -> Path:
    return ws.state / "at_work"
