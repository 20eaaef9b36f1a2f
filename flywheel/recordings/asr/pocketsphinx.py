"""Recognize speech with PocketSphinx, helped by a language model of speech about screens; nothing is downloaded."""

from __future__ import annotations

import ctypes
import json
import math
import random
import re
import tempfile
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_void_p
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pocketsphinx import NGramModel, _pocketsphinx, get_model_path

from flywheel.envs.screens.vocabulary import BUTTONS, COLOURS, KEYS, PEOPLE, SETTINGS, SHAPES, SYMBOLS, THINGS
from flywheel.recordings.asr.recognizer import Word, check_audio, check_deadline
from flywheel.recordings.audio import SAMPLE_RATE
from flywheel.utils.errors import BadInput

# The Python binding lacks the functions that interpolate two language models. The wheel's extension module exports the
# whole C library (`pocketsphinx.h`, `pocketsphinx/model.h`), so it is called directly; nothing is compiled.

SPHINX_MODEL = Path(get_model_path()) / "en-us"
GENERAL_LANGUAGE_MODEL = SPHINX_MODEL / "en-us.lm.bin"  # the wheel's own language model
PRONUNCIATIONS = SPHINX_MODEL / "cmudict-en-us.dict"

LANGUAGE_WEIGHT = 6.5  # exponent of the language model's probabilities against the acoustic ones; the library's default
WORD_PENALTY = 0.65  # the library's default
_ANY_TYPE = 0  # of a language model's file: the library tells it by the name
_FRAMES_PER_S = 100
_VARIANT = re.compile(r"\(\d+\)$")  # "the(2)": a second pronunciation of the same word

_SIGNATURES = yaml.safe_load(Path(__file__).with_name("pocketsphinx.yaml").read_text("utf-8"))


