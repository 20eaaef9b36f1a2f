"""Ingest of think-aloud recordings (section 2.4.1): speech to words, words to thoughts, thoughts to steps, to rows."""

from __future__ import annotations

import faulthandler
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
from flywheel.agent.parser import serialise
from flywheel.agent.prompt import response_text
from flywheel.agent.trajectory import trajectory_id
from flywheel.errors import BadInput, DataError, FlywheelError
from flywheel.recording.align import Acted, Alignment, Spoken, align, words_of
from flywheel.recording.audio import RATE
from flywheel.recording.curate import Curation, curate, fingerprint
from flywheel.recording.recognizer import Recognizer, Utterance, open_recognizer, transcribe
from flywheel.recording.refine import Heard, Refiner, open_refiner
from flywheel.recording.session import Session, load_meta, load_session
from flywheel.settings import Settings
from flywheel.settings import parse as parse_settings
from flywheel.synthesis.tasks import to_row
from flywheel.worlds import catalogue

log = logging.getLogger(__name__)
Row = Mapping[str, Any]
UNKNOWN_TASK = "unknown"  # of a recording whose session.json cannot be read
_GRACE_S = 60.0  # beyond recording.timeout_s, for what is not recognition; then a worker is ended


class WorkerDied(FlywheelError):
    """A process that ingests recordings was killed, or hung and ended itself."""


@dataclass(frozen=True)
class IngestedSession:
    """One recording as rows of the tables named. A corrupt one has a trajectory (status invalid) and little else.

    review_rows: what curation found, one row of `reviews` (kind curation, reviewer rules).
    """

    session: str
    trajectory_row: Row
    task_row: Row | None = None
    step_rows: tuple[Row, ...] = ()
    thought_rows: tuple[Row, ...] = ()
    event_rows: tuple[Row, ...] = ()
    image_rows: tuple[Row, ...] = field(default=(), repr=False)
    review_rows: tuple[Row, ...] = ()
    fingerprint: str = ""


def new_sessions(folder: Path, already: set[str], limit: int) -> list[Path]:
    """The first `limit` session folders by name that are not in `already`. Raises BadInput where `folder` is none."""
    if not folder.is_dir():
        raise BadInput("no recordings folder", where=folder, fix="set recording.folder")
    fresh = (path for path in sorted(folder.iterdir()) if path.is_dir() and path.name not in already)
    return [path for path in fresh if not path.name.startswith((".", "_"))][:limit]


def ingest_sessions(
    folders: Sequence[Path], settings: Settings, iteration: int, seen: Mapping[str, str] | None = None
) -> list[IngestedSession]:
    """Ingest sessions on `recording.processes` processes; results in the order of `folders`.

    seen: fingerprint -> session of earlier iterations; a recording like one of them, or like one before it in
    `folders`, becomes invalid. A corrupt session does not stop the others. Raises BadInput where the recognizer's
    model is missing, RecognitionTimeout, LanguageModelError, WorkerDied.
    """
    workers = min(settings.recording.processes, len(folders))
    if workers <= 1:
        ingested = [ingest_session(f, _Tools.open(settings), settings, iteration) for f in folders]
        return mark_duplicates(ingested, seen or {})
    # Spawned, not forked: the caller may have threads (Prefect's do), and a fork of those can hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (settings.model_dump(mode="json"),))
    try:
        # The slowest first: a long recording at the end would keep one process waiting.
        order = sorted(range(len(folders)), key=lambda i: -_size(folders[i]))
        futures = {i: pool.submit(_work, folders[i], iteration) for i in order}
        ingested = [futures[i].result() for i in range(len(folders))]
    except BrokenProcessPool:
        raise WorkerDied(
            "a process that ingests recordings was killed, or passed its deadline", where="recording.timeout_s",
            fix="run again; where it was the deadline, raise it; where memory was short, lower recording.processes",
        ) from None  # fmt: skip
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return mark_duplicates(ingested, seen or {})


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("speech.*"))


