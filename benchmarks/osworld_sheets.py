"""Spreadsheets of OSWorld's tasks: a start, a solution, wrong ends (`osworld_cases.py`)."""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import openpyxl
from openpyxl.chart import BarChart, LineChart, Reference
from openpyxl.styles import PatternFill
from osworld_cases import Case, ExampleFile, cut_in_half, write_bytes

Book = openpyxl.Workbook
Rows = Sequence[Sequence[Any]]
Change = Callable[[Book], Any]


def build_book(rows: Rows, name: str = "Sheet1") -> Book:
    book = openpyxl.Workbook()
    book.active.title = name
    for row in rows:
        book.active.append(list(row))
    return book


def sheet_case(
    rows: Rows, solve: Change, *, name: str = "Sheet1", before: Change | None = None, csv: tuple[str, str] | None = None
) -> Callable[[ExampleFile], Case]:
    """Declare a task on one spreadsheet. rows: of its first sheet. solve: does what is asked. before: finishes the
    start. csv: texts of the first sheet as it is shown, at the start and solved, where the task prints it."""

    def start() -> Book:
        book = build_book(rows, name)
        if before:
            before(book)
        return book

    def solved(*changes: Change) -> Book:
        book = start()
        for change in (solve, *changes):
            change(book)
        return book

    def build(example: ExampleFile) -> Case:
        (path,) = [one for one in example.downloads if one.endswith(".xlsx")]
        shown = next((one.removesuffix(".xlsx") + "-Sheet1.csv" for one in [path]), "")
        right = lambda place: solved().save(place)  # noqa: E731
        changed = lambda place: solved(_change_last_cell).save(place)  # noqa: E731
        files = {
            "start": lambda place: start().save(place), "solved": right, "changed": changed,
            "emptied": lambda place: build_book([]).save(place), "more": lambda p: solved(_add_row).save(p),
            "broken": cut_in_half(right),
        }  # fmt: skip
        states: dict[str, Any] = {state: {path: make} for state, make in files.items()}
        golds = {dest: right for dest in example.golds() if dest.endswith(".xlsx")}
        if csv:
            for state, texts in {"start": csv[0], "changed": csv[1] + "x", "emptied": "", "solved": csv[1]}.items():
                states[state][shown] = write_bytes(texts.encode())
            golds |= {dest: write_bytes(csv[1].encode()) for dest in example.golds() if dest.endswith(".csv")}
            del states["more"], states["broken"]
        return Case({path: files["start"]}, golds, states)

    return build


def _change_last_cell(book: Book) -> None:
    sheet = book.worksheets[-1]
    cells = [cell for row in sheet.iter_rows() for cell in row if cell.value is not None]
    if cells:
        cells[-1].value = "changed"


def _add_row(book: Book) -> None:
    book.worksheets[-1].append(["one", "row", "more"])


# What the tasks ask for.


def new_sheet(rows: Rows, name: str = "Sheet2") -> Change:
    def change(book: Book) -> None:
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))

    return change


def put(cells: dict[str, Any]) -> Change:
    def change(book: Book) -> None:
        for place, value in cells.items():
            book.worksheets[0][place] = value

    return change


def both(*changes: Change) -> Change:
    def change(book: Book) -> None:
        for one in changes:
            one(book)

    return change


def replace_rows(rows: Rows) -> Change:
    def change(book: Book) -> None:
        sheet = book.worksheets[0]
        sheet.delete_rows(1, sheet.max_row)
        for row in rows:
            sheet.append(list(row))

    return change


def chart(kind: type, columns: tuple[int, int], rows: tuple[int, int], title: str | None, sheet: int | str) -> Change:
    """Return what draws a chart of columns of the first sheet in a sheet (0: that one; a text: a new one)."""

    def change(book: Book) -> None:
        drawn = kind()
        drawn.add_data(
            Reference(book.worksheets[0], min_col=columns[0], max_col=columns[1], min_row=rows[0], max_row=rows[1]),
            titles_from_data=True,
        )
        if title:
            drawn.title = title
        place = book.create_sheet(sheet) if isinstance(sheet, str) else book.worksheets[sheet]
        place.add_chart(drawn, "H2")

    return change


