"""A trigram model of how people speak about a screen, in the ARPA format: it leads a recognizer to likely words.

A general model of English hears `i opened the card` where an interface has a cart. This one has n-grams of generated
sentences about interfaces (verbs, colours, shapes, things, buttons, settings; fillers and corrections); all other
speech is left to the general one (`pocketsphinx.py`).
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from flywheel.words import BUTTONS, COLOURS, KEYS, PEOPLE, SETTINGS, SHAPES, SYMBOLS, THINGS

SENTENCES = 6000
DISCOUNT = 0.7  # taken from each n-gram's count for those never seen

Sentence = Sequence[str]
START, END = "<s>", "</s>"

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
    "i {pick} the {colour} {shape}",
    "{pick} the {colour} {shape}",
    "i {pick} the {colour} tile",
    "i {pick} the {thing}",
    "i {pick} the {colour} {thing}",
    "here is the {colour} {thing}",
    "{pick} the {colour} one",
    "i {move} the {colour} {shape}",
    "{move} the {colour} {shape} {way}",
    "i {move} the {shape}",
    "i {move} the {shape} to the outline",
    "i {move} them {way}",
    "{move} the tiles {way}",
    "i press {way}",
    "i press the {way} key",
    "press {way}",
    "i go {way}",
    "i turn {state} {setting}",
    "turn {state} {setting}",
    "i turn {state} the {setting}",
    "i click the {setting} switch",
    "i click the {field}",
    "i click {button}",
    "i click add to cart",
    "i add it to the cart",
    "i add the {colour} {thing} to the cart",
    "i remove the {colour} {thing}",
    "i take out the {colour} {thing}",
    "i open the {place}",
    "i go to the {place}",
    "i go back to the {place}",
    "back to the {place}",
    "i click the {place}",
    "i click {place}",
    "i type {name}",
    "i type {colour}",
    "i type {thing}",
    "i type my name in the field",
    "i set the {kind} to {value}",
    "i click {value}",
    "i click {colour}",
    "i search for the {thing}",
    "i scroll {way}",
    "i buy the {colour} {thing}",
    "i am done",
    "okay done",
    "maybe here",
    "that is not it",
    "where is the {thing}",
    "i look for the {shape}",
)
_SLOTS: dict[str, tuple[str, ...]] = {
    "pick": ("click", "pick", "take", "open", "select", "choose", "click", "pick", "take"),
    "move": ("drag", "move", "push", "put", "drag", "move"),
    "colour": tuple(COLOURS),
    "shape": _MORE_SHAPES,
    "thing": (*THINGS, "lamp", "mug", "hat", "shirt", "shoe", "ball", "bag", "book"),
    "way": KEYS,
    "state": ("on", "off"),
    "setting": _SWITCHED,
    "field": _FIELDS,
    "button": BUTTONS,
    "place": _PLACES,
    "name": _NAMES,
    "kind": ("color", "text", "text size", "name", "size"),
    "value": ("small", "normal", "large", *COLOURS),
}


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


class Trigrams:
    """A trigram model of `corpus`.

    Interpolated absolute discounting: with c(h) the count of history h and n(h) the number of words seen after it,
    p(w | h) = max(c(h w) - D, 0) / c(h) + D n(h) / c(h) p(w | h'), where h' is h without its first word. Single words:
    their share of the corpus.
    """

    def __init__(self, corpus: Sequence[Sentence]) -> None:
        self._counts = [_counts(corpus, order) for order in (1, 2, 3)]
        total = sum(self._counts[0].values())
        self._words = {word: count / total for (word,), count in self._counts[0].items()}
        self._following = [_following(self._counts[order]) for order in (1, 2)]  # after one word, after two

    def probability(self, gram: tuple[str, ...]) -> float:
        """Of the last word after those before it, up to two; 0 for a word that is not in the corpus."""
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
    """history -> (how often something followed it, how many different words did)."""
    totals: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for gram, count in counts.items():
        totals[gram[:-1]][0] += count
        totals[gram[:-1]][1] += 1
    return {history: (total, kinds) for history, (total, kinds) in totals.items()}
