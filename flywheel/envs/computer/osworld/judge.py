"""Judge an OSWorld task by its metrics: a program of its own, in a checker's sandbox, and flywheel's own metrics."""

from __future__ import annotations

import csv
import difflib
import json
import operator
import os
import re
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.envs.computer.osworld.inputs import resolve_input
from flywheel.envs.computer.osworld.official import load_function

EXPECTS_RULES, EXPECTS_FILE, EXPECTS_FILE_OR_NOTHING = "rules", "file", "file or nothing"
MetricOptions = Mapping[str, Any]


@dataclass(frozen=True)
class MetricFunction:
    """Hold one of flywheel's metrics.

    score: returns 0 to 1, from the result (a text, a file's path, a folder's tree), what is expected and the options;
    an exception counts as 0 where the result alone can be at fault. expected: what kind of value is expected
    (EXPECTS_*). keys: that its rules must have. package: Python package that it needs. unable: returns which of a
    task's rules and options it cannot judge, in words; "" where it can.
    """

    score: Callable[[Any, Any, MetricOptions], float]
    expected: str = EXPECTS_RULES
    keys: tuple[str, ...] = ()
    package: str = ""
    unable: Callable[[Any, MetricOptions], str] = lambda rules, options: ""


def read_text(path: str) -> str:
    """Read the text of the file `path`."""
    return Path(path).read_text(encoding="utf-8")


def read_lines(path: str) -> list[str]:
    """Read the lines of the file `path`, without their ends."""
    return read_text(path).splitlines()


# OSWorld's rules for a single value, such as `{"method": "ge", "ref": 3}`.

_COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "le", "lt", "ge", "gt")}
_RANGE_METHOD = re.compile(r"range\.([te])([te])")  # of each limit, whether it is within the range (e) or not (t)
_APPROX_METHOD = re.compile(r"approx:[0-9.eE+-]+")
_REGEX_METHOD = re.compile(r"re(\.[A-Z]+)*")


def matches_rule(value: Any, rule: Mapping[str, Any]) -> bool:
    """Tell whether a value satisfies a rule of OSWorld, such as `{"method": "ge", "ref": 3}`.

    Raises TypeError, ValueError or the like for a value of a wrong type.
    """
    method, ref = rule["method"], rule["ref"]
    if method in _COMPARISONS:
        return bool(_COMPARISONS[method](value, ref))
    if _REGEX_METHOD.fullmatch(method):
        flags = re.RegexFlag(0)
        for name in method.split(".")[1:]:
            flags |= re.RegexFlag[name]
        return re.search(ref, value, flags) is not None
    if _APPROX_METHOD.fullmatch(method):
        return abs(float(value) - ref) <= float(method.split(":")[1])
    if found := _RANGE_METHOD.fullmatch(method):
        lower, upper = (_COMPARISONS["l" + found[number]] for number in (1, 2))
        return bool(lower(ref[0], value) and upper(value, ref[1]))
    parts = value.strip("\"'").split(",")
    return parts == list(ref) if method == "str_list_eq" else set(parts) == set(ref)


def _unknown_method(rules: Any, _: MetricOptions) -> str:
    for rule in (*rules.get("expect", ()), *rules.get("unexpect", ())):
        method = rule.get("method", "")
        known = method in _COMPARISONS or method in ("str_list_eq", "str_set_eq")
        if not (known or any(form.fullmatch(method) for form in (_REGEX_METHOD, _APPROX_METHOD, _RANGE_METHOD))):
            return f"the method {method}"
    return ""


# Metrics of texts: a command's output, a file's content.

_CLOCK_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")
_ENCODING_LINES = ("#!", "# -*- coding:", "# coding:", "# coding=")
_N_HEAD_LINES = 3  # first lines of a program, where its encoding may be declared