class SphinxDecoder:
    """Decode speech with several language models. Not for use by several threads at once.

    models: file -> weight; they sum to 1. dictionary: file of pronunciations. options: of PocketSphinx. The score of a
    word w after h is sum_i weight_i p_i(w | h)^LANGUAGE_WEIGHT: the library mixes probabilities after raising them to
    that power, so a word is about as likely as in the model that expects it most. Raises BadInput where the library or
    a model cannot be used.
    """

    def __init__(self, models: Mapping[Path, float], dictionary: Path = PRONUNCIATIONS, **options: int | float) -> None:
        self._c = _library()
        config = self._c.ps_config_init(None)
        try:
            self._c.ps_config_set_str(config, b"hmm", bytes(SPHINX_MODEL / "en-us"))
            self._c.ps_config_set_str(config, b"dict", bytes(dictionary))
            self._c.ps_config_set_str(config, b"loglevel", b"FATAL")
            for name, value in options.items():
                set_it = self._c.ps_config_set_int if isinstance(value, int) else self._c.ps_config_set_float
                set_it(config, name.encode(), value)
            self._decoder = _check_pointer(self._c.ps_init(config), SPHINX_MODEL)
        finally:
            self._c.ps_config_free(config)
        weakref.finalize(self, self._c.ps_free, self._decoder)
        self._logmath = self._c.ps_get_logmath(self._decoder)
        self._choose(models)

    def _choose(self, models: Mapping[Path, float]) -> None:
        read = []
        try:
            for path in models:
                read.append(_check_pointer(self._c.ngram_model_read(None, bytes(path), _ANY_TYPE, self._logmath), path))
                self._c.ngram_model_apply_weights(read[-1], LANGUAGE_WEIGHT, WORD_PENALTY)
            count = len(read)
            names = (c_char_p * count)(*(str(number).encode() for number in range(count)))
            weights = (c_float * count)(*models.values())
            read.append(
                _check_pointer(
                    self._c.ngram_model_set_init(None, (c_void_p * count)(*read), names, weights, count), SPHINX_MODEL
                )
            )
            if self._c.ps_add_lm(self._decoder, b"all", read[-1]) or self._c.ps_activate_search(self._decoder, b"all"):
                raise BadInput("pocketsphinx refuses its language models", where=", ".join(map(str, models)))
        finally:
            for model in read:  # the decoder holds its own references
                self._c.ngram_model_free(model)

    def decode(self, pcm: bytes) -> tuple[Word, ...]:
        """Decode one utterance to the words of the best path. pcm: 16-bit little-endian samples, 16,000 a second.

        The utterance is processed as a whole: so the mean of its own spectrum is subtracted, which cancels microphone
        and room. A stream would begin with the mean of another utterance.
        """
        # The front end adapts to the channel as it goes: without this, words would depend on the utterances before.
        self._c.ps_reinit_feat(self._decoder, None)
        self._c.ps_start_utt(self._decoder)
        self._c.ps_process_raw(self._decoder, pcm, len(pcm) // 2, 0, 1)
        self._c.ps_end_utt(self._decoder)
        return tuple(self._words(len(pcm) // 2 / SAMPLE_RATE))

    def _words(self, length: float) -> Iterator[Word]:
        first, last = c_int(), c_int()
        at = self._c.ps_seg_iter(self._decoder)
        while at:
            word = self._c.ps_seg_word(at).decode()
            if not word.startswith(("<", "[")):  # silence and noise: <s>, <sil>, [NOISE]
                self._c.ps_seg_frames(at, first, last)
                start, end = first.value / _FRAMES_PER_S, (last.value + 1) / _FRAMES_PER_S
                posterior = self._c.logmath_exp(self._logmath, self._c.ps_seg_prob(at, None, None, None))
                posterior = min(max(posterior, 0.0), 1.0)
                yield Word(_VARIANT.sub("", word), min(start, length), min(end, length), posterior)
            at = self._c.ps_seg_next(at)


def _check_pointer(pointer: int | None, what: Path) -> int:
    if not pointer:
        raise BadInput("pocketsphinx cannot read its model", where=what, fix="install pocketsphinx again")
    return pointer


def _c_type(name: str) -> Any:
    if name.startswith("*"):
        return POINTER(_c_type(name[1:]))
    return None if name == "void" else getattr(ctypes, name)


@cache
def _library() -> ctypes.CDLL:
    """Load PocketSphinx's C library. Raises BadInput where this build of pocketsphinx does not export it."""
    library = ctypes.CDLL(_pocketsphinx.__file__)
    try:
        for name, kinds in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, *function.argtypes = map(_c_type, kinds)
    except AttributeError as error:
        raise BadInput(
            f"this build of pocketsphinx does not export its library: {error}",
            where=_pocketsphinx.__file__,
            fix="install its wheel: pip install -c constraints.txt --force-reinstall pocketsphinx",
        ) from None
    library.err_set_loglevel_str(b"FATAL")
    return library


# The language model of interfaces: a trigram model, in the ARPA format, of generated sentences. A general model of
# English hears `i opened the card` where an interface has a cart.

SENTENCES = 6000
DISCOUNT = 0.7  # taken from each n-gram's count for those never seen

Sentence = Sequence[str]
START, END = "<s>", "</s>"

# Patterns of sentences about an action; names in braces are replaced by words of the screens and some more.
_SPEECH = json.loads(Path(__file__).with_name("sentences.json").read_text(encoding="utf-8"))
_ON_SCREENS = {
    "colour": COLOURS,
    "shape": (*SHAPES, *SYMBOLS),
    "thing": THINGS,
    "way": KEYS,
    "setting": SETTINGS,
    "button": BUTTONS,
    "name": PEOPLE,
}
_SLOTS = {name: (*_ON_SCREENS.get(name, ()), *words) for name, words in _SPEECH["words"].items()}
_SLOTS["value"] += tuple(COLOURS)


def generate_sentences(count: int = SENTENCES, seed: int = 0) -> list[list[str]]:
    """Generate think-aloud speech: `count` sentences, each a list of lower-case words; the same for the same `seed`."""
    rng = random.Random(seed)
    return [_sentence(rng) for _ in range(count)]


def _sentence(rng: random.Random) -> list[str]:
    drawn = {name: rng.choice(words) for name, words in _SLOTS.items()}
    words = rng.choice(_SPEECH["patterns"]).format(**drawn).split()
    if rng.random() < 0.2 and "the" in words:
        # A correction: broken off somewhere after `the`, and begun again there.
        at = words.index("the")
        other = [rng.choice(_SLOTS["colour"])] if rng.random() < 0.7 else words[at + 1 :]
        words = [*words[: at + 1], *other, *rng.choice(_SPEECH["turns"]).split(), *words[at:]]
    if rng.random() < 0.4:
        words = [*rng.choice(_SPEECH["fillers"]).split(), *words]
    if rng.random() < 0.15 and len(words) > 4:
        cut = rng.randrange(2, len(words) - 1)  # a pause: each half is an utterance
        words = words[:cut] if rng.random() < 0.5 else words[cut:]
    return words


class TrigramModel:
    """Hold a trigram model of `corpus`, by interpolated absolute discounting.

    With c(h) the count of history h, n(h) the number of different words seen after it, and D = DISCOUNT, p(w | h) =
    max(c(h w) - D, 0) / c(h) + D n(h) / c(h) p(w | h'), where h' is h without its first word. The probability of a word
    without history is its share of the corpus.
    """

    def __init__(self, corpus: Sequence[Sentence]) -> None:
        self._counts = [_counts(corpus, order) for order in (1, 2, 3)]
        total = sum(self._counts[0].values())
        self._words = {word: count / total for (word,), count in self._counts[0].items()}
        self._following = [_following(self._counts[order]) for order in (1, 2)]  # after one word, after two

    def probability(self, gram: tuple[str, ...]) -> float:
        """Return the probability of the last word of `gram` after the others; 0 for a word that the corpus lacks.

        gram: one to three words.
        """
        if len(gram) == 1:
            return self._words.get(gram[0], 0.0)
        total, kinds = self._following[len(gram) - 2].get(gram[:-1], (0, 0))
        lower = self.probability(gram[1:])
        if not total:
            return lower
        seen = self._counts[len(gram) - 1].get(gram, 0)
        return max(seen - DISCOUNT, 0) / total + DISCOUNT * kinds / total * lower

    def _backoff(self, gram: tuple[str, ...]) -> float:
        total, kinds = self._following[len(gram) - 1].get(gram, (0, 0))
        return math.log10(DISCOUNT * kinds / total) if total else 0.0

    def arpa(self) -> str:
        """Return the model as text in the ARPA format."""
        grams = [sorted((word,) for word in (START, *self._words)), sorted(self._counts[1]), sorted(self._counts[2])]
        lines = ["\\data\\", *(f"ngram {order}={len(g)}" for order, g in enumerate(grams, 1))]
        for order, listed in enumerate(grams, 1):
            lines += ["", f"\\{order}-grams:"]
            for gram in listed:
                value = -99.0 if gram == (START,) else math.log10(self.probability(gram))
                lines.append(f"{value:.4f} {' '.join(gram)}" + (f" {self._backoff(gram):.4f}" if order < 3 else ""))
        return "\n".join([*lines, "", "\\end\\", ""])


def _counts(corpus: Sequence[Sentence], order: int) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for sentence in corpus:
        padded = [START, *sentence, END]
        counts.update(tuple(padded[at : at + order]) for at in range(len(padded) - order + 1))
    if order == 1:
        del counts[(START,)]  # never follows anything
    return counts


def _following(counts: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], tuple[int, int]]:
    """Return history -> (number of words that followed it, number of different ones)."""
    totals: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for gram, count in counts.items():
        totals[gram[:-1]][0] += count
        totals[gram[:-1]][1] += 1
    return {history: (total, kinds) for history, (total, kinds) in totals.items()}


# An utterance is first decoded with both language models; where the result is less likely as speech about a screen than
# as general English, it is decoded again with the general model alone.

_LOG_BASE = math.log(1.0001)  # of pocketsphinx's log-probabilities
_COMMON = 3_000  # most frequent words of general English that the quick search knows
_SEARCH = {"maxhmmpf": 4_000, "maxwpf": 20, "fwdflat": 0}  # of the quick search: fewer paths, a single pass
_UNKNOWN = 1e-7  # probability of a word that a language model does not have


class PocketSphinx:
    """Recognize speech with PocketSphinx. Not for use by several threads at once.

    adapted: False gives the stock recognizer, with the wheel's language model and search, as a baseline to measure
    against. Raises BadInput where the library or its model cannot be used.
    """

    whole = False

    def __init__(self, adapted: bool = True) -> None:
        self.name = f"pocketsphinx-{version('pocketsphinx')}"
        self._general = SphinxDecoder({GENERAL_LANGUAGE_MODEL: 1.0})
        self._interface = _InterfaceSpeech() if adapted else None

    def recognize(self, samples: np.ndarray, rate: int, deadline_s: float = 60.0) -> tuple[Word, ...]:
        """Recognize as `Recognizer.recognize` says; the confidence is the posterior of the word in the lattice.

        Decoding cannot be interrupted, so the deadline is checked before and after it. Raises RecognitionTimeout after
        `deadline_s`, BadInput as `check_audio`.
        """
        check_audio(samples, rate)
        deadline = time.monotonic() + deadline_s
        check_deadline(deadline, self.name)
        if not len(samples):
            return ()
        pcm = (np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes()
        words = self._interface.decoder.decode(pcm) if self._interface else ()
        check_deadline(deadline, self.name)
        if not words or not self._interface or self._interface.gain([word.word for word in words]) <= 0:
            words = self._general.decode(pcm)
            check_deadline(deadline, self.name)
        return words


class _InterfaceSpeech:
    """Search quickly for speech about interfaces, and judge whether the result is such speech.

    Both language models weigh the same. To save time the dictionary has only the words of that speech and the most
    frequent others: anything else is left to the general search.
    """

    def __init__(self) -> None:
        pronounced = _dictionary()
        corpus = [sentence for sentence in generate_sentences() if all(word in pronounced for word in sentence)]
        self._interface, self._general = TrigramModel(corpus), NGramModel.readfile(str(GENERAL_LANGUAGE_MODEL))
        spoken = sorted((word for word in pronounced if word.isascii()), key=lambda word: (-self._english(word), word))
        known = {word for sentence in corpus for word in sentence}.union(islice(spoken, _COMMON))
        with tempfile.TemporaryDirectory() as folder:
            model, dictionary = Path(folder) / "interface.lm", Path(folder) / "known.dict"
            model.write_text(self._interface.arpa(), encoding="ascii")
            dictionary.write_text("".join(pronounced[word] for word in sorted(known)), encoding="utf-8")
            self.decoder = SphinxDecoder({GENERAL_LANGUAGE_MODEL: 0.5, model: 0.5}, dictionary, **_SEARCH)

    def gain(self, words: Sequence[str]) -> float:
        """Return log p(words) as speech about an interface minus log p(words) as general English."""
        said, gain = (START, *words, END), 0.0
        for at in range(1, len(said)):
            gram = said[max(0, at - 2) : at + 1]
            gain += math.log(max(self._interface.probability(gram), _UNKNOWN))
            gain -= max(self._english(*gram), math.log(_UNKNOWN))
        return gain

    def _english(self, *gram: str) -> float:
        """Return the natural logarithm of the general model's probability of the last word after the others."""
        return self._general.prob(list(reversed(gram))) * _LOG_BASE


def _dictionary() -> dict[str, str]:
    """Return each word that the recognizer can pronounce, with its lines of the dictionary."""
    found: dict[str, str] = {}
    for line in PRONUNCIATIONS.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.strip():
            word = _VARIANT.sub("", line.split(maxsplit=1)[0])
            found[word] = found.get(word, "") + line
    return found
