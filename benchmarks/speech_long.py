"""Long sessions for `flywheel bench speech`: shipped ones joined end to end, and what an hour of one takes.

Cases `recognise_N`, `align_N` and `curate_N`, for N minutes of thinking aloud: CPU seconds, the number of utterances
and actions, and memory in MB: what the process grew by in recognition, the peak of what was allocated in aligning.
The peer of `align_N` is the search of commit 6659744 on the same utterances and actions, by turns in the same run,
where it ends in minutes; its result must be the same. Goal of aligning an hour: 60 s of a core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from bench_case import BenchCase, peak_memory_mb, reset_peak_memory

from flywheel.config import Settings
from flywheel.recordings.asr.recognizer import Recognizer
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.ingest import align_session, refiner_input
from flywheel.recordings.refine import open_refiner
from flywheel.recordings.rows import session_rows
from flywheel.recordings.session import RecordedSession, events_to_actions, load_session
from flywheel.recordings.utterances import join_broken_utterances, transcribe_utterances

BASELINE = "6659744"
PEER_MINUTES = 10  # the baseline's search takes the cube of the length: 20 minutes are some two minutes of a core
HOUR_S = 60.0  # goal of aligning an hour


def join_sessions(folder: Path, minutes: float) -> RecordedSession:
    """Join the shipped sessions of `folder`, again and again, to one of `minutes`, with one offset of its clocks: 0.

    Each goes on the screen's clock where the one before ended, and its sound goes to where it was said on that clock.
    """
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    loaded = {name: load_session(folder / name) for name in sorted(truth)}
    events, screens, began, shown = [], {}, 0.0, 0
    samples = np.zeros(round((minutes * 60 + 120) * SAMPLE_RATE), np.float32)
    for name in cycle(loaded):
        one = loaded[name]
        if began + one.meta.seconds > minutes * 60:
            break
        for event in one.events:
            screen = None if event.screen is None else event.screen + shown
            events.append(replace(event, time_s=event.time_s + began, screen=screen))
        screens |= {
            number + shown: replace(screen, time_s=screen.time_s + began) for number, screen in one.screens.items()
        }
        at = max(0, round((began + truth[name]["offset_s"]) * SAMPLE_RATE))
        samples[at : at + len(one.samples)] += one.samples
        began, shown = began + one.meta.seconds, max(screens) + 1
    first = next(iter(loaded.values()))
    meta = first.meta.model_copy(update={"sync_s": 0.3, "seconds": began})
    task = replace(first.task, max_steps=len(events))
    sound = samples[: round(began * SAMPLE_RATE)]
    return RecordedSession(folder, meta, task, tuple(events), tuple(events_to_actions(events)), screens, sound)


def _baseline() -> ModuleType | None:
    """The module of the baseline; None where git does not have it."""
    shown = subprocess.run(
        ["git", "show", f"{BASELINE}:flywheel/recording/align.py"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        return None
    renamed = "from flywheel.recordings.refine import word_similarity as similarity"
    module = ModuleType("baseline_align")
    sys.modules[module.__name__] = module  # dataclasses look it up
    exec(shown.stdout.replace("from flywheel.recording.refine import similarity", renamed), vars(module))
    return module


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    done = work()
    return done, time.process_time() - begun


def _peak_mb(work: Callable[[], Any]) -> float:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def long_sessions(folder: Path, minutes: list[int], recognizer: Recognizer) -> Iterator[BenchCase]:
    """Yield the cases of each length. folder: of the shipped sessions. minutes: lengths. recognizer: hears them."""
    baseline = _baseline()
    for length in minutes:
        yield from _cases_of(join_sessions(folder, length), length, recognizer, baseline)


def _cases_of(
    session: RecordedSession, length: int, recognizer: Recognizer, baseline: ModuleType | None
) -> Iterator[BenchCase]:
    settings, refiner = Settings(), open_refiner(Settings())
    before = reset_peak_memory()
    said, cpu = _timed(lambda: transcribe_utterances(recognizer, session.samples, 3600.0 * length))
    heard = join_broken_utterances(said)
    grown = peak_memory_mb() - before
    size = {"n": len(heard), "actions": len(session.actions), "seconds": session.meta.seconds}
    yield _case(f"recognise_{length}", cpu, size | {"memory_mb": grown})

    texts, refined = _timed(lambda: [refiner.refine(refiner_input(session, one)) for one in heard])
    aligned, cpu = _timed(lambda: align_session(session, heard, texts))
    more = {"memory_mb": _peak_mb(lambda: align_session(session, heard, texts)), "offset_s": aligned.offset_s}
    peer = None
    if baseline is not None and length <= PEER_MINUTES:
        peer, more["same_steps"] = _baseline_s(baseline, session, heard, texts, aligned)
    yield _case(f"align_{length}", cpu, size | more, peer, HOUR_S if length >= 60 else None)

    rows, cpu = _timed(lambda: session_rows(session, heard, texts, aligned, recognizer.name, refiner.name, settings, 1))
    yield _case(f"curate_{length}", refined + cpu, size | {"steps": rows.trajectory.steps})


def _baseline_s(
    baseline: ModuleType, session: RecordedSession, heard: list, texts: list[str], aligned: Any
) -> tuple[float, bool]:
    """CPU seconds of the baseline, and whether it finds the same offset and steps."""
    from flywheel.recordings import ingest

    asked: dict[str, Any] = {}

    def keep(spoken: Any, acted: Any, sync_s: float | None) -> Any:
        asked.update(spoken=spoken, acted=acted, sync_s=sync_s)
        return aligned

    ours, ingest.align_utterances = ingest.align_utterances, keep
    try:
        align_session(session, heard, texts)
    finally:
        ingest.align_utterances = ours
    found, cpu = _timed(lambda: baseline.align(asked["spoken"], asked["acted"], asked["sync_s"]))
    return cpu, (found.offset_s, tuple(found.steps)) == (aligned.offset_s, tuple(aligned.steps))


def _case(
    name: str, cpu: float, extra: dict[str, Any], peer: float | None = None, goal: float | None = None
) -> BenchCase:
    """Lower is better; the goal is one of `ours`."""
    met = (goal is None or cpu <= goal) and extra.get("same_steps", True)
    ratio = cpu / peer if peer else None
    return BenchCase("speech", name, "cpu s", cpu, peer, f"commit {BASELINE}" if peer else "", ratio, goal, met, extra)
