"""Metrics of tables: CSV, spreadsheets, databases."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path
from typing import Any

from flywheel.computer.osworld.metrics.metric import EITHER, FILE, Metric, Options, lines

_PLACES = 4  # decimal places in which numbers are compared


def records(result: str, rules: Any, _: Options) -> float:
    """Each record that is expected is there, and none that is not; only the fields that are named count."""
    with Path(result).open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))

    def there(wanted: Any) -> bool:
        return any(wanted.items() <= record.items() for record in found)

    return float(all(map(there, rules.get("expect", ()))) and not any(map(there, rules.get("unexpect", ()))))


def same_csv(result: str, expected: str | list[str], options: Options) -> float:
    """Any of several expected files will do."""

    def read(path: str) -> list[str]:
        said = lines(path)
        if not options.get("strict", True):
            said = [line.strip() for line in said]
        return [line.lower() for line in said] if options.get("ignore_case") else said

    return float(read(result) in [read(one) for one in ([expected] if isinstance(expected, str) else expected)])


def query(result: str, rules: Any, _: Options) -> float:
    """The number that a query's first field holds."""
    with sqlite3.connect(f"file:{result}?mode=ro&immutable=1", uri=True) as connection:
        (value,) = connection.execute(rules["sql"]).fetchone()[:1]
    return float(value or 0)


# -- spreadsheets -----------------------------------------------------------------------------------------------------
def same_sheets(result: str, expected: str | None, options: Options) -> float:
    import openpyxl

    books = {"R": openpyxl.load_workbook(result, data_only=True)}
    if expected is not None:
        books["E"] = openpyxl.load_workbook(expected, data_only=True)
    return float(all(_RULES[one["type"]](books, one) for one in options["rules"]))


def _sheet(books: Any, index: str | int) -> Any:
    """`RI0` is the first sheet of the result, `ENSums` the sheet Sums of what is expected; a number is the result's."""
    of, by, name = ("R", "I", index) if isinstance(index, int) else (index[0], index[1], index[2:])
    return books[of].worksheets[int(name)] if by == "I" else books[of][name]


def _names(books: Any, _: Any) -> bool:
    return books["R"].sheetnames == books["E"].sheetnames


def _values(books: Any, one: Any) -> bool:
    places = one.get("precision", _PLACES)

    def read(index: Any) -> list[list[Any]]:
        rows = [[_rounded(cell, places) for cell in row] for row in _sheet(books, index).iter_rows(values_only=True)]
        while rows and not any(cell is not None for cell in rows[-1]):
            rows.pop()
        width = max((n for row in rows for n, cell in enumerate(row, 1) if cell is not None), default=0)
        return [row[:width] + [None] * (width - len(row)) for row in rows]

    return read(one["sheet_idx0"]) == read(one["sheet_idx1"])


def _rounded(value: Any, places: int) -> Any:
    return round(value, places) if isinstance(value, float) else value


def _frozen(books: Any, one: Any) -> bool:
    first, second = (_sheet(books, one[name]).freeze_panes for name in ("sheet_idx0", "sheet_idx1"))
    return first == second


_RULES = {"sheet_name": _names, "sheet_data": _values, "freeze": _frozen}


def _not_judged(_: Any, options: Options) -> str:
    rules = options.get("rules") or [{"type": "none at all"}]
    return next((f"the rule {one.get('type')}" for one in rules if one.get("type") not in _RULES), "")


METRICS: dict[str, Metric] = {
    "check_csv": Metric(records),
    "compare_csv": Metric(same_csv, FILE),
    "compare_table": Metric(same_sheets, EITHER, package="openpyxl", unable=_not_judged),
    "run_sqlite3": Metric(query, keys=("sql",)),
}
