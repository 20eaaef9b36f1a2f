"""Spell cardinal and ordinal numbers in English words."""

from __future__ import annotations

_UNITS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)


def cardinal(number: int) -> str:
    """Spell a number from 0 to 999, without "and": three hundred five."""
    if number < 20:
        return _UNITS[number]
    if number < 100:
        return f"{_TENS[number // 10]} {_UNITS[number % 10]}" if number % 10 else _TENS[number // 10]
    rest = f" {cardinal(number % 100)}" if number % 100 else ""
    return f"{_UNITS[number // 100]} hundred{rest}"


def ordinal(number: int) -> str:
    """Spell the ordinal of `number`, from 1 to 99, without a hyphen: first, twenty third."""
    if number <= 12:
        return _ORDINALS[number - 1]
    if number < 20:
        return cardinal(number) + "th"
    if number % 10 == 0:
        return _TENS[number // 10].removesuffix("y") + "ieth"
    return f"{_TENS[number // 10]} {_ORDINALS[number % 10 - 1]}"
