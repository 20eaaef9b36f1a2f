"""Read Multimodal-Mind2Web: people's actions on web pages, one row each, in Parquet.

Rows of one `annotation_id` are one task, in the order of `target_action_index`. The point of an action is the middle of
its target's box. TYPE becomes two steps, the click on the field and the text. Of SELECT, the click on the field is a
step; the choice has no known place and cannot be learnt. A screen is the whole page, often taller than any browser's
window: it may be cut to the window that holds the target. https://huggingface.co/datasets/osunlp/Multimodal-Mind2Web
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from flywheel.agent.actions import Action, Click, Hotkey, Hover, Point, Type
from flywheel.agent.parsing.parser import serialise_action
from flywheel.agent.prompt import MAX_SIDE, decode_screenshot, screenshot_size
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import (
    DEMONSTRATION_GRAMMAR,
    MAX_CHARACTERS,
    DemonstratedStep,
    Demonstration,
    RefusedRecord,
)
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.json_text import parse_foreign_json

DATASET, LICENCE = "mind2web", "openrail"
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_NEEDED = (
    *("annotation_id", "confirmed_task", "website", "domain", "subdomain", "operation"),
    *("pos_candidates", "screenshot", "target_action_index", "target_action_reprs"),
)
_TALLEST = 65_535  # pixels of a page that is cut: the most of a JPEG
_Text = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Operation(_Part):
    op: str
    original_op: str | None = None
    value: Annotated[str, Field(max_length=MAX_CHARACTERS)] | None = None


def _json(value: Any) -> Any:
    return parse_foreign_json(value.encode()) if isinstance(value, str) else value


class _Screen(_Part):
    encoded: bytes = Field(min_length=1, alias="bytes")


class _Row(_Part):
    annotation_id: _Text
    confirmed_task: _Text
    website: _Text
    domain: _Text
    subdomain: _Text
    operation: Annotated[_Operation, BeforeValidator(_json)]
    pos_candidates: list[Annotated[dict[str, Any], BeforeValidator(_json)]] | None
    screenshot: _Screen
    target_action_index: int = Field(ge=0, lt=2**31, strict=False)
    target_action_reprs: _Text


_ROWS = TypeAdapter(list[_Row])


def read_mind2web(
    paths: Sequence[Path], licence: str = LICENCE, max_side: int = MAX_SIDE, window_height: int | None = None
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each task of Multimodal-Mind2Web as a demonstration, or as a RefusedRecord that says why it is none.

    paths: the Parquet files of a split; a task's rows may lie in two of them. A task's `split` is "eval" where the name
    of its first file begins with `test`, else "train". licence: stored with each demonstration. max_side: longest side
    of a screen, in pixels (policy.max_image_side). window_height: pixels to which a taller page is cut; None: it stays
    whole. Memory holds one task; one whose rows are damaged is refused. It is a generator; at the first task it raises
    BadInput for a missing file, DataError for one that is not of this format or has a damaged column of ids.
    """
    places: dict[str, list[tuple[Path, int]]] = {}
    for path in paths:
        for row, name in enumerate(_annotation_ids(path)):
            places.setdefault(name, []).append((path, row))
    for name, rows in places.items():
        by_file: dict[Path, list[int]] = {}
        for path, row in rows:
            by_file.setdefault(path, []).append(row)
        try:
            read = _ROWS.validate_python([row for one in by_file.items() for row in _rows(*one)])
            yield _demonstration(read, rows[0][0], licence, max_side, window_height)
        except Exception as error:  # any error concerns this task only
            yield RefusedRecord.from_error(f"{rows[0][0].name}, task {name}", error)


def _annotation_ids(path: Path) -> list[str]:
    if not path.is_file():
        raise BadInput("no such file", where=path, fix="name the data set's Parquet files")
    try:
        file = pq.ParquetFile(path)
        lacking = [one for one in _NEEDED if one not in file.schema_arrow.names]
        if lacking:
            raise DataError(f"no column {', '.join(lacking)}", where=path, fix="is it Multimodal-Mind2Web?")
        return file.read(columns=["annotation_id"])["annotation_id"].to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"not a whole Parquet file: {str(error).splitlines()[0]}", where=path) from None