@dataclass(frozen=True)
class _Tools:
    """What a process opens once."""

    recognizer: Recognizer
    refiner: Refiner

    @classmethod
    def open(cls, settings: Settings) -> _Tools:
        return cls(open_recognizer(settings.recording), open_refiner(settings))


_worker: tuple[_Tools, Settings] | FlywheelError


def _start(raw: dict[str, Any]) -> None:
    """In a new process: open the tools. A failure is kept for the first piece of work, which can report it."""
    global _worker
    try:
        settings = parse_settings(raw, where="settings of the parent process")
        _worker = (_Tools.open(settings), settings)
    except FlywheelError as error:
        _worker = error


def _work(folder: Path, iteration: int) -> IngestedSession:
    if isinstance(_worker, FlywheelError):
        raise _worker
    tools, settings = _worker
    # A recognizer is native code: one that hangs in it can only be ended from outside Python.
    faulthandler.dump_traceback_later(settings.recording.timeout_s + _GRACE_S, exit=True)
    try:
        return ingest_session(folder, tools.recognizer, settings, iteration, tools.refiner)
    finally:
        faulthandler.cancel_dump_traceback_later()


def ingest_session(
    folder: Path, recognizer: Recognizer, settings: Settings, iteration: int, refiner: Refiner | None = None
) -> IngestedSession:
    """One session folder as rows. A corrupt one gives a trajectory of status invalid with the reason, and no steps.

    refiner: default the one that the settings name. Raises RecognitionTimeout and LanguageModelError: those are no
    faults of the recording.
    """
    try:
        session = load_session(folder)
    except DataError as error:
        log.warning("recording %s is not used: %s", folder.name, error)
        return _corrupt(folder, error, iteration)
    utterances = transcribe(recognizer, session.samples, RATE, settings.recording.timeout_s)
    heard = [_heard(session, utterance) for utterance in utterances]
    refiner = refiner or open_refiner(settings)
    texts = [refiner.refine(one) for one in heard]
    alignment = align_session(session, utterances, texts)
    return _rows(session, utterances, texts, alignment, recognizer.name, refiner.name, settings, iteration)


def align_session(session: Session, utterances: Sequence[Utterance], texts: Sequence[str]) -> Alignment:
    """Utterances against the session's actions; both what was heard and its refined text count as words."""
    spoken = [
        Spoken(u.start_s, u.end_s, (*(word.word for word in u.words), *words_of(text)))
        for u, text in zip(utterances, texts, strict=True)
    ]
    acted = [Acted(one.time_s, _action_words(session, one.events)) for one in session.actions]
    return align(spoken, acted, session.meta.sync_s)


def _action_words(session: Session, events: Iterable[int]) -> tuple[str, ...]:
    """What the recorder knows of an action in words: its kind, target, keys, typed text."""
    words: list[str] = []
    for event in (session.events[index] for index in events):
        words += words_of(f"{event.kind} {event.text} {event.key}")
    return tuple(word for word in words if word not in _MUTE)


_MUTE = {"drop", "stop", "enter", "key", "double", "right_single"}


def _heard(session: Session, utterance: Utterance) -> Heard:
    words = tuple(word.word for word in utterance.words)
    return Heard(words, tuple(w.confidence for w in utterance.words), session.task.instruction, vocabulary(session))


def vocabulary(session: Session) -> frozenset[str]:
    """Words that stand on the session's screens, in its task, or were typed."""
    texts = [session.task.instruction, catalogue.get(session.task.world).title]
    texts += [f"{event.text} {event.key}" for event in session.events]
    return frozenset(word for text in texts for word in words_of(text)) | frozenset(_INTERFACE)


# Words of any graphical interface, which the screen shows as pictures.
_INTERFACE = (
    "cart", "checkout", "click", "drag", "press", "tile", "tiles", "switch", "page", "field", "button", "outline",
    "left", "right", "up", "down", "save", "search", "box", "type",
)  # fmt: skip


