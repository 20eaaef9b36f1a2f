"""Keep the journal of an annotation session on disk: what was seen, proposed and decided, in order.

A line is on the disk before what it says is carried out, so neither a killed server nor a tab that closes loses a
decision. `AnnotationState` is what the lines add up to; a session at work, its resumption and the rows of the tables
are all made of it. Lines are JSON objects; their kind stands in `do`: `begun`, `seen`, `proposed`, `chose`, `undone`,
`skipped`, `finished`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flywheel.envs.base import StepResult, Task
from flywheel.envs.tasks.drawing import task_from_row
from flywheel.rollout.episode import observation_text
from flywheel.store.schema import Step
from flywheel.utils.errors import DataError
from flywheel.utils.files import disk_full_errors

OPEN_JOURNAL, FINISHED_JOURNAL = "journal.jsonl", "finished.jsonl"  # the journal is renamed once it has its end
_SCREENS = "screens"
JOURNAL_VERSION = 1

Line = dict[str, Any]


@dataclass
class AnnotationState:
    """Hold the state of an annotation session that its journal's lines add up to.

    begun: the first line. steps: lines `chose` of the steps that were not undone. seen: lines `seen`, the one of the
    reset and one for each of these steps whose result is known. proposed: the candidates for these steps and the next
    one, each with its step, its number and the samples it was drawn among. counts, samples: numbers of candidates and
    samples so far, by step, those of undone paths too. skipped: the annotator does not want to go on with the session.
    ended: the line `finished`; None before.
    """

    begun: Line = field(default_factory=dict)
    steps: list[Line] = field(default_factory=list)
    seen: list[Line] = field(default_factory=list)
    proposed: list[Line] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    samples: Counter[int] = field(default_factory=Counter)
    skipped: bool = False
    ended: Line | None = None

    @property
    def task(self) -> Task:
        """Return the task that is annotated."""
        return task_from_row(self.begun["task"])

    def apply(self, line: Line) -> None:
        """Update the state by the journal's next line. Raises KeyError, IndexError or TypeError where it cannot be."""
        match line["do"]:
            case "begun":
                self.begun = line
            case "seen":
                self.seen.append(line)
            case "proposed":
                self._propose(line["step"], line["samples"], line["candidates"])
            case "chose":
                for one in self.candidates_of(line["step"]):
                    chosen = one["number"] == line["candidate"]
                    one |= {"accepted": chosen, "annotator": line["by"], "decided_at": line["at"]}
                self.steps.append(line)
            case "undone":
                number = len(self.steps) - 1
                chosen = self.steps.pop()["candidate"]
                del self.seen[number + 1 :]
                # Those of later screens are of a path that was left.
                self.proposed = [one for one in self.proposed if one["step"] <= number]
                for one in self.candidates_of(number):
                    one["undone"] = one.get("undone", False) or one["number"] == chosen
            case "skipped":
                self.skipped = True
            case "finished":
                self.ended = line

    def _propose(self, step: int, samples: int, candidates: list[Line]) -> None:
        for one in candidates:
            self.proposed.append({**one, "step": step, "number": self.counts[step], "samples": samples})
            self.counts[step] += 1
        self.samples[step] += samples

    def candidates_of(self, step: int) -> list[Line]:
        """Return the candidates for a step, in order."""
        return [one for one in self.proposed if one["step"] == step]

    def step(self, number: int, trajectory_id: str) -> Step:
        """Return step `number` as a row of the table `steps`. trajectory_id: the row's."""
        chose, before = self.steps[number], self.seen[number]
        after = self.seen[number + 1] if number + 1 < len(self.seen) else {}
        chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in chose["chosen"].items()}
        return Step(
            trajectory_id,
            number,
            **chosen,
            image_sha256=before["screen"],
            url=before["url"],
            observation=before["observation"],
            tool_result=after.get("result"),
            reward=after.get("reward", 0.0),
            state_score=before["score"],
            terminated=after.get("terminated", False),
            truncated=after.get("truncated", False),
            started_at=datetime.fromisoformat(before["at"]),
            ended_at=datetime.fromisoformat(after.get("at", chose["at"])),
            memory=chose["memory"],
        )


