"""Which step an utterance is about, in voices and wordings that nothing was made from: with silence, clocks that drift
apart, and noise."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_case import BenchCase
from record_display import machine
from speech import spoken

from flywheel.config import Settings
from flywheel.recordings.asr.pocketsphinx import PocketSphinx
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.ingest import align_session, refiner_input
from flywheel.recordings.refine import open_refiner
from flywheel.recordings.session import InputEvent, RecordedSession, events_to_actions, load_session
from flywheel.recordings.utterances import join_broken_utterances, transcribe_utterances

GOAL = 0.9
STEPS, SILENT = 7, 0.25  # of a session; share of them that nothing is said of
DRIFT, NOISE = 2e-4, 4e-3  # of the clocks; of the room, several times that of the shipped sessions
_VOICES = ("kal", "en-us", "en-gb")
_LABELS = ("reply", "archive", "calendar", "settings", "new folder", "print", "attach a file", "sort by date", "export",
           "next page", "contacts", "download", "close window", "language", "search", "bold")  # fmt: skip
_TEXTS = ("monday morning", "annual report", "thank you", "twelve boxes", "main street", "blue paper")
_CLICKS = ("over to {}", "and hit {} up there", "{} is what we want", "then {} please", "going for {} here")
_TYPES = ("now putting in {}", "it should say {}", "let us write {}")


def cases(options: Any) -> Iterator[BenchCase]:
    rng = random.Random("bench record speech")
    voices = [voice for voice in _VOICES if voice == "kal" or shutil.which("espeak-ng")]
    folder = sorted(path.parent for path in (Path(__file__).parent.parent / "recordings").glob("*/session.json"))[0]
    base, settings = load_session(folder), Settings()
    recognizer, refiner = PocketSphinx(), open_refiner(settings)
    assigned = right = meant = found = 0
    for number in range(options.sessions):
        session, truth = _session(base, voices[number % len(voices)], rng)
        heard = join_broken_utterances(transcribe_utterances(recognizer, session.samples, 600.0))
        texts = [refiner.refine(refiner_input(session, one)) for one in heard]
        steps = align_session(session, heard, texts).steps
        hits = set()
        for one, step in zip(heard, steps, strict=True):
            about = max(truth, key=lambda true, one=one: min(one.end_s, true[1]) - max(one.start_s, true[0]))
            assigned, right = assigned + 1, right + (about[2] == step)
            hits |= {about} if about[2] == step else set()
        meant, found = meant + len(truth), found + len(hits)
    precision, recall = right / max(assigned, 1), found / meant
    value = 2 * precision * recall / (precision + recall) if found else 0.0
    extra = {"n": meant, "precision": precision, "recall": recall, "voices": voices, "drift": DRIFT, "noise": NOISE}
    yield BenchCase("record", "utterance_f1", "fraction", value, None, "", None, GOAL, value >= GOAL, extra | machine())


def _session(base: RecordedSession, voice: str, rng: random.Random) -> tuple[RecordedSession, list[tuple]]:
    """A session of `STEPS` actions, and of each utterance from when to when it sounds, and its step."""
    at, events, truth, sounds = 2.0, [], [], []
    offset = rng.uniform(-1.5, 1.5)  # of the sound's clock, beside the mark that the recorder wrote
    for step, label in enumerate(rng.sample(_LABELS, STEPS)):
        typed = rng.choice(_TEXTS) if rng.random() < 0.3 else ""
        words = rng.choice(_TYPES).format(typed) if typed else rng.choice(_CLICKS).format(label)
        sound = spoken(words, voice)
        length = len(sound) / SAMPLE_RATE
        if rng.random() >= SILENT:
            begun = (at - offset) * (1 + DRIFT)
            truth.append((begun, begun + length, step))
            sounds.append((begun, sound))
        at += length + rng.uniform(0.1, 1.2)
        event = InputEvent(at, "type", text=typed, screen=0) if typed else InputEvent(at, "click", x=0.5, y=0.5,
                                                                                    text=label, screen=0)  # fmt: skip
        events.append(event)
        at += rng.uniform(0.8, 6.0)
    events.append(InputEvent(at, "stop", screen=0))
    noise = np.random.default_rng(rng.randrange(1 << 30)).normal(0, NOISE, round((at + 3) * SAMPLE_RATE))
    samples = noise.astype(np.float32)
    for begun, sound in sounds:
        first = max(0, round(begun * SAMPLE_RATE))
        samples[first : first + len(sound)] += sound[: len(samples) - first]
    meta = base.meta.model_copy(update={"sync_s": 0.0, "seconds": at})
    screens = {0: base.screens[min(base.screens)]}
    made = replace(base, meta=meta, events=tuple(events), actions=tuple(events_to_actions(events)), screens=screens)
    return replace(made, samples=np.clip(samples, -1, 1)), truth
