"""Turn recordings of rrweb (JSON arrays of its events) into demonstrations, with screens that its Replayer draws.

The Replayer runs in a Chromium here. https://github.com/rrweb-io/rrweb
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from flywheel.agent.actions import (
    Action,
    Click,
    Drag,
    Hotkey,
    LeftDouble,
    Navigate,
    ParseError,
    Point,
    RightSingle,
    Scroll,
    Type,
)
from flywheel.agent.prompt import MAX_SIDE
from flywheel.config import SandboxSettings
from flywheel.recordings.recorder.gestures import HIDDEN_TEXT, NEAR_PX, SCROLL_S
from flywheel.recordings.replayed_pages import capture_steady_screen, open_replay_page, scroll_direction
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord
from flywheel.store.interop.input_events import ReducedAction
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import parse_foreign_json

DATASET = "rrweb"
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_FULL, _INCREMENTAL, _META = 2, 3, 4  # types of events
_MUTATION, _MOUSE, _SCROLL, _RESIZE, _INPUT = 0, 2, 3, 4, 5  # sources of incremental ones
_UP, _DOWN, _CLICK, _MENU, _DOUBLE = range(5)  # interactions of the mouse
_SCRIPTS = ("dist/rrweb.umd.min.cjs", "dist/rrweb.umd.cjs", "dist/rrweb.min.js")
_PAUSE_S = 2.0  # between two changes of one text
_OWN_S = 0.5  # as long after an action is a scroll the page's own
_LEADS_S = 5.0  # as long does an action lead to another page
_UNTYPED = ("checkbox", "radio", "range", "color", "date", "time", "month", "week", "datetime-local", "file")
_PLAY = """([events, css]) => {
    document.body.innerHTML = `<style>${css} body { margin: 0 } .replayer-mouse, .replayer-mouse-tail { display: none }
        iframe { border: 0 }</style><main></main>`;
    const how = {root: document.querySelector("main"), mouseTail: false, showWarning: false};
    window.replayer = new rrweb.Replayer(events, how);
}"""
# Where a node's frame lies, and the node itself: left and top of the frame; left, top, right, bottom of the node.
_LIES = """([ms, id]) => {
    replayer.pause(Math.max(0, ms));
    const node = replayer.getMirror().getNode(id);
    let left = 0, top = 0;
    for (let view = node?.ownerDocument?.defaultView; view?.frameElement && view !== replayer.iframe.contentWindow;) {
        const box = view.frameElement.getBoundingClientRect();
        left += box.left + view.frameElement.clientLeft;
        top += box.top + view.frameElement.clientTop;
        view = view.frameElement.ownerDocument.defaultView;
    }
    const box = node?.getBoundingClientRect?.();
    return [left, top, box ? [box.left, box.top, box.right, box.bottom] : null];
}"""


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    type: int
    timestamp: float
    data: dict[str, Any] = {}


_EVENTS = TypeAdapter(list[_Event])


@dataclass
class _Deed:
    """Hold an action before its place is known. at, to: in pixels of its node's frame; None: the middle of the node.
    kind: of an action with a place. action: one without."""

    time_s: float
    node: int
    said: str
    size: tuple[int, int]
    kind: type | None = None
    action: Action | ParseError | None = None
    at: tuple[float, float] | None = None
    to: tuple[float, float] | None = None
    direction: str = ""


def read_rrweb(
    files: Sequence[Path], package: Path, settings: SandboxSettings, instruction: str, licence: str = "",
    max_side: int = MAX_SIDE,
) -> Iterator[Demonstration | RefusedRecord]:  # fmt: skip
    """Yield each recording as a demonstration, or as a RefusedRecord that says why it cannot be one.

    files: of events. package: folder of the npm package rrweb, whose Replayer draws the screens. settings: the block
    `sandbox`. instruction: the task in words. licence: stored with each demonstration. max_side: longest side of a
    screen, in pixels. It is a generator; it raises BadInput for a package that is missing, and for a file that is
    missing when it comes to it. A Chromium that is not there or does not start is a reason too.
    """
    script = next((package / one for one in _SCRIPTS if (package / one).is_file()), None)
    if script is None:
        fix = "npm install rrweb, and name its folder by --package"
        raise BadInput("screens are drawn by the npm package rrweb, which is not here", where=package, fix=fix)
    for path in files:
        if not path.is_file():
            raise BadInput("there is no such file", where=path, fix="name files of rrweb's events, as JSON")
        try:
            yield _demonstration(path, script, settings, instruction, licence, max_side)
        except Exception as error:  # any error concerns this recording only
            yield RefusedRecord.from_error(path.name, error)


def _demonstration(
    path: Path, script: Path, settings: SandboxSettings, instruction: str, licence: str, max_side: int
) -> Demonstration:
    data = path.read_bytes()
    rows = parse_foreign_json(data)
    events = _EVENTS.validate_python(rows.get("events") if isinstance(rows, dict) else rows)
    _check(events)
    deeds = _Reader().read(events)
    if not deeds:
        raise ValueError("it has no actions")
    styles = script.with_name("style.css")
    with open_replay_page(settings) as page:
        page.add_script_tag(path=script)
        page.evaluate(_PLAY, [[one.model_dump() for one in events], styles.read_text() if styles.is_file() else ""])
        drawn = [_draw(page, deed, events[0].timestamp / 1000) for deed in deeds]
    begin = next(one.data.get("href", "") for one in events if one.type == _META)
    id_ = f"{path.stem}@{hashlib.sha256(data).hexdigest()[:12]}"
    made, frames = [one for one, _ in drawn], [frame for _, frame in drawn]
    one = demonstration.make_session_demonstration(
        DATASET, id_, licence, instruction, made, frames, max_side, {"url": begin}
    )
    return replace(one, template="web")


def _check(events: Sequence[_Event]) -> None:
    if not any(one.type == _META for one in events):
        raise ValueError("it does not say where it was recorded: it has no event of type 4 (Meta)")
    if not any(one.type == _FULL for one in events):
        raise ValueError("it has no full snapshot (type 2), so no screen can be drawn")
    for number, (before, after) in enumerate(pairwise(events), 1):
        if before.timestamp - after.timestamp > 1000:
            gone = (before.timestamp - after.timestamp) / 1000
            raise ValueError(f"event {number} is {gone:.0f} s before the one that it follows: the clock was set back")


def _draw(page: Any, deed: _Deed, begin_s: float) -> tuple[ReducedAction, bytes]:
    """Draw the screen before a deed, and make its action."""
    width, height = deed.size
    page.set_viewport_size({"width": width, "height": height})
    left, top, box = page.evaluate(_LIES, [(deed.time_s - begin_s) * 1000 - 1, deed.node])
    frame = capture_steady_screen(page)
    action = deed.action
    if deed.kind:
        if deed.at is None and box is None:
            points = []
        else:
            middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) if deed.at is None else deed.at
            points = [((left + x) / width, (top + y) / height) for x, y in (middle, deed.to or middle)]
        if not points or not all(0 <= x < 1 and 0 <= y < 1 for x, y in points):
            action = ParseError("its point is not on the screen")
        else:
            one, other = (Point(x, y) for x, y in points)
            action = Drag(one, other) if deed.kind is Drag else deed.kind(one, *filter(None, [deed.direction]))
    return ReducedAction(deed.time_s, action, deed.said), frame


@dataclass
class _Reader:
    """Make deeds of events, in order."""

    deeds: list[_Deed] = field(default_factory=list)
    size: tuple[int, int] = (1, 1)
    address: str = ""
    nodes: dict[int, tuple[str, str]] = field(default_factory=dict)  # id -> tag, type
    texts: dict[int, str] = field(default_factory=dict)
    places: dict[int, tuple[float, float]] = field(default_factory=dict)  # how far elements are scrolled
    down: tuple[float, Mapping[str, Any]] | None = None
    typing: tuple[_Deed, int, str, float] | None = None  # its deed, node, text before, time of its last change
    scrolled_s: float = 0.0
    presses: bool = True  # buttons that go down are told, not clicks alone

    def read(self, events: Sequence[_Event]) -> list[_Deed]:
        self.presses = any(
            one.type == _INCREMENTAL and one.data.get("source") == _MOUSE and one.data.get("type") == _DOWN
            for one in events
        )
        for number, event in enumerate(events):
            try:
                self._take(event.timestamp / 1000, event)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"event {number} (type {event.type}) lacks or misuses {error}") from None
        self._end_text()
        return sorted(self.deeds, key=lambda one: one.time_s)

    def _take(self, at: float, event: _Event) -> None:
        data = event.data
        if event.type == _META:
            self.size = (int(data["width"]), int(data["height"]))
            self._goes_to(at, data["href"])
        elif event.type == _FULL:
            self._learn(data["node"])
        elif event.type == _INCREMENTAL:
            source = data["source"]
            if source == _MUTATION:
                for one in data.get("adds", ()):
                    self._learn(one["node"])
            elif source == _RESIZE:
                self.size = (int(data["width"]), int(data["height"]))
            elif source == _MOUSE:
                self._mouse(at, data)
            elif source == _SCROLL:
                self._scroll(at, data)
            elif source == _INPUT and data.get("userTriggered", True):
                self._input(at, data)

    def _learn(self, node: Mapping[str, Any]) -> None:
        waiting = [node]
        while waiting:
            one = waiting.pop()
            attributes = one.get("attributes") or {}
            if "tagName" in one:
                self.nodes[one["id"]] = (one["tagName"], str(attributes.get("type", "")))
                self.texts[one["id"]] = str(attributes.get("value") or "")
            waiting += one.get("childNodes", ())

    def _goes_to(self, at: float, address: str) -> None:
        last_s = max((one.time_s for one in self.deeds[-1:]), default=0.0)
        led = at - max(last_s, self.typing[3] if self.typing else 0.0) < _LEADS_S
        self._end_text()
        if self.address and address != self.address and not led:
            self._add(at, 0, f"go to {address}", action=Navigate(address))
        self.address, self.down, self.places = address, None, {}

    def _mouse(self, at: float, data: Mapping[str, Any]) -> None:
        kind, where = data["type"], (data.get("x"), data.get("y"))
        if kind not in (_UP, _DOWN, _CLICK, _MENU, _DOUBLE) or None in where:
            return
        if kind == _DOWN:
            self.down = (at, data)
            return
        if kind == _UP:
            if self.down and hypot(where[0] - self.down[1]["x"], where[1] - self.down[1]["y"]) > NEAR_PX:
                began, down = self.down
                self._add(began, down["id"], "drag", Drag, (down["x"], down["y"]), to=where)
                self.down = None
            return
        if kind == _CLICK and self.presses and self.down is None:
            return  # what a key, a label or a script clicked
        began = self.down[0] if self.down else at
        if kind == _CLICK:
            self._add(began, data["id"], "click", Click, where)
            self.down = None
        elif kind == _MENU:
            self._add(began, data["id"], "right click", RightSingle, where)
            self.down = None
        else:
            pair = [one for one in self.deeds[-2:] if one.kind is Click and at - one.time_s < _PAUSE_S]
            if len(pair) == 2:
                self.deeds[-2:] = [replace(pair[0], kind=LeftDouble, said="double click")]

    def _scroll(self, at: float, data: Mapping[str, Any]) -> None:
        node, before = data["id"], self.places.get(data["id"], (0.0, 0.0))
        self.places[node] = (data["x"], data["y"])
        across, down = data["x"] - before[0], data["y"] - before[1]
        last = self.deeds[-1] if self.deeds else None
        ongoing, self.scrolled_s = at - self.scrolled_s <= SCROLL_S, at
        own = last is not None and last.kind is not Scroll and at - last.time_s < _OWN_S
        if not (across or down) or own:
            return
        direction = scroll_direction(across, down)
        if ongoing and last and last.kind is Scroll and (last.node, last.direction) == (node, direction):
            return
        middle = None if node in self.nodes else (self.size[0] / 2, self.size[1] / 2)  # of the document itself
        self._add(at, node, f"scroll {direction}", Scroll, middle, direction=direction)

    def _input(self, at: float, data: Mapping[str, Any]) -> None:
        node, text = data["id"], str(data.get("text", ""))
        tag, kind = self.nodes.get(node, ("", ""))
        before, self.texts[node] = self.texts.get(node, ""), text
        if kind in ("checkbox", "radio") or text == before:
            return  # their clicks are told
        if tag == "select" or kind in _UNTYPED:
            self._add(at, node, f"choose in a {kind or tag}", action=ParseError("how it was chosen is not told"))
            return
        if self.typing and self.typing[1] == node and at - self.typing[3] <= _PAUSE_S:
            self.typing = (*self.typing[:3], at)
            return
        self._end_text()
        self._add(at, node, "type")
        self.typing = (self.deeds[-1], node, before, at)

    def _end_text(self) -> None:
        if self.typing is None:
            return
        (deed, node, before, _), self.typing = self.typing, None
        text = self.texts[node]
        start = _count_common(before, text)
        end = _count_common(before[start:][::-1], text[start:][::-1])
        gone, new = before[start : len(before) - end], text[start : len(text) - end]
        place = self.deeds.index(deed)
        chosen = place > 0 and self.deeds[place - 1].kind in (LeftDouble, Drag)  # typing takes the place of a selection
        if new and gone and not chosen:
            deed.action = ParseError("text was changed within")
        elif self.nodes.get(node, ("", ""))[1] == "password":
            deed.action = Type(HIDDEN_TEXT)
        elif new and set(new) == {"*"}:
            deed.action = ParseError("what was typed is masked in the recording")
        elif new:
            deed.action = Type(new)
            deed.said = f"type {json.dumps(new)}"
        else:
            deed.action = Hotkey(("backspace",)) if len(gone) == 1 or chosen else ParseError("text was removed")

    def _add(
        self,
        at: float,
        node: int,
        said: str,
        kind: type | None = None,
        place: tuple[float, float] | None = None,
        **more: Any,
    ) -> None:
        self._end_text()
        self.deeds.append(_Deed(at, node, said, self.size, kind, at=place, **more))


def _count_common(one: str, other: str) -> int:
    """Count the characters with which both begin."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
