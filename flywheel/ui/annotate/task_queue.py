"""Lease tasks to annotators, each to one person at a time, those at which the newest model is weak first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.envs.base import Task
from flywheel.envs.tasks import drawing, open_levels
from flywheel.envs.tasks.drawing import EVEN, ContentDrawer
from flywheel.store import manifest
from flywheel.training.refresh import find_wanted
from flywheel.utils.errors import BadInput
from flywheel.utils.files import file_lock, write_json

_LOCK_S = 10.0


def newest_promotion(ws: Workspace) -> tuple[int, dict[str, Any]]:
    """Return the newest iteration with a decided promotion (0: the base model), and that promotion.

    Raises DataError where there is none, or it is damaged.
    """
    found = [k for k in (0, *ws.list_iteration_folders()) if ws.promotion(k).is_file()]
    newest = max(found, default=0)
    return newest, manifest.read_promotion(ws, newest)


class TaskQueue:
    """Lease the tasks of one iteration's pool; several servers on one workspace share its leases.

    Kinds of tasks come by `find_wanted`: what the model has forgotten, is weak at, or is mixed in; then the others.
    Each task has a content of its own, which is neither evaluated nor reserved for gates.
    """

    def __init__(
        self, ws: Workspace, settings: Settings, iteration: int, domain: str = "", now: Callable[[], float] = time.time
    ) -> None:
        """Draw the pool of tasks.

        iteration: the newest one with a decided promotion. domain: of the tasks; "": all. now: clock, in seconds since
        1970, the same in all servers. Raises BadInput for a domain without tasks, and as `draw_training_tasks`;
        DataError where the record of open levels is damaged.
        """
        self.iteration, self._now, self._lease_s = iteration, now, settings.annotation.lease_s
        self._path = ws.state / "annotation" / f"leases-{iteration_label(iteration)}.json"
        wanting = settings.synthesis.model_copy(update={"refresh": 1.0})
        chosen = settings.model_copy(update={"synthesis": wanting})
        opened, ended = open_levels.read_open_levels(ws, iteration), open_levels.read_outcomes(ws, iteration)
        drawn = drawing.draw_training_tasks(chosen, iteration + 1, ws.root, opened, find_wanted(ended))
        self.pool = sorted((one for one in drawn if domain in ("", one[0].domain)), key=lambda one: one[1] == EVEN)
        if not self.pool:
            fix = f"one of {', '.join(settings.synthesis.domains)}"
            raise BadInput(f"no task of the domain {domain} is drawn", where="--domain", fix=fix)
        self._drawer = ContentDrawer(settings, f"annotate {iteration}", ws.root)
        self._drawn: list[tuple[Task, str]] = []
        self._drawing = self._draw()

    def lease(self, annotator: str, session: str, left: Collection[str] = ()) -> tuple[Task, str]:
        """Lease the next free task for `session` of `annotator`; return it, and why it was drawn.

        left: ids of tasks whose earlier sessions the person can resume; they are not offered. Raises BadInput where no
        task is left, DataError where another process holds the leases' file for 10 seconds, DiskFull.
        """
        with self._leases() as held:
            left_out = {*left, *held["skipped"].get(annotator, ())} | {
                task for task, one in held["leases"].items() if self._holds(one)
            }
            for task, reason in self._offers():
                if task.task_id not in left_out:
                    held["leases"][task.task_id] = self._new_lease(annotator, session)
                    return task, reason
        what = f"no task is left for {annotator} before the next iteration"
        fix = "go on with one that you left, or come back after it" if left else "come back after it"
        raise BadInput(what, where="annotation", fix=fix)

    def renew(self, task_id: str, annotator: str, session: str) -> str:
        """Hold a task for another `annotation.lease_s`; return "", or the name of the person who has it by now instead.

        A person whose lease ended, or whose other session has the task, gets it again as long as nobody else took it.
        Raises DataError and DiskFull as `lease`.
        """
        with self._leases() as held:
            one = held["leases"].get(task_id)
            if one and one["annotator"] != annotator and self._holds(one):
                return one["annotator"]
            if not one or one["until"] is not None:  # what they have done stays done
                held["leases"][task_id] = self._new_lease(annotator, session)
            return ""

    def release(self, task_id: str, annotator: str, session: str, *, done: bool = False, skip: bool = False) -> None:
        """Give a task back, if `session` holds it.

        done: it is annotated, and not offered again. skip: it is not offered to this person again. Raises DataError and
        DiskFull as `lease`.
        """
        with self._leases() as held:
            if held["leases"].get(task_id, {}).get("session") == session:
                if done:
                    held["leases"][task_id]["until"] = None
                else:
                    del held["leases"][task_id]
            if skip:
                held["skipped"].setdefault(annotator, []).append(task_id)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _new_lease(self, annotator: str, session: str) -> dict[str, Any]:
        return {"annotator": annotator, "session": session, "until": self._now() + self._lease_s}

    def _holds(self, one: dict[str, Any]) -> bool:
        return one["until"] is None or self._now() < one["until"]

    def _leases(self) -> _LeasesFile:
        return _LeasesFile(self._path)

    def _offers(self) -> Iterator[tuple[Task, str]]:
        """Yield the tasks in order; each is drawn when it is first asked for."""
        yield from self._drawn
        for one in self._drawing:
            self._drawn.append(one)
            yield one

    def _draw(self) -> Iterator[tuple[Task, str]]:
        known: set[str] = set()
        numbers, before = count(), -1
        while len(known) > before:  # until a round of fresh contents of all kinds brings nothing new
            before = len(known)
            for like, reason in self.pool:
                task = self._drawer.draw(like, next(numbers))
                if task.task_id not in known:
                    known.add(task.task_id)
                    yield task, reason


class _LeasesFile:
    """Hold the leases' file within the block, alone; what was changed is written at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = file_lock(path.with_suffix(".lock"), _LOCK_S, "leasing tasks")

    def __enter__(self) -> dict[str, Any]:
        self._lock.__enter__()
        try:
            self._held = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # none yet; a damaged one holds nothing
            self._held = {"leases": {}, "skipped": {}}
        return self._held

    def __exit__(self, kind, *error) -> None:
        try:
            if kind is None:
                write_json(self._path, self._held)
        finally:
            self._lock.__exit__(kind, *error)
