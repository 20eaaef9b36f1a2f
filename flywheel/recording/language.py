"""A trigram model of how people speak about a screen, in the ARPA format: it leads a recognizer to likely words.

A general model of English hears `i opened the card` where an interface has a cart. This one has two parts: n-grams of
generated sentences about interfaces (verbs, colours, shapes, things, buttons, settings; fillers and corrections),
and, below them, single words of general English, so that other speech is still heard.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from flywheel.synthesis.words import BUTTONS, COLOURS, KEYS, PEOPLE, SETTINGS, SHAPES, SYMBOLS, THINGS

SENTENCES = 6000
DISCOUNT = 0.7  # taken from each n-gram's count for those never seen
GENERAL = 0.15  # share of single-word probability that goes to general English

Sentence = Sequence[str]
_START, _END = "<s>", "</s>"

_FILLERS = ("um", "uh", "okay", "so", "well", "let me see", "um okay", "hmm", "and", "now", "then", "first", "next")
_TURNS = ("no wait", "sorry", "no sorry", "i mean", "no", "wait")
_NAMES = (*PEOPLE, "alice", "bob", "emma", "max")
_SWITCHED = (*SETTINGS, "alerts", "night", "alarm", "wifi", "battery", "mode")
_MORE_SHAPES = (*SHAPES, *SYMBOLS, "piece", "tile", "outline")
_PLACES = (
    "cart",
    "checkout",
    "shop",
    "menu",
    "page",
    "list",
    "home page",
    "main page",
    "next page",
    "settings",
    "look page",
    "user page",
)
_FIELDS = ("field", "name field", "search box", "box", "search field", "text", "button", "link", "cart", "checkout")

# Each line is a way to speak of one action; words in braces are drawn.
_PATTERNS = (
    "i {pick} the {colour} {shape}", "{pick} the {colour} {shape}", "i {pick} the {colour} tile",
    "i {pick} the {thing}", "i {pick} the {colour} {thing}", "here is the {colour} {thing}", "{pick} the {colour} one",
    "i {move} the {colour} {shape}", "{move} the {colour} {shape} {way}", "i {move} the {shape}",
    "i {move} the {shape} to the outline", "i {move} them {way}", "{move} the tiles {way}", "i press {way}",
    "i press the {way} key", "press {way}", "i go {way}", "i turn {state} {setting}", "turn {state} {setting}",
    "i turn {state} the {setting}", "i click the {setting} switch", "i click the {field}", "i click {button}",
    "i click add to cart", "i add it to the cart", "i add the {colour} {thing} to the cart",
    "i remove the {colour} {thing}", "i take out the {colour} {thing}", "i open the {place}", "i go to the {place}",
    "i go back to the {place}", "back to the {place}", "i click the {place}", "i click {place}", "i type {name}",
    "i type {colour}", "i type {thing}", "i type my name in the field", "i set the {kind} to {value}",
    "i click {value}", "i click {colour}", "i search for the {thing}", "i scroll {way}", "i buy the {colour} {thing}",
    "i am done", "okay done", "maybe here", "that is not it", "where is the {thing}", "i look for the {shape}",
)  # fmt: skip
_SLOTS: dict[str, tuple[str, ...]] = {
    "pick": ("click", "pick", "take", "open", "select", "choose", "click", "pick", "take"),
    "move": ("drag", "move", "push", "put", "drag", "move"), "colour": tuple(COLOURS), "shape": _MORE_SHAPES,
    "thing": (*THINGS, "lamp", "mug", "hat", "shirt", "shoe", "ball", "bag", "book"), "way": KEYS,
    "state": ("on", "off"), "setting": _SWITCHED, "field": _FIELDS, "button": BUTTONS, "place": _PLACES,
    "name": _NAMES, "kind": ("color", "text", "text size", "name", "size"), 
    "value": ("small", "normal", "large", *COLOURS),
}  # fmt: skip


def sentences(count: int = SENTENCES, seed: int = 0) -> list[list[str]]:
    """Generated think-aloud speech, in lower case."""
    rng = random.Random(seed)
    return [_sentence(rng) for _ in range(count)]


def _sentence(rng: random.Random) -> list[str]:
    drawn = {name: rng.choice(words) for name, words in _SLOTS.items()}
    words = rng.choice(_PATTERNS).format(**drawn).split()
    if rng.random() < 0.2 and "the" in words:
        # A correction: broken off somewhere after `the`, and begun again there.
        at = words.index("the")
        other = [rng.choice(_SLOTS["colour"])] if rng.random() < 0.7 else words[at + 1 :]
        words = [*words[: at + 1], *other, *rng.choice(_TURNS).split(), *words[at:]]
    if rng.random() < 0.4:
        words = [*rng.choice(_FILLERS).split(), *words]
    if rng.random() < 0.15 and len(words) > 4:
        cut = rng.randrange(2, len(words) - 1)  # a pause: each half is an utterance
        words = words[:cut] if rng.random() < 0.5 else words[cut:]
    return words


def arpa(corpus: Sequence[Sentence], general: Mapping[str, float]) -> str:
    """An ARPA trigram model of `corpus`; `general`: word -> probability in general English, in any scale.

    Interpolated absolute discounting: with c(h) the count of history h and n(h) the number of words seen after it,
    p(w | h) = max(c(h w) - D, 0) / c(h) + D n(h) / c(h) p(w | h'), where h' is h without its first word. Single words:
    (1 - GENERAL) of their share of the corpus and GENERAL of their share of general English.
    """
    counts = [_counts(corpus, order) for order in (1, 2, 3)]
    words = _unigrams(counts[0], general)
    following = [_following(counts[order]) for order in (1, 2)]  # after histories of one and of two words

    def probability(gram: tuple[str, ...]) -> float:
        if len(gram) == 1:
            return words[gram[0]]
        total, kinds = following[len(gram) - 2].get(gram[:-1], (0, 0))
        lower = probability(gram[1:])
        if not total:
            return lower
        seen = counts[len(gram) - 1].get(gram, 0)
        return max(seen - DISCOUNT, 0) / total + DISCOUNT * kinds / total * lower

    def backoff(gram: tuple[str, ...]) -> float:
        total, kinds = following[len(gram) - 1].get(gram, (0, 0))
        return math.log10(DISCOUNT * kinds / total) if total else 0.0

    grams = [sorted((word,) for word in (_START, *words)), sorted(counts[1]), sorted(counts[2])]
    lines = ["\\data\\", *(f"ngram {order}={len(g)}" for order, g in enumerate(grams, 1))]
    for order, listed in enumerate(grams, 1):
        lines += ["", f"\\{order}-grams:"]
        for gram in listed:
            value = -99.0 if gram == (_START,) else math.log10(probability(gram))
            lines.append(f"{value:.4f} {' '.join(gram)}" + (f" {backoff(gram):.4f}" if order < 3 else ""))
    return "\n".join([*lines, "", "\\end\\", ""])


def _counts(corpus: Sequence[Sentence], order: int) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for sentence in corpus:
        padded = [_START, *sentence, _END]
        counts.update(tuple(padded[at : at + order]) for at in range(len(padded) - order + 1))
    if order == 1:
        del counts[(_START,)]  # never follows anything
    return counts


def _following(counts: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], tuple[int, int]]:
    """history -> (how often something followed it, how many different words did)."""
    totals: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for gram, count in counts.items():
        totals[gram[:-1]][0] += count
        totals[gram[:-1]][1] += 1
    return {history: (total, kinds) for history, (total, kinds) in totals.items()}


def _unigrams(counts: Mapping[tuple[str, ...], int], general: Mapping[str, float]) -> dict[str, float]:
    total, mass = sum(counts.values()), sum(general.values())
    share = GENERAL if mass else 0.0
    words = {word: (1 - share) * count / total for (word,), count in counts.items()}
    for word, weight in general.items():
        words[word] = words.get(word, 0.0) + share * weight / mass
    return words
