"""The part of PocketSphinx's C library that its Python binding leaves out: two language models, interpolated.

The wheel's extension module exports the whole library (`pocketsphinx.h`, `pocketsphinx/model.h`), so it is called as
it stands there; nothing is compiled.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Mapping
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_long, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pocketsphinx import _pocketsphinx, get_model_path

from flywheel.errors import BadInput

MODEL = Path(get_model_path()) / "en-us"
GENERAL = MODEL / "en-us.lm.bin"  # the wheel's own language model
DICTIONARY = MODEL / "cmudict-en-us.dict"

LANGUAGE_WEIGHT = 6.5  # the exponent of the language model's probabilities beside the sounds'; the library's default
WORD_PENALTY = 0.65  # likewise
_ANY_TYPE = 0  # of a language model's file: as its name says

_SIGNATURES = {
    "err_set_loglevel_str": (c_char_p, c_char_p),
    "ps_config_init": (c_void_p, c_void_p),
    "ps_config_free": (c_int, c_void_p),
    "ps_config_set_str": (c_void_p, c_void_p, c_char_p, c_char_p),
    "ps_config_set_int": (c_void_p, c_void_p, c_char_p, c_long),
    "ps_config_set_float": (c_void_p, c_void_p, c_char_p, c_double),
    "ps_init": (c_void_p, c_void_p),
    "ps_free": (c_int, c_void_p),
    "ps_get_logmath": (c_void_p, c_void_p),
    "ps_add_lm": (c_int, c_void_p, c_char_p, c_void_p),
    "ps_activate_search": (c_int, c_void_p, c_char_p),
    "ps_reinit_feat": (c_int, c_void_p, c_void_p),
    "ps_start_utt": (c_int, c_void_p),
    "ps_end_utt": (c_int, c_void_p),
    "ps_process_raw": (c_int, c_void_p, c_char_p, c_size_t, c_int, c_int),
    "ps_seg_iter": (c_void_p, c_void_p),
    "ps_seg_next": (c_void_p, c_void_p),
    "ps_seg_word": (c_char_p, c_void_p),
    "ps_seg_frames": (None, c_void_p, POINTER(c_int), POINTER(c_int)),
    "ps_seg_prob": (c_int32, c_void_p, c_void_p, c_void_p, c_void_p),
    "logmath_exp": (c_double, c_void_p, c_int),
    "ngram_model_read": (c_void_p, c_void_p, c_char_p, c_int, c_void_p),
    "ngram_model_free": (c_int, c_void_p),
    "ngram_model_apply_weights": (c_int, c_void_p, c_float, c_float),
    "ngram_model_set_init": (c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_char_p), POINTER(c_float), c_int),
}


@dataclass(frozen=True)
class Segment:
    """One piece of the best path: a word, or silence and noise. Frames last 10 ms; posterior: 0 to 1."""

    word: str
    first_frame: int
    last_frame: int
    posterior: float


class Decoder:
    """A decoder over language models (file -> weight, of sum 1). Not for use by several threads at once.

    The score of a word w after h is sum_i weight_i p_i(w | h)^LANGUAGE_WEIGHT: the library interpolates what it has
    weighted already, so a word is about as likely as in that model which expects it most.
    """

    def __init__(self, models: Mapping[Path, float], dictionary: Path = DICTIONARY, **options: int | float) -> None:
        self._c = _library()
        config = self._c.ps_config_init(None)
        try:
            self._c.ps_config_set_str(config, b"hmm", bytes(MODEL / "en-us"))
            self._c.ps_config_set_str(config, b"dict", bytes(dictionary))
            self._c.ps_config_set_str(config, b"loglevel", b"FATAL")
            for name, value in options.items():
                set_it = self._c.ps_config_set_int if isinstance(value, int) else self._c.ps_config_set_float
                set_it(config, name.encode(), value)
            self._decoder = _made(self._c.ps_init(config), MODEL)
        finally:
            self._c.ps_config_free(config)
        weakref.finalize(self, self._c.ps_free, self._decoder)
        self._logmath = self._c.ps_get_logmath(self._decoder)
        self._choose(models)

    def _choose(self, models: Mapping[Path, float]) -> None:
        read = []
        try:
            for path in models:
                read.append(_made(self._c.ngram_model_read(None, bytes(path), _ANY_TYPE, self._logmath), path))
                self._c.ngram_model_apply_weights(read[-1], LANGUAGE_WEIGHT, WORD_PENALTY)
            count = len(read)
            names = (c_char_p * count)(*(str(number).encode() for number in range(count)))
            weights = (c_float * count)(*models.values())
            read.append(
                _made(self._c.ngram_model_set_init(None, (c_void_p * count)(*read), names, weights, count), MODEL)
            )
            if self._c.ps_add_lm(self._decoder, b"all", read[-1]) or self._c.ps_activate_search(self._decoder, b"all"):
                raise BadInput("pocketsphinx refuses its language models", where=", ".join(map(str, models)))
        finally:
            for model in read:  # whoever needs it holds it by itself
                self._c.ngram_model_free(model)

    def decode(self, pcm: bytes) -> list[Segment]:
        """The best path through one utterance: 16-bit samples, 16,000 a second.

        It is read as a whole: the mean of the spectrum, by which microphone and room are taken out, is that of the
        utterance, where a stream would begin with another's.
        """
        # The front end adapts to the channel as it goes: without this, words would depend on the utterances before.
        self._c.ps_reinit_feat(self._decoder, None)
        self._c.ps_start_utt(self._decoder)
        self._c.ps_process_raw(self._decoder, pcm, len(pcm) // 2, 0, 1)
        self._c.ps_end_utt(self._decoder)
        return list(self._segments())

    def _segments(self) -> Iterator[Segment]:
        first, last = c_int(), c_int()
        at = self._c.ps_seg_iter(self._decoder)
        while at:
            self._c.ps_seg_frames(at, first, last)
            posterior = self._c.logmath_exp(self._logmath, self._c.ps_seg_prob(at, None, None, None))
            yield Segment(self._c.ps_seg_word(at).decode(), first.value, last.value, min(max(posterior, 0.0), 1.0))
            at = self._c.ps_seg_next(at)


def _made(pointer: int | None, what: Path) -> int:
    if not pointer:
        raise BadInput("pocketsphinx cannot read its model", where=what, fix="install pocketsphinx again")
    return pointer


@cache
def _library() -> ctypes.CDLL:
    """Raises BadInput where this build of pocketsphinx keeps its library to itself."""
    library = ctypes.CDLL(_pocketsphinx.__file__)
    try:
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise BadInput(
            f"this build of pocketsphinx does not export its library: {error}",
            where=_pocketsphinx.__file__,
            fix="install its wheel: pip install -c constraints.txt --force-reinstall pocketsphinx",
        ) from None
    library.err_set_loglevel_str(b"FATAL")
    return library
