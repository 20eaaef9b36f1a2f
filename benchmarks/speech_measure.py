"""How well speech is recognized and aligned, on sessions whose truth is known (`make_sessions` writes it).

    python benchmarks/speech_measure.py recordings

Prints one JSON object: error rates and shares, each with the number that it rests on.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.recordings.asr.recognizer import Recognizer, open_recognizer
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.recordings.ingest import align_session, refiner_input
from flywheel.recordings.refine import RefinerInput, open_refiner
from flywheel.recordings.session import load_session
from flywheel.recordings.utterances import join_broken_utterances, transcribe_utterances

_WORD = re.compile(r"[a-z']+|\d+")


def edits(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest words to insert, delete or replace (Levenshtein); divided by len(reference) it is the word error rate."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


def measure(folder: Path, settings: Settings, recognizer: Recognizer | None = None) -> dict[str, Any]:
    """Over all sessions of `folder`: word error rates, share of utterances on the right step, error of the offset.

    recognizer: default the one that the settings name.
    """
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    recognizer, refiner = recognizer or open_recognizer(settings.recording), open_refiner(settings)
    asr, thoughts, aligned, offsets, wrong = [0, 0], [0, 0], [0, 0], [], []
    speech, begun = 0.0, time.process_time()
    for name, known in sorted(truth.items()):
        session = load_session(folder / name)
        utterances = join_broken_utterances(
            transcribe_utterances(recognizer, session.samples, settings.recording.timeout_s)
        )
        texts = [refiner.refine(refiner_input(session, one)) for one in utterances]
        alignment = align_session(session, utterances, texts)
        speech += len(session.samples) / SAMPLE_RATE
        _count(asr, " ".join(u["said"] for u in known["utterances"]), " ".join(u.text for u in utterances))
        offsets.append(abs(alignment.offset_s - known["offset_s"]))
        for step in sorted({u["step"] for u in known["utterances"]}):
            got = " ".join(text for text, at in zip(texts, alignment.steps, strict=True) if at == step)
            meant = tuple(_words(known["thoughts"][step]))
            _count(thoughts, refiner.refine(RefinerInput(meant, (1.0,) * len(meant))), got)
        for utterance, step, score in zip(utterances, alignment.steps, alignment.scores, strict=True):
            right = _meant(known, utterance.start_s + known["offset_s"], utterance.end_s + known["offset_s"])
            aligned[0] += step == right
            aligned[1] += 1
            if step != right:
                wrong.append(f"{name}: step {step} for {right} ({score:.2f}): {utterance.text}")
    return {
        "sessions": len(truth),
        "speech_s": round(speech, 1),
        "cpu_s": round(time.process_time() - begun, 1),
        "word_error_rate": round(asr[0] / asr[1], 4),
        "words": asr[1],
        "thought_error_rate": round(thoughts[0] / thoughts[1], 4),
        "thought_words": thoughts[1],
        "aligned_right": round(aligned[0] / aligned[1], 4),
        "utterances": aligned[1],
        "offset_error_median_s": round(sorted(offsets)[len(offsets) // 2], 3),
        "offset_error_max_s": round(max(offsets), 3),
        "wrong": wrong,
    }


def _count(into: list[int], reference: str, said: str) -> None:
    into[0] += edits(_words(reference), _words(said))
    into[1] += len(_words(reference))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _meant(known: Mapping[str, Any], start: float, end: float) -> int:
    """The step of the true utterance that overlaps most with [start, end] on the screen's clock."""
    return max(known["utterances"], key=lambda u: min(end, u["end_s"]) - max(start, u["start_s"]))["step"]


def print_measures() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="sessions with their truth.json, such as recordings")
    print(json.dumps(measure(parser.parse_args().folder, Settings()), indent=1))


if __name__ == "__main__":
    print_measures()
