"""Begin counterfactual runs for the explorer's pages, in a process of their own, and report their progress and results.

Only a server with that right begins runs (`flywheel ui --allow-runs`); any other one shows the results alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from flywheel.config.run_lock import WorkspaceBusy
from flywheel.config.workspace import Workspace
from flywheel.utils import processes
from flywheel.utils.errors import BadInput, last_line

if TYPE_CHECKING:
    from flywheel.maintenance.counterfactuals import Counterfactual


class RunsNotAllowed(BadInput):
    """Signal that this server was begun without the right to begin runs."""


class CounterfactualBody(BaseModel):
    """Hold a counterfactual that a page asks for: step of a trajectory, change (`kind`, `value`), runs of each side."""

    trajectory_id: str = Field(max_length=200)
    step: int = Field(ge=0, le=10**6)
    kind: Literal["action", "thought", "instruction", "temperature", "model"]
    value: str = Field(max_length=4000)
    runs: int = Field(8, ge=1, le=64)


class CounterfactualRunner:
    """Begin counterfactual runs of a workspace, one at a time, by `flywheel model counterfactual`.

    allowed: whether it may. Its methods may be called from several threads.
    """

    def __init__(self, ws: Workspace, allowed: bool) -> None:
        self._ws, self.allowed = ws, allowed
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: Counterfactual | None = None
        self._error = ""

    def start(self, body: CounterfactualBody) -> None:
        """Begin the counterfactual runs that a page asks for, and return at once.

        Raises RunsNotAllowed; WorkspaceBusy where others of this server are at work; BadInput for a model that is none
        of the workspace's; otherwise as `prepare_counterfactual`.
        """
        from flywheel.maintenance import counterfactuals  # with the environments, which the other pages do not need
        from flywheel.rollout.counterfactual import CounterfactualChange

        if not self.allowed:
            what = "this server may not run anything"
            raise RunsNotAllowed(what, where="the explorer", fix="begin it with `flywheel ui --allow-runs`")
        if body.kind == "model" and body.value not in self.list_models():
            raise BadInput(
                f"no model of this workspace: {body.value[:80]}", where="model", fix="choose one of the list"
            )
        if "\0" in body.value + body.trajectory_id:
            raise BadInput("it holds a null character", where=body.kind)
        request = counterfactuals.CounterfactualRequest(
            body.trajectory_id, body.step, CounterfactualChange(body.kind, body.value), body.runs
        )
        with self._lock:
            self._look()
            if self._process is not None:
                raise WorkspaceBusy("other runs of this kind are at work", where=self._ws.root, fix="wait for them")
            self._asked, self._error = counterfactuals.prepare_counterfactual(self._ws, request), ""
            command = [sys.executable, "-m", "flywheel", "model", "counterfactual", f"--step={body.step}"]
            command += [f"--{body.kind}={body.value}", f"--runs={body.runs}", "--json"]
            command += ["--workspace", str(self._ws.root), "--", body.trajectory_id]
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command, cwd=self._ws.root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
                )

    def describe(self, task_id: str) -> dict[str, Any]:
        """Describe the counterfactuals of a task, and what this server is running.

        Keys: `allowed`; `running`: None, or `trajectory_id`, `step`, `change`, and the runs `done` and their `total`;
        `error` of the last runs that were begun here, or ""; `results` (`list_counterfactuals`), the newest first;
        `models` to choose from, while nothing runs. Raises DataError for a damaged file, and as `list_models`.
        """
        from flywheel.maintenance import counterfactuals

        with self._lock:
            self._look()
            running = self._describe_running() if self._process is not None else None
            error = self._error
        return {
            "allowed": self.allowed,
            "running": running,
            "error": error,
            "results": counterfactuals.list_counterfactuals(self._ws, task_id=task_id),
            "models": self.list_models() if self.allowed and running is None else [],
        }

    def list_models(self) -> list[str]:
        """List the folders of the workspace's checkpoints, relative to it. Raises as `list_model_folders`."""
        from flywheel.maintenance import counterfactuals

        return [self._ws.relative(one) for one in counterfactuals.list_model_folders(self._ws) if self._is_inside(one)]

    def close(self) -> None:
        """End the runs at work; the same request goes on from there."""
        with self._lock:
            if self._process is not None:
                processes.terminate_process(self._process)
                self._process = None

    @property
    def _log(self) -> Path:
        return self._ws.state / "counterfactuals" / "explorer.log"

    def _is_inside(self, folder: Path) -> bool:
        return folder.resolve().is_relative_to(self._ws.root.resolve())

    def _describe_running(self) -> dict[str, Any]:
        from flywheel.maintenance import counterfactuals

        request = self._asked.request
        return {
            "trajectory_id": request.trajectory_id,
            "step": request.step,
            "change": {"kind": request.change.kind, "value": request.change.value},
            "done": counterfactuals.count_played(self._ws, self._asked),
            "total": 2 * request.runs,
        }

    def _look(self) -> None:
        """Take note of a process that has ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return
        self._process = None
        if code:
            said = ""
            with contextlib.suppress(OSError):
                said = self._log.read_text(encoding="utf-8", errors="replace")
            self._error = last_line(said).removeprefix("flywheel: ") or f"it ended with code {code} and said nothing"
