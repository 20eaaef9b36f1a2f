"""Ingest think-aloud recordings: recognize speech, refine it to thoughts, align these with steps, and make rows.

UI-TARS-2 report, section 2.4.1; the stage `ingest` does so.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from flywheel.config import Settings, parse_settings
from flywheel.envs.suites import catalogue
from flywheel.recordings.align import Alignment, SpokenUtterance, TimedAction, align_utterances, split_words
from flywheel.recordings.annotation.journal import is_annotation
from flywheel.recordings.annotation.rows import annotation_rows
from flywheel.recordings.asr.recognizer import Recognizer, Word, open_recognizer
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.refine import Refiner, RefinerInput, open_refiner
from flywheel.recordings.rows import (
    IngestedSession,
    check_rows,
    check_screens,
    demonstration_rows,
    make_invalid_session,
    session_rows,
)
from flywheel.recordings.session import RecordedSession, load_session
from flywheel.recordings.transcripts import find_transcript, read_transcript
from flywheel.recordings.utterances import Utterance, join_broken_utterances, transcribe_utterances
from flywheel.store.interop import demonstration
from flywheel.utils.errors import DataError, FlywheelError
from flywheel.utils.processes import exit_with_parent

_GRACE_S = 60.0  # past its deadline, after which a recognizer counts as hanging


class IngestWorkerDied(FlywheelError):
    """Signal that a worker process that ingests recordings was killed, or hung and ended itself."""


class AsrWorkerPool:
    """Ingest batches of recordings in `recording.processes` worker processes, or in this process where one is enough.

    Recognizers are opened once per process. Close it after use; after IngestWorkerDied it is of no use. settings: the
    iteration's.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Spawned, not forked: the caller may have threads (Prefect's do), and a fork of those can hang. A worker starts
        # when there is work for it.
        self._pool = ProcessPoolExecutor(
            settings.recording.processes, get_context("spawn"), _start, (settings.model_dump(mode="json"),)
        )

    def ingest(self, folders: Sequence[Path], iteration: int) -> list[IngestedSession]:
        """Ingest recordings; a corrupt one does not stop the others, and duplicates are not looked for.

        folders: of recorded or annotated sessions, or imported demonstrations. iteration: the one that ingests them.
        Returns one result per folder, in order; that of a corrupt one has a trajectory of status invalid, with the
        reason. Raises BadInput where the recognizer's model is missing, the language model's endpoint is no address, or
        a suite that the settings or a session name does not exist; RecognitionTimeout, LanguageModelError,
        IngestWorkerDied; OSError for a file that cannot be read.
        """
        made = {folder: make for folder in folders if (make := _silent_rows(folder))}
        heard = iter(self._listened([folder for folder in folders if folder not in made], iteration))
        return [
            made[folder](folder, self._settings, iteration) if folder in made else next(heard) for folder in folders
        ]

    def close(self) -> None:
        """End the worker processes once their running work is done; pending work is cancelled."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _listened(self, folders: Sequence[Path], iteration: int) -> list[IngestedSession]:
        if min(self._settings.recording.processes, len(folders)) <= 1:
            recognizer, refiner = self._tools if folders else (None, None)
            return [ingest_session(folder, recognizer, self._settings, iteration, refiner) for folder in folders]
        try:
            # The slowest first: a long recording at the end would keep one process waiting.
            order = sorted(range(len(folders)), key=lambda i: -speech_bytes(folders[i]))
            futures = {i: self._pool.submit(_work, folders[i], iteration) for i in order}
            return [futures[i].result() for i in range(len(folders))]
        except BrokenProcessPool:
            raise IngestWorkerDied(
                "a process that ingests recordings was killed, or passed its deadline",
                where="recording.timeout_s",
                fix="run again; where it was the deadline, raise it; where memory was short, lower recording.processes",
            ) from None

    @cached_property
    def _tools(self) -> tuple[Recognizer, Refiner]:
        """Open the tools in this process, at the first recording that it ingests itself."""
        return open_recognizer(self._settings.recording), open_refiner(self._settings)


def _silent_rows(folder: Path) -> Callable[[Path, Settings, int], IngestedSession] | None:
    """Return what makes rows of a folder without speech; None for a recorded session."""
    if demonstration.is_demonstration(folder):
        return demonstration_rows
    return annotation_rows if is_annotation(folder) else None


def speech_bytes(folder: Path) -> int:
    """Return the size in bytes of a session's sound, the files `speech.*` in its `folder`; 0 for none."""
    return sum(path.stat().st_size for path in folder.glob("speech.*"))


_worker: tuple[Recognizer, Refiner, Settings] | FlywheelError  # of a worker process, opened once


def _start(raw: dict[str, Any]) -> None:
    """Initialise a worker process, which ends with its parent: open the tools. An error is kept for the first piece of
    work, which can report it."""
    global _worker
    exit_with_parent()
    try:
        settings = parse_settings(raw, where="settings of the parent process")
        _worker = open_recognizer(settings.recording), open_refiner(settings), settings
    except FlywheelError as error:
        _worker = error


def _work(folder: Path, iteration: int) -> IngestedSession:
    if isinstance(_worker, FlywheelError):
        raise _worker
    recognizer, refiner, settings = _worker
    return ingest_session(folder, _WatchedRecognizer(recognizer), settings, iteration, refiner)


