"""Recognize speech with OpenAI's Whisper, in windows of thirty seconds, from a checkpoint file."""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from flywheel.recordings.asr.recognizer import Word, check_audio, check_deadline
from flywheel.utils.errors import BadInput
from flywheel.utils.files import expand_home, sha256_file

WINDOW_S = 30.0
EDGE_S = 1.0  # a word that ends so near a window's end may be half a word
CONTEXT = 100  # words before a window that Whisper gets as its prompt
LOOPING = 2.4  # a text that zlib compresses by more than this factor repeats itself (Whisper's own measure)

# (start, end of the window in seconds, text before it) -> its words, with times from the recording's start
Hear = Callable[[float, float, str], Sequence[Word]]


def stream_windows(seconds: float, hear: Hear) -> Iterator[Word]:
    """Recognize a long recording window by window, and yield its words, each once, in order of time.

    seconds: length of the recording. hear: recognizes one window. Words that the end of a window may cut are left to
    the next window, which begins in the gap before them. A window whose words repeat in a loop is not given to the next
    as context, which would repeat them too.
    """
    at, context = 0.0, ""
    while at < seconds:
        end = min(at + WINDOW_S, seconds)
        words = list(hear(at, end, context))
        kept, after = (words, end) if end == seconds else _whole(words, at, end)
        yield from kept
        text = " ".join(word.word for word in kept)
        loops = text and len(text) / len(zlib.compress(text.encode())) > LOOPING
        context = "" if loops else " ".join(f"{context} {text}".split()[-CONTEXT:])
        at = after


def _whole(words: list[Word], at: float, end: float) -> tuple[list[Word], float]:
    """Return the words that are surely whole, and the second at which the next window begins."""
    first = next((i for i, word in enumerate(words) if word.end_s > end - EDGE_S), len(words))
    if first == len(words):
        return words, end
    before = words[first - 1].end_s if first else at
    after = (before + words[first].start_s) / 2
    # A word as long as half a window is no word; beginning again before it would never end.
    return (words[:first], after) if after > at + WINDOW_S / 2 else (words, end)


# A checkpoint file is of Whisper's own format (`torch.save` of dims and weights).

_NOT_WORD = re.compile(r"[^\w']+")


class Whisper:
    """Recognize speech with one Whisper model, on the GPU where there is one, else on the CPU.

    model: a checkpoint file, or the name of a published model in Whisper's cache; nothing is downloaded. language: code
    of the spoken language. Raises BadInput as `find_whisper_checkpoint`, for a file that is no checkpoint, and for a
    language that Whisper, or this model, does not know.
    """

    whole = True

    def __init__(self, model: str | Path, language: str = "en") -> None:
        whisper = _package()
        self._language = language
        path = find_whisper_checkpoint(model)
        try:
            self._model = whisper.load_model(str(path))
        except Exception as error:  # torch raises many kinds for a file that is no checkpoint
            raise BadInput(f"not a Whisper checkpoint: {error}", where=path, fix="fetch the file again") from None
        if language not in whisper.tokenizer.LANGUAGES or (language != "en" and not self._model.is_multilingual):
            what = f"the Whisper model {path.stem} does not know the language {language!r}"
            fix = "give its code, such as de, and a model of many languages, such as base" if language != "en" else ""
            raise BadInput(what, where="recording.language", fix=fix)
        heads = whisper._ALIGNMENT_HEADS.get(path.stem)
        if heads:  # attention heads that time a published model's words best; else the upper half of its layers
            self._model.set_alignment_heads(heads)
        self.name = f"whisper-{path.stem}"

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> tuple[Word, ...]:
        """Recognize as `Recognizer.recognize` says; the confidence is the mean probability of the word's tokens.

        Samples may be of any length, and memory-mapped: one window at a time is read. Decoding of a window cannot be
        interrupted, so the deadline is checked before and after each. Raises RecognitionTimeout after `deadline_s`,
        BadInput as `check_audio`.
        """
        check_audio(samples, rate)
        deadline = time.monotonic() + deadline_s
        check_deadline(deadline, self.name)

        def hear(start: float, end: float, context: str) -> Sequence[Word]:
            heard = self._window(np.array(samples[round(start * rate) : round(end * rate)]), context)
            check_deadline(deadline, self.name)
            return list(_words(heard["segments"], start, end))

        return tuple(stream_windows(len(samples) / rate, hear))

    def _window(self, samples: np.ndarray, context: str) -> dict:
        """Transcribe one window. The samples are passed as an array, since a path would need ffmpeg."""
        return self._model.transcribe(
            samples,
            language=self._language,
            word_timestamps=True,
            initial_prompt=context or None,
            condition_on_previous_text=False,
            temperature=0.0,
            fp16=self._model.device.type == "cuda",
        )


def _package() -> ModuleType:
    try:
        import whisper
    except ImportError as error:
        raise BadInput(
            f"Whisper is not installed: {error}",
            where="recording.recognizer",
            fix="pip install 'flywheel[whisper]', or set pocketsphinx",
        ) from None
    return whisper


def find_whisper_checkpoint(model: str | Path) -> Path:
    """Return the file of a Whisper checkpoint; nothing is downloaded.

    model: a path (relative to the current folder), or the name of a published model in the cache
    (`$XDG_CACHE_HOME/whisper`, by default `~/.cache/whisper`), whose checksum must be the published one; an existing
    file wins over a name. Raises BadInput where Whisper is not installed, there is no such file or name, or the
    published model's file is damaged.
    """
    whisper, model = _package(), str(model)
    path = expand_home(model)
    if path.is_file():
        return path
    address = whisper._MODELS.get(model)
    if not address:
        raise BadInput(
            "no such Whisper checkpoint",
            where=path,
            fix=f"set recording.whisper_model to its file, or to one of {', '.join(whisper.available_models())}",
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whisper"
    path = cache / Path(address).name
    if not path.is_file():
        raise BadInput(
            f"the Whisper model {model} is not in the cache, and nothing is downloaded",
            where=path,
            fix=f"on a machine with a network: python -c \"import whisper; whisper.load_model('{model}')\"",
        )
    if sha256_file(path) != address.split("/")[-2]:
        raise BadInput("the Whisper checkpoint is damaged: its sha256 differs", where=path, fix="fetch the file again")
    return path


def _words(segments: list[dict], start: float, end: float) -> Iterator[Word]:
    """Yield the words in order, with times from the recording's start.

    Times are clipped to the window, which Whisper pads to 30 s, and made not to decrease.
    """
    at = start
    for word in (word for segment in segments for word in segment["words"]):
        text = _NOT_WORD.sub("", word["word"].lower())
        begun = min(max(start + float(word["start"]), at), end)
        at = min(max(start + float(word["end"]), begun), end)
        if text:
            yield Word(text, begun, at, min(max(float(word["probability"]), 0.0), 1.0))
