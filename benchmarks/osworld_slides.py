"""Presentations of OSWorld's tasks: a start, a solution, wrong ends (`osworld_cases.py`)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from lxml import etree
from osworld_cases import Case, ExampleFile, cut_in_half, write_bytes
from PIL import Image
from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.text import PP_ALIGN
from pptx.util import Cm, Emu, Pt

Slides = Any  # pptx.presentation.Presentation
Change = Callable[[Slides], Any]
_TITLE_AND_CONTENT = 1  # number of a layout
_N_SLIDES = 6


def picture(color: tuple[int, int, int] = (90, 140, 60), size: tuple[int, int] = (240, 160)) -> bytes:
    """Return a PNG of two colours."""
    made = Image.new("RGB", size, color)
    made.paste((20, 20, 120), (10, 10, size[0] // 2, size[1] // 2))
    content = io.BytesIO()
    made.save(content, "PNG")
    return content.getvalue()


def build_slides(count: int = _N_SLIDES) -> Slides:
    """Build slides with a title and two lines of content; those of odd numbers have a picture, the third a table."""
    made = Presentation()
    for number in range(1, count + 1):
        slide = made.slides.add_slide(made.slide_layouts[_TITLE_AND_CONTENT])
        slide.shapes.title.text = "Features" if number == 4 else f"Title {number}"
        body = slide.placeholders[1].text_frame
        body.text = f"The first line of {number}"
        body.add_paragraph().text = "and a second one"
        if number in (2, 3, 4, 6):
            slide.shapes.add_picture(io.BytesIO(picture()), Cm(3), Cm(9), Cm(6), Cm(4))
        if number in (3, 4):
            table = slide.shapes.add_table(2, 4, Cm(2), Cm(3), Cm(16), Cm(2)).table
            for column in range(4):
                table.cell(0, column).text = f"head {column}"
    return made


def slides_case(
    solve: Change,
    *,
    before: Change | None = None,
    more: dict[str, bytes] | None = None,
    count: int = _N_SLIDES,
    against: Change | None = None,
) -> Callable[[ExampleFile], Case]:
    """Declare a task on one presentation. solve: does what is asked. before: finishes the start. more: further files
    of the start, by path in the home. count: of its slides. against: makes what it is compared with out of the
    start, where that is not the solution: some metrics ask how the result differs."""

    def start() -> Slides:
        made = build_slides(count)
        if before:
            before(made)
        return made

    def solved(*changes: Change) -> Slides:
        made = start()
        for change in (solve, *changes):
            change(made)
        return made

    def compared() -> Slides:
        made = start()
        against(made)
        return made

    def build(example: ExampleFile) -> Case:
        path = next(one for one in example.downloads if one.endswith(".pptx"))
        right = lambda place: solved().save(place)  # noqa: E731
        begun = lambda place: start().save(place)  # noqa: E731
        files = {
            "start": begun, "solved": right, "emptied": lambda place: Presentation().save(place),
            "changed": lambda place: solved(_change_text).save(place),
            "more": lambda place: solved(_add_slide).save(place), "broken": cut_in_half(right),
        }  # fmt: skip
        result = example.result_path
        states: dict[str, Any] = {state: {result: make} for state, make in files.items()}
        if result != path:
            states["start"] = {result: None}
        golds = dict.fromkeys(example.golds(), right if against is None else lambda place: compared().save(place))
        starts = {path: begun, **{name: write_bytes(content) for name, content in (more or {}).items()}}
        return Case(starts, golds, states)

    return build


def _change_text(made: Slides) -> None:
    made.slides[0].placeholders[1].text_frame.paragraphs[0].runs[0].text = "another text"


def _add_slide(made: Slides) -> None:
    made.slides.add_slide(made.slide_layouts[_TITLE_AND_CONTENT]).shapes.title.text = "One more"


# What the tasks ask for; slides and text boxes are numbered from 1.


def _runs(slide: Any, boxes: tuple[int, ...] = ()) -> list[Any]:
    shapes = [shape for shape in slide.shapes if shape.has_text_frame]
    chosen = [shapes[number - 1] for number in boxes] if boxes else shapes
    return [run for shape in chosen for paragraph in shape.text_frame.paragraphs for run in paragraph.runs]


def font(numbers: tuple[int, ...], boxes: tuple[int, ...] = (), *, color: str = "", **settings: Any) -> Change:
    """Return what sets the font of slides' text boxes. color: six digits. settings: of pptx's Font."""

    def change(made: Slides) -> None:
        for number in numbers:
            for run in _runs(made.slides[number - 1], boxes):
                if color:
                    run.font.color.rgb = RGBColor.from_string(color)
                for name, value in settings.items():
                    setattr(run.font, name, value)

    return change


def strike(number: int) -> Change:
    def change(made: Slides) -> None:
        for run in _runs(made.slides[number - 1], (2,)):
            run._r.get_or_add_rPr().set("strike", "sngStrike")

    return change


def background(color: str, *numbers: int) -> Change:
    def change(made: Slides) -> None:
        for number in numbers or range(1, len(made.slides) + 1):
            fill = made.slides[number - 1].background.fill
            fill.solid()
            fill.fore_color.rgb = RGBColor.from_string(color)

    return change


def note(number: int, text: str = "") -> Change:
    """Return what writes a slide's note; without a text, its title."""

    def change(made: Slides) -> None:
        slide = made.slides[number - 1]
        slide.notes_slide.notes_text_frame.text = text or slide.shapes.title.text

    return change


