"""Speech: words misheard in sentences that the recogniser was not made for, beside its stock model; right steps.

Case `word_error_rate`: sentences of three kinds (`speech_heldout.txt`: plain English, about other programs, thinking
aloud), written before the recogniser was tuned, spoken by several voices with the noise of a room; wrong words over
words, all kinds together, each kind and voice in the line. The peer is the same recogniser with its stock language
model alone, on the same sound in the same run. Lower is better: the ratio must be 1.0 or less, and so in each kind.
Its interval is a bootstrap over sentences. Speed is in the line too, as seconds of CPU a second of speech.

Case `right_steps`: of the utterances of the shipped sessions, those aligned with the step that they are about; the
peer aligns what the stock model heard. The sessions' own words, and their word error rates, are in the line.

Cases `recognise_N`, `align_N`, `curate_N`: what a session of N minutes takes (`speech_long.py`).

The voices are flite's; espeak-ng's are used where it is installed (--voices), and named in the line where it is not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bench_case import BenchCase, emit_case, exit_code
from speech_long import long_sessions
from speech_measure import edits, measure

from flywheel.config import Settings
from flywheel.recordings import audio
from flywheel.recordings.asr.pocketsphinx import PocketSphinx
from flywheel.recordings.synthetic.sessions import synthesize_speech
from flywheel.recordings.utterances import Utterance
from flywheel.utils.errors import BadInput

SENTENCES = Path(__file__).parent / "speech_heldout.txt"
TUNING = Path(__file__).parent / "speech_tuning.txt"  # for --sentences, with --voices slt awb
RECORDINGS = Path(__file__).parent.parent / "recordings"
VOICES = ("rms", "kal16", "kal")  # slt and awb spoke the other sentences on which the recogniser was tuned
STEPS = 0.95  # goal: share of utterances on the right step
NOISE = 6e-4  # of a quiet room, as in the made sessions
DRAWS = 2_000


@dataclass(frozen=True)
class Heard:
    """One sentence in one voice: its words, how many of them each recogniser got wrong, and how sure ours was."""

    kind: str
    voice: str
    words: int
    ours: int
    peer: int
    confidence: float


def sentences(file: Path = SENTENCES) -> list[tuple[str, str]]:
    """(kind, sentence) of each line."""
    found, kind = [], ""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            kind = line.strip("[]")
        elif line and not line.startswith("#"):
            found.append((kind, line))
    return found


def spoken(text: str, voice: str) -> np.ndarray:
    """float32 mono at `audio.RATE`: the sentence in a quiet room, a little silence around it."""
    said = _espeak(text, voice) if voice.startswith("en") else synthesize_speech(text, voice, 1.0)
    samples = np.concatenate([said, np.zeros(audio.SAMPLE_RATE // 5, np.float32)])
    samples = np.concatenate([np.zeros(audio.SAMPLE_RATE // 5, np.float32), samples])
    noise = np.random.default_rng(len(text)).normal(0, NOISE, len(samples))
    return np.clip(samples + noise, -1, 1).astype(np.float32)


def _espeak(text: str, voice: str) -> np.ndarray:
    program = shutil.which("espeak-ng")
    if program is None:
        raise BadInput("espeak-ng is not installed", where=f"--voices {voice}", fix="apt install espeak-ng")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        subprocess.run([program, "-v", voice, "-s", "140", "-w", path, text], check=True, timeout=30)
        return audio.read_audio(path)


def listen(chosen: Sequence[tuple[str, str]], voices: Sequence[str]) -> tuple[list[Heard], dict[str, float]]:
    """What was misheard, and CPU seconds a second of speech. Each sentence is heard by both, one after the other."""
    recognizers = {"ours": PocketSphinx(), "peer": PocketSphinx(adapted=False)}
    spent, seconds, heard = dict.fromkeys(recognizers, 0.0), 0.0, []
    for number, (kind, text) in enumerate(chosen):
        voice = voices[number % len(voices)]
        samples, meant = spoken(text, voice), text.split()
        seconds += len(samples) / audio.SAMPLE_RATE
        found, wrong = {}, {}
        for name, recognizer in recognizers.items():
            begun = time.process_time()
            found[name] = recognizer.recognize(samples, audio.SAMPLE_RATE)
            spent[name] += time.process_time() - begun
            wrong[name] = edits(meant, [word.word for word in found[name]])
        sure = Utterance(0.0, 0.0, found["ours"]).confidence
        heard.append(Heard(kind, voice, len(meant), wrong["ours"], wrong["peer"], sure))
    return heard, {name: cpu / seconds for name, cpu in spent.items()}


def rates(heard: Sequence[Heard]) -> tuple[float, float]:
    words = sum(one.words for one in heard)
    return sum(one.ours for one in heard) / words, sum(one.peer for one in heard) / words


def interval(heard: Sequence[Heard], seed: int) -> list[float]:
    """95% of ours - peer, by drawing sentences anew."""
    rng = random.Random(seed)
    drawn = [rates(rng.choices(heard, k=len(heard))) for _ in range(DRAWS)]
    differences = sorted(ours - peer for ours, peer in drawn)
    return [differences[round(0.025 * DRAWS)], differences[round(0.975 * DRAWS) - 1]]


def _by_confidence(heard: Sequence[Heard]) -> dict[str, list[float]]:
    """Our word error rate and the number of sentences, by our own confidence in each."""
    edges = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
    parts = {(a, b): [one for one in heard if a <= one.confidence < b] for a, b in pairwise(edges)}
    return {f"{a} to {min(b, 1.0)}": [rates(part)[0], len(part)] for (a, b), part in parts.items() if part}


def word_error_rate(chosen: Sequence[tuple[str, str]], voices: Sequence[str], seed: int) -> BenchCase:
    heard, cpu = listen(chosen, voices)
    ours, peer = rates(heard)
    groups: dict[str, list[Heard]] = defaultdict(list)
    for one in heard:
        groups[one.kind].append(one)
        groups[one.voice].append(one)
    sure = _by_confidence(heard)
    by = {name: [*rates(part), sum(one.words for one in part)] for name, part in groups.items()}
    ratio = ours / peer if peer else None
    kinds = {kind for kind, _ in chosen}
    met = ratio is not None and ratio <= 1.0 and all(by[kind][0] <= by[kind][1] for kind in kinds)
    extra: dict[str, Any] = {
        "n": len(heard),
        "words": sum(one.words for one in heard),
        "difference": interval(heard, seed),
        **by,
        "by_confidence": sure,
        "cpu_s_per_s": [cpu["ours"], cpu["peer"]],
        "not_installed": [] if shutil.which("espeak-ng") else ["espeak-ng"],
    }
    return BenchCase(
        "speech", "word_error_rate", "fraction", ours, peer, "its stock language model", ratio, 1.0, met, extra
    )


def right_steps(folder: Path) -> BenchCase:
    settings = Settings()
    ours = measure(folder, settings, PocketSphinx())
    peer = measure(folder, settings, PocketSphinx(adapted=False))
    share, theirs = ours["aligned_right"], peer["aligned_right"]
    return BenchCase(
        "speech",
        "right_steps",
        "fraction",
        share,
        theirs,
        "its stock language model",
        share / theirs,
        STEPS,
        share >= STEPS,
        {
            "n": ours["utterances"],
            "word_error_rate": [ours["word_error_rate"], peer["word_error_rate"]],
            "words": ours["words"],
            "cpu_s": [ours["cpu_s"], peer["cpu_s"]],
            "speech_s": ours["speech_s"],
        },
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flywheel bench speech", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voices", nargs="+", default=list(VOICES), help="of flite, or espeak-ng's (en-us, en-gb)")
    parser.add_argument("--sentences", type=Path, default=SENTENCES, help="a file like the one that is shipped")
    parser.add_argument("--every", type=int, default=1, help="take each n-th sentence (default: all)")
    parser.add_argument("--seed", type=int, default=7, help="of the bootstrap")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, help="sessions with their truth.json")
    parser.add_argument("--minutes", type=int, nargs="*", default=[1, 10, 60], help="lengths of joined sessions")
    parser.add_argument("--long-alone", action="store_true", help="the joined sessions alone")
    options = parser.parse_args(argv)
    long = [emit_case(case) for case in long_sessions(options.recordings, options.minutes, PocketSphinx())]
    if options.long_alone:
        return exit_code(long)
    chosen = sentences(options.sentences)[:: options.every]
    cases = [
        emit_case(word_error_rate(chosen, options.voices, options.seed)),
        emit_case(right_steps(options.recordings)),
    ]
    return exit_code([*cases, *long])


if __name__ == "__main__":
    raise SystemExit(main())
