"""Words of spoken thoughts that the rules know: fillers, turns by which speakers correct themselves, verbs."""

from __future__ import annotations

from flywheel.words import BUTTONS, COLOURS, KEYS, PEOPLE, SETTINGS, SHAPES, SYMBOLS, THINGS

# Phrases that mean nothing wherever they stand; the longest first.
FILLERS = sorted(
    (
        tuple(phrase.split())
        for phrase in (
            "um",
            "uh",
            "er",
            "erm",
            "hmm",
            "mm",
            "ah",
            "eh",
            "huh",
            "let me see",
            "let's see",
            "let us see",
            "you know",
            "kind of",
            "sort of",
            "let me think",
            "where is it",
            "oh",
        )
    ),
    key=len,
    reverse=True,
)
# What stands only at the beginning of a thought, or is left over at its end.
OPENERS = {"okay", "ok", "well", "so", "and", "right", "alright", "yes", "yeah", "but"}
LEFT_OVER = {"the", "a", "an", "and", "to", "of", "so", "but", "or", "then", "okay"}

# Said when all is over: about no action.
CLOSINGS = {("done",), ("all", "done"), ("that's", "it"), ("that", "is", "it"), ("i", "am", "done"), ("i'm", "done")}

# Words by which a speaker takes something back. "no" and "wait" alone are ordinary words too, so they count only
# where what follows begins again with a word said just before.
REPAIRS = sorted(
    (
        tuple(phrase.split())
        for phrase in (
            "no wait",
            "no no",
            "no sorry",
            "wait no",
            "sorry",
            "i mean",
            "no i mean",
            "scratch that",
            "or rather",
            "oh no",
            "actually no",
            "no actually",
        )
    ),
    key=len,
    reverse=True,
)
WEAK_REPAIRS = {"no", "wait", "actually", "rather"}
REACH = 8  # words back to which a speaker goes when beginning again

VERBS = {
    "click",
    "press",
    "pick",
    "take",
    "open",
    "close",
    "drag",
    "drop",
    "move",
    "type",
    "enter",
    "write",
    "scroll",
    "turn",
    "switch",
    "select",
    "choose",
    "search",
    "add",
    "remove",
    "put",
    "buy",
    "go",
    "merge",
    "slide",
    "hit",
    "set",
    "save",
    "push",
    "tap",
    "look",
    "find",
    "need",
    "want",
    "see",
}
LEADS = {"now", "then", "first", "next", "finally", "again", "here"}

# Words that are left alone however doubtful: what interfaces are made of, and what the rules below read.
KEPT = {
    *COLOURS,
    *SHAPES,
    *SYMBOLS,
    *THINGS,
    *SETTINGS,
    *BUTTONS,
    *PEOPLE,
    *KEYS,
    *OPENERS,
    *VERBS,
    *LEADS,
    *(word for phrase in (*FILLERS, *REPAIRS) for word in phrase),
    "the",
    "and",
    "this",
    "that",
    "with",
    "for",
    "its",
    "it's",
    "not",
    "one",
    "too",
    "two",
}

# Words that want another: a thought that ends in one was broken off by a pause.
UNFINISHED = {
    *COLOURS,
    *VERBS,
    "the",
    "a",
    "an",
    "to",
    "of",
    "in",
    "on",
    "off",
    "i",
    "and",
    "my",
    "is",
    "name",
    "for",
} - {"close", "save", "search"}
