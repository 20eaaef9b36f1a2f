"""Read a session's speech from a transcript that was made elsewhere: WebVTT, SubRip, ELAN or Praat's TextGrid.

It lies in the session's folder as `transcript.vtt`, `.srt`, `.eaf` or `.TextGrid`, on the clock of the sound. A word's
own times are taken where the format has them (a tier of words, WebVTT's timestamps within a cue); other words share
their cue's time by their length.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from flywheel.recordings.asr.recognizer import Word
from flywheel.recordings.utterances import Utterance
from flywheel.utils.errors import DataError

SUFFIXES = (".vtt", ".srt", ".eaf", ".TextGrid")
_PAUSE_S = 0.5  # without a word, which ends an utterance of a tier of words; as `audio.speech_segments`
_ROLLS_S = 0.1  # between two captions of which the second shows the first once more
_MOST_BYTES = 64 << 20
_WORDS = re.compile(r"[^\W_]+(?:['’.,][^\W_]+)*")
_CLOCK = r"(?:(\d+):)?([0-5]?\d):([0-5]?\d)[.,](\d{1,3})"
_CUE_TIMES = re.compile(rf"\s*{_CLOCK}\s+-->\s+{_CLOCK}(?:\s.*)?")
_MARK = re.compile(rf"<{_CLOCK}>")
_TAG = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")  # WebVTT's and SubRip's marks of form
_FIX = "mend it there, or export the transcript again"


@dataclass(frozen=True)
class Cue:
    """Hold a stretch of a transcript: its times in seconds on the clock of the sound, and what was said."""

    start_s: float
    end_s: float
    text: str


def find_transcript(folder: Path) -> Path | None:
    """Find the transcript in the session's `folder`; None where there is none. Raises DataError where there are two."""
    found = sorted(path for path in folder.glob("transcript.*") if path.suffix in SUFFIXES)
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise DataError(f"there are {len(found)} transcripts: {names}", where=folder, fix="keep one")
    return found[0] if found else None


def read_transcript(path: Path, seconds: float) -> list[Utterance]:
    """Read a transcript as utterances in order of time, of confidence 1; words are lower case without punctuation.

    path: its suffix says the format. seconds: length of the sound. Raises DataError naming file, place and fault: not
    of its format, several tiers of which none is called `words`, times that go backwards or past the sound, no word.
    """
    text = _read_text(path)
    try:
        cues, by_word = _READERS[path.suffix](text)
    except ElementTree.ParseError as error:
        raise DataError(f"the transcript is no XML: {error}", where=path, fix=_FIX) from None
    except _Fault as fault:
        raise DataError(f"the transcript: {fault}", where=path, fix=_FIX) from None
    cues = sorted((cue for cue in cues if _WORDS.search(_TAG.sub("", cue.text))), key=lambda cue: cue.start_s)
    if not cues:
        raise DataError("the transcript has no word", where=path, fix=_FIX)
    if (last := max(cue.end_s for cue in cues)) > seconds + 1.0:
        what = f"the transcript goes on to {last:.1f} s, the recording has {seconds:.1f} s"
        raise DataError(what, where=path, fix="take the transcript of this recording")
    spoken = [_utterance(cue) for cue in cues]
    return list(_join_words(spoken)) if by_word else spoken


class _Fault(ValueError):
    """Say what of a transcript is wrong, and where."""


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"the transcript is larger than {_MOST_BYTES >> 20} MB", where=path, fix=_FIX)
        raw = path.read_bytes()
        wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))  # Praat writes UTF-16 where a text is not ASCII
        return raw.decode("utf-16" if wide else "utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the transcript cannot be read: {error}", where=path, fix="save it as UTF-8") from None


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


# WebVTT and SubRip: a line of times begins a cue, whose text goes on to an empty line, or to the next cue.


def _read_cues(text: str) -> tuple[list[Cue], bool]:
    cues: list[Cue] = []
    before: list[str] = []  # the lines of the cue before
    for times, said in _split_cues(text):
        found = _CUE_TIMES.fullmatch(times)
        if found is None:
            raise _Fault(f"these are no times of a cue: {times[:80]!r}")
        start, end = _seconds(*found.groups()[:4]), _seconds(*found.groups()[4:])
        if end < start:
            raise _Fault(f"a cue ends before it begins: {times[:80]!r}")
        # Captions that roll show the line before once more, above the new one.
        rolled = before and said and _plain(said[0]) == _plain(before[-1]) and start - cues[-1].end_s < _ROLLS_S
        cues.append(Cue(start, end, " ".join(said[1:] if rolled else said)))
        before = said or before
    if not cues:
        raise _Fault("it has no cue, such as 00:01.000 --> 00:02.500")
    return cues, False


def _split_cues(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each cue's line of times and its lines of text. Heads, notes, styles and names of cues are left out."""
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if "-->" in line]
    for start, following in pairwise([*starts, len(lines) + 1]):
        said = lines[start + 1 : following - 1]  # the line before the times may be the cue's name
        said = said[: said.index("")] if "" in said else said
        yield lines[start], [line for line in said if line.strip()]