class AnnotationJournal:
    """Write the journal of one session, in a folder of its own; a lock keeps other processes from it."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in `folder`, which is made where it is missing.

        Raises DataError where the journal is open elsewhere, DiskFull.
        """
        self.folder, self.state = folder, AnnotationState()
        with disk_full_errors(folder):
            (folder / _SCREENS).mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / OPEN_JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            _flush_folder(folder)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise DataError("the session is open elsewhere", where=folder, fix="go on there") from None

    @classmethod
    def reopen(cls, folder: Path) -> AnnotationJournal:
        """Open the journal of a session that was left; half a line at its end, of a killed server, is cut off.

        Raises DataError where it is damaged, finished, or open elsewhere; DiskFull.
        """
        path = folder / OPEN_JOURNAL
        if not path.is_file():
            raise DataError("the session is finished, or was never begun", where=folder)
        journal = cls(folder)
        try:
            lines, whole = _read_lines(path)
            os.ftruncate(journal._file, whole)
            journal.state = _follow(lines, path)
            if journal.state.ended:  # killed between its last line and its new name
                raise DataError("the session is finished", where=folder)
        except DataError:
            journal.close()
            raise
        return journal

    def append(self, do: str, **fields: Any) -> None:
        """Write a line with the time, wait until it is on the disk, and update `state` by it.

        do: the line's kind. fields: JSON values. A line that cannot be written whole is taken back. Raises DiskFull,
        OSError.
        """
        line = {"do": do, **fields, "at": datetime.now(UTC).isoformat()}
        data, before = json.dumps(line, ensure_ascii=True).encode() + b"\n", os.fstat(self._file).st_size
        with disk_full_errors(self.folder):
            try:
                _write_all(self._file, data)
            except OSError:
                os.ftruncate(self._file, before)
                raise
        self.state.apply(json.loads(data))

    def append_seen(self, result: StepResult) -> None:
        """Write the result of the reset or a step; its screen is stored once, under its sha256. Raises as `append`."""
        seen, info, sha256 = result.observation, result.info, None
        if seen.screenshot is not None:
            sha256 = hashlib.sha256(seen.screenshot).hexdigest()
            path = self.screen_path(sha256)
            if not path.exists():
                with disk_full_errors(path):
                    _write_file(path, seen.screenshot)
        self.append(
            "seen",
            screen=sha256,
            url=seen.url,
            observation=observation_text(seen),
            reward=result.reward,
            terminated=bool(result.terminated),
            truncated=bool(result.truncated),
            score=info.get("score"),
            result=info.get("note") or info.get("result") or None,
        )

    def screen_path(self, sha256: str) -> Path:
        """Return the path of the file of the screen with that sha256, which may not exist."""
        return self.folder / _SCREENS / f"{sha256}.png"

    def close(self) -> None:
        """Close the journal; a finished one is renamed, by which the next iteration knows that it may take it."""
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        if self.state.ended:
            (self.folder / OPEN_JOURNAL).replace(self.folder / FINISHED_JOURNAL)
            _flush_folder(self.folder)


def is_annotation(folder: Path) -> bool:
    """Tell whether `folder` holds a finished annotation session, by the name of its journal, which is not read."""
    return (folder / FINISHED_JOURNAL).is_file()


def read_annotation(folder: Path) -> tuple[AnnotationState, dict[str, bytes]]:
    """Read a finished annotation session, and its screens (PNG) by sha256.

    Raises DataError for missing or damaged files.
    """
    path = folder / FINISHED_JOURNAL
    lines, whole = _read_lines(path)
    state = _follow(lines, path)
    if state.ended is None or whole != path.stat().st_size:
        raise DataError("the journal has no end", where=path, fix="restore it")
    screens = {}
    for sha256 in {one["screen"] for one in state.seen} - {None}:
        file = folder / _SCREENS / f"{sha256}.png"
        screens[sha256] = file.read_bytes() if file.is_file() else b""
        if hashlib.sha256(screens[sha256]).hexdigest() != sha256:
            raise DataError("a screen is missing, or its sha256 differs", where=file, fix="restore it")
    return state, screens


def read_unfinished(folder: Path) -> AnnotationState | None:
    """Read an annotation session that was begun, and neither finished nor skipped; it may be at work elsewhere.

    None for another one, for a folder without a journal and for a damaged journal.
    """
    path = folder / OPEN_JOURNAL
    try:
        state = _follow(_read_lines(path)[0], path)
    except DataError:
        return None
    return state if state.begun and not (state.skipped or state.ended) else None


def _read_lines(path: Path) -> tuple[list[Line], int]:
    """Return the whole lines of a journal, and the number of bytes that they take."""
    try:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        return [json.loads(line) for line in data[:whole].splitlines()], whole
    except (OSError, ValueError) as error:
        raise DataError(f"the journal cannot be read: {error}", where=path, fix="restore it, or remove it") from None


def _follow(lines: list[Line], path: Path) -> AnnotationState:
    state = AnnotationState()
    try:
        for line in lines:
            state.apply(line)
        if lines and state.begun["version"] != JOURNAL_VERSION:
            raise DataError("a journal of another version", where=path, fix="remove it")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"the journal's lines do not fit together: {error!r}", where=path, fix="remove it") from None
    return state


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)


def _write_file(path: Path, data: bytes) -> None:
    """Write a file that is on the disk, whole, before it has its name."""
    temporary = path.with_suffix(".part")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _write_all(file, data)
    finally:
        os.close(file)
    temporary.replace(path)
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def iter_open_sessions(folder: Path) -> Iterator[tuple[str, AnnotationState]]:
    """Yield (name, state) of each annotation session that was begun, and neither finished nor skipped.

    One that is at work, here or in another process, is among them; `AnnotationSession.resume` refuses it. folder: of
    the sessions, in which each has a folder of its name; a missing one has none. They come in order of the names; those
    with a journal that is damaged or of another version are left out.
    """
    for one in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (one / OPEN_JOURNAL).is_file() and (state := read_unfinished(one)):
            yield one.name, state
