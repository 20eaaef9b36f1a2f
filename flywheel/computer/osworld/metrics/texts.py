"""Metrics of texts: what a command printed, what a file says."""

from __future__ import annotations

import difflib
import re
from typing import Any

from flywheel.computer.osworld.metrics.metric import FILE, Metric, Options, lines, text

_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")
_CODING = ("#!", "# -*- coding:", "# coding:", "# coding=")
_HEAD = 3  # lines in which a program may say its encoding


def include_exclude(result: str, rules: Any, _: Options) -> float:
    held = all(one in result for one in rules.get("include", ()))
    return float(held and not any(one in result for one in rules.get("exclude", ())))


def literal(result: Any, expected: Any, options: Options) -> float:
    def read(value: Any) -> str:
        return str(value).lower() if options.get("ignore_case") else str(value)

    if options.get("type", "str") == "str":
        return float(read(result) == read(expected))
    both = (result, expected)
    return float(all(isinstance(one, list) for one in both) and [*map(read, result)] == [*map(read, expected)])


def difference(result: str, expected: str, _: Options) -> float:
    return difflib.SequenceMatcher(a=lines(result), b=lines(expected)).ratio()


def same_text(result: str, expected: str, options: Options) -> float:
    def read(path: str) -> str:
        said = text(path)
        if options.get("ignore_blanks"):
            said = re.sub(r"\s+", " ", re.sub(r"[\t\n]", " ", said).strip())
        return said.lower() if options.get("ignore_case") else said

    return float(read(result) == read(expected))


def same_program(result: str, expected: str, _: Options) -> float:
    """Empty lines, tabs and space at the end of lines do not count, nor what says the encoding."""

    def read(path: str) -> list[str]:
        said = lines(path)
        while said and len(lines(path)) - len(said) < _HEAD and said[0].strip().startswith(_CODING):
            said = said[1:]
        return [line.expandtabs(4).rstrip() for line in said if line.strip()]

    return float(read(result) == read(expected))


def same_number(result: str, expected: str, _: Options) -> float:
    """Where a number is expected, it need only stand in the result."""
    found, wanted = text(result).strip(), text(expected).strip()
    try:
        number = float(wanted)
    except ValueError:
        return float(found == wanted)
    return float(wanted in found or abs(float(found) - number) < 1e-4)


def contains(result: str, rules: Any, _: Options) -> float:
    said = text(result)
    return float(all(one in said for one in rules["expected"]))


def patterns(result: str, rules: Any, _: Options) -> float:
    said = lines(result)
    expected = all(any(re.search(one, line) for line in said) for one in rules.get("expect", ()))
    return float(expected and not any(re.search(one, line) for one in rules.get("unexpect", ()) for line in said))


def clock_lines(result: str, rules: Any, _: Options) -> float:
    """How many lines tell a time of day."""
    return float(sum(bool(_CLOCK.search(line)) for line in lines(result)) == int(rules["expected"]))


def extension(result: str, rules: Any, _: Options) -> float:
    return float((rules["expected"] in result) == (rules["type"] == "contain"))


def _equal(result: Any, rules: Any, _: Options) -> float:
    return float(result == rules["expected"])


_EXPECTED = ("expected",)
METRICS: dict[str, Metric] = {
    "exact_match": Metric(_equal, keys=_EXPECTED),
    "compare_answer": Metric(_equal, keys=_EXPECTED),
    "match_in_list": Metric(lambda result, rules, _: float(result in rules["expected"]), keys=_EXPECTED),
    "is_in_list": Metric(lambda result, rules, _: float(rules["expected"] in result), keys=_EXPECTED),
    "literal_match": Metric(literal, unable=lambda _, options: _kind(options)),
    "check_include_exclude": Metric(include_exclude),
    "is_extension_installed": Metric(extension, keys=("type", "expected")),
    "diff_text_file": Metric(difference, FILE),
    "compare_text_file": Metric(same_text, FILE),
    "compare_python_pure_text": Metric(same_program, FILE),
    "compare_result_files": Metric(same_number, FILE),
    "compare_config": Metric(lambda result, rules, _: float(text(result) == rules["expected"]), keys=_EXPECTED),
    "file_contains": Metric(contains, keys=_EXPECTED),
    "check_list": Metric(patterns),
    "check_line_number": Metric(clock_lines, keys=_EXPECTED),
}


def _kind(options: Options) -> str:
    kind = options.get("type", "str")
    return "" if kind in ("str", "list") else f"the type {kind}"