def _plain(line: str) -> str:
    return " ".join(_TAG.sub("", line).split())


# ELAN: an XML file of tiers of annotations, whose times are in a table of their own.


def _read_elan(text: str) -> tuple[list[Cue], bool]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise _Fault("it declares a document type, which ELAN's files do not have")
    root = ElementTree.fromstring(text.encode())
    if root.tag != "ANNOTATION_DOCUMENT":
        raise _Fault(f"its root is {root.tag[:40]!r}, not ANNOTATION_DOCUMENT")
    slots = {slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE") for slot in root.iter("TIME_SLOT")}
    tiers: dict[str, list[Cue]] = {}
    for tier in root.iter("TIER"):
        cues = tiers.setdefault(tier.get("TIER_ID", ""), [])
        for one in tier.iter("ALIGNABLE_ANNOTATION"):
            times = [slots.get(one.get(f"TIME_SLOT_REF{number}")) for number in (1, 2)]
            if None in times or not all(time.isdecimal() for time in times):
                raise _Fault(f"the annotation {one.get('ANNOTATION_ID')} has no times of its own")
            cues.append(Cue(int(times[0]) / 1000, int(times[1]) / 1000, one.findtext("ANNOTATION_VALUE") or ""))
    return _choose_tier(tiers)


# Praat's TextGrid, in its long and its short form: the same values in the same order, with or without their names.

_GRID_VALUE = re.compile(r'"((?:[^"]|"")*)"|<(exists)>|(?<![\w\[])(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)(?![\w\]])')


def _read_grid(text: str) -> tuple[list[Cue], bool]:
    values = iter(
        [m[1].replace('""', '"') if m[1] is not None else m[2] or float(m[3]) for m in _GRID_VALUE.finditer(text)]
    )
    tiers: dict[str, list[Cue]] = {}
    try:
        if (next(values), next(values)) != ("ooTextFile", "TextGrid"):
            raise _Fault("it does not begin as a TextGrid")
        _, _, there, count = (next(values) for _ in range(4))
        for _ in range(int(count) if there == "exists" else 0):
            kind, name, _, _, size = (next(values) for _ in range(5))
            width = 3 if kind == "IntervalTier" else 2
            rows = [tuple(next(values) for _ in range(width)) for _ in range(int(size))]
            if kind == "IntervalTier":
                tiers.setdefault(str(name), []).extend(Cue(float(a), float(b), str(said)) for a, b, said in rows)
    except (StopIteration, RuntimeError):
        raise _Fault("it is cut off") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, _Fault):
            raise
        raise _Fault(f"its values are not in a TextGrid's order: {error}") from None
    return _choose_tier(tiers)


def _choose_tier(tiers: dict[str, list[Cue]]) -> tuple[list[Cue], bool]:
    """Choose the tier of words, where one is called so; else the only one that has a text."""
    said = {name: cues for name, cues in tiers.items() if any(cue.text.strip() for cue in cues)}
    for name, cues in said.items():
        for cue in cues:
            if cue.end_s < cue.start_s or cue.start_s < 0:
                raise _Fault(f"tier {name[:40]!r}: {cue.text[:40]!r} ends before it begins")
        if re.fullmatch(r"words?", name.strip(), re.IGNORECASE):
            return cues, True
    if len(said) > 1:
        raise _Fault(f"which tier holds what was said? Call it `words`, or keep one of {', '.join(sorted(said))[:200]}")
    return next(iter(said.values()), []), False


# Words of a cue.


def _utterance(cue: Cue) -> Utterance:
    """Make the utterance of a cue; words share the time between two marks by their length."""
    pieces = _MARK.split(cue.text)  # text, then four parts of a mark and the text after it, again and again
    texts, marks = pieces[::5], [_seconds(*pieces[n : n + 4]) for n in range(1, len(pieces), 5)]
    edges = [cue.start_s, *marks, cue.end_s]
    if edges != sorted(edges):
        texts, edges = [" ".join(texts)], [cue.start_s, cue.end_s]  # marks out of order say nothing
    words: list[Word] = []
    for text, (start, end) in zip(texts, pairwise(edges), strict=True):
        found = _WORDS.findall(html.unescape(_TAG.sub("", text)))
        whole, at = sum(map(len, found)), start
        for word in found:
            after = at + (end - start) * len(word) / whole
            words.append(Word(word.lower().replace("’", "'"), round(at, 3), round(after, 3), 1.0))
            at = after
    return Utterance(cue.start_s, cue.end_s, tuple(words))


def _join_words(spoken: Iterable[Utterance]) -> Iterator[Utterance]:
    """Join the utterances of a tier of words, one a word, up to the next pause."""
    held: Utterance | None = None
    for one in spoken:
        if held and one.start_s - held.end_s < _PAUSE_S:
            held = Utterance(held.start_s, one.end_s, (*held.words, *one.words))
        else:
            if held:
                yield held
            held = one
    if held:
        yield held


_READERS = {".vtt": _read_cues, ".srt": _read_cues, ".eaf": _read_elan, ".TextGrid": _read_grid}