class _WatchedRecognizer:
    """Wrap a recognizer, and end the process where it hangs: native code cannot be interrupted by an exception."""

    def __init__(self, recognizer: Recognizer) -> None:
        self.name, self.whole, self._recognizer = recognizer.name, recognizer.whole, recognizer

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> tuple[Word, ...]:
        faulthandler.dump_traceback_later(max(deadline_s, 0.0) + _GRACE_S, exit=True)
        try:
            return self._recognizer.recognize(samples, rate, deadline_s)
        finally:
            faulthandler.cancel_dump_traceback_later()


def ingest_session(
    folder: Path, recognizer: Recognizer, settings: Settings, iteration: int, refiner: Refiner | None = None
) -> IngestedSession:
    """Ingest the recorded session, or the imported demonstration, in `folder`.

    A corrupt one gives a trajectory of status invalid with the reason, and no steps. recognizer: hears the speech where
    there is no transcript. iteration: the one that ingests it. refiner: default: the one that the settings name. Raises
    RecognitionTimeout, LanguageModelError, and BadInput where a suite that the settings or the session name does not
    exist, or the language model's endpoint is no address: those are not faults of the recording.
    """
    if demonstration.is_demonstration(folder):
        return demonstration_rows(folder, settings, iteration)
    try:
        session = load_session(folder)
        check_screens(map(vars, session.screens.values()), settings, folder)
        if session.task.verifier and session.task.world not in catalogue.list_worlds():
            what = f"the task's world: no world is called {session.task.world[:40]!r}"
            raise DataError(what, where=folder / "session.json", fix="mend that field")
        transcript = find_transcript(folder)
        if transcript is None:
            deadline_s = _deadline_s(session, settings)
            heard = transcribe_utterances(recognizer, session.samples, deadline_s) if session.meta.audio else []
        else:
            heard = read_transcript(transcript, session.meta.seconds - (session.meta.sync_s or 0.0))
        utterances = join_broken_utterances(heard)
        refiner = refiner or open_refiner(settings)
        texts = [refiner.refine(refiner_input(session, utterance)) for utterance in utterances]
        alignment = align_session(session, utterances, texts)
        by = recognizer.name if transcript is None else transcript.name
        made = session_rows(session, utterances, texts, alignment, by, refiner.name, settings, iteration)
        return check_rows(made, folder)
    except Exception as error:
        return make_invalid_session(folder, error, iteration)


def _deadline_s(session: RecordedSession, settings: Settings) -> float:
    """Return the timeout plus the length of the speech, since an hour takes some ten minutes of a core."""
    return settings.recording.timeout_s + len(session.samples) / SAMPLE_RATE


def align_session(session: RecordedSession, utterances: Sequence[Utterance], texts: Sequence[str]) -> Alignment:
    """Align `utterances` with the session's actions. texts: each utterance's refined text, whose words count too."""
    spoken = [
        SpokenUtterance(u.start_s, u.end_s, (*(word.word for word in u.words), *split_words(text)))
        for u, text in zip(utterances, texts, strict=True)
    ]
    acted = [TimedAction(action.time_s, _action_words(session, action.events)) for action in session.actions]
    return align_utterances(spoken, acted, session.meta.sync_s)


def _action_words(session: RecordedSession, events: Iterable[int]) -> tuple[str, ...]:
    """Return what the recorder knows of an action in words: its kind, target, keys, typed text."""
    words: list[str] = []
    for event in (session.events[index] for index in events):
        words += split_words(f"{event.kind} {event.text} {event.key}")
    return tuple(word for word in words if word not in _MUTE)


_MUTE = {"drop", "stop", "enter", "key", "double", "right_single"}


def refiner_input(session: RecordedSession, utterance: Utterance) -> RefinerInput:
    """Gather what the refiner reads for an `utterance`. Raises BadInput where the session's suite does not exist."""
    words = tuple(word.word for word in utterance.words)
    return RefinerInput(
        words, tuple(w.confidence for w in utterance.words), session.task.instruction, session_vocabulary(session)
    )


def session_vocabulary(session: RecordedSession) -> frozenset[str]:
    """Collect the lower-case words that stand on the session's screens or in its task, or were typed.

    Raises BadInput where the task's suite does not exist.
    """
    world = session.task.world  # of a task that a person set themselves, none
    title = catalogue.get_world(world).title if session.task.verifier or world in catalogue.list_worlds() else ""
    texts = [session.task.instruction, title]
    texts += [f"{event.text} {event.key}" for event in session.events]
    return frozenset(word for text in texts for word in split_words(text)) | _INTERFACE


# Words of graphical interfaces that the screen shows only as pictures.
_INTERFACE = frozenset(
    split_words(
        "cart checkout click drag press tile tiles switch page field button outline left right up down save search "
        "box type"
    )
)


def find_duplicates(recordings: Iterable[tuple[str, str, bool]], seen: Mapping[str, str]) -> list[str]:
    """Find the recordings of the same task with the same actions as an earlier one; the earlier one stays.

    recordings: (name of the session, `recording_fingerprint`, whether it is usable) of each, in order; an unusable one
    is no duplicate, and nothing is one of it. seen: fingerprint -> name of earlier recordings; it is not changed.
    Returns for each, in order, why it is a duplicate (`duplicate of NAME`); "" where it is none.
    """
    known, reasons = dict(seen), []
    for session, fingerprint, usable in recordings:
        reasons.append(f"duplicate of {known[fingerprint]}" if usable and fingerprint in known else "")
        if usable:
            known.setdefault(fingerprint, session)
    return reasons