def _rows(path: Path, wanted: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield rows of a file by number; only the row groups that contain them are read."""
    file, first = pq.ParquetFile(path), 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        inside = [row - first for row in wanted if first <= row < first + count]
        if inside:
            yield from file.read_row_group(group, columns=list(_NEEDED)).take(pa.array(inside)).to_pylist()
        first += count


def _demonstration(
    rows: list[_Row], path: Path, licence: str, max_side: int, window_height: int | None
) -> Demonstration:
    rows.sort(key=lambda row: row.target_action_index)
    numbers = [row.target_action_index for row in rows]
    missing = demonstration.find_missing_steps(numbers)
    first = rows[0]
    told = ("confirmed_task", "website", "domain", "subdomain")
    if other := next((name for row in rows for name in told if getattr(row, name) != getattr(first, name)), ""):
        raise ValueError(f"its rows do not agree: {other}")
    screens: dict[str, bytes] = {}
    steps: list[DemonstratedStep] = []
    for row in rows:
        encoded, what = row.screenshot.encoded, f"the screen of action {row.target_action_index}"
        name = demonstration.check_screen(encoded, what, _TALLEST if window_height else max_side)
        place, (width, height) = _target(row.pos_candidates or (), encoded), screenshot_size(encoded, _TALLEST)
        if window_height and height > window_height:
            encoded, place = _cut_page(encoded, place, window_height)
            height = window_height
            name = demonstration.check_screen(encoded, what, max_side)
        screens[name] = encoded
        steps += _steps(row, name, Point(round(place[0] / width, 4), round(place[1] / height, 4)) if place else None)
    facts = {"website": first.website, "actions": len(rows), "first_action": numbers[0]}
    facts |= {"window_height": window_height} if window_height else {}
    return Demonstration(
        dataset=DATASET,
        id=first.annotation_id,
        licence=licence,
        instruction=first.confirmed_task,
        world=DATASET,
        template=f"{first.domain}/{first.subdomain}/{first.website}",
        split="eval" if path.name.startswith("test") else "train",
        completed=None,
        steps=tuple(steps),
        facts=facts | ({"missing_steps": missing} if missing else {}),
        screens=screens,
    )


def _cut_page(
    encoded: bytes, place: tuple[float, float] | None, height: int
) -> tuple[bytes, tuple[float, float] | None]:
    """Return the window of a page that holds `place`, (x, y) in pixels, as a PNG of `height` pixels, and `place` in it.

    Windows lie one below another, and the last ends where the page does: with `place` in the middle of each, a model
    would learn to click there. Without a place it is the first.
    """
    page = decode_screenshot(encoded, _TALLEST)
    x, y = place or (0.0, 0.0)
    top = min(int(y) // height * height, page.height - height)
    kept = io.BytesIO()
    page.crop((0, top, page.width, top + height)).save(kept, "PNG")
    return kept.getvalue(), (x, y - top) if place else None


def _steps(row: _Row, screen: str, point: Point | None) -> Iterator[DemonstratedStep]:
    kind, value = row.operation.op, row.operation.value or ""
    if point is None:
        yield DemonstratedStep(row.target_action_reprs, screen, fault="its target has no place on the screen")
        return

    def step(action: Action) -> DemonstratedStep:
        return DemonstratedStep(serialise_action(action, DEMONSTRATION_GRAMMAR), screen)

    if kind == "CLICK":
        original = row.operation.original_op
        yield step(Hover(point) if original == "HOVER" else Hotkey(("enter",)) if original == "ENTER" else Click(point))
    elif kind == "TYPE":
        yield step(Click(point))
        yield step(Type(value))
    elif kind == "SELECT":
        yield step(Click(point))
        yield DemonstratedStep(f"SELECT {value}", screen, fault="which place the option had is not told")
    else:
        raise ValueError(f"unknown operation {kind[:80]}")


def _target(candidates: Sequence[Mapping[str, Any]], encoded: bytes) -> tuple[float, float] | None:
    """Return the middle (x, y) of the target's box in pixels; None where it has no box, or lies outside."""
    found = sorted(candidates, key=lambda one: (not one.get("is_original_target"), not one.get("is_top_level_target")))
    width, height = screenshot_size(encoded, _TALLEST)
    for one in found:
        attributes = _json(one["attributes"])
        box = attributes.get("bounding_box_rect", "")
        left, top, wide, high = (float(part) for part in box.split(",")) if box.count(",") == 3 else (-1.0,) * 4
        x, y = left + wide / 2, top + high / 2
        if min(left, top, wide, high) >= 0 and x < width and y < height:
            return x, y
    return None