def hide_rows(*numbers: int) -> Change:
    def change(book: Book) -> None:
        for number in numbers:
            book.worksheets[0].row_dimensions[number].hidden = True

    return change


def fill(cells: Sequence[str], color: str) -> Change:
    def change(book: Book) -> None:
        for place in cells:
            book.worksheets[0][place].fill = PatternFill("solid", fgColor=color)

    return change


def freeze(place: str) -> Change:
    return lambda book: setattr(book.worksheets[0], "freeze_panes", place)


def zoom(percent: int) -> Change:
    return lambda book: setattr(book.worksheets[0].sheet_view, "zoomScale", percent)


def back_up_sheet(book: Book) -> None:
    book.worksheets[0].title = "LARS Resources"
    copy = book.copy_worksheet(book.worksheets[0])
    copy.title = "LARS Resources (Backup)"
    book.move_sheet(copy, offset=-1)


_INCOME = [("Year", "Revenue", "Total Expenses"), *((2010 + n, 100 + 7 * n, 60 + 5 * n) for n in range(6))]
_SALES = [("Week", "Sales", "COGS"), *((n, 500 + 31 * n, 300 + 17 * n) for n in range(1, 9))]
_BY_MONTH = [
    ("Month", "Ann", "Ben"),
    *((name, 10 * n, 7 * n) for n, name in enumerate(("Jan", "Feb", "Mar", "Apr"), 1)),
]
_MARKS = [("Name", "Maths", "Art"), ("Ann", 5, 7), ("Ben", 6, 3), ("Cleo", 9, 8)]
_NAMES = ["Ann", "Ben", "Ann", "Cleo", "Ben", "Dan"]
_LEVELS = [("Level", "Name"), ("one", "Ann"), (None, "Ben"), ("two", "Cleo"), (None, "Dan")]
_DAYS = [datetime.date(2023, 3, day) for day in range(1, 15)]
_NUMBERS = [("Number", "Text"), (1.23456, None), (7.5, None)]
_SPENT = [("item", "spent"), ("a", 1.239), ("b", 20.5)]