def _rows(
    session: Session,
    utterances: Sequence[Utterance],
    texts: Sequence[str],
    alignment: Alignment,
    recognizer: str,
    refined_by: str,
    settings: Settings,
    iteration: int,
) -> IngestedSession:
    identity = _identity(session.task.task_id, session.meta.session, iteration)
    steps = _steps(session, identity, _thoughts_of(session, texts, alignment), settings.policy.coordinates)
    outcome = session.meta.outcome
    trajectory = _trajectory(session.task.task_id, session.meta.session, iteration) | {
        "domain": session.task.domain, "world": session.task.world, "level": session.task.level,
        "instruction": session.task.instruction, "steps": len(steps), "reward": outcome.reward,
        "status": "completed" if outcome.terminated else "truncated",
        "final_state": json.dumps(outcome.state, sort_keys=True, ensure_ascii=False),
        "started_at": session.meta.started_at, "ended_at": _at(session, session.meta.seconds),
    }  # fmt: skip
    images = {s.sha256: s for s in session.screens.values()}
    found = curate(trajectory, steps, list(images), settings.policy.coordinates, session.task.max_steps)
    if not found.accepted:
        trajectory |= {"status": "invalid", "error": "; ".join(found.faults)}
    task = to_row(session.task)
    return IngestedSession(
        session=session.meta.session,
        trajectory_row=trajectory,
        task_row=task,
        step_rows=tuple(steps),
        thought_rows=tuple(_thoughts(identity, utterances, texts, alignment, recognizer, refined_by)),
        event_rows=tuple(_events(session, identity)),
        image_rows=tuple(
            {name: value for name, value in vars(screen).items() if name not in ("time_s", "url")}
            for screen in images.values()
        ),
        review_rows=(_review(identity, found),),
        fingerprint=fingerprint(task, steps),
    )


def _identity(task_id: str, session: str, iteration: int) -> str:
    return trajectory_id(iteration, task_id, 0, f"human-{session}")


def _trajectory(task_id: str, session: str, iteration: int) -> dict[str, Any]:
    return {
        "trajectory_id": _identity(task_id, session, iteration), "task_id": task_id, "source": "recording",
        "author": "human", "sample": 0, "policy_version": "human",
    }  # fmt: skip


def _corrupt(folder: Path, error: DataError, iteration: int) -> IngestedSession:
    """What can be said of a session that cannot be read; its task, where session.json is whole."""
    task = None
    with suppress(DataError):
        task = load_meta(folder)[1]
    # The reason is kept for years: a path of this machine in it would mean nothing then.
    reason = _without_path(str(error), folder)
    trajectory = _trajectory(task.task_id if task else UNKNOWN_TASK, folder.name, iteration)
    trajectory |= {"status": "invalid", "error": reason, "steps": 0}
    if task:
        trajectory |= {
            "domain": task.domain, "world": task.world, "level": task.level, "instruction": task.instruction,
        }  # fmt: skip
    review = _review(trajectory["trajectory_id"], Curation((reason,)))
    return IngestedSession(folder.name, trajectory, to_row(task) if task else None, review_rows=(review,))


def _without_path(text: str, folder: Path) -> str:
    """Paths below the session's folder as they are from the recordings folder."""
    return text.replace(f"{folder}", folder.name)


def _thoughts_of(session: Session, texts: Sequence[str], alignment: Alignment) -> list[str]:
    """The thought of each action: what was said about it, in order, each sentence once."""
    thoughts: list[list[str]] = [[] for _ in session.actions]
    for text, step in zip(texts, alignment.steps, strict=True):
        if text and text not in thoughts[step]:
            thoughts[step].append(text)
    return [" ".join(sentences) for sentences in thoughts]


