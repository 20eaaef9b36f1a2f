"""Documents of OSWorld's tasks: a start, a solution, wrong ends (`osworld_cases.py`)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import docx
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_COLOR_INDEX, WD_TAB_ALIGNMENT
from docx.shared import Cm, Pt, RGBColor
from osworld_cases import Case, ExampleFile, cut_in_half, write_bytes
from osworld_slides import picture

Document = Any  # docx.document.Document
Change = Callable[[Document], Any]
_LINES = (
    "The heading of the text", "Water is H2O. It is wet. It runs.", "A second paragraph, with a word or two.",
    "The LAST Paragraph is HERE",
)  # fmt: skip


def build_document(lines: tuple[str, ...] = _LINES) -> Document:
    made = docx.Document()
    for text in lines:
        made.add_paragraph(text)
    return made


def text_case(
    solve: Change,
    *,
    lines: tuple[str, ...] = _LINES,
    before: Change | None = None,
    more: dict[str, bytes] | None = None,
) -> Callable[[ExampleFile], Case]:
    """Declare a task on one document. lines: its paragraphs. solve: does what is asked. before: finishes the start.
    more: further files of the start, by path in the home."""

    def start() -> Document:
        made = build_document(lines)
        if before:
            before(made)
        return made

    def solved(*changes: Change) -> Document:
        made = start()
        for change in (solve, *changes):
            change(made)
        return made

    def build(example: ExampleFile) -> Case:
        path = next(one for one in example.downloads if one.endswith(".docx"))
        right = lambda place: solved().save(place)  # noqa: E731
        begun = lambda place: start().save(place)  # noqa: E731
        files = {
            "start": begun, "solved": right, "emptied": lambda place: docx.Document().save(place),
            "changed": lambda place: solved(_change_text).save(place),
            "more": lambda place: solved(lambda made: made.add_paragraph("one more")).save(place),
            "broken": cut_in_half(right),
        }  # fmt: skip
        states: dict[str, Any] = {state: {path: make} for state, make in files.items()}
        starts = {path: begun, **{name: write_bytes(content) for name, content in (more or {}).items()}}
        return Case(starts, dict.fromkeys(example.golds(), right), states)

    return build


def _change_text(made: Document) -> None:
    runs = [run for paragraph in made.paragraphs for run in paragraph.runs]
    if not runs:
        made.tables[0].cell(0, 0).text = "another"
        return
    runs[-1].text += " another"


# What the tasks ask for.


def spacing(value: float, *numbers: int) -> Change:
    def change(made: Document) -> None:
        for number in numbers:
            made.paragraphs[number].paragraph_format.line_spacing = value

    return change


def lower_the_2(made: Document) -> None:
    paragraph = made.paragraphs[1]
    before, after = paragraph.text.split("2", 1)
    for run in paragraph.runs:
        run.text = ""
    paragraph.runs[0].text = before
    paragraph.add_run("2").font.subscript = True
    paragraph.add_run(after)


def number_pages(made: Document) -> None:
    made.sections[0].footer.paragraphs[0].text = "1"


def all_runs(**settings: Any) -> Change:
    def change(made: Document) -> None:
        for paragraph in made.paragraphs:
            for run in paragraph.runs:
                for name, value in settings.items():
                    setattr(run.font, name, value)

    return change


def rewrite(rule: Callable[[str], str]) -> Change:
    def change(made: Document) -> None:
        for paragraph in made.paragraphs:
            for run in paragraph.runs:
                run.text = rule(run.text)

    return change


def add_table(rows: list[list[str]]) -> Change:
    def change(made: Document) -> None:
        table = made.add_table(len(rows), len(rows[0]))
        for row, texts in enumerate(rows):
            for column, text in enumerate(texts):
                table.cell(row, column).text = text

    return change


def replace_by_table(made: Document) -> None:
    rows = [paragraph.text.split(",") for paragraph in made.paragraphs]
    for paragraph in made.paragraphs:
        paragraph._element.getparent().remove(paragraph._element)
    add_table(rows)(made)


def words_in_table(made: Document) -> None:
    add_table([["apple", "ball"], ["orange", "tree"]])(made)


def color_words(made: Document) -> None:
    for row in made.tables[0].rows:
        for cell in row.cells:
            for run in cell.paragraphs[0].runs:
                vowel = run.text[0] in "aeiou"
                run.font.color.rgb = RGBColor(255, 0, 0) if vowel else RGBColor(0, 0, 255)


def split_by_tabs(made: Document) -> None:
    for paragraph in made.paragraphs:
        words = paragraph.text.split(" ")
        paragraph.runs[0].text = " ".join(words[:3]) + "\t" + " ".join(words[3:])
        section = made.sections[0]
        width = section.page_width - section.left_margin - section.right_margin
        paragraph.paragraph_format.tab_stops.add_tab_stop(width, WD_TAB_ALIGNMENT.RIGHT)


def italic_middle(made: Document) -> None:
    run = made.paragraphs[2].add_run(" said aslant")
    run.italic, run.font.size = True, Pt(12)


def larger_italics(made: Document) -> None:
    made.paragraphs[2].runs[-1].font.size = Pt(14)


def split_first(made: Document) -> None:
    first, *rest = made.paragraphs[0].text.split(". ")
    after = made.paragraphs[1]
    made.paragraphs[0].runs[0].text = f"{first}."
    for sentence in rest:
        after.insert_paragraph_before(sentence if sentence.endswith(".") else f"{sentence}.")


def strike_last(made: Document) -> None:
    for run in made.paragraphs[-1].runs:
        run.font.strike = True


def highlight(made: Document) -> None:
    made.paragraphs[2].runs[0].font.highlight_color = WD_COLOR_INDEX.YELLOW


_SHOT = picture((240, 240, 10))
_REFERENCE = (
    "Steinberg, F. M., Bearden, M. M., & Keen, C. L. (2003). Cocoa and chocolate flavonoids: Implications for "
    "cardiovascular health. Journal of the American Dietetic Association, 103(2), 215-223. doi: 10.1053/jada.2003.50028"
)
CASES: dict[str, Callable[[ExampleFile], Case]] = {
    "libreoffice_writer/0810415c": text_case(spacing(2.0, 0, 1)),
    "libreoffice_writer/0a0faba3": text_case(split_by_tabs),
    "libreoffice_writer/0b17a146": text_case(lower_the_2),
    "libreoffice_writer/0e47de2a": text_case(number_pages),
    "libreoffice_writer/0e763496": text_case(all_runs(name="Times New Roman")),
    "libreoffice_writer/3ef2b351": text_case(
        lambda made: setattr(made.paragraphs[0], "alignment", WD_ALIGN_PARAGRAPH.CENTER)
    ),
    "libreoffice_writer/66399b0d": text_case(add_table([[""] * 7] * 5)),
    "libreoffice_writer/6ada715d": text_case(
        lambda made: made.paragraphs[2].runs[0].add_picture(io.BytesIO(_SHOT), Cm(4)), more={"Desktop/1.png": _SHOT}
    ),
    "libreoffice_writer/72b810ef": text_case(strike_last),
    "libreoffice_writer/8472fece": text_case(color_words, before=words_in_table),
    "libreoffice_writer/88fe4b2d": text_case(
        split_first, lines=("One is here. Two follows. Three ends.", "And the rest.")
    ),
    "libreoffice_writer/936321ce": text_case(replace_by_table, lines=("a,b", "1,2", "3,4")),
    "libreoffice_writer/adf5e2c3": text_case(lambda made: made.add_paragraph(_REFERENCE)),
    "libreoffice_writer/b21acd93": text_case(
        lambda made: [spacing(1.0, 0)(made), spacing(2.0, 1)(made), spacing(1.5, 2)(made)]
    ),
    "libreoffice_writer/d53ff5ee": text_case(rewrite(str.lower)),
    "libreoffice_writer/e246f6d8": text_case(larger_italics, before=italic_middle),
    "libreoffice_writer/e528b65e": text_case(rewrite(str.title), lines=("the first line of it", "and a second one")),
}