CASES: dict[str, Callable[[ExampleFile], Case]] = {
    "libreoffice_calc/357ef137": sheet_case(
        [("Day", "Hours", "Total"), ("Mon", 4, None), ("Tue", 3.6667, None)], put({"E3": 191.6667})
    ),
    "libreoffice_calc/42e0a640": sheet_case(
        _INCOME, new_sheet([("Total Revenue", "Total Expenses"), (sum(r[1] for r in _INCOME[1:]), 435)])
    ),
    "libreoffice_calc/1273e544": sheet_case(_INCOME, new_sheet([(row[1],) for row in _INCOME])),
    "libreoffice_calc/12382c62": sheet_case(_SALES, chart(BarChart, (2, 3), (1, 9), "Sales & COGS", "Sheet2")),
    "libreoffice_calc/f9584479": sheet_case(
        [("Product", "North", "South", "Total"), ("a", 1, 2, None), ("b", 3, 4, None), ("Total", None, None, None)],
        put({"D2": 3, "D3": 7, "B4": 4, "C4": 6, "D4": 10}),
    ),
    "libreoffice_calc/7e429b8d": sheet_case(
        [
            ("Branch", "Officer", None, "Headoffice", "Officer"),
            ("A", "Ann", None, "B", None),
            ("B", "Ben", None, "A", None),
        ],
        put({"E2": "Ben", "E3": "Ann"}),
    ),
    "libreoffice_calc/04d9aeaf": sheet_case(
        [("Year", "Current Assets", "Fixed Assets", "Other Assets"), (2015, 100, 200, 50), (2016, 110, 180, 60)],
        new_sheet([("Year", "CA changes", "FA changes", "OA changes"), (2016, 0.1, -0.1, 0.2)]),
    ),
    "libreoffice_calc/6054afcb": sheet_case(
        [("Date", "Budget"), ("a", 5), ("b", "N/A"), ("c", 7), ("d", "N/A")], hide_rows(3, 5)
    ),
    "libreoffice_calc/abed40dc": sheet_case(
        [("Names with duplicates", "Unique Names"), *((name, None) for name in _NAMES)],
        put({f"B{n}": name for n, name in enumerate(dict.fromkeys(_NAMES), 2)}),
    ),
    "libreoffice_calc/37608790": sheet_case(
        [("All", "First Name", "Last Name", "Rank"), ("Ann Lee: CEO", None, None, None)],
        put({"B2": "Ann", "C2": "Lee", "D2": "CEO"}),
    ),
    "libreoffice_calc/26a8440e": sheet_case(
        _BY_MONTH, new_sheet([("Month", "Total"), *((row[0], row[1] + row[2]) for row in _BY_MONTH[1:])])
    ),
    "libreoffice_calc/d681960f": sheet_case(
        [
            ("From", "Grade"),
            (0, "F"),
            (60, "C"),
            (80, "A"),
            (None, None),
            ("Student", "Mark", "Grade"),
            ("Ann", 85, None),
        ],
        put({"C7": "A"}),
    ),
    "libreoffice_calc/035f41ba": sheet_case(
        [("Year", "Sales", "Cost", "Gross profit"), (2015, 10, 4, None), (2016, 12, 5, None)],
        both(put({"D2": 6, "D3": 7}), new_sheet([("Year_Profit",), ("2015_6",), ("2016_7",)])),
    ),
    "libreoffice_calc/7efeb4b1": sheet_case(
        [("Seq No.", "Order"), (None, "a"), (None, "b"), (None, "c")], put({f"A{n + 1}": f"No. {n}" for n in (1, 2, 3)})
    ),
    "libreoffice_calc/51b11269": sheet_case(
        [("Name", "Amount"), ("a", 9), ("b", 2), ("c", 5)],
        replace_rows([("Name", "Amount"), ("b", 2), ("c", 5), ("a", 9)]),
    ),
    "libreoffice_calc/1e8df695": sheet_case(
        _SALES, put({"D1": "Profit", **{f"D{n}": row[1] - row[2] for n, row in enumerate(_SALES[1:], 2)}})
    ),
    "libreoffice_calc/8b1ce5f2": sheet_case(
        [("Date", "Day"), *((day.isoformat(), day.strftime("%a")) for day in _DAYS)],
        fill([f"A{n}" for n, day in enumerate(_DAYS, 2) if day.weekday() > 4], "FFFF0000"),
    ),
    "libreoffice_calc/0326d92d": sheet_case(
        _BY_MONTH,
        both(
            put({"A6": "Total", "B6": 100, "C6": 70, "A7": "Growth", "C7": -0.3}),
            chart(BarChart, (2, 3), (1, 5), None, 0),
        ),
    ),
    "libreoffice_calc/0a2e43bf": sheet_case(
        _BY_MONTH, both(put({"A6": "Total", "B6": 100, "C6": 70}), chart(LineChart, (2, 3), (1, 5), None, 0))
    ),
    "libreoffice_calc/4188d3a4": sheet_case([("A", "B"), *((n, n * n) for n in range(1, 40))], freeze("C2")),
    "libreoffice_calc/347ef137": sheet_case(
        [("Month", "2019", "2020"), ("Jan", 1, 2), ("Feb", 3, 4), ("Mar", 2, 2)],
        both(chart(BarChart, (2, 2), (1, 4), "2019", 0), chart(BarChart, (3, 3), (1, 4), "2020", 0)),
    ),
    "libreoffice_calc/eb03d19a": sheet_case(
        _MARKS, put({f"{'BCDE'[column]}{row + 8}": _MARKS[column][row] for column in range(4) for row in range(3)})
    ),
    "libreoffice_calc/0cecd4f3": sheet_case(
        [("a", "b"), (1, 2)], back_up_sheet, name="Sheet 1", before=new_sheet([("c",), (3,)], "Sheet 2")
    ),
    "libreoffice_calc/1d17d234": sheet_case(
        [("Rate", "Value"), (0.05, 100)],
        new_sheet([("Investment Summary",), ("High Interest Rate", None, "Low Interest Rate")]),
    ),
    "libreoffice_calc/01b269ae": sheet_case(_LEVELS, put({"A3": "one", "A5": "two"})),
    "libreoffice_calc/a9f325aa": sheet_case(
        [("Title", "Clean"), ("  the  BIG sleep ", None)], put({"B2": "The Big Sleep"})
    ),
    "libreoffice_calc/7a4e4bc8": sheet_case(
        [("First Name", "Last Name", "Order ID", "Date", "Sales"), ("Ann", "Lee", 7, "May", 3)],
        replace_rows([("Date", "First Name", "Last Name", "Order ID", "Sales"), ("May", "Ann", "Lee", 7, 3)]),
    ),
    "libreoffice_calc/4de54231": sheet_case(
        [("Time", "Acceleration", "Speed", "Distance"), (1, 2, 3, 4), (2, None, 5, None)],
        put({"B3": 2, "D3": 6, "F1": "Time,Acceleration,Speed,Distance", "F2": "1,2,3,4", "F3": "2,2,5,6"}),
    ),
    "libreoffice_calc/4172ea6e": sheet_case(
        [("Loan", "Start", "Months"), ("a", "2023-01-01", 12)], put({"D1": "Maturity Date", "D2": "2024-01-01"})
    ),
    "libreoffice_calc/1334ca3e": sheet_case([("a", "b"), (1, 2)], zoom(100), before=zoom(400)),
    "libreoffice_calc/3a7c8185": sheet_case(
        [("Date Time", "Quantity"), (3, 5), (1, 2), (2, 9)],
        both(
            replace_rows([("Date Time", "Quantity"), (1, 2), (2, 9), (3, 5)]), chart(LineChart, (2, 2), (1, 4), None, 0)
        ),
    ),
    "libreoffice_calc/4f07fbe9": sheet_case(
        _NUMBERS,
        put({"B2": "it is 1.23", "B3": "it is 7.50"}),
        csv=("Number,Text\n1.23,\n7.50,\n", "Number,Text\n1.23,it is 1.23\n7.50,it is 7.50\n"),
    ),
    "libreoffice_calc/6e99a1ad": sheet_case(
        _SPENT,
        lambda book: [setattr(book.active[f"B{n}"], "number_format", "0.00") for n in (2, 3)],
        csv=("item,spent\na,1.239\nb,20.5\n", "item,spent\na,1.24\nb,20.50\n"),
    ),
    "libreoffice_calc/0bf05a7d": sheet_case(
        [("Old ID", "New 7 Digit ID"), (12, None), (345, None)],
        put({"B2": "0000012", "B3": "0000345"}),
        csv=("Old ID,New 7 Digit ID\n12,\n345,\n", "Old ID,New 7 Digit ID\n12,0000012\n345,0000345\n"),
    ),
    "libreoffice_calc/a01fbce3": sheet_case(
        [("n",), (1.5,), (2.25,)], put({"A2": "1,5", "A3": "2,25"}), csv=("n\n1.5\n2.25\n", 'n\n"1,5"\n"2,25"\n')
    ),
}