def _steps(session: Session, identity: str, thoughts: Sequence[str], coordinates: int) -> list[dict[str, Any]]:
    rows = []
    last = len(session.actions) - 1
    outcome = session.meta.outcome
    for number, (recorded, thought) in enumerate(zip(session.actions, thoughts, strict=True)):
        screen = session.screens[recorded.screen]
        written = serialise(recorded.action, coordinates)
        ended = session.actions[number + 1].time_s if number < last else session.meta.seconds
        rows.append(
            {
                "trajectory_id": identity, "step": number, "author": "human", "thought": thought,
                "action_type": written.partition("(")[0], "action": written,
                "raw_text": response_text(thought, written), **_points(recorded.action),
                "weight_version": "human", "image_sha256": screen.sha256, "url": screen.url,
                "reward": outcome.reward if number == last else 0.0,
                "terminated": number == last and outcome.terminated,
                "truncated": number == last and not outcome.terminated,
                "started_at": _at(session, recorded.time_s), "ended_at": _at(session, ended),
            }
        )  # fmt: skip
    return rows


def _points(action: Action) -> dict[str, float]:
    if isinstance(action, act.Drag):
        start, end = action.start_point, action.end_point
        return {"x": start.x, "y": start.y, "x2": end.x, "y2": end.y}
    point = getattr(action, "point", None)
    return {"x": point.x, "y": point.y} if point else {}


def _thoughts(
    identity: str,
    utterances: Sequence[Utterance],
    texts: Sequence[str],
    alignment: Alignment,
    recognizer: str,
    refined_by: str,
) -> Iterable[dict[str, Any]]:
    """Rows of `thoughts`, their times on the screen's clock."""
    offset = alignment.offset_s
    for number, (utterance, text) in enumerate(zip(utterances, texts, strict=True)):
        words = [replace(w, start_s=w.start_s + offset, end_s=w.end_s + offset) for w in utterance.words]
        yield {
            "trajectory_id": identity, "utterance": number, "start_s": utterance.start_s + offset,
            "end_s": utterance.end_s + offset, "asr_text": utterance.text, "text": text,
            "words": [asdict(word) for word in words], "step": alignment.steps[number],
            "alignment_score": alignment.scores[number], "recognizer": recognizer, "refined_by": refined_by,
        }  # fmt: skip


def _events(session: Session, identity: str) -> Iterable[dict[str, Any]]:
    step_of = {index: step for step, one in enumerate(session.actions) for index in one.events}
    for number, event in enumerate(session.events):
        yield {
            "trajectory_id": identity, "event": number, "time_s": event.time_s, "kind": event.kind, "x": event.x,
            "y": event.y, "key": event.key or None, "text": event.text or None, "step": step_of[number],
        }  # fmt: skip


def _review(identity: str, found: Curation) -> dict[str, Any]:
    return {
        "subject": identity, "kind": "curation", "reviewer": "rules",
        "decision": "accept" if found.accepted else "reject", "comment": "; ".join((*found.faults, *found.remarks)),
        "at": datetime.now(UTC),
    }  # fmt: skip


def mark_duplicates(ingested: Iterable[IngestedSession], seen: Mapping[str, str]) -> list[IngestedSession]:
    """Recordings of the same task with the same actions as an earlier one become invalid; the first one stands."""
    known, marked = dict(seen), []
    for one in ingested:
        usable = one.trajectory_row["status"] != "invalid"
        if usable and one.fingerprint in known:
            reason = f"duplicate of {known[one.fingerprint]}"
            trajectory = {**one.trajectory_row, "status": "invalid", "error": reason}
            review = _review(trajectory["trajectory_id"], Curation((reason,)))
            one = replace(one, trajectory_row=trajectory, review_rows=(review,))
        elif usable:
            known[one.fingerprint] = one.session
        marked.append(one)
    return marked


def _at(session: Session, seconds: float) -> datetime:
    return session.meta.started_at + timedelta(seconds=seconds)
