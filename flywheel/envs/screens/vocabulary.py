"""Load the words that synthetic screens and control tasks show (vocabulary.yaml); the tokeniser is trained on them."""

from __future__ import annotations

from importlib.resources import files

import yaml

_LISTED = yaml.safe_load(files(__package__).joinpath("vocabulary.yaml").read_text(encoding="utf-8"))


def _words(name: str) -> tuple[str, ...]:
    return tuple(_LISTED[name].split(", "))


COLOURS: dict[str, str] = _LISTED["colours"]
SHAPE_PATHS: dict[str, str] = _LISTED["shapes"]
SHAPES, THINGS, SETTINGS, BUTTONS = tuple(SHAPE_PATHS), _words("things"), _words("settings"), _words("buttons")
SYMBOLS, PEOPLE, KEYS, COMMON = _words("symbols"), _words("people"), _words("keys"), _words("common")
VALUES = (*THINGS, *PEOPLE, *COLOURS)  # contents of form fields
READING = tuple(dict.fromkeys((*THINGS, *PEOPLE, *COLOURS, *SYMBOLS, *BUTTONS, *(w for w in SETTINGS if " " not in w))))
PHRASES = (*_LISTED["phrases"], *_words("phrase_words"))


def tokenizer_corpus() -> list[str]:
    """List the texts that the tokeniser is trained on: the words in several forms, and phrases, repeated as weights."""
    words = [*COMMON, *COLOURS, *SHAPES, *SYMBOLS, *PEOPLE, *THINGS, *SETTINGS, *BUTTONS, *KEYS]
    lines = [f"{form} {form}" for word in words for form in (word, word.capitalize())]
    lines += [f" {word}s" for word in (*SHAPES, *SYMBOLS, *THINGS)]
    return lines * 4 + list(PHRASES) * 12 + [f" {word}" for word in words] * 12