def exported_table(example: ExampleFile) -> Case:
    """A sheet that is to be exported as CSV."""
    (path,) = example.downloads
    texts = {
        "start": None,
        "solved": b"a,b\n1,2\n",
        "changed": b"a,b\n1,3\n",
        "emptied": b"",
        "more": b"a,b\n1,2\n3,4\n",
    }
    states = {
        state: {example.result_path: text if text is None else write_bytes(text)} for state, text in texts.items()
    }
    book = build_book([("a", "b"), (1, 2)])
    content = io.BytesIO()
    book.save(content)
    golds = {dest: write_bytes(b"a,b\n1,2\n") for dest in example.golds()}
    return Case({path: write_bytes(content.getvalue())}, golds, states)


def printed_pages(example: ExampleFile) -> Case:
    """A sheet that is to be printed on one page."""
    from pypdf import PdfWriter

    (path,) = example.downloads

    def pages(count: int, place: Path) -> None:
        writer = PdfWriter()
        for _ in range(count):
            writer.add_blank_page(200, 200)
        writer.write(place)

    made = {
        "start": None,
        "solved": partial(pages, 1),
        "more": partial(pages, 3),
        "broken": cut_in_half(partial(pages, 1)),
    }
    book = build_book([[f"column {n}" for n in range(60)] for _ in range(90)])
    return Case(
        {path: lambda place: book.save(place)}, {}, {name: {example.result_path: one} for name, one in made.items()}
    )


CASES["libreoffice_calc/3aaa4e37"] = exported_table
CASES["libreoffice_calc/aa3a8974"] = printed_pages
