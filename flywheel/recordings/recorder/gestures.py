"""Turn raw input of pointer and keyboard into a session's events: clicks, drags, scrolls, keys and typed text.

Raw input comes as the device gave it, whatever application took it, so a key that none takes changes nothing of what
follows. Text is what the keyboard's layout and compose sequences make of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from flywheel.recordings.session import InputEvent

DOUBLE_S = 0.4  # between two presses of one double click
NEAR_PX = 6  # that a pointer may move within a click
SCROLL_S = 0.6  # between two notches of one scroll
HIDDEN_TEXT = "[hidden]"  # in place of all that was typed into a password field
_BUTTON_KINDS = {1: "click", 3: "right"}
_WHEEL = {4: "up", 5: "down", 6: "left", 7: "right"}
_COUNTED = {1: "click", 2: "double", 3: "triple"}
_MOST_HELD = 2  # modifiers of a hotkey: `session.events_to_actions` takes three keys
MODIFIERS = ("Control", "Alt", "Meta", "Shift")


@dataclass(frozen=True)
class RawInput:
    """Hold one input of a device.

    time_s: on the recorder's clock. kind: what it did; `navigate` and `back` are done in a browser's bar, and `page`
    says that another page is shown, so that no gesture goes on over it. x, y: the pointer, in pixels. button: 1 left, 2
    middle, 3 right, 4 to 7 the wheel up, down, left, right. key: name as in KeyboardEvent.key, such as `a`, `Enter`,
    `Control`. text: what the key types with the modifiers that are held, after compose sequences, or the address that
    is navigated to; "" for nothing. held: modifiers that are held, in the order of `MODIFIERS`. screen: number of the
    screen shown just before, of an input that begins an action; None for others. late: for how many seconds something
    else may have been shown by then; below 0, the screen was read so much later. label: of the element under the
    pointer; "" where it is not known.
    """

    time_s: float
    kind: Literal["press", "release", "motion", "key_down", "key_up", "navigate", "back", "page"]
    x: int = 0
    y: int = 0
    button: int = 0
    key: str = ""
    text: str = ""
    held: tuple[str, ...] = ()
    screen: int | None = None
    late: float = 0.0
    label: str = ""


class GestureReader:
    """Turn raw input into a session's events, each of which comes out once no more input can belong to it.

    width, height: of the screen, in pixels. dropped: counts input that no event can hold, by its name in words.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.dropped: dict[str, int] = {}
        self._down: RawInput | None = None  # a button that is held
        self._clicks: tuple[RawInput, int] | None = None  # the first press of clicks that more may follow, their number
        self._last_press = 0.0
        self._scroll: tuple[InputEvent, float] | None = None  # and the time of its last notch
        self._typed: InputEvent | None = None
        self._latest = 0.0  # time of the last event that came out
        self._lone: str = ""  # a modifier that is held, and nothing was pressed with it

    def feed(self, one: RawInput) -> Iterator[InputEvent]:
        """Take one raw input; yield the events that are complete by now, in order.

        Where a key was pressed while a button was held, the key comes first, and the button's event has its time.
        """
        for event in self._feed(one):
            self._latest = max(self._latest, event.time_s)
            yield replace(event, time_s=self._latest)

    def flush(self) -> Iterator[InputEvent]:
        """Yield the events that still waited for more input, at the end."""
        for event in self._flush():
            self._latest = max(self._latest, event.time_s)
            yield replace(event, time_s=self._latest)

    def _feed(self, one: RawInput) -> Iterator[InputEvent]:
        match one.kind:
            case "press" if one.button in _WHEEL:
                yield from self._turn(one)
            case "press":
                yield from self._press(one)
            case "release" if one.button not in _WHEEL:
                yield from self._release(one)
            case "key_down":
                yield from self._key_down(one)
            case "page":
                yield from self._flush()
            case "navigate" | "back":
                yield from self._flush()
                yield self._event(one, one.kind, text=one.text)
            case "key_up" if self._lone and one.key == self._lone:
                self._lone = ""
                yield from self._flush()
                yield self._event(one, "key", key=one.key.lower())

    def _flush(self) -> Iterator[InputEvent]:
        if self._clicks:
            (first, count), self._clicks = self._clicks, None
            yield self._at(first, _COUNTED[count], text=first.label)
        if self._scroll:
            (event, _), self._scroll = self._scroll, None
            yield event
        if self._typed:
            event, self._typed = self._typed, None
            yield event

    # -- pointer -------------------------------------------------------------------------------------------------
    def _press(self, one: RawInput) -> Iterator[InputEvent]:
        self._lone = ""
        if one.button not in _BUTTON_KINDS:
            self._drop(f"button {one.button}")
            return
        more = self._clicks and one.button == 1 and self._follows(self._clicks[0], one) and self._clicks[1] < 3
        if not more:
            yield from self._flush()
        self._down, self._last_press = one, one.time_s

    def _release(self, one: RawInput) -> Iterator[InputEvent]:
        down = self._down
        if down is None or down.button != one.button:
            return
        self._down = None
        if _far(down, one):
            yield from self._flush()
            if down.button == 1:
                yield self._at(down, "drag", text=down.label)
                yield self._at(replace(one, screen=None), "drop")
            else:
                self._drop("drag of another button")
        elif down.button == 3:
            yield from self._flush()
            yield self._at(down, "right", text=down.label)
        else:
            first, count = self._clicks or (down, 0)
            self._clicks = (first, count + 1)

    def _follows(self, first: RawInput, one: RawInput) -> bool:
        return one.time_s - self._last_press <= DOUBLE_S and not _far(first, one)

    def _turn(self, one: RawInput) -> Iterator[InputEvent]:
        direction = _WHEEL[one.button]
        if self._scroll and self._scroll[0].text == direction and one.time_s - self._scroll[1] <= SCROLL_S:
            self._scroll = (self._scroll[0], one.time_s)  # one turn of the wheel has many notches
            return
        yield from self._flush()
        self._scroll = (self._at(one, "scroll", text=direction), one.time_s)

    # -- keys ----------------------------------------------------------------------------------------------------
    def _key_down(self, one: RawInput) -> Iterator[InputEvent]:
        if one.key in MODIFIERS:
            self._lone = one.key if one.key == "Meta" and not one.held else ""
            return
        self._lone = ""
        if not one.key and not one.text:
            return  # a dead key, whose text comes with the next one
        commands = [name for name in one.held if name != "Shift"]
        if one.text and not commands and one.text >= " ":
            yield from self._type(one, one.text)
        elif one.key == "Backspace" and not one.held and self._typed and self._typed.text not in ("", HIDDEN_TEXT):
            shorter = replace(self._typed, text=self._typed.text[:-1])
            self._typed = shorter if shorter.text else None
        else:
            submits = one.key == "Enter" and not one.held and self._typed is not None
            held = [name for name in one.held if name != "Shift" or not one.text or commands]
            yield from self._flush()
            if len(held) > _MOST_HELD:
                self._drop("more than three keys at once")
                return
            key = " ".join([*(name.lower() for name in held), one.key.lower() if len(one.key) > 1 else one.key])
            event = self._event(one, "key", key=key.replace("control", "ctrl"))
            yield replace(event, screen=None, key="Enter") if submits else event

    def _type(self, one: RawInput, text: str) -> Iterator[InputEvent]:
        if self._typed is not None and (self._typed.text == HIDDEN_TEXT) == (text == HIDDEN_TEXT):
            if text != HIDDEN_TEXT:
                self._typed = replace(self._typed, text=self._typed.text + text)
            return
        yield from self._flush()
        self._typed = self._event(one, "type", text=text)

    # -- events --------------------------------------------------------------------------------------------------
    def _at(self, one: RawInput, kind: str, text: str = "") -> InputEvent:
        x, y = (min(max(at, 0), size - 1) / size for at, size in ((one.x, self.width), (one.y, self.height)))
        return replace(self._event(one, kind, text=text), x=round(x, 5), y=round(y, 5))

    def _event(self, one: RawInput, kind: str, *, key: str = "", text: str = "") -> InputEvent:
        return InputEvent(round(one.time_s, 4), kind, key=key, text=text, screen=one.screen)

    def _drop(self, what: str) -> None:
        self.dropped[what] = self.dropped.get(what, 0) + 1


def _far(one: RawInput, other: RawInput) -> bool:
    return abs(one.x - other.x) > NEAR_PX or abs(one.y - other.y) > NEAR_PX