def score_include_exclude(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a text: 1 where it contains all texts of `include` and none of `exclude`."""
    held = all(one in result for one in rules.get("include", ()))
    return float(held and not any(one in result for one in rules.get("exclude", ())))


def score_literal(result: Any, expected: Any, options: MetricOptions) -> float:
    """Score a value: 1 where it equals the expected one, both compared as texts or as lists of texts."""

    def read(value: Any) -> str:
        return str(value).lower() if options.get("ignore_case") else str(value)

    if options.get("type", "str") == "str":
        return float(read(result) == read(expected))
    both = (result, expected)
    return float(all(isinstance(one, list) for one in both) and [*map(read, result)] == [*map(read, expected)])


def score_same_text(result: str, expected: str, options: MetricOptions) -> float:
    """Score a file: 1 where its text equals the expected file's, as the options compare them."""

    def read(path: str) -> str:
        said = read_text(path)
        if options.get("ignore_blanks"):
            said = re.sub(r"\s+", " ", re.sub(r"[\t\n]", " ", said).strip())
        return said.lower() if options.get("ignore_case") else said

    return float(read(result) == read(expected))


def score_same_program(result: str, expected: str, _: MetricOptions) -> float:
    """Score a program: 1 where it is the expected one but for empty lines, tabs, trailing space, #! and encoding."""

    def read(path: str) -> list[str]:
        said = read_lines(path)
        for _ in range(_N_HEAD_LINES):
            if said and said[0].strip().startswith(_ENCODING_LINES):
                said = said[1:]
        return [line.expandtabs(4).rstrip() for line in said if line.strip()]

    return float(read(result) == read(expected))


def score_same_number(result: str, expected: str, _: MetricOptions) -> float:
    """Score a file: 1 where it contains the expected number or is within 0.0001 of it, or equals an expected text."""
    found, wanted = read_text(result).strip(), read_text(expected).strip()
    try:
        number = float(wanted)
    except ValueError:
        return float(found == wanted)
    return float(wanted in found or abs(float(found) - number) < 1e-4)


def score_patterns(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a file: 1 where each pattern of `expect` is found in a line, and none of `unexpect` in any."""
    lines = read_lines(result)
    expected = all(any(re.search(one, line) for line in lines) for one in rules.get("expect", ()))
    return float(expected and not any(re.search(one, line) for one in rules.get("unexpect", ()) for line in lines))


def score_clock_lines(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a file: 1 where the expected number of its lines contain a time of day."""
    return float(sum(bool(_CLOCK_TIME.search(line)) for line in read_lines(result)) == int(rules["expected"]))


def _unknown_type(_: Any, options: MetricOptions) -> str:
    kind = options.get("type", "str")
    return "" if kind in ("str", "list") else f"the type {kind}"


# Metrics of JSON (and YAML): files, and values that a command printed.

_NO_VALUE = "__EVALUATION_FAILED__"  # by which OSWorld's getters say that they have no value
_MISSING = object()


def score_json_values(result: str, rules: Any, options: MetricOptions) -> float:
    """Score a JSON or YAML file: 1 where each value of `expect` satisfies its rule and no value of `unexpect` does."""
    if options.get("is_yaml"):
        import yaml

        found = yaml.safe_load(read_text(result))
    else:
        found = json.loads(read_text(result))
    for one in rules.get("expect", ()):
        value = _value_at(found, one["key"])
        if value is _MISSING or not matches_rule(value, one):
            return 0.0
    for one in rules.get("unexpect", ()):
        value = _value_at(found, one["key"])
        if matches_rule(None if value is _MISSING else value, one):
            return 0.0
    return 1.0


def _value_at(value: Any, keys: list) -> Any:
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return value


def score_direct_json(result: Any, rules: Any, _: MetricOptions) -> float:
    """Score an object: 1 where its values are those expected, key by key. In a text, ' counts as a double quote."""
    found = json.loads(result.strip().replace("'", '"')) if isinstance(result, str) else result
    expected = rules["expected"]
    if _NO_VALUE in [value for value in expected.values() if isinstance(value, str)]:
        return 0.0
    compare = _value_included if rules.get("expect_in_result") else _values_equal
    in_any_order = bool(expected.get("ignore_list_order"))
    return float(all(compare(value, found.get(key), in_any_order) for key, value in expected.items()))


def _values_equal(expected: Any, found: Any, in_any_order: bool) -> bool:
    return sorted(expected) == sorted(found) if in_any_order else expected == found


def _value_included(expected: Any, found: Any, _: bool) -> bool:
    if isinstance(expected, str):
        return expected in found
    return any(one in found if isinstance(found, list) else one == found for one in expected)


def score_json_settings(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a JSON file: 1 where it has all expected keys with their values."""
    found = json.loads(read_text(result))
    return float(all(key in found and found[key] == value for key, value in rules["expected"].items()))


def score_keybindings(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a JSON list of objects: 1 where it contains the expected one. Its first line may be a comment."""
    lines = read_lines(result)
    for part in (lines, lines[1:]):
        try:
            found = json.loads("\n".join(part))
        except ValueError:
            continue
        if isinstance(found, list):
            return float(rules["expected"] in found)
    return 0.0


def score_included_json(result: str, expected: str, _: MetricOptions) -> float:
    """Score a JSON file: 1 where the file `expected` has all its keys and values (the direction is OSWorld's)."""
    return score_json_settings(expected, {"expected": json.loads(read_text(result))}, {})


# Metrics of tables: CSV, spreadsheets, databases.

_DECIMAL_PLACES = 4  # of numbers that are compared


def score_csv_records(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a CSV file: 1 where each expected record is there and no unexpected one; only named fields count."""
    with Path(result).open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))

    def there(wanted: Any) -> bool:
        return any(wanted.items() <= record.items() for record in found)

    return float(all(map(there, rules.get("expect", ()))) and not any(map(there, rules.get("unexpect", ()))))


def score_same_csv(result: str, expected: str | list[str], options: MetricOptions) -> float:
    """Score a CSV file: 1 where its lines equal those of the expected file, or of one of several."""

    def read(path: str) -> list[str]:
        said = read_lines(path)
        if not options.get("strict", True):
            said = [line.strip() for line in said]
        return [line.lower() for line in said] if options.get("ignore_case") else said

    return float(read(result) in [read(one) for one in ([expected] if isinstance(expected, str) else expected)])


def score_sql_query(result: str, rules: Any, _: MetricOptions) -> float:
    """Score a database by the query `sql` of the rules: the number in the first field of its first row."""
    with sqlite3.connect(f"file:{result}?mode=ro&immutable=1", uri=True) as connection:
        (value,) = connection.execute(rules["sql"]).fetchone()[:1]
    return float(value or 0)


def score_same_sheets(result: str, expected: str | None, options: MetricOptions) -> float:
    """Score a spreadsheet: 1 where it satisfies all rules of the options; some need an expected spreadsheet."""
    import openpyxl

    books = {"R": openpyxl.load_workbook(result, data_only=True)}
    if expected is not None:
        books["E"] = openpyxl.load_workbook(expected, data_only=True)
    return float(all(_SHEET_RULES[rule["type"]](books, rule) for rule in options["rules"]))


def _find_sheet(books: Any, index: str | int) -> Any:
    """Return a sheet: `RI0` is the result's first, `ENSums` the expected file's Sums; a number is one of the result."""
    of, by, name = ("R", "I", index) if isinstance(index, int) else (index[0], index[1], index[2:])
    return books[of].worksheets[int(name)] if by == "I" else books[of][name]


def _same_sheet_values(books: Any, one: Any) -> bool:
    def rounded(cell: Any) -> Any:
        return round(cell, one.get("precision", _DECIMAL_PLACES)) if isinstance(cell, float) else cell

    def read(index: Any) -> list[list[Any]]:
        rows = [list(map(rounded, row)) for row in _find_sheet(books, index).iter_rows(values_only=True)]
        while rows and not any(cell is not None for cell in rows[-1]):
            rows.pop()
        width = max((n for row in rows for n, cell in enumerate(row, 1) if cell is not None), default=0)
        return [row[:width] + [None] * (width - len(row)) for row in rows]

    return read(one["sheet_idx0"]) == read(one["sheet_idx1"])


_SHEET_RULES = {
    "sheet_name": lambda books, _: books["R"].sheetnames == books["E"].sheetnames,
    "sheet_data": _same_sheet_values,
    "freeze": lambda books, one: (
        _find_sheet(books, one["sheet_idx0"]).freeze_panes == _find_sheet(books, one["sheet_idx1"]).freeze_panes
    ),
}


def _unknown_rule_type(_: Any, options: MetricOptions) -> str:
    rules = options.get("rules") or [{"type": "none at all"}]
    return next((f"the rule {rule.get('type')}" for rule in rules if rule.get("type") not in _SHEET_RULES), "")


# Metrics of folders and archives.

_PIECE = 2**20


def score_same_zip(result: str, expected: str, _: MetricOptions) -> float:
    """Score a ZIP archive: 1 where it has the expected files to the byte. In OSWorld, PDFs may differ."""
    with zipfile.ZipFile(result) as found, zipfile.ZipFile(expected) as wanted:
        names = set(wanted.namelist())
        return float(set(found.namelist()) == names and all(_same_member(found, wanted, name) for name in names))


def _same_member(found: zipfile.ZipFile, wanted: zipfile.ZipFile, name: str) -> bool:
    """Compare one file of two archives piece by piece: the agent's may unpack to any size."""
    if found.getinfo(name).file_size != wanted.getinfo(name).file_size:
        return False
    with found.open(name) as one, wanted.open(name) as other:
        while piece := other.read(_PIECE):
            if one.read(len(piece)) != piece:
                return False
        return not one.read(1)


# All metrics by OSWorld's names; each compares what OSWorld's description of it says. This file, and what it imports,
# imports packages outside the standard library only in the metrics that need them.

_EXPECTED_KEY = ("expected",)
METRICS: dict[str, MetricFunction] = {
    **dict.fromkeys(
        ("exact_match", "compare_answer"),
        MetricFunction(lambda result, rules, _: float(result == rules["expected"]), keys=_EXPECTED_KEY),
    ),
    "match_in_list": MetricFunction(lambda result, rules, _: float(result in rules["expected"]), keys=_EXPECTED_KEY),
    "is_in_list": MetricFunction(lambda result, rules, _: float(rules["expected"] in result), keys=_EXPECTED_KEY),
    "literal_match": MetricFunction(score_literal, unable=_unknown_type),
    "check_include_exclude": MetricFunction(score_include_exclude),
    "is_extension_installed": MetricFunction(
        lambda result, rules, _: float((rules["expected"] in result) == (rules["type"] == "contain")),
        keys=("type", "expected"),
    ),
    "diff_text_file": MetricFunction(
        lambda result, expected, _: difflib.SequenceMatcher(a=read_lines(result), b=read_lines(expected)).ratio(),
        EXPECTS_FILE,
    ),
    "compare_text_file": MetricFunction(score_same_text, EXPECTS_FILE),
    "compare_python_pure_text": MetricFunction(score_same_program, EXPECTS_FILE),
    "compare_result_files": MetricFunction(score_same_number, EXPECTS_FILE),
    "compare_config": MetricFunction(
        lambda result, rules, _: float(read_text(result) == rules["expected"]), keys=_EXPECTED_KEY
    ),
    "file_contains": MetricFunction(
        lambda result, rules, _: score_include_exclude(read_text(result), {"include": rules["expected"]}, {}),
        keys=_EXPECTED_KEY,
    ),
    "check_list": MetricFunction(score_patterns),
    "check_line_number": MetricFunction(score_clock_lines, keys=_EXPECTED_KEY),
    "check_json": MetricFunction(score_json_values, unable=_unknown_method),
    "check_direct_json_object": MetricFunction(score_direct_json, keys=_EXPECTED_KEY),
    "check_json_settings": MetricFunction(score_json_settings, keys=_EXPECTED_KEY),
    "check_json_keybindings": MetricFunction(score_keybindings, keys=_EXPECTED_KEY),
    "is_included_all_json_objects": MetricFunction(score_included_json, EXPECTS_FILE),
    "check_csv": MetricFunction(score_csv_records),
    "compare_csv": MetricFunction(score_same_csv, EXPECTS_FILE),
    "compare_table": MetricFunction(
        score_same_sheets, EXPECTS_FILE_OR_NOTHING, package="openpyxl", unable=_unknown_rule_type
    ),
    "run_sqlite3": MetricFunction(score_sql_query, keys=("sql",)),
    "check_moved_jpgs": MetricFunction(
        lambda result, rules, _: float(sorted(one["name"] for one in result["children"]) == sorted(rules["expected"])),
        keys=_EXPECTED_KEY,
    ),
    "compare_zip_files": MetricFunction(score_same_zip, EXPECTS_FILE),
}


# The program, which reads the metrics and their inputs as JSON from standard input. An agent may leave anything behind:
# a metric that cannot read the result gives 0. One that cannot read the expected file cannot judge, which is an error.

_MAX_REASON_CHARACTERS = 200  # of an exception in a reason


def main() -> None:
    """Judge the metrics that standard input holds as JSON, and print the verdict as the checker's contract asks."""
    question = json.load(sys.stdin)
    output, scores, reasons = os.dup(1), [], []
    os.dup2(2, 1)  # what metrics print is no verdict
    for metric in question["metrics"]:
        score, why = judge_metric(metric, question["home"])
        scores.append(score)
        reasons.append(f"{metric['func']} {score:g}" + (f" ({why})" if why else ""))
    verdict = {"score": combine_scores(scores, question["conj"]), "reason": ", ".join(reasons)[:2000]}
    with os.fdopen(output, "w") as file:
        print(json.dumps(verdict), file=file, flush=True)
        os._exit(0)  # whatever a library leaves running


def combine_scores(scores: list[float], conj: str) -> float:
    """Combine scores as OSWorld does: `or` takes the best; `and` takes the mean, or 0 where one is 0."""
    if conj == "or":
        return max(scores)
    return sum(scores) / len(scores) if all(scores) else 0.0


def judge_metric(metric: dict[str, Any], home: str) -> tuple[float, str]:
    """Judge by one metric; returns (score from 0 to 1, why it could not read the result, "" where it could).

    metric: `func`, `module`, `options`, `result` and `expected`, with paths of the sandbox. home: path of the home's
    copy.
    """
    if not metric.get("module"):
        sides = [resolve_input(metric[side], home) for side in ("result", "expected")]
        return judge_values(metric["func"], *sides, metric["options"])
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder, side) for side in ("result", "expected")]
        for cache in caches:
            cache.mkdir()
        found, wanted = (resolve_input(metric[cache.name], home, cache) for cache in caches)
        return _judge_officially(metric, found, wanted)


def judge_values(func: str, result: Any, expected: Any, options: dict[str, Any]) -> tuple[float, str]:
    """Judge two values by flywheel's metric `func`; returns as `judge_metric`.

    Raises what the metric raises where it cannot read the expected file either, since it then cannot judge.
    """
    if result is None:
        return 0.0, "nothing is there that can be looked at"
    judged = METRICS[func].score
    try:
        return min(max(float(judged(result, expected, options)), 0.0), 1.0), ""
    except (Exception, RecursionError) as error:
        if METRICS[func].expected != "rules" and expected is not None:
            judged(expected, expected, options)
        return 0.0, _describe(error)


def _judge_officially(metric: dict[str, Any], result: Any, expected: Any) -> tuple[float, str]:
    """Judge by desktop-env's function, called as OSWorld calls it; returns as `judge_values`."""
    judged = load_function(metric["module"], metric["func"])
    given = () if expected is None and metric["expected"] == {"value": None} else (expected,)
    if result is None and metric["result"] != {"value": None}:
        return 0.0, "nothing is there that can be looked at"
    try:
        return min(max(float(judged(result, *given, **metric["options"])), 0.0), 1.0), ""
    except (Exception, RecursionError) as error:
        if "file" in metric["expected"] or "files" in metric["expected"]:
            judged(expected, expected, **metric["options"])
        return 0.0, _describe(error)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]


if __name__ == "__main__":
    main()