def title(number: int, text: str, align: Any = None, **settings: Any) -> Change:
    def change(made: Slides) -> None:
        frame = made.slides[number - 1].shapes.title.text_frame
        frame.text = text
        frame.paragraphs[0].alignment = align
        for name, value in settings.items():
            setattr(frame.paragraphs[0].runs[0].font, name, value)

    return change


def align(places: dict[int, Any]) -> Change:
    def change(made: Slides) -> None:
        for number, where in places.items():
            box = next(shape for shape in made.slides[number - 1].shapes if shape.has_text_frame)
            box.text_frame.paragraphs[0].alignment = where

    return change


def shapes(number: int, kind: str, **frame: Any) -> Change:
    """Return what moves and sizes a slide's shapes. kind: picture, title or table. frame: left, top, width, height."""

    def change(made: Slides) -> None:
        slide = made.slides[number - 1]
        for shape in slide.shapes:
            is_it = {"picture": hasattr(shape, "image"), "table": shape.has_table, "title": shape == slide.shapes.title}
            if is_it[kind]:
                now = {name: getattr(shape, name) for name in ("left", "top", "width", "height")}
                for name, value in {**now, **frame}.items():
                    setattr(shape, name, value(made, shape) if callable(value) else value)

    return change


def all_of(*changes: Change) -> Change:
    def change(made: Slides) -> None:
        for one in changes:
            one(made)

    return change


def line(number: int, text: str) -> Change:
    def change(made: Slides) -> None:
        made.slides[number - 1].placeholders[1].text_frame.add_paragraph().text = text

    return change


def upright(made: Slides) -> None:
    made.slide_width, made.slide_height = made.slide_height, made.slide_width


def dissolve(made: Slides) -> None:
    space = "http://schemas.openxmlformats.org/presentationml/2006/main"
    made.slides[0]._element.append(etree.fromstring(f'<p:transition xmlns:p="{space}"><p:dissolve/></p:transition>'))


def table(number: int, rows: int, columns: int) -> Change:
    def change(made: Slides) -> None:
        made.slides[number - 1].shapes.add_table(rows, columns, Cm(2), Cm(5), Cm(16), Cm(6))

    return change


def head_cells(number: int, *texts: str) -> Change:
    def change(made: Slides) -> None:
        found = next(shape for shape in made.slides[number - 1].shapes if shape.has_table).table
        for column, text in enumerate(texts):
            found.cell(0, column).text = text

    return change


def stretch(made: Slides) -> None:
    shape = next(one for one in made.slides[0].shapes if hasattr(one, "image"))
    shape.left, shape.top, shape.width, shape.height = Emu(0), Emu(0), made.slide_width, made.slide_height


def add_picture(number: int, content: bytes, size: Any) -> Change:
    def change(made: Slides) -> None:
        made.slides[number - 1].shapes.add_picture(io.BytesIO(content), Cm(1), Cm(1), size, size)

    return change


def repeat_last_two(made: Slides) -> None:
    for _ in range(2):
        source = made.slides[len(made.slides) - 2]
        slide = made.slides.add_slide(source.slide_layout)
        slide.shapes.title.text = source.shapes.title.text
        for shape, old in zip(slide.placeholders, source.placeholders, strict=True):
            shape.text_frame.text = old.text_frame.text


def _at_right(made: Slides, shape: Any) -> Any:
    return made.slide_width - shape.width


def _at_bottom(made: Slides, shape: Any) -> Any:
    return made.slide_height - shape.height


def _nothing(_: Slides) -> None:
    pass


