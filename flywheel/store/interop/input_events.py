"""Turn raw input events of desktop recorders (buttons and keys that go down and up, wheels) into actions.

Modifiers are followed by their own going down and up, never by what was pressed shortly before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot

from flywheel.agent.actions import (
    Action,
    Click,
    Drag,
    Hotkey,
    LeftDouble,
    LeftTriple,
    ParseError,
    Point,
    RightSingle,
    Scroll,
    Type,
)

MODIFIERS = {
    **dict.fromkeys(("ctrl", "control", "ctrlleft", "ctrlright"), "ctrl"),
    **dict.fromkeys(("alt", "altleft", "altright", "option", "optionleft", "optionright"), "alt"),
    **dict.fromkeys(("shift", "shiftleft", "shiftright"), "shift"),
    **dict.fromkeys(("cmd", "command", "win", "windows", "winleft", "winright", "super", "meta"), "win"),
    "altgr": "altgr",
}  # names of the recorders, without spaces and underscores -> the grammar's, in the order of a shortcut
_ORDER = ("ctrl", "alt", "shift", "win")
_KEYS = {
    "esc": "escape",
    "return": "enter",
    "del": "delete",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "caps": "capslock",
    " ": "space",
}
_PAUSE_S = 2.0  # longest time between two keys of one text, or two turns of the wheel of one scroll
_DRAG_PX = 6.0  # farthest that the pointer moves during a click
_CLOSE_PX = 4.0  # farthest apart that the clicks of a double or triple click lie


@dataclass(frozen=True)
class RawEvent:
    """Hold one raw input event of a recorder.

    time_s: on the recorder's clock. kind: `down` and `up` of a mouse button, `press` and `release` of a key, `scroll`,
    or `pause` of the recording. x, y: the pointer, in the recorder's units. name: of the button or the key. text: what
    the key types, "" for nothing. dx, dy: of a scroll, right and up are positive. doubt: why what it types is not sure.
    """

    time_s: float
    kind: str
    x: float = 0.0
    y: float = 0.0
    name: str = ""
    text: str = ""
    dx: float = 0.0
    dy: float = 0.0
    doubt: str = ""


@dataclass(frozen=True)
class ReducedAction:
    """Hold an action made of raw events, and when it began.

    time_s: on the recorder's clock. action: a ParseError where it is none of the grammar. said: in words, what was
    done.
    """

    time_s: float
    action: Action | ParseError
    said: str


def reduce_events(
    events: Iterable[RawEvent], size: tuple[float, float], *, double_click_s: float = 0.5, macos: bool = False
) -> list[ReducedAction]:
    """Make actions of raw input events, so that each event is part of one action.

    events: by time, without moves of the mouse. size: width and height of the screen in the units of the points.
    double_click_s: longest time from click to click of a double click. macos: whether they are of macOS, where `cmd` is
    no Windows key, and recorders do not tell left from right in a scroll. What is no action of the grammar gives a
    ReducedAction with the reason: nothing that was pressed is left out. Returns them by time.
    """
    reducer = _Reducer(size, double_click_s, macos)
    for event in events:
        getattr(reducer, event.kind)(event)
    reducer.pause(None)
    return sorted(reducer.made, key=lambda one: one.time_s)


class _Reducer:
    def __init__(self, size: tuple[float, float], double_click_s: float, macos: bool) -> None:
        self.made: list[ReducedAction] = []
        self._size, self._double_click_s, self._macos = size, double_click_s, macos
        self._modifiers: dict[str, RawEvent | None] = {}  # held; None once something was done with it
        self._keys: set[str] = set()  # other keys that are down
        self._buttons: dict[str, tuple[RawEvent, tuple[str, ...]]] = {}
        self._text: list[RawEvent] = []
        self._scrolls: list[RawEvent] = []
        self._outside = False  # whether a point was not on the screen
        self._clicks: list[RawEvent] = []  # of the newest action, where that is one click or several

    def down(self, event: RawEvent) -> None:
        self._flush()
        if event.name in self._buttons:
            self._refuse(self._buttons.pop(event.name)[0], f"the {event.name} button goes down twice")
        self._buttons[event.name] = (event, self._use())

    def up(self, event: RawEvent) -> None:
        if event.name not in self._buttons:
            self._refuse(event, f"the {event.name} button goes up, and was not down")
            return
        began, held = self._buttons.pop(event.name)
        drag = hypot(event.x - began.x, event.y - began.y) > _DRAG_PX
        said = f"{event.name} {'drag' if drag else 'click'} at ({began.x:g}, {began.y:g})"
        last = self._clicks[-1:] if not drag and self._made_of_clicks else []
        self._flush()
        if held:
            self._refuse(began, f"{said} with {self._list(held)} held down")
        elif drag:
            start, end = self._point(began), self._point(event)
            points = next((one for one in (start, end) if isinstance(one, ParseError)), None)
            action = ParseError(f"a drag with the {event.name} button") if event.name != "left" else points
            self._add(began.time_s, action or Drag(start, end), said)
        else:
            self._click(began, said, last)

    def _click(self, event: RawEvent, said: str, last: list[RawEvent]) -> None:
        point = self._point(event)
        again = bool(
            last
            and event.name == last[0].name == "left"
            and event.time_s - last[0].time_s <= self._double_click_s
            and hypot(event.x - last[0].x, event.y - last[0].y) <= _CLOSE_PX
        )
        clicks = [*self._clicks, event] if again else [event]
        kinds = {("left", 1): Click, ("left", 2): LeftDouble, ("left", 3): LeftTriple, ("right", 1): RightSingle}
        kind = kinds.get((event.name, len(clicks)))
        if isinstance(point, ParseError):
            action = point
        elif kind is None:
            action = ParseError(f"{len(clicks)} clicks" if again else f"a click of the {event.name} button")
        else:
            action = kind(point)
        if again:
            self.made.pop()
        self._add(clicks[0].time_s, action, f"{len(clicks)} times {said}" if again else said)
        self._clicks = clicks

    @property
    def _made_of_clicks(self) -> bool:
        return bool(self._clicks) and not (self._text or self._scrolls)

    def scroll(self, event: RawEvent) -> None:
        if not (event.dx or event.dy):
            return
        held = self._use()
        last = self._scrolls[-1] if self._scrolls else None
        if last and (event.time_s - last.time_s > _PAUSE_S or _direction(last) != _direction(event)):
            self._flush()
        if held or (event.dx and (event.dy or self._macos)):
            self._flush()
            why = "in two directions at once" if event.dy else "sideways, which way is not told on macOS"
            self._refuse(event, f"a scroll {f'with {self._list(held)} held down' if held else why}")
            return
        if not self._scrolls:
            self._flush()
        self._scrolls.append(event)

    def press(self, event: RawEvent) -> None:
        key = _key_name(event.name)
        modifier = MODIFIERS.get(key)
        if modifier:
            self._modifiers.setdefault(modifier, event)
            return
        held = self._use()
        types = event.text if len(event.text) == 1 and event.text.isprintable() else ""
        if types and ("altgr" in held or not set(held) - {"shift"}):
            if self._text and event.time_s - self._text[-1].time_s > _PAUSE_S:
                self._flush()
            if not self._text:
                self._flush()
            self._text.append(event)
            return
        if key == "enter" and not held and self._text and event.time_s - self._text[-1].time_s <= _PAUSE_S:
            self._text.append(RawEvent(event.time_s, "press", text="\n"))
            self._flush()
            self._keys.add(key)
            return
        self._flush()
        keys = (*(self._spell(one) for one in held), key)
        repeats = key in self._keys and bool(self.made) and self.made[-1].said.startswith(" + ".join(keys))
        self._keys.add(key)
        if repeats:
            self.made[-1] = ReducedAction(
                self.made[-1].time_s, ParseError(f"{key} is held down"), f"{' + '.join(keys)} held down"
            )
        elif not key:
            self._refuse(event, "a key without a name")
        elif len(keys) > 3:
            self._refuse(event, f"{' + '.join(keys)}: {len(keys)} keys together")
        else:
            self._add(event.time_s, Hotkey(keys), " + ".join(keys))

    def release(self, event: RawEvent) -> None:
        key = _key_name(event.name)
        modifier = MODIFIERS.get(key)
        if modifier is None:
            self._keys.discard(key)
            return
        alone = self._modifiers.pop(modifier, None)
        if alone is not None:
            self._flush()
            self._add(alone.time_s, Hotkey((self._spell(modifier),)), self._spell(modifier))

    def pause(self, event: RawEvent | None) -> None:
        """End what has begun: the recording stops here. event: the pause; None at the end."""
        self._flush()
        for began, _ in self._buttons.values():
            self._refuse(began, f"the {began.name} button goes down, and never up")
        for name, began in self._modifiers.items():
            if began is not None:
                self._refuse(began, f"{self._spell(name)} goes down, and never up")
        self._buttons, self._modifiers, self._keys = {}, {}, set()

    def _use(self) -> tuple[str, ...]:
        """Return the modifiers that are held, and note that something is done with them."""
        self._modifiers = dict.fromkeys(self._modifiers)
        return tuple(sorted(self._modifiers, key=lambda one: _ORDER.index(one) if one in _ORDER else -1))

    def _spell(self, modifier: str) -> str:
        return "cmd" if modifier == "win" and self._macos else modifier

    def _list(self, modifiers: tuple[str, ...]) -> str:
        return " and ".join(map(self._spell, modifiers))

    def _point(self, event: RawEvent) -> Point | ParseError:
        x, y = event.x / self._size[0], event.y / self._size[1]
        if 0 <= x < 1 and 0 <= y < 1:
            what = "a point before it was not on the screen, whose size may have changed"
            return ParseError(what) if self._outside else Point(x, y)
        self._outside = True
        size = " x ".join(f"{side:g}" for side in self._size)
        return ParseError(f"its point ({event.x:g}, {event.y:g}) is not on the screen of {size}")

    def _flush(self) -> None:
        text, scrolls = self._text, self._scrolls
        self._text, self._scrolls = [], []
        if text:
            typed = "".join(one.text for one in text)
            doubt = next((one.doubt for one in text if one.doubt), "")
            self._add(text[0].time_s, ParseError(doubt) if doubt else Type(typed), f"type {typed!r}")
        if scrolls:
            point, (direction,) = self._point(scrolls[0]), _direction(scrolls[0])
            action = point if isinstance(point, ParseError) else Scroll(point, direction)
            self._add(scrolls[0].time_s, action, f"scroll {direction} {len(scrolls)} times")

    def _add(self, time_s: float, action: Action | ParseError, said: str) -> None:
        self._clicks = []
        self.made.append(ReducedAction(time_s, action, said))

    def _refuse(self, event: RawEvent, why: str) -> None:
        self._add(event.time_s, ParseError(why), why)


def _direction(event: RawEvent) -> tuple[str, ...]:
    across = () if not event.dx else ("right",) if event.dx > 0 else ("left",)
    return (*across, *(() if not event.dy else ("up",) if event.dy > 0 else ("down",)))


def _key_name(name: str) -> str:
    plain = name.lower()
    if len(plain) == 1 and 0 < ord(plain) <= 26:  # what Windows makes of a letter with Ctrl
        plain = chr(ord(plain) + 96)
    elif len(plain) > 1:
        plain = plain.removesuffix("_l").removesuffix("_r").replace("_", "").replace(" ", "")
    return _KEYS.get(plain, plain)
