"""Read browser-use's histories: the JSON that an agent's `save_history` writes, and its screenshots beside it.

A step has one model output with one or more actions, and a result for each. Actions name elements by numbers; where
the click went stands in `metadata` of its result, in CSS pixels of the viewport. https://docs.browser-use.com
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, ParseError, Point
from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord
from flywheel.store.interop.traces import TraceReader, read_call, read_json_file, read_picture
from flywheel.utils.errors import BadInput

DATASET = "browser-use"
# What `send_keys` presses; it types any other text.
_KEYS = re.compile(
    r"(?:.+\+.+|Enter|Tab|Delete|Backspace|Escape|Space|Insert|Arrow\w+|Page\w+|Home|End|Control|Alt|Meta|Shift|F\d\d?)\Z"
)
_WITHOUT_PLACE = "where on the screen the element is was not kept"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Output(_Part):
    thinking: str | None = None
    next_goal: str | None = None
    action: list[dict[str, Any]]


class _Judgement(_Part):
    verdict: bool | None = None


class _Result(_Part):
    error: str | None = None
    extracted_content: str | None = None
    judgement: _Judgement | None = None
    metadata: dict[str, Any] | None = None


class _State(_Part):
    screenshot_path: str | None = None


class _Item(_Part):
    model_output: _Output | None = None
    result: list[_Result]
    state: _State


class _History(_Part):
    history: list[_Item] = Field(min_length=1)


def read_browser_use(
    files: Sequence[Path], instruction: str = "", images: Path | None = None, scale: float = 1.0, split: str = "eval",
    licence: str = "", max_side: int = MAX_SIDE,
) -> Iterator[Demonstration | RefusedRecord]:  # fmt: skip
    """Yield each history of browser-use as a demonstration, or as a RefusedRecord that says why it is none.

    files: JSON files. instruction: the task of those without a text file of the same name beside them. images: folder
    of the screenshots; None: `screenshots` beside each file. scale: pixels of a screenshot to a CSS pixel. split:
    "eval" for tasks of a benchmark, which are never trained on, or "train". licence: stored with each demonstration.
    max_side: longest side of a screen, in pixels (policy.max_image_side). It is a generator; it raises BadInput for a
    file that is missing when it comes to it.
    """
    for file in files:
        if not file.is_file():
            raise BadInput("there is no such file", where=file, fix="name a history of browser-use, a .json")
        try:
            beside = file.with_suffix(".txt")
            given = beside.read_text(encoding="utf-8-sig") if beside.is_file() else instruction
            if not given:
                raise ValueError(f"a history has no task: write it to {beside.name}, or give --instruction")
            reader = TraceReader(max_side)
            reader.hear(given)
            told = _History.model_validate(read_json_file(file)).history
            for item in told:
                _read_item(item, reader, images or file.parent / "screenshots", scale)
            verdicts = [one.judgement.verdict for item in told for one in item.result if one.judgement]
            score = next((float(one) for one in reversed(verdicts) if one is not None), None)
            yield reader.finish(
                score,
                {},
                DATASET,
                dataset=DATASET,
                id_="/".join(file.resolve().parts[-3:]),
                world=DATASET,
                licence=licence,
                split=split,
            )
        except Exception as error:  # any error concerns this file only
            yield RefusedRecord.from_error(file.name, error)


def _read_item(item: _Item, reader: TraceReader, images: Path, scale: float) -> None:
    if item.state.screenshot_path:
        reader.see(read_picture(images, PureWindowsPath(item.state.screenshot_path).name))
    output = item.model_output
    thought = (output.thinking or output.next_goal or "") if output else ""
    for place, one in enumerate(output.action if output else ()):
        if len(one) != 1 or not isinstance(given := next(iter(one.values())), dict | None):
            raise ValueError("action: not an object of one action with its parameters")
        result = item.result[place] if place < len(item.result) else _Result()
        action = _read_action(next(iter(one)), given or {}, result.metadata or {}, reader.size, scale)
        reader.act(str(one) if isinstance(action, ParseError) else "", action, "" if place else thought, {})
        for text in (result.extracted_content, result.error):
            if text:
                reader.hear_result(text)


def _read_action(
    name: str, given: Mapping[str, Any], metadata: Mapping[str, Any], size: tuple[int, int], scale: float
) -> Action | ParseError:
    def point(kind: str) -> Point | None:
        at = [
            metadata.get(f"{kind}_{axis}", given.get(f"coordinate_{axis}")) for axis in ("x", "y")
        ]  # where it went, else where it was to go
        if not all(
            isinstance(one, int | float) and 0 <= one * scale < side for one, side in zip(at, size, strict=True)
        ):
            return None
        return Point(at[0] * scale / size[0], at[1] * scale / size[1])

    match name, given:
        case "click", _:
            at = point("click")
            return act.Click(at) if at else ParseError(_WITHOUT_PLACE)
        case "input", {"text": str(text)}:
            at = point("input")
            return act.TypeAt(at, text, given.get("clear", True) is True) if at else ParseError(_WITHOUT_PLACE)
        case "scroll", {"index": int()}:
            return ParseError(_WITHOUT_PLACE)
        case "scroll", _:
            return act.Scroll(Point(0.5, 0.5), "up" if given.get("down") is False else "down")
        case "navigate", {"url": str(url)}:
            return act.Navigate(url)
        case "go_back", _:
            return act.NavigateBack()
        case "wait", _:
            return act.Wait()
        case "send_keys", {"keys": str(keys)}:
            pressed = {"action": "key", "keys": keys}
            return read_call("computer_use", pressed, size)[1] if _KEYS.match(keys) else act.Type(keys)
        case "done", {"text": str(text)}:
            return act.Finished(text)
    return act.ToolCall.of(name, given)
