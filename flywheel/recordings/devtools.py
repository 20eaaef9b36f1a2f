"""Turn recordings of Chrome DevTools' Recorder (JSON of @puppeteer/replay) into demonstrations, by playing them.

A step names its element by selectors, and where that lies only its page can tell. So the recording is played: each step
becomes the actions of a pointer and a keyboard, each with the screen that it was done on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from flywheel.agent.actions import (
    Action,
    Click,
    Hotkey,
    Hover,
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
from flywheel.envs.browser.pages.file_server import ServedFolder
from flywheel.recordings.recorder.gestures import HIDDEN_TEXT
from flywheel.recordings.replayed_pages import capture_steady_screen, open_replay_page, scroll_direction
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord
from flywheel.store.interop.input_events import MODIFIERS, ReducedAction
from flywheel.utils.errors import BadInput
from flywheel.utils.json_text import parse_foreign_json

DATASET = "devtools"
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_TIMEOUT_MS = 5000.0  # for an element, where the recording names no other
_MOST_TIMEOUT_MS = 30_000.0
_TAB_MS = 1000  # for a tab to open
_FIND = Path(__file__).with_name("devtools_find.js").read_text(encoding="utf-8")
_UNTITLED = re.compile(r"Recording \d|$")  # the Recorder's own title
_FIELD = """one => ({tag: one.localName, type: one.type, value: one.value ?? one.textContent,
    focused: one.matches(':focus'),
    secret: one.type === 'password' || /one-time-code|cc-|-password/.test(one.autocomplete ?? ''),
    options: [...(one.options ?? [])].map((option) => [option.value, option.label.trim()])})"""
_SCROLLED = "one => [(one ?? document.scrollingElement).scrollLeft, (one ?? document.scrollingElement).scrollTop]"
_SCROLL = "([one, x, y]) => (one ?? document.scrollingElement).scrollTo({left: x, top: y, behavior: 'instant'})"
_UNTYPED = ("checkbox", "radio", "range", "color", "date", "time", "month", "week", "datetime-local", "file")


class _Step(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    type: Literal[
        "change", "click", "close", "customStep", "doubleClick", "emulateNetworkConditions", "hover", "keyDown",
        "keyUp", "navigate", "scroll", "setViewport", "waitForElement", "waitForExpression",
    ]  # fmt: skip
    target: str = "main"
    frame: list[int] = []
    selectors: list[str | list[str]] = []
    timeout: float | None = None
    button: str = "primary"
    offsetX: float | None = None
    offsetY: float | None = None
    value: str = ""
    key: str = ""
    url: str = ""
    x: float = 0
    y: float = 0
    width: int = Field(1, ge=1)
    height: int = Field(1, ge=1)


class _Flow(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    title: str = ""
    timeout: float = _TIMEOUT_MS
    steps: list[dict[str, Any]]


_STEP = TypeAdapter(_Step)


def read_devtools(
    files: Sequence[Path], settings: SandboxSettings, folder: ServedFolder | None = None, instruction: str = "",
    licence: str = "", max_side: int = MAX_SIDE,
) -> Iterator[Demonstration | RefusedRecord]:  # fmt: skip
    """Play each recording, and yield it as a demonstration, or as a RefusedRecord that says why it cannot be one.

    settings: the block `sandbox`, of the browser that plays it. folder: the site's files; None: it is played at its
    own address. instruction: the task in words, in place of the recording's title. licence: stored with each
    demonstration. max_side: longest side of a screen, in pixels. It is a generator; it raises BadInput for a file
    that is missing when it comes to it. A Chromium that is not there or does not start is a reason too.
    """
    for path in files:
        if not path.is_file():
            raise BadInput("there is no such file", where=path, fix="name recordings that were exported as JSON")
        try:
            yield _demonstration(path, settings, folder, instruction, licence, max_side)
        except Exception as error:  # any error concerns this recording only
            yield RefusedRecord.from_error(path.name, error)


def _demonstration(
    path: Path, settings: SandboxSettings, folder: ServedFolder | None, instruction: str, licence: str, max_side: int
) -> Demonstration:
    data = path.read_bytes()
    flow = _Flow.model_validate(parse_foreign_json(re.sub(rb"\n//# recorderSourceMap=.*\s*$", b"", data)))
    told = instruction or flow.title.strip()
    if not instruction and _UNTITLED.match(told):
        raise ValueError(f"its title {told!r} says nothing of the task; say it by --instruction")
    steps = [_read_step(number, row) for number, row in enumerate(flow.steps)]
    begin = next((one for one in steps if isinstance(one, _Step) and one.type == "navigate"), None)
    if begin is None or urlsplit(begin.url).scheme not in ("http", "https"):
        raise ValueError("it names no address to begin at: it has no step `navigate` to one")
    with open_replay_page(settings, folder, network=folder is None) as page:
        player = _Player(page, flow.timeout)
        player.play(steps)
    if not player.made:
        raise ValueError("it has no actions")
    id_ = f"{path.stem}@{hashlib.sha256(data).hexdigest()[:12]}"
    facts = {"url": begin.url, "stopped": player.stopped}
    one = demonstration.make_session_demonstration(
        DATASET, id_, licence, told, player.made, player.frames, max_side, facts
    )
    return replace(one, template="web")


def _read_step(number: int, row: dict[str, Any]) -> _Step | str:
    """Return the step, or why it is none."""
    try:
        return _STEP.validate_python(row)
    except ValueError as error:
        return f"step {number} ({row.get('type')}): {RefusedRecord.from_error('', error).why}"


class _Stopped(Exception):
    """Say that the page is no longer where the recording was, so that nothing more can be played."""


class _Player:
    """Play steps. made: the actions. frames: the screen before each; b"" for those that were not reached. stopped: why
    it did not come to the end."""

    def __init__(self, page: Any, timeout_ms: float) -> None:
        self._main = self._page = page
        self._root: Any = None  # the frame that the step is in, where it names one by its address
        self._timeout_ms = timeout_ms
        self._held: list[str] = []
        self._begun = False
        self._shown = [page]  # tabs that steps were done in; another one has just been opened
        self._opened = False  # the list that the last click was on
        self.made: list[ReducedAction] = []
        self.frames: list[bytes] = []
        self.stopped = ""
        page.context.on("dialog", lambda dialog: dialog.accept())

    def play(self, steps: Sequence[_Step | str]) -> None:
        """Play the steps, as far as the page goes with them. Raises ValueError where its address cannot be opened."""
        from playwright.sync_api import Error

        for number, step in enumerate(steps):
            said = step if isinstance(step, str) else _describe(step)
            if self.stopped:
                self._add(ParseError(self.stopped), said, b"")
            elif isinstance(step, str):
                self._do(ParseError(step), said)
            else:
                try:
                    self._switch(step)
                    getattr(self, f"_{step.type}", self._nothing)(step, said)
                except (Error, _Stopped) as error:
                    if not self._begun:
                        why = str(error).splitlines()[0]
                        raise ValueError(f"its address {step.url} cannot be opened: {why}") from None
                    self.stopped = f"step {number} ({step.type}) could not be played: {str(error).splitlines()[0]}"
                    self._add(ParseError(self.stopped), said, b"")

    # -- steps -------------------------------------------------------------------------------------------------------
    def _nothing(self, step: _Step, said: str) -> None:
        """Do nothing for what is no action: waiting, the network's speed."""

    def _customStep(self, step: _Step, said: str) -> None:
        self._do(ParseError("a step of an extension's own"), said)

    def _setViewport(self, step: _Step, said: str) -> None:
        self._page.set_viewport_size({"width": step.width, "height": step.height})

    def _waitForElement(self, step: _Step, said: str) -> None:
        self._find(step)

    def _navigate(self, step: _Step, said: str) -> None:
        if self._begun:
            self._do(Navigate(step.url), said, lambda: self._page.goto(step.url))
        else:
            self._page.goto(step.url)
            self._begun = True

    def _click(self, step: _Step, said: str) -> None:
        kinds = {"primary": Click, "secondary": RightSingle}
        self._point_at(step, said, kinds.get(step.button), {"primary": "left", "secondary": "right"}.get(step.button))

    def _doubleClick(self, step: _Step, said: str) -> None:
        self._point_at(step, said, LeftDouble if step.button == "primary" else None, "left", 2)

    def _hover(self, step: _Step, said: str) -> None:
        self._point_at(step, said, Hover, None)

    def _point_at(self, step: _Step, said: str, kind: Any, button: str | None, count: int = 1) -> None:
        element, doubt = self._find(step)
        x, y = self._place(element, step)
        action = ParseError(doubt or f"a click of the button {step.button}")
        if kind and not doubt:
            action = kind(self._share(x, y))

        is_list = element.evaluate("one => one.localName === 'select'")

        def act() -> None:
            self._page.mouse.move(x, y)
            if button:
                self._page.mouse.click(x, y, button=button, click_count=count)
                self._opened = is_list and button == "left"

        self._do(action, said, act)

    def _change(self, step: _Step, said: str) -> None:
        element, doubt = self._find(step)
        field = element.evaluate(_FIELD)
        if doubt or field["type"] in _UNTYPED:
            self._do(ParseError(doubt or f"what was set in a field of type {field['type']}"), said)
            if field["type"] not in ("checkbox", "radio", "file"):  # their clicks are steps of their own
                element.evaluate("(one, value) => { one.value = value; for (const type of ['input', 'change'])"
                                 " one.dispatchEvent(new Event(type, {bubbles: true})); }", step.value)  # fmt: skip
            return
        keyboard = self._page.keyboard
        if field["tag"] == "select":
            label = next((label for value, label in field["options"] if step.value in (value, label)), None)
            if label is None:
                raise _Stopped(f"the list has no option {step.value!r}")
            enter = "\n" if self._opened else ""  # which would open a list that is closed
            if not enter:
                element.focus()

            def choose() -> None:
                keyboard.type(label + enter)
                if element.evaluate(_FIELD)["value"] != step.value:
                    element.select_option(step.value)
                    self.made[-1] = replace(self.made[-1], action=ParseError("typing its name chooses another option"))

            self._do(Type(label + enter), said, choose)
            return
        if not field["focused"]:
            x, y = self._place(element)
            self._do(Click(self._share(x, y)), f"click before {said}", lambda: self._page.mouse.click(x, y))
        rest = step.value.removeprefix(field["value"] or "")
        if field["value"] and not step.value.startswith(field["value"]):
            self._do(Hotkey(("ctrl", "a")), f"select all before {said}", lambda: keyboard.press("Control+a"))
            rest = step.value
            if not rest:
                self._do(Hotkey(("delete",)), said, lambda: keyboard.press("Delete"))
        if rest:
            self._do(Type(HIDDEN_TEXT if field["secret"] else rest), said, lambda: keyboard.type(rest))

    def _keyDown(self, step: _Step, said: str) -> None:
        name = MODIFIERS.get(step.key.lower())
        if name:
            self._held.append(name)
            self._page.keyboard.down(step.key)
            return
        keys = (*dict.fromkeys(self._held), "space" if step.key == " " else step.key.lower())
        action = Hotkey(keys) if len(keys) <= 3 else ParseError("more than three keys at once")
        self._do(action, said, lambda: self._page.keyboard.press(step.key))

    def _keyUp(self, step: _Step, said: str) -> None:
        name = MODIFIERS.get(step.key.lower())
        if name in self._held:
            self._held.remove(name)
            self._page.keyboard.up(step.key)

    def _scroll(self, step: _Step, said: str) -> None:
        element, doubt = self._find(step) if step.selectors else (None, "")
        frame = self._frame(step)
        left, top = frame.evaluate(_SCROLLED, element)
        across, down = step.x - left, step.y - top
        if not (across or down):
            return
        direction = scroll_direction(across, down)
        size = self._page.viewport_size
        at = self._place(element) if element else (size["width"] / 2, size["height"] / 2)
        action = ParseError(doubt) if doubt else Scroll(self._share(*at), direction)
        self._do(action, said, lambda: frame.evaluate(_SCROLL, [element, step.x, step.y]))

    def _close(self, step: _Step, said: str) -> None:
        self._do(Hotkey(("ctrl", "w")), said, self._page.close)
        left = self._main.context.pages
        if not left:
            raise _Stopped("the last tab is closed")
        self._page = left[-1]

    # -- how ---------------------------------------------------------------------------------------------------------
    def _do(self, action: Action | ParseError, said: str, act: Callable[[], Any] | None = None) -> None:
        """Look at the page, add the action, and do it."""
        self._add(action, said, capture_steady_screen(self._page))
        self._opened = False
        if act:
            act()

    def _add(self, action: Action | ParseError, said: str, frame: bytes) -> None:
        self.made.append(ReducedAction(float(len(self.made)), action, said))
        self.frames.append(frame)

    def _switch(self, step: _Step) -> None:
        """Go to the tab, or the frame, of a step; the key that shows a tab is an action, where no click has opened it
        just now."""
        page, self._root = self._main, None
        if self._begun and step.target != "main":
            self._root = self._frame_at(step.target, self._wait_ms(step))
            page = self._root.page
        pages = self._main.context.pages
        if page not in pages:
            raise _Stopped("its tab is closed")
        if page is not self._page and page in self._shown:
            key = ("ctrl", str(pages.index(page) + 1))
            self._do(Hotkey(key), f"show the tab at {page.url}", page.bring_to_front)
        self._page = page
        self._shown.append(page)

    def _frame_at(self, address: str, wait_ms: float) -> Any:
        """Wait for a tab at an address, or for a frame in one: a tab that a click opens may come later."""
        for waited in range(0, max(int(wait_ms), _TAB_MS) + 1, 100):
            frames = [frame for one in self._main.context.pages for frame in one.frames if frame.url == address]
            tabs = [frame for frame in frames if frame.parent_frame is None]
            if tabs or (frames and waited >= _TAB_MS):
                return (tabs or frames)[-1]
            self._main.context.pages[-1].wait_for_timeout(100)
        raise _Stopped(f"no tab or frame is at {address}")

    def _frame(self, step: _Step) -> Any:
        frame = self._root or self._page.main_frame
        for number in step.frame:
            until = self._wait_ms(step)
            while number >= len(frame.child_frames) and until > 0:
                self._page.wait_for_timeout(100)
                until -= 100
            if number >= len(frame.child_frames):
                raise _Stopped(f"the page has no frame {number}")
            frame = frame.child_frames[number]
        return frame

    def _wait_ms(self, step: _Step) -> float:
        return min(step.timeout or self._timeout_ms, _MOST_TIMEOUT_MS)

    def _find(self, step: _Step) -> tuple[Any, str]:
        """Find the element of a step; return also why it is not sure. A selector that one element matches counts."""
        from playwright.sync_api import Error

        chains = [[one] if isinstance(one, str) else one for one in step.selectors]
        until, several = self._wait_ms(step), None
        while True:
            frame = self._frame(step)
            for chain in chains:
                try:
                    found = frame.evaluate_handle(_FIND, chain).get_properties().values()
                except Error:  # a selector that this browser does not read, or a page that just goes
                    continue
                elements = [one.as_element() for one in found if one.as_element()]
                if len(elements) == 1:
                    return elements[0], ""
                several = elements if len(elements) > 1 else several
            if several:
                return several[0], f"{len(several)} elements match its selectors, and which was meant is not told"
            if until <= 0:
                raise _Stopped(f"no element matches {' or '.join(' > '.join(one) for one in chains[:3]) or 'it'}")
            self._page.wait_for_timeout(100)
            until -= 100

    def _place(self, element: Any, step: _Step | None = None) -> tuple[float, float]:
        """Return where an element lies, or the step's own point on it, in pixels of the page."""
        element.scroll_into_view_if_needed()
        box = element.bounding_box()
        if box is None:
            raise _Stopped("its element is not shown")
        x, y = (step.offsetX, step.offsetY) if step else (None, None)
        if x is not None and y is not None and 0 <= x <= box["width"] and 0 <= y <= box["height"]:
            return box["x"] + x, box["y"] + y
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def _share(self, x: float, y: float) -> Point:
        size = self._page.viewport_size
        wide, high = size["width"], size["height"]
        return Point(min(max(x, 0), wide - 1) / wide, min(max(y, 0), high - 1) / high)


def _describe(step: _Step) -> str:
    """Say a step in words, without what was typed: it may be a secret."""
    first = step.selectors[0] if step.selectors else ""
    chain = first if isinstance(first, str) else " > ".join(first)
    return " ".join(filter(None, (step.type, chain, step.key, step.url)))