_NONE_PNG = picture((200, 30, 30), (40, 40))
CASES: dict[str, Callable[[ExampleFile], Case]] = {
    "libreoffice_impress/5d901039": slides_case(
        stretch,
        before=lambda made: made.slides[0].shapes.add_picture(io.BytesIO(picture()), Cm(3), Cm(9), Cm(6), Cm(4)),
    ),
    "libreoffice_impress/550ce7e7": slides_case(strike(2)),
    "libreoffice_impress/9ec204e4": slides_case(repeat_last_two, count=1 + 1),
    "libreoffice_impress/ce88f674": slides_case(upright),
    "libreoffice_impress/3b27600c": slides_case(background("0000FF")),
    "libreoffice_impress/a097acff": slides_case(lambda made: None),
    "libreoffice_impress/21760ecb": slides_case(dissolve),
    "libreoffice_impress/358aa0a7": slides_case(font(tuple(range(1, 7)), name="Liberation Sans Narrow")),
    "libreoffice_impress/73c99fb9": slides_case(line(2, "Page 1")),
    "libreoffice_impress/15aece23": slides_case(
        shapes(2, "title", top=_at_bottom), before=title(2, "Product Comparison"), against=_nothing
    ),
    "libreoffice_impress/986fc832": slides_case(font((1,), (2,), color="C9211E", underline=True), count=1),
    "libreoffice_impress/a434992a": slides_case(
        all_of(font((1,), (2,), color="FF8000", size=Pt(12)), background("FF0000")), count=1
    ),
    "libreoffice_impress/7dbc52a6": slides_case(all_of(note(2), font((2,), (1,), bold=True))),
    "libreoffice_impress/841b50aa": slides_case(all_of(note(1, "APP"), background("800080")), count=1),
    "libreoffice_impress/8979838c": slides_case(all_of(note(1), background("800080")), count=1),
    "libreoffice_impress/b8adbc24": slides_case(
        all_of(lambda made: made.slides.add_slide(made.slide_layouts[_TITLE_AND_CONTENT]), title(7, "Online Shopping"))
    ),
    "libreoffice_impress/2b94c692": slides_case(shapes(2, "picture", left=_at_right), against=_nothing),
    "libreoffice_impress/9cf05d24": slides_case(background("00A933", 1)),
    "libreoffice_impress/08aced46": slides_case(title(2, "Note", PP_ALIGN.RIGHT)),
    "libreoffice_impress/edb61b14": slides_case(font((6,), name="Times New Roman")),
    "libreoffice_impress/c82632a4": slides_case(add_picture(2, _NONE_PNG, Cm(1)), more={"Desktop/none.png": _NONE_PNG}),
    "libreoffice_impress/39be0d19": slides_case(table(5, 5, 2)),
    "libreoffice_impress/ac1b39ff": slides_case(shapes(3, "table", top=_at_bottom), against=_nothing),
    "libreoffice_impress/f23acfd2": slides_case(line(1, "one more point"), count=1),
    "libreoffice_impress/70bca0cc": slides_case(background("C00000", 2), before=font((2,), (1,), color="C00000")),
    "libreoffice_impress/af2d657a": slides_case(title(1, "Happy Family", name="Microsoft JhengHei")),
    "libreoffice_impress/57667013": slides_case(font((5,), color="FFFF00"), before=font((5,), color="112233")),
    "libreoffice_impress/0a211154": slides_case(all_of(background("FFFF00", 3), title(2, "Let's start"))),
    "libreoffice_impress/a53f80cd": slides_case(font((2, 3), (1,), color="000000", bold=True)),
    "libreoffice_impress/7ae48c60": slides_case(
        all_of(*(shapes(number, "picture", height=Cm(size)) for number, size in ((3, 20), (4, 30), (6, 25))))
    ),
    "libreoffice_impress/5cfb9197": slides_case(head_cells(4, "T1", "T2", "T3", "T4")),
    "libreoffice_impress/05dd4c1d": slides_case(align({3: PP_ALIGN.RIGHT, 4: PP_ALIGN.CENTER, 5: PP_ALIGN.LEFT})),
    "libreoffice_impress/5c1a6c3d": slides_case(
        all_of(font((1,), bold=True), font((1,), (1,), size=Pt(44), underline=True))
    ),
    "libreoffice_impress/4ed5abd0": slides_case(font((2, 3, 5), (1,), color="000000", underline=True)),
    "libreoffice_impress/e4ef0baf": slides_case(all_of(shapes(3, "picture", height=Cm(20)), font((6,), size=Pt(40)))),
    "libreoffice_impress/ed43c15f": slides_case(
        all_of(shapes(2, "picture", top=Emu(0)), font((1, 2), underline=True)), against=font((1, 2), underline=True)
    ),
    "libreoffice_impress/04578141": slides_case(
        all_of(font((1,), (1,), color="FFFF00"), font((1,), (2,), color="FF0000")), before=font((1,), color="112233")
    ),
}
